"""The result kind EMPTY: a batch of which no sample is left counts as delivered, but next() does not return it."""

import json
import os
import signal

import numpy as np
import pytest

import slipring
from slipring import Loader, Workers
from tests.support.inside import NO_SAMPLES, Fetcher

KINDS = {
    "inline": {"num_workers": 0},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "workers": Workers(start_method="thread")},
}
EMPTY = {1, 2, 5, 9}  # batches of two samples; 9 is the last one


class Numbers:
    """20 numbers, in batches of two."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index


class Mortal(Numbers):
    """Kills the process that first reads one of some samples."""

    def __init__(self, folder):
        self.folder = folder

    def __getitem__(self, index):
        if index in (3, 4, 10, 19):
            mark = self.folder / str(index)
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return index


class Stream:
    """The same numbers as a Stateful stream; each worker reads blocks of 2."""

    def __iter__(self):
        return Turns()


class Turns:
    def __init__(self):
        self.read = 0

    def __iter__(self):
        return self

    def __next__(self):
        info = slipring.get_worker_info()
        number, of = (0, 1) if info is None else (info.id, info.num_workers)
        index = (self.read // 2 * of + number) * 2 + self.read % 2
        if index >= 20:
            raise StopIteration
        self.read += 1
        return index

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


@pytest.fixture(autouse=True)
def leaves_out(monkeypatch):
    """Leave out all samples of the batches in `EMPTY`, in this process and in forked workers."""
    collate = Fetcher.collate

    def collated(self, rows):
        batch = collate(self, rows)
        array = getattr(batch, "array", batch)  # in a worker of torch's loader
        return NO_SAMPLES if int(array[0]) // 2 in EMPTY else batch

    monkeypatch.setattr(Fetcher, "collate", collated)


def firsts(batches):
    return [int(batch[0]) // 2 for batch in batches]


LEFT = [number for number in range(10) if number not in EMPTY]


@pytest.mark.parametrize("dataset", [Numbers, Stream])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_order", [True, False])
def test_batches_without_samples_are_passed_over(kind, in_order, dataset):
    with Loader(dataset(), 2, in_order=in_order, **KINDS[kind]) as loader:
        for _ in range(2):
            found = firsts(loader)
            assert sorted(found) == LEFT
            assert found == LEFT or not in_order
        assert loader.stats().batches == 2 * len(LEFT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_whose_ranges_are_all_left_out_is_passed_over(kind):
    options = {**KINDS[kind]}
    start = options.pop("workers", Workers())
    workers = Workers(start_method=start.start_method, chunk_size=1)
    with Loader(Numbers(), 2, collate_fn=np.array, workers=workers, **options) as loader:
        assert firsts(loader) == LEFT


@pytest.mark.parametrize("dataset", [Numbers, Stream])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_counts_a_batch_without_samples_as_delivered(kind, dataset):
    for delivered in range(len(LEFT) + 1):
        with Loader(dataset(), 2, **KINDS[kind]) as loader:
            batches = iter(loader)
            before = firsts(next(batches) for _ in range(delivered))
            state = json.loads(json.dumps(loader.state_dict()))
        with Loader(dataset(), 2, **KINDS[kind]) as loader:
            loader.load_state_dict(state)
            assert before + firsts(loader) == LEFT, delivered


def test_a_worker_that_dies_near_empty_batches_loses_none(tmp_path):
    with Loader(Mortal(tmp_path), 2, num_workers=2, workers=Workers(on_death="respawn")) as loader:
        assert firsts(loader) == LEFT


def test_the_flight_recorder_keeps_no_batch_without_samples():
    with Loader(Numbers(), 2, num_workers=2) as loader:
        assert len(firsts(loader)) == len(LEFT)
        report = loader.report().dict()
        assert report["batches"] == len(LEFT)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_loader_passes_them_over_too(num_workers):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader, Device

    with DataLoader(Numbers(), 2, num_workers=num_workers) as loader:
        found = list(loader)
        assert firsts(found) == LEFT and all(type(batch) is torch.Tensor for batch in found)
    with DataLoader(Numbers(), 2, num_workers=num_workers, device=Device("cpu", preload=2)) as loader:
        assert firsts(loader) == LEFT
        state = loader.state_dict()
        assert state["finished"]


def test_a_dataset_that_makes_its_batches_itself_may_leave_all_out(monkeypatch):
    class Whole(Numbers):
        def fetch_into(self, indices, empty):
            out = empty((len(indices),), np.int64)
            out[:] = indices
            return out

    with Loader(Whole(), 2, num_workers=2) as loader:
        assert firsts(loader) == LEFT
