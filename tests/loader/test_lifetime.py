"""From iter() to close(): iterations that are abandoned, shared, nested, dropped; batches that outlive them."""

import contextlib
import copy
import gc
import os
import pickle
import threading
import weakref

import pytest

import slipring
from slipring import Loader, Memory, Workers
from slipring.errors import Closed
from tests.support.datasets import Shard, Squares, Waiting, Where, batches_of, flat, leave_be, numbers, wait_for_file
from tests.support.inside import local_pool
from tests.support.kinds import kinds, loading
from tests.support.leaks import started_by_us

WORKERS = ["inline", "fork", "thread"]
EVERY_KIND = [*WORKERS, "spawn"]


# ---- epochs ----


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


@kinds(*WORKERS)
@pytest.mark.parametrize("persistent_workers", [True, False])
def test_after_a_break_the_next_epoch_is_whole(kind, persistent_workers):
    with loading(Squares(40), 2, **kind, persistent_workers=persistent_workers) as loader:
        for taken in (1, 2, 5, 19, 20):
            for k, _ in enumerate(loader, 1):
                if k == taken:
                    break
        assert numbers(loader) == batches_of(40, 2)


@pytest.mark.parametrize("start_method", ["fork", "thread"])
def test_workers_begin_with_the_iterator_not_with_the_first_next(tmp_path, start_method):
    with Loader(Marking(tmp_path), 2, num_workers=2, workers=Workers(start_method=start_method)) as loader:
        iterator = iter(loader)
        for i in range(2 * 2 * 2):  # batches of 2, 2 ahead for each of 2 workers
            wait_for_file(tmp_path / str(i))
        assert len(os.listdir(tmp_path)) == 8
        assert numbers(iterator) == batches_of(40, 2)


def test_without_workers_nothing_is_read_before_it_is_asked_for(tmp_path):
    with Loader(Marking(tmp_path), 2) as loader:
        iterator = iter(loader)
        assert os.listdir(tmp_path) == []
        next(iterator)
        assert sorted(os.listdir(tmp_path)) == ["0", "1"]


class Marking(Squares):
    """Creates a file for each sample that is read."""

    def __init__(self, path):
        super().__init__(40)
        self.path = path

    def __getitem__(self, i):
        (self.path / str(i)).touch()
        return super().__getitem__(i)


@pytest.mark.parametrize("in_order", [True, False])
def test_an_iteration_that_was_never_asked_leaves_nothing(in_order):
    with Loader(Squares(40), 2, num_workers=2, in_order=in_order) as loader:
        for _ in range(5):
            iter(loader)
        assert sorted(numbers(loader)) == batches_of(40, 2)


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


# ---- several iterators ----


@kinds(*EVERY_KIND)
def test_two_iterators_at_once_are_both_complete(kind):
    with loading(Squares(30), 4, **kind) as loader:
        pairs = list(zip(loader, loader, strict=True))
        assert numbers(a for a, _ in pairs) == batches_of(30, 4) == numbers(b for _, b in pairs)
        assert numbers(loader) == batches_of(30, 4)


@kinds(*WORKERS)
def test_loops_can_be_nested(kind):
    with loading(Squares(12), 4, **kind, shuffle=True, seed=3) as loader:
        outer = []
        for batch in loader:
            outer.append(batch)
            assert sorted(flat(numbers(loader))) == list(range(12))
        assert sorted(flat(numbers(outer))) == list(range(12))


def test_two_iterators_draw_as_two_epochs_do():
    def shuffled(both):
        with Loader(Squares(20), 20, shuffle=True, seed=1, num_workers=1) as loader:
            if both:
                first, second = iter(loader), iter(loader)
                return numbers(second), numbers(first)
            first = numbers(loader)
            return numbers(loader), first

    assert shuffled(True) == shuffled(False)


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


def test_a_loader_inside_a_dataset_has_slots_and_generators_of_its_own():
    with Loader(Nested(6), 2, seed=1) as loader, Loader(Nested(6), 2, seed=1, num_workers=1) as other:
        here, there = list(loader), list(other)
    assert [[x.tolist() for x in batch] for batch in here] == [[x.tolist() for x in batch] for batch in there]
    assert here[0][0].tolist() == [sum(range(10))] * 2


class Nested(Squares):
    """Each sample needs a whole iteration of another loader."""

    def __getitem__(self, i):

        before = slipring.rng().random()
        inner = Loader(Shard(10), 3, seed=i)
        total = sum(int(batch.sum()) for batch in inner)
        out = slipring.empty(2)
        out[:] = before, slipring.rng().random()
        return total, out


# ---- threads ----


def test_threads_can_each_have_an_iterator():
    got = []
    with Loader(Squares(60), 4, num_workers=2) as loader:
        threads = [threading.Thread(target=lambda: got.append(numbers(loader))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == [batches_of(60, 4)] * 4


@pytest.mark.parametrize("start_method", ["fork", "thread"])
@pytest.mark.parametrize("how", ["loader", "iterator"])
def test_close_ends_the_wait_of_another_thread(tmp_path, start_method, how):
    gate = tmp_path / "gate"
    dataset = Waiting(gate, at=2, n=4)
    outcome, there = [], threading.Event()

    def wait(iterator):
        next(iterator), next(iterator)
        there.set()
        try:
            next(iterator)
        except BaseException as error:
            outcome.append(error)

    with Loader(dataset, 1, num_workers=1, workers=Workers(start_method=start_method)) as loader:
        iterator = iter(loader)
        thread = threading.Thread(target=wait, args=(iterator,))
        thread.start()
        there.wait()
        closer = threading.Thread(target=iterator.close if how == "iterator" else loader.close)
        closer.start()
        thread.join()
        gate.touch()  # the worker finishes its batch before it ends
        closer.join()
    [error] = outcome
    assert isinstance(error, (Closed, StopIteration))


def test_a_thread_worker_that_does_not_end_is_left_alone(tmp_path, monkeypatch):
    """The next iteration has new threads: one that is stuck in the dataset does not return to it."""
    monkeypatch.setattr(local_pool, "GRACE_S", 0.05)
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


# ---- copies ----


@pytest.mark.parametrize("num_workers", [0, 2])
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


# ---- loaders and iterators that are dropped ----


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


def test_an_iterator_keeps_its_loader():
    iterator = iter(Loader(Squares(30), 4, num_workers=1))
    gc.collect()
    assert numbers(iterator) == batches_of(30, 4)


def test_a_loader_in_a_cycle_is_collected_with_its_workers():
    class Owner:
        pass

    for start_method in ("fork", "thread"):
        owner = Owner()
        owner.loader = Loader(
            Squares(30), 4, num_workers=2, worker_init_fn=leave_be, workers=Workers(start_method=start_method)
        )
        owner.iterator = iter(owner.loader)
        owner.batch = next(owner.iterator)
        owner.me = owner
        del owner
        gc.collect()
        assert started_by_us() == set()


def test_an_iterator_can_be_dropped_while_batches_are_being_made(tmp_path):
    gate = tmp_path / "gate"
    with Loader(Waiting(gate, at=3, n=20), 2, num_workers=2) as loader:
        for _ in range(2):  # each leaves one worker in the middle of a batch
            iterator = iter(loader)
            next(iterator)
            del iterator
        gate.touch()
        assert numbers(loader) == batches_of(20, 2)
