"""torch's own DataLoader with its own workers, which send their batches through the ring."""

import errno
import logging
import multiprocessing
import os
import signal
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info  # noqa: E402

from slipring.torch import RingCollate, ring_collate  # noqa: E402
from tests.support.inside import queue_of  # noqa: E402
from tests.support.parts import slow  # noqa: E402
from tests.support.processes import LONG_S, until  # noqa: E402
from tests.support.torch_datasets import assert_same  # noqa: E402


class Pictures(Dataset):
    def __init__(self, n=40, fails=None, kills=None):
        self.n, self.fails, self.kills = n, fails, kills

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i == self.fails:
            raise KeyError(i)
        if i == self.kills and not os.path.exists(self.kills_once):
            open(self.kills_once, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"image": torch.full((3, 8, 8), i), "label": i, "name": f"nr. {i}", "row": np.full(4, i / 2)}


class Forking(Pictures):
    """Starts a process for each sample."""

    def __getitem__(self, i):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return super().__getitem__(i)


class Shards(IterableDataset):
    """Worker 0 has the numbers below 20, the other one those from 100 to 105."""

    def __iter__(self):
        return iter(range(20) if get_worker_info().id == 0 else range(100, 106))


def of_torch(dataset, collate_fn=None, **options):
    """Return torch's loader from its own module, in a process where slipring may be installed."""
    return DataLoader(dataset, 4, collate_fn=collate_fn, **{"num_workers": 2, **options})


def labels(loader):
    return [batch["label"].tolist() for batch in loader]


WHOLE = [list(range(first, first + 4)) for first in range(0, 40, 4)]
KINDS = [{}, {"persistent_workers": True}, {"num_workers": 0}, {"num_workers": 1, "prefetch_factor": 4}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_batches_are_torchs(kind):
    ours = of_torch(Pictures(), RingCollate(), **kind)
    for _ in range(2):
        assert_same(list(ours), list(of_torch(Pictures(), **kind)))


def test_tensors_lie_in_the_slots_and_nothing_is_pickled():
    collate = RingCollate()
    batches = iter(of_torch(Pictures(), collate))
    address = next(batches)["image"].data_ptr()
    with open("/proc/self/maps") as maps:
        spans = [line.split() for line in maps if "shm" in line or "memfd" in line]
    assert any(int(first, 16) <= address < int(last, 16) for first, last in (span[0].split("-") for span in spans))
    list(batches)
    assert queue_of(collate).stats().got == 10 and queue_of(collate).stats().pickled_leaves == 0


@pytest.mark.parametrize(("persistent", "kept"), [(False, True), (True, False)])
def test_loops_that_end_early_leave_no_batch(persistent, kept):
    collate = RingCollate(slots=3)
    loader = of_torch(Pictures(), collate, persistent_workers=persistent)
    keeps = []
    for _ in range(8):
        batches = iter(loader)
        first = next(batches)
        assert first["label"].tolist() == WHOLE[0]
        if kept:
            keeps.append(first)
        del batches, first
    assert labels(loader) == WHOLE
    assert all((batch["image"][:, 0, 0, 0].tolist() == WHOLE[0]) for batch in keeps)
    assert not kept or queue_of(collate).stats().copied > 0
    collate.forget()
    assert not collate._early


class LogTo:
    """A worker_init_fn that writes slipring's log to a file."""

    def __init__(self, path):
        self.path = path

    def __call__(self, number):
        logging.getLogger("slipring").addHandler(logging.FileHandler(self.path))


def test_two_loops_at_once_are_whole_with_too_few_slots_and_the_log_names_the_argument(tmp_path):
    log = tmp_path / "log"
    kind = {"prefetch_factor": 4, "timeout": 60, "worker_init_fn": LogTo(log)}
    loader = of_torch(Pictures(), RingCollate(slots=3), **kind)
    for want, one, other in zip(WHOLE, loader, loader, strict=True):
        assert one["label"].tolist() == other["label"].tolist() == want
        assert (other["image"][:, 0, 0, 0] == other["label"]).all()
    lines = log.read_text().splitlines()
    assert 1 <= len(lines) <= 4  # once per worker
    assert all("none of RingCollate's 3 slots" in line and "Raise slots=" in line for line in lines)


def wait_until_full(collate):
    until(queue_of(collate).full, "the queue is full")


def in_a_child(function, *args, method="fork"):
    """Run a function in a child process; return its exit code, None if it does not end."""
    process = multiprocessing.get_context(method).Process(target=function, args=args)
    process.start()
    process.join(LONG_S)
    process.kill()
    code = process.exitcode
    process.join()
    return code


def test_a_forked_child_may_iterate_while_its_parent_does():
    collate = RingCollate(slots=4)
    loader = of_torch(Pictures(), collate, prefetch_factor=4)
    batches = iter(loader)
    wait_until_full(collate)
    assert in_a_child(check_labels, loader) == 0
    assert [batch["label"].tolist() for batch in batches] == WHOLE


def has_no_slots(loader, monkeypatch):
    def refused(*size):
        raise OSError(errno.EMFILE, "no descriptor is left")

    monkeypatch.setattr(ring_collate, "Queue", refused)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_labels(loader)


def test_without_slots_batches_go_torchs_own_way(monkeypatch):
    loader = of_torch(Pictures(), RingCollate(slots=4))
    assert in_a_child(has_no_slots, loader, monkeypatch) == 0


def test_a_streams_workers_end_one_after_another():
    batches = list(of_torch(Shards(), RingCollate()))
    assert sorted(torch.cat(batches).tolist()) == [*range(20), *range(100, 106)]


def test_an_exception_comes_at_its_turn():
    batches = iter(of_torch(Pictures(fails=13), RingCollate()))
    assert [next(batches)["label"].tolist() for _ in range(3)] == WHOLE[:3]
    with pytest.raises(KeyError):
        next(batches)
    assert [batch["label"].tolist() for batch in batches] == WHOLE[4:]


def test_a_killed_worker_is_torchs_error_and_the_next_loop_is_whole(tmp_path):
    dataset = Pictures(kills=17)
    dataset.kills_once = str(tmp_path / "killed")
    loader = of_torch(dataset, RingCollate(slots=3))
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        labels(loader)
    assert labels(loader) == WHOLE


def check_labels(loader):
    assert labels(loader) == labels(loader) == WHOLE


@pytest.mark.parametrize("method", ["fork", slow("spawn")])
def test_the_loop_may_run_in_another_process_than_the_loader_was_made_in(method):
    loader = of_torch(Pictures(), RingCollate(slots=4), multiprocessing_context="fork")
    assert in_a_child(check_labels, loader, method=method) == 0
    assert labels(loader) == WHOLE


def test_a_child_of_a_worker_takes_no_batches():
    loader = of_torch(Forking(), RingCollate(), multiprocessing_context="fork")
    assert labels(loader) == WHOLE
