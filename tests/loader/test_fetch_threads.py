"""Samples that are read concurrently: by `fetch_threads` of the worker, or as coroutines in its event loop."""

import asyncio
import concurrent.futures
import inspect
import signal
import threading
import time

import numpy as np
import pytest

import slipring
from slipring import Workers
from tests.support.datasets import Fetched, Into, Made, Squares, flat, numbers, patiently
from tests.support.inside import sample_marks
from tests.support.kinds import KINDS, kinds, loaded, loading
from tests.support.leaks import Snapshot
from tests.support.processes import LONG_S, in_child
from tests.support.signals import Raised, handling


class Numbers:
    """Coroutines that let others run before they return: the last sample is ready first."""

    def __init__(self, n=50):
        self.n = n

    def __len__(self):
        return self.n

    async def __getitem__(self, i):
        for _ in range(self.n - i):
            await asyncio.sleep(0)
        return i


class Plain(Numbers):
    """No async def: it returns the coroutine of another function."""

    def __getitem__(self, i):
        return Numbers.__getitem__(self, i)


class LastFirst(Numbers):
    """Of four samples the first returns at once; each other one waits for its successor."""

    def __getitem__(self, i):
        read = self.__dict__.setdefault("read", [threading.Event() for _ in range(self.n)])
        if i % 4 != 0:
            read[i + 1 if i % 4 < 3 else i - 3].wait(LONG_S)
        read[i].set()
        return i


@pytest.mark.parametrize(
    ("kind", "dataset", "threads"),
    [
        ("inline", Numbers(), None),
        ("one spawn", Numbers(), None),
        ("ranges", Numbers(), None),
        ("thread", Plain(), None),
        ("inline", Plain(), 3),
        ("fork", Plain(), 3),
    ],
)
def test_batches_are_in_order_whichever_coroutine_is_ready_first(kind, dataset, threads):
    with loading(dataset, 16, fetch_threads=threads, **KINDS[kind]) as loader:
        for _ in range(2):
            assert np.concatenate(list(loader)).tolist() == list(range(50))


class AtOnce(Numbers):
    """A whole batch is one coroutine; sample i is (i, whether its process has had one event loop)."""

    loop = None

    async def __getitems__(self, indices):
        loop = asyncio.get_running_loop()
        same = self.loop in (None, loop)
        self.loop = loop
        return [(i, same) for i in await asyncio.gather(*map(self.__getitem__, indices))]


@kinds("one fork", "inline")
def test_the_coroutine_of_a_whole_batch_is_awaited_in_the_one_loop_of_its_worker(kind):
    with loading(AtOnce(), 16, **kind) as loader:
        for _ in range(2):
            batches = list(loader)
            assert flat(which.tolist() for which, _ in batches) == list(range(50))
            assert all(same.all() for _, same in batches)


def test_each_sample_is_in_its_row_whichever_is_read_first():
    batches = loaded(LastFirst(16), 4, fetch_threads=4)
    assert np.concatenate(batches).tolist() == list(range(16))


class Counted(Numbers):
    """Each sample is the largest number of samples that were read at the same time."""

    running = most = 0

    async def __getitem__(self, i):
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        return self.most


@pytest.mark.parametrize(("most", "expected"), [(None, 16), (5, 5), (1, 1)])
def test_fetch_threads_bounds_how_many_coroutines_run_at_once(most, expected):
    assert max(batch.max() for batch in loaded(Counted(48), 16, num_workers=1, fetch_threads=most)) == expected


class Together:
    """Each read waits until so many reads run at the same time."""

    def __init__(self, n, at_once):
        self.n, self.at_once = n, at_once

    def __len__(self):
        return self.n

    def __getstate__(self):
        return {"n": self.n, "at_once": self.at_once}

    def __getitem__(self, i):
        # One barrier for all threads of the process, whose only worker uses it.
        barrier = self.__dict__.setdefault("barrier", threading.Barrier(self.at_once))
        barrier.wait(LONG_S)
        return i, threading.current_thread().name


@kinds("inline", "one fork", "one thread", "one spawn", "ranges")
def test_as_many_samples_are_read_at_once_as_there_are_threads(kind):
    one = {**kind, "num_workers": min(1, kind["num_workers"])}
    batches = loaded(Together(24, 4), 8, fetch_threads=4, **one)
    assert np.concatenate([which for which, _ in batches]).tolist() == list(range(24))
    assert {name for _, names in batches for name in names} == {f"slipring-fetch-{number}" for number in range(4)}


def test_one_thread_is_none():
    (batch,) = loaded(Together(8, 1), 8, fetch_threads=1)
    assert set(batch[1]) == {threading.current_thread().name}


@kinds("fork", "thread", "inline")
def test_a_thread_knows_whose_it_is(kind):
    dataset = Made(lambda i: slipring.get_worker_info() is not None, 16)
    for batch in loaded(dataset, 8, fetch_threads=4, **kind):
        assert set(batch.tolist()) == {kind["num_workers"] > 0}


class Drawn(Numbers):
    """Sample i: i, and a number that it draws."""

    def __getitem__(self, i):
        return i, slipring.rng().integers(1 << 62)


class DrawnInTurns(Numbers):
    """Each sample draws several times, and other samples run in between."""

    async def __getitem__(self, i):
        drawn = []
        for _ in range(4):
            drawn.append(slipring.rng().integers(1 << 62))
            await asyncio.sleep(0)
        return i, np.array(drawn)


def drawn(dataset, batch_size=16, **options):
    """Return the draws of each sample in order."""
    batches = loaded(dataset, batch_size, seed=3, **options)
    return np.concatenate([np.reshape(batch[1], (1 if batch_size is None else len(batch[1]), -1)) for batch in batches])


@kinds("fork", "thread", "ranges")
@pytest.mark.parametrize(("dataset", "each"), [(Drawn(), 1), (DrawnInTurns(), 4)], ids=["threads", "coroutines"])
def test_the_draws_of_a_sample_depend_neither_on_workers_nor_on_turns(kind, dataset, each):
    expected = drawn(dataset, fetch_threads=8 if each == 1 else 1)
    np.testing.assert_array_equal(drawn(dataset, fetch_threads=3, **kind), expected)
    assert len(np.unique(expected)) == 50 * each
    expected = drawn(dataset, rng="sample")
    np.testing.assert_array_equal(drawn(dataset, rng="sample", fetch_threads=4, **kind), expected)
    np.testing.assert_array_equal(drawn(dataset, None, rng="sample"), expected)


def test_with_rng_worker_a_sample_draws_from_its_workers_generator():
    two, seven = (drawn(Drawn(), num_workers=2, rng="worker", fetch_threads=n) for n in (2, 7))
    np.testing.assert_array_equal(two, seven)


class Failing(Squares):
    """Samples 13 and 14 cannot be read; those from 90 on end the process that reads them."""

    def __getitem__(self, i):
        if i in (13, 14):
            raise OSError(f"no sample {i}")
        if i >= 90:
            raise SystemExit(3)
        return super().__getitem__(i)


class FailingCoroutines(Numbers):
    async def __getitem__(self, i):
        if i == 14:
            raise OSError("no sample 14")  # the first in time, not in order
        await asyncio.sleep(0)
        if i == 13:
            raise OSError("no sample 13")
        if i == 30:
            raise asyncio.CancelledError
        return i, i


@kinds("inline", "fork", "ranges")
@pytest.mark.parametrize("dataset", [Failing(40), FailingCoroutines(40)], ids=["threads", "coroutines"])
def test_the_first_sample_in_order_that_failed_is_named_and_the_iteration_continues(kind, dataset):
    with loading(dataset, 8, fetch_threads=8, **kind) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(OSError, match="no sample 13") as caught:
            next(iterator)
        cause = caught.value.__cause__
        assert (cause.index, cause.row, cause.seq) == (13, 5, 1)
        assert next(iterator)[1].tolist() == list(range(16, 24))
        if type(dataset) is FailingCoroutines:
            with pytest.raises(concurrent.futures.CancelledError) as caught:
                next(iterator)
            assert caught.value.__cause__.index == 30
        assert (next(iterator) and list(iterator) == []) or type(dataset) is Failing


def test_a_sample_that_ends_its_worker_ends_it():
    with loading(Failing(100), 10, sampler=range(70, 100), num_workers=1, fetch_threads=4) as loader:
        iterator = iter(loader)
        assert next(iterator)[1].tolist() == list(range(70, 80))
        with pytest.raises(slipring.WorkerDied, match="code 3"):
            list(iterator)


class Held(Numbers):
    """The reads of the second batch wait for an event that comes after the test."""

    over = threading.Event()

    def __getitem__(self, i):
        if i >= 8:
            self.over.wait()
        return i


class HeldCoroutines(Numbers):
    async def __getitem__(self, i):
        if i >= 8:
            await asyncio.Event().wait()
        return i


@pytest.mark.leaks_ok("threads wait until the end")
@pytest.mark.parametrize(("kind", "dataset"), [("one fork", HeldCoroutines(16)), ("one thread", Held(16))])
def test_a_read_that_never_ends_is_overdue_and_does_not_delay_the_end(kind, dataset):
    Held.over.clear()
    with loading(dataset, 8, timeout=1, fetch_threads=8, **KINDS[kind]) as loader:
        iterator = iter(loader)
        assert patiently(iterator).tolist() == list(range(8))  # the timeout starts before the workers start
        with pytest.raises(TimeoutError):
            next(iterator)
    Held.over.set()


class Cancelled(Numbers):
    """Samples that are cancelled while they wait, as by asyncio.timeout(), and return a partial result."""

    async def __getitem__(self, i):
        asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return i, slipring.rng().integers(1 << 62)


@kinds("fork", "inline")
def test_a_sample_that_is_cancelled_while_it_waits_may_continue(kind):
    found, alone = (np.hstack(loaded(Cancelled(), 16, seed=5, **how)) for how in (kind, {"fetch_threads": 1}))
    assert found[0].tolist() == list(range(50))
    np.testing.assert_array_equal(found, alone)


class Several(Numbers):
    """Makes the coroutines of a whole batch; the first one fails."""

    def __getitems__(self, indices):
        self.made = [self.read(i) for i in indices]
        return self.made

    async def read(self, i):
        raise OSError(f"no sample {i}")


def test_coroutines_that_are_not_awaited_after_an_error_are_closed():
    dataset = Several(8)
    with pytest.raises(OSError, match="no sample 0"):
        loaded(dataset, 8, fetch_threads=1)
    assert [inspect.getcoroutinestate(one) for one in dataset.made] == [inspect.CORO_CLOSED] * 8


def test_an_event_loop_that_runs_already_does_not_interfere():
    async def main():
        return np.concatenate(loaded(Numbers(), 16)).tolist()

    assert asyncio.run(main()) == list(range(50))


class AsyncSquares(Squares):
    async def __getitem__(self, i):
        return super().__getitem__(i)


@pytest.mark.parametrize("dataset", [Squares(50), AsyncSquares(50)], ids=["threads", "coroutines"])
def test_a_handler_that_raises_while_they_start_leaves_no_thread_and_no_descriptor(monkeypatch, dataset):
    def interrupted(thread):
        start(thread)
        signal.raise_signal(signal.SIGUSR1)

    def handler(number, frame):
        raise Raised

    start, before = threading.Thread.start, Snapshot.take()
    with handling(handler), loading(dataset, 16, fetch_threads=3) as loader:
        iterator = iter(loader)
        with monkeypatch.context() as patch, pytest.raises(Raised):
            patch.setattr(threading.Thread, "start", interrupted)
            next(iterator)
        assert numbers(loader) == numbers(slipring.Loader(Squares(50), 16))
    del iterator
    assert before.leaks(wait_s=10) == []


def test_a_forked_child_has_threads_of_its_own():
    with loading(Squares(), 10, fetch_threads=3) as loader:
        expected = numbers(loader)
        assert in_child(lambda: numbers(loader)) == numbers(loader) == expected


def test_a_dataset_that_makes_its_batches_in_one_call_is_called_once():
    for dataset in (Fetched(50), Into(50)):
        batches = loaded(dataset, 16, num_workers=1, fetch_threads=8)
        assert numbers(batches) == numbers(slipring.Loader(Squares(50), 16))


class Slowest:
    """Sample 5 takes longer than the others on any machine, and is that time; sample 7 reports a skipped sample."""

    def __init__(self):
        self.begun, self.ready = time.monotonic(), []

    def __len__(self):
        return 8

    def __getitem__(self, i):
        slept = 0.0
        if i == 5:
            while len(self.ready) < 7:
                time.sleep(0.001)
            slept = 2 * (time.monotonic() - self.begun)  # no other sample can have taken as long
            time.sleep(slept)
        if i == 7:
            sample_marks.skipped()
        self.ready.append(i)
        return slept


@kinds("one fork", "inline")
def test_the_slowest_sample_and_the_skipped_ones_are_known(kind):
    with loading(Slowest(), 8, fetch_threads=4, **kind) as loader:
        (batch,) = loader
        if kind["num_workers"]:  # without workers, no segment has a record of samples
            slowest = loader.report().slowest_samples[0]
            assert slowest["sample"] == "index 5" and slowest["seconds"] >= batch[5] > 0
        assert loader.stats().skipped_samples == 1


@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchs_loader_reads_concurrently_too_and_through_a_subset(num_workers):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    with DataLoader(torch.utils.data.Subset(Numbers(), range(50)), 16, num_workers=num_workers) as loader:
        assert torch.cat(list(loader)).tolist() == list(range(50))
    subset = torch.utils.data.Subset(Together(24, 4), range(24))
    with DataLoader(subset, 8, num_workers=num_workers, workers=Workers(fetch_threads=4)) as loader:
        assert flat(which.tolist() for which, _ in loader) == list(range(24))


def test_fetch_threads_are_refused_for_an_iterable_dataset():
    with pytest.raises(ValueError, match="fetch_threads=4 cannot be used with an iterable dataset"):
        slipring.Loader({1, 2}, workers=Workers(fetch_threads=4))
