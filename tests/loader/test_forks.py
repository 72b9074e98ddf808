"""Loaders and forks: a child has its own iterations, and does not change those of its parent."""

import gc
import os
import subprocess
import sys
import threading

import pytest

from slipring import Loader, Workers
from slipring.errors import Closed
from tests.support.datasets import Made, Squares, batches_of, numbers
from tests.support.kinds import kinds, loading
from tests.support.leaks import read, started_by_us
from tests.support.processes import in_child


@kinds("inline", "fork", "thread")
def test_a_forked_child_can_iterate_a_loader_and_has_no_part_in_its_parents_iterations(kind):
    def child():
        for _ in range(2):
            with pytest.raises(Closed):
                next(iterator)
        iterator.close()
        return iterated()

    def iterated():
        first, second = numbers(loader), numbers(loader)
        loader.close()
        return first, second

    with loading(Squares(40), 4, **kind) as loader:
        assert in_child(iterated) == (batches_of(40, 4),) * 2
        assert numbers(loader) == batches_of(40, 4)
        assert in_child(iterated) == (batches_of(40, 4),) * 2
        iterator = iter(loader)
        held = [next(iterator), next(iterator)]
        assert in_child(child) == (batches_of(40, 4),) * 2
        assert numbers([*held, *iterator]) == batches_of(40, 4)
        assert numbers(loader) == batches_of(40, 4)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_child_that_drops_a_loader_does_not_end_its_parents_workers_nor_has_their_descriptors(num_workers):
    def pidfds():
        return [fd for fd in os.listdir("/proc/self/fd") if b"\nPid:" in read(f"/proc/self/fdinfo/{fd}")]

    loader = Loader(Squares(40), 4, num_workers=num_workers, workers=Workers(start_method="fork"))
    iterator = iter(loader)
    next(iterator)

    def child():
        nonlocal loader, iterator
        found = pidfds()
        loader.close()
        loader = iterator = None
        gc.collect()
        return found

    assert len(pidfds()) == num_workers
    assert in_child(child) == []
    assert len(started_by_us()) == num_workers
    assert numbers(iterator) == batches_of(40, 4)[1:]
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_child_can_be_forked_while_a_thread_iterates(num_workers):
    stop, got = threading.Event(), []

    def iterate():
        while not stop.is_set():
            got.append(numbers(loader) == batches_of(40, 4))

    with Loader(Squares(40), 4, num_workers=num_workers) as loader, Loader(Squares(12), 4, num_workers=1) as other:
        thread = threading.Thread(target=iterate)
        thread.start()
        for _ in range(5):
            assert in_child(lambda: numbers(other)) == batches_of(12, 4)
        stop.set()
        thread.join()
    assert got and all(got)


def test_a_grandchild_is_a_child_too():
    with Loader(Squares(40), 4, num_workers=1) as loader:
        first = iter(loader)
        next(first)

        def child():
            second = iter(loader)
            next(second)
            return in_child(lambda: numbers(loader)), numbers(second)

        assert in_child(child) == (batches_of(40, 4), batches_of(40, 4)[1:])
        assert numbers(first) == batches_of(40, 4)[1:]


def test_a_child_can_iterate_although_a_thread_of_its_parent_was_about_to():
    """The thread is inside iter() during the fork."""
    inside, go_on = threading.Event(), threading.Event()

    class Slow:
        def __iter__(self):
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                go_on.wait()
            return iter(range(8))

    with Loader(Squares(8), 4, sampler=Slow(), num_workers=1) as loader:
        thread = threading.Thread(target=lambda: numbers(loader))
        thread.start()
        inside.wait()
        try:
            assert in_child(lambda: numbers(loader)) == batches_of(8, 4)
        finally:
            go_on.set()
            thread.join()


BEGINNING = """
import os, signal, sys, threading
import slipring

def numbers():
    workers = slipring.Workers(start_method="thread")
    with slipring.Loader(range(8), 4, num_workers=1, workers=workers) as loader:
        return [batch.tolist() for batch in loader]

class Finder:  # a thread is importing the module during the fork
    def find_spec(name, path=None, target=None):
        if name == sys.argv[1]:
            inside.set()
            go_on.wait()

inside, go_on = threading.Event(), threading.Event()
sys.meta_path.insert(0, Finder)
os.register_at_fork(before=go_on.set)
thread = threading.Thread(target=numbers)
thread.start()
inside.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(600)
    os._exit(0 if numbers() == [[0, 1, 2, 3], [4, 5, 6, 7]] else 1)
thread.join()
print(os.waitpid(pid, 0)[1])
"""


@pytest.mark.parametrize("module", ["slipring._core.workers.process_pool", "slipring._core.workers.worker_main"])
def test_a_child_can_iterate_although_a_thread_of_its_parent_was_at_the_first_loader(module):
    # From Python 3.12 on, a fork in a process with threads causes a warning.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BEGINNING, module]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("0\n", "")


class Forked:
    """Pickles as a number in two processes; the second one must do nothing more."""

    def __init__(self, i):
        self.i = i

    def __reduce__(self):
        if self.i == 5:
            os.fork()
        return int, (self.i,)


@pytest.mark.parametrize("chunk", [None, 1])
def test_a_child_forked_while_a_worker_writes_a_batch_publishes_nothing(chunk, capfd):
    dataset, workers = Made(Forked, 12), Workers(start_method="fork", chunk_size=chunk)
    with Loader(dataset, 3, num_workers=2, collate_fn=list, workers=workers) as loader:
        for _ in range(2):
            assert list(loader) == batches_of(12, 3)
    assert "this process has been forked while" in capfd.readouterr().err


class Cycle:
    """Garbage that only the collector finds; it records the process that collects it."""

    def __init__(self, ends):
        self.me, self.ends = self, ends

    def __del__(self):
        self.ends.append(os.getpid())


@pytest.mark.parametrize("enabled", [False, True])
def test_a_worker_leaves_the_garbage_of_its_parent_alone(enabled):
    def collected(samples):
        gc.collect()
        return gc.isenabled(), len(ends)

    ends, before = [], gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        Cycle(ends)
        with Loader(Squares(4), 1, collate_fn=collected, num_workers=2, workers=Workers(start_method="fork")) as loader:
            assert list(loader) == [(enabled, 0)] * 4
        assert gc.isenabled() is enabled
    finally:
        gc.enable() if before else gc.disable()
    gc.collect()
    assert ends == [os.getpid()]
