"""From iter() to close(): iterations that are abandoned, shared, nested, dropped; batches that outlive them."""

import contextlib
import copy
import gc
import os
import pickle
import threading
import weakref

import numpy as np
import pytest

import slipring
from slipring import Loader, Memory, Workers
from slipring.errors import Closed
from tests.support.datasets import Made, Shard, Squares, Waiting, Where, batches_of, numbers, wait_for_file
from tests.support.inside import thread_pool
from tests.support.kinds import KINDS, kinds, loaded, loading
from tests.support.leaks import read, started_by_us

WORKERS = ["inline", "fork", "thread"]


def test_persistent_workers_stay_and_others_do_not():
    def processes(loader):
        return {process for batch in loader for process in batch[2].tolist()}

    with Loader(Where(40), 1, num_workers=2) as loader:
        processes(loader)
        started = started_by_us()
        assert len(started) == 2
        assert processes(loader) <= started and started_by_us() == started
    with Loader(Where(40), 1, num_workers=2, persistent_workers=False) as loader:
        first = processes(loader)
        assert started_by_us() == set()
        assert not processes(loader) & first


@pytest.mark.parametrize(
    ("kind", "persistent"),
    [("inline", True), ("fork", True), ("fork", False), ("thread", False)],
)
def test_after_a_break_the_next_epoch_is_whole(kind, persistent):
    with loading(Squares(40), 2, **KINDS[kind], persistent_workers=persistent) as loader:
        for taken in (1, 2, 5, 19, 20):
            for k, _ in enumerate(loader, 1):
                if k == taken:
                    break
        iter(loader)  # it ends before its first next()
        assert numbers(loader) == batches_of(40, 2)


@pytest.mark.parametrize("start_method", ["fork", "thread"])
def test_workers_begin_with_the_iterator_not_with_the_first_next(tmp_path, start_method):
    with Loader(marking(tmp_path), 2, num_workers=2, workers=Workers(start_method=start_method)) as loader:
        iterator = iter(loader)
        for i in range(2 * 2 * 2):  # batches of 2, 2 ahead for each of 2 workers
            wait_for_file(tmp_path / str(i))
        assert len(os.listdir(tmp_path)) == 8
        assert [batch.tolist() for batch in iterator] == batches_of(40, 2)


def test_without_workers_nothing_is_read_before_it_is_asked_for(tmp_path):
    with Loader(marking(tmp_path), 2) as loader:
        iterator = iter(loader)
        assert os.listdir(tmp_path) == []
        next(iterator)
        assert sorted(os.listdir(tmp_path)) == ["0", "1"]


def marking(path):
    """Return a dataset that creates a file for each sample that is read."""
    return Made(lambda i: (path / str(i)).touch() or i, 40)


def test_a_new_epoch_waits_for_slots_that_workers_are_still_at(tmp_path):
    """All slots belong to workers that make batches of an abandoned iteration."""
    dataset = AlwaysWaiting(tmp_path / "gate", n=8)
    with Loader(dataset, 1, num_workers=2, memory=Memory(slots=2)) as loader:
        first = iter(loader)
        thread = threading.Thread(target=ask_until_closed, args=(first,))
        thread.start()
        wait_for_file(f"{dataset.gate}.0")
        wait_for_file(f"{dataset.gate}.1")
        first.close()
        thread.join()
        second = iter(loader)
        threading.Timer(0.2, (tmp_path / "gate").touch).start()
        assert numbers(second) == batches_of(8, 1)


def ask_until_closed(iterator):
    with contextlib.suppress(Closed, StopIteration):
        next(iterator)


class AlwaysWaiting(Waiting):
    """Reports its sample, then waits."""

    def __getitem__(self, i):
        with open(f"{self.gate}.{i}", "w"):
            wait_for_file(self.gate)
        return Squares.__getitem__(self, i)


@kinds(*WORKERS, "spawn")
def test_two_iterators_at_once_are_both_complete(kind):
    with loading(Squares(30), 4, **kind) as loader:
        pairs = list(zip(loader, loader, strict=True))
        assert numbers(a for a, _ in pairs) == batches_of(30, 4) == numbers(b for _, b in pairs)
        assert numbers(loader) == batches_of(30, 4)


def test_the_workers_of_a_second_iterator_go_with_it():
    with Loader(Squares(40), 2, num_workers=2) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        next(second)
        assert len(started_by_us()) == 4
        del second
        assert len(started_by_us()) == 2
        assert len(numbers(first)) == 19


@pytest.mark.usefixtures("forked")
def test_a_loader_inside_a_dataset_has_slots_and_generators_of_its_own():
    def sample(i):
        out = slipring.empty(2)
        out[0] = slipring.rng().random()
        total = sum(int(batch.sum()) for batch in Loader(Shard(10), 3, seed=i))
        out[1] = slipring.rng().random()
        return total, out

    def alone(i):
        return sum(range(10)), np.array([slipring.rng().random(), slipring.rng().random()])

    want = [[part.tolist() for part in batch] for batch in loaded(Made(alone, 6), 2, seed=1)]
    for num_workers in (0, 1):
        found = loaded(Made(sample, 6), 2, seed=1, num_workers=num_workers)
        assert [[part.tolist() for part in batch] for batch in found] == want


def test_a_thread_worker_that_does_not_end_is_left_alone(tmp_path, monkeypatch):
    """The next iteration has new threads: one that is stuck in the dataset does not return to it."""
    monkeypatch.setattr(thread_pool, "GRACE_S", 0.05)
    gate = tmp_path / "gate"
    before = set(threading.enumerate())  # other tests may have left threads
    with loading(AlwaysWaiting(gate, n=4), 2, num_workers=1, start_method="thread", persistent_workers=False) as loader:
        for _ in range(3):
            iterator = iter(loader)
            thread = threading.Thread(target=ask_until_closed, args=(iterator,))
            thread.start()
            wait_for_file(f"{gate}.0")
            os.remove(f"{gate}.0")
            iterator.close()
            thread.join()
        stuck = [t for t in set(threading.enumerate()) - before if t.name == "slipring-worker-0"]
        assert len(stuck) == 3
        gate.touch()
        assert numbers(loader) == batches_of(4, 2)
        for thread in stuck:
            thread.join()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_copy_of_a_loader_continues_with_its_next_epoch(num_workers):
    with Loader(Squares(20), 4, shuffle=True, seed=3, num_workers=num_workers) as loader:
        first = numbers(loader)
        copies = [pickle.loads(pickle.dumps(loader)), copy.copy(loader)]
        second = numbers(loader)
        for other in copies:
            assert numbers(other) == second != first
            assert other.stats().batches == 5 and repr(other) == repr(loader)
            other.close()
        assert numbers(loader) not in (first, second)


@kinds(*WORKERS)
def test_a_loader_that_is_dropped_takes_its_workers_with_it(kind):
    loader = loading(Squares(30), 4, **kind)
    next(iter(loader))
    iterator = iter(loader)
    next(iterator)
    gone, threads = weakref.ref(loader), threading.active_count()
    gc.disable()
    try:
        del iterator, loader
        assert gone() is None and started_by_us() == set(), "no cycle keeps a loader"
        assert threading.active_count() == threads - (2 if kind.get("start_method") == "thread" else 0)
    finally:
        gc.enable()


def test_a_loader_in_a_cycle_is_collected_with_its_workers():
    loader = Loader(Squares(30), 4, num_workers=2, workers=Workers(start_method="fork"))
    loader.iterators = [iter(loader)]
    loader.iterators.append(next(loader.iterators[0]))
    del loader
    gc.collect()
    assert started_by_us() == set()


def test_a_closed_loader_keeps_no_shared_memory():
    def mappings():
        return {line for line in read("/proc/self/maps").splitlines() if b" rw-s " in line}

    before = mappings()
    loader = Loader(Squares(100), 4, num_workers=2)
    assert len(numbers(loader)) == 25 and mappings() - before
    loader.close()
    assert mappings() - before == set()


def test_an_iterator_keeps_its_loader():
    iterator = iter(Loader(Squares(30), 4, num_workers=1))
    gc.collect()
    assert numbers(iterator) == batches_of(30, 4)
