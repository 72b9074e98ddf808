"""Prefetching by a thread, and samplers that have to wait for their batches."""

import os
import queue
import threading

import pytest

from slipring import Loader
from slipring.errors import Closed
from tests.support.datasets import Squares, numbers
from tests.support.inside import Prefetcher, engine
from tests.support.processes import LONG_S, in_child


def threads():
    return [t for t in threading.enumerate() if t.name == "slipring-prefetch"]


class Gated:
    """Yields the items of its queue; counts how often it was asked."""

    def __init__(self):
        self.queue, self.asked = queue.Queue(), threading.Semaphore(0)

    def __iter__(self):
        return self

    def __next__(self):
        self.asked.release()
        item = self.queue.get()
        if isinstance(item, BaseException):
            raise item
        return item


def test_items_come_in_order_to_the_end():
    assert list(Prefetcher(iter(range(100)), 4)) == list(range(100))
    empty = Prefetcher(iter([]), 4)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(empty)
    assert not empty.would_wait()


def test_no_more_than_so_many_are_taken_before_they_are_asked_for():
    taken = []
    prefetcher = Prefetcher((taken.append(i) or i for i in range(50)), 3)
    for i in range(10):
        assert next(prefetcher) == i
        assert len(taken) <= i + 4
    prefetcher.close()
    assert len(taken) <= 13


def test_an_exception_comes_in_its_turn_and_others_after_it():
    source = Gated()
    for item in (1, ValueError("two"), 3):
        source.queue.put(item)
    prefetcher = Prefetcher(source, 8)
    assert next(prefetcher) == 1
    with pytest.raises(ValueError, match="two"):
        next(prefetcher)
    assert next(prefetcher) == 3
    source.queue.put(StopIteration())
    with pytest.raises(StopIteration):
        next(prefetcher)


def test_a_forked_child_is_told_to_make_its_own():
    prefetcher = Prefetcher(iter(range(5)), 2)
    assert next(prefetcher) == 0

    def child():
        with pytest.raises(Closed):
            next(prefetcher)

    in_child(child)
    assert next(prefetcher) == 1


def test_a_forked_child_ends_although_a_thread_was_at_work_when_it_was_forked():
    prefetcher = Prefetcher(iter(range(5)), 2)
    assert next(prefetcher) == 0
    held, forked = threading.Event(), threading.Event()

    def work():
        with prefetcher._queue.changed:
            held.set()
            forked.wait()

    thread = threading.Thread(target=work)
    thread.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        try:
            engine._shut_down_all()
        finally:
            os._exit(3)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    prefetcher.close()


class Slow:
    """A batch sampler whose second batch is ready only after the first was delivered."""

    def __init__(self):
        self.delivered = threading.Event()

    def __iter__(self):
        return Prefetcher(self.batches(), 4)

    def batches(self):
        yield [1, 2]
        assert self.delivered.wait(LONG_S)
        yield [3]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_is_not_delayed_by_a_sampler_that_waits(num_workers):
    sampler = Slow()
    with Loader(Squares(), batch_sampler=sampler, num_workers=num_workers) as loader:
        batches = iter(loader)
        assert numbers([next(batches)]) == [[1, 2]]
        sampler.delivered.set()
        assert numbers(batches) == [[3]]


@pytest.mark.parametrize(
    ("num_workers", "how"), [(0, "close"), (2, "close"), (2, "close the loader"), (0, "to the end"), (2, "fail")]
)
def test_an_iteration_that_is_over_ends_the_thread_of_its_sampler_though_it_is_held(num_workers, how):
    class Endless(Slow):
        def batches(self):
            while True:
                yield [1, 2]
                if how == "to the end":
                    return
                if how == "fail":
                    yield [lambda: 1]

    with Loader(Squares(), batch_sampler=Endless(), num_workers=num_workers) as loader:
        batches = iter(loader)
        assert numbers([next(batches)]) == [[1, 2]]
        if how.startswith("close"):
            (batches if how == "close" else loader).close()
        elif how == "to the end":
            assert list(batches) == []
        else:
            with pytest.raises(Exception, match="cannot be pickled"):
                list(batches)
        for thread in threads():
            thread.join(LONG_S)
        assert not threads()


def test_a_waiting_samplers_exception_comes_after_the_batches_before_it():
    class Breaks(Slow):
        def batches(self):
            yield [1, 2]
            raise KeyError("no more")

    with Loader(Squares(), batch_sampler=Breaks(), num_workers=2) as loader:
        batches = iter(loader)
        assert numbers([next(batches)]) == [[1, 2]]
        with pytest.raises(KeyError, match="no more"):
            next(batches)


def test_closing_ends_a_wait():
    source = Gated()
    prefetcher = Prefetcher(source, 1)
    closer = threading.Thread(target=lambda: (source.asked.acquire(), prefetcher.close()))
    closer.start()
    with pytest.raises(Closed):
        next(prefetcher)
    source.queue.put(0)
    closer.join()


def test_close_waits_for_an_item_that_is_being_read():
    reading, may_end = threading.Event(), threading.Event()

    def items():
        yield 0
        reading.set()
        may_end.wait(LONG_S)
        yield 1

    prefetcher = Prefetcher(items(), 2)
    assert next(prefetcher) == 0
    assert reading.wait(LONG_S)
    threading.Timer(0.2, may_end.set).start()
    prefetcher.close()
    assert may_end.is_set() and not threads()
