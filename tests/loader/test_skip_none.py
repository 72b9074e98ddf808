"""skip_none=True leaves out samples that are None, for all readers and all ways of collation.

A batch of which no sample is left counts as delivered (the result kind EMPTY), but next() does not return it.
"""

import json
import os
import signal

import numpy as np
import pytest

import slipring
from slipring import Loader, Workers
from slipring.errors import BlockError
from tests.support.datasets import Made, Shard, share
from tests.support.inside import NO_SAMPLES, Fetcher
from tests.support.options import grouped
from tests.support.stateful import Walk

WORKERS = {
    "no workers": {"num_workers": 0},
    "processes": {"num_workers": 2},
    "processes, as completed": {"num_workers": 2, "in_order": False},
    "threads": {"num_workers": 2, "workers": Workers(start_method="thread")},
    "ranges": {"num_workers": 2, "workers": Workers(chunk_size=2)},
    "fetch threads": {"num_workers": 2, "workers": Workers(fetch_threads=3)},
}
EMPTY = range(4, 12), range(36, 40)  # whole batches
READABLE = [number for number in range(40) if number % 3 and not any(number in numbers for numbers in EMPTY)]


def sample(number):
    return {"number": number, "array": np.full(3, number), "name": str(number)} if number in READABLE else None


class Numbers(Made):
    def __init__(self):
        super().__init__(sample, 40)


class AtOnce(Numbers):
    def __getitems__(self, indices):
        return [sample(index) for index in indices]


class Coroutines(Numbers):
    async def __getitem__(self, index):
        return sample(index)


def bad(index):
    if index == 7:
        raise KeyError("seven")
    return sample(index)


class InOrder(Walk):
    """The same samples, half of them to each of two workers."""

    def items(self):
        return [sample(number) for number in share(40)]


def numbers_of(batches):
    """Return the numbers of each batch, after comparing its leaves."""
    found = []
    for batch in batches:
        numbers = [int(number) for number in batch["number"]]
        assert [int(row[0]) for row in batch["array"]] == numbers and batch["name"] == list(map(str, numbers))
        found.append(numbers)
    return found


def by_fours(numbers):
    """Return the numbers of each batch of four, without those that are left out."""
    batches = [[number for number in range(first, first + 4) if number in numbers] for first in range(0, 40, 4)]
    return [batch for batch in batches if batch]


@pytest.mark.parametrize(
    ("dataset", "kind"),
    [(Numbers, kind) for kind in WORKERS] + [(AtOnce, "processes"), (AtOnce, "no workers"), (Coroutines, "ranges")],
)
def test_a_batch_has_the_samples_that_are_left_and_none_is_empty(kind, dataset):
    with Loader(dataset(), 4, skip_none=True, **WORKERS[kind]) as loader:
        for _ in range(2):
            found = numbers_of(loader)
            assert (sorted(found) if "completed" in kind else found) == by_fours(READABLE)
        assert loader.stats().batches == 2 * len(by_fours(READABLE))
        if kind != "no workers":
            assert loader.report().dict()["batches"] == 2 * len(by_fours(READABLE))


@pytest.mark.parametrize("kind", ["processes", "ranges", "fetch threads"])
def test_collate_fn_gets_the_samples_that_are_left(kind):
    with Loader(Numbers(), 4, collate_fn=len, skip_none=True, **WORKERS[kind]) as loader:
        assert list(loader) == [len(batch) for batch in by_fours(READABLE)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_batches_none_is_left_out_too(num_workers):
    options = {"skip_none": True, "num_workers": num_workers}
    with Loader(Numbers(), None, **options) as loader:
        assert [batch["number"] for batch in loader] == READABLE
    with Loader(Numbers(), None, collate_fn=lambda found: found["number"], **options) as loader:
        assert list(loader) == READABLE


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_of_an_iterable_dataset_is_filled_with_the_samples_that_follow(num_workers):
    with Loader(InOrder(), 4, skip_none=True, num_workers=num_workers) as loader:
        found = numbers_of(loader)
    assert sorted(number for batch in found for number in batch) == READABLE
    assert sum(len(batch) < 4 for batch in found) <= max(1, num_workers)  # the last one of each worker


@pytest.mark.parametrize(("num_workers", "dataset"), [(0, InOrder), (2, InOrder), (0, Numbers), (2, Numbers)])
def test_a_resumed_loader_delivers_the_rest(num_workers, dataset):
    options = {"skip_none": True, "num_workers": num_workers}
    with Loader(dataset(), 4, **options) as loader:
        whole = numbers_of(loader)
    for delivered in (0, 5, len(whole)):
        with Loader(dataset(), 4, **options) as loader:
            batches = iter(loader)
            before = numbers_of(next(batches) for _ in range(delivered))
            state = json.loads(json.dumps(loader.state_dict()))
        with Loader(dataset(), 4, **options) as loader:
            loader.load_state_dict(state)
            assert before == whole[:delivered]
            assert numbers_of(loader) == (whole[delivered:] or whole)  # after the last one comes the next epoch


@pytest.mark.parametrize("kind", ["processes", "ranges", "fetch threads"])
def test_an_error_names_the_sample_although_samples_before_it_are_left_out(kind):
    with (
        Loader(Made(bad, 40), 4, skip_none=True, **WORKERS[kind]) as loader,
        pytest.raises(KeyError, match="seven") as caught,
    ):
        list(loader)
    assert caught.value.__cause__.index == 7


def test_without_the_option_none_is_a_sample():
    with Loader([None, None], 2) as loader:
        assert list(loader) == [None]
    with Loader(Numbers(), 4) as loader, pytest.raises((TypeError, ValueError)):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_leaves_out_blocks_that_are_none_and_else_names_them(num_workers):
    def blocks():
        yield None
        yield {"x": np.arange(3)}
        yield None
        yield {"x": np.arange(3, 8)}

    with slipring.stream(blocks(), 4, num_workers=num_workers, skip_none=True) as loader:
        assert [batch["x"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with slipring.stream(blocks(), 4, num_workers=num_workers) as loader:
        batches = iter(loader)
        with pytest.raises(BlockError, match=r"block 0 .*came None"):
            next(batches)
        with pytest.raises(BlockError, match=r"block 2 .*came None"):
            next(batches)
        assert [batch["x"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_worker_that_dies_near_empty_batches_loses_none(tmp_path):
    def dies(number):
        mark = tmp_path / str(number)
        if number in (5, 8, 20, 39) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample(number)

    workers = Workers(on_death="respawn", start_method="fork")
    with Loader(Made(dies, 40), 4, skip_none=True, num_workers=2, workers=workers) as loader:
        assert numbers_of(loader) == by_fours(READABLE)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_fetcher_may_leave_out_a_batch_of_a_stream_too(num_workers, monkeypatch):
    """`skip_none` fills a stream's batch with the samples that follow, so the test replaces the collation."""
    collate = Fetcher.collate

    def collated(self, *args):
        batch = collate(self, *args)
        return NO_SAMPLES if int(batch[0]) in (2, 4, 10, 18) else batch

    monkeypatch.setattr(Fetcher, "collate", collated)
    with Loader(Shard(20), 2, num_workers=num_workers, workers=Workers(start_method="fork")) as loader:
        assert [int(batch[0]) for batch in loader] == [0, 6, 8, 12, 14, 16]


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"num_workers": 2, "rng": "batch"}, {"num_workers": 2, "preload": 2}], ids=str
)
def test_torchs_loader_leaves_them_out_too(options):
    pytest.importorskip("torch")
    from slipring.torch import DataLoader

    for dataset in (Numbers(), AtOnce()):
        with DataLoader(dataset, 4, skip_none=True, **grouped(**options)) as loader:
            assert numbers_of(loader) == by_fours(READABLE)
            assert loader.state_dict()["finished"]
