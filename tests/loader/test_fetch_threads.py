"""`fetch_threads`: threads of the worker read the samples of a batch concurrently."""

import mmap
import os
import signal
import struct
import threading
import time

import numpy as np
import pytest

import slipring
from slipring import Workers
from tests.loader.kinds import KINDS, every_kind
from tests.support.datasets import Fetched, Into, Squares, flat, numbers, patiently
from tests.support.inside import skipping
from tests.support.leaks import Snapshot
from tests.support.options import grouped
from tests.support.signals import Raised


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
        barrier.wait(30)
        return i, threading.current_thread().name


class LastFirst:
    """Of four samples the first returns at once; each other one waits for its successor."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        read = self.__dict__.setdefault("read", [threading.Event() for _ in range(self.n)])
        if i % 4 != 0:
            read[i + 1 if i % 4 < 3 else i - 3].wait(30)
        read[i].set()
        return i


class Drawn:
    """Sample i is i, a number that it draws, and whether a worker reads it."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return i, slipring.rng().integers(1 << 62), slipring.get_worker_info() is not None


class Failing(Squares):
    """Samples 13 and 14 cannot be read; those from 90 on end the process that reads them."""

    def __getitem__(self, i):
        if i in (13, 14):
            raise OSError(f"no sample {i}")
        if i >= 90:
            raise SystemExit(3)
        return super().__getitem__(i)


class AsyncSquares(Squares):
    async def __getitem__(self, i):
        return super().__getitem__(i)


class Held:
    """The reads of the second batch wait for an event that never comes."""

    def __len__(self):
        return 16

    def __getitem__(self, i):
        if i >= 8:
            threading.Event().wait()
        return i


@every_kind
def test_batches_are_the_same_and_in_order(kind):
    with slipring.Loader(Squares(50), 16, **grouped(fetch_threads=5, **KINDS[kind])) as loader:
        for _ in range(2):
            assert numbers(loader) == numbers(slipring.Loader(Squares(50), 16))


def test_each_sample_is_in_its_row_whichever_is_read_first():
    with slipring.Loader(LastFirst(16), 4, workers=Workers(fetch_threads=4)) as loader:
        assert np.concatenate(list(loader)).tolist() == list(range(16))


@pytest.mark.parametrize("kind", ["processes", "none", "ranges"])
def test_as_many_samples_are_read_at_once_as_there_are_threads(kind):
    options = {**KINDS[kind], "num_workers": min(1, KINDS[kind]["num_workers"])}
    with slipring.Loader(Together(24, 4), 8, **grouped(fetch_threads=4, **options)) as loader:
        batches = list(loader)
    assert np.concatenate([which for which, _ in batches]).tolist() == list(range(24))
    names = {name for _, names in batches for name in names}
    assert names == {f"slipring-fetch-{number}" for number in range(4)}


def test_one_thread_is_none():
    with slipring.Loader(Together(8, 1), 8, workers=Workers(fetch_threads=1)) as loader:
        assert set(next(iter(loader))[1]) == {threading.current_thread().name}


@every_kind
def test_the_draws_of_a_sample_depend_neither_on_workers_nor_on_threads(kind):
    def drawn(n, **options):
        with slipring.Loader(Drawn(), 16, seed=3, **grouped(fetch_threads=n, **options)) as loader:
            return [batch[1].tolist() for batch in loader]

    expected = drawn(8, num_workers=0)
    assert drawn(3, **KINDS[kind]) == expected
    assert len(set(flat(expected))) == 64


@every_kind
def test_with_rng_sample_a_sample_draws_the_same_as_alone(kind):
    def drawn(**options):
        with slipring.Loader(Drawn(), 16, seed=3, rng="sample", **grouped(**options)) as loader:
            return [batch[1].tolist() for batch in loader]

    assert drawn(fetch_threads=4, **KINDS[kind]) == drawn()


def test_with_rng_worker_a_sample_draws_from_its_workers_generator():
    def drawn(n):
        with slipring.Loader(
            Drawn(), 16, seed=3, num_workers=2, rng="worker", workers=Workers(fetch_threads=n)
        ) as loader:
            return [batch[1].tolist() for batch in loader]

    assert drawn(2) == drawn(7)


@pytest.mark.parametrize("kind", ["processes", "threads", "none"])
def test_a_thread_knows_whose_it_is(kind):
    with slipring.Loader(Drawn(), 16, **grouped(fetch_threads=4, **KINDS[kind])) as loader:
        assert {known for batch in loader for known in batch[2].tolist()} == {kind != "none"}


@every_kind
def test_the_first_sample_in_order_that_failed_is_named_and_the_iteration_goes_on(kind):
    with slipring.Loader(Failing(80), 8, **grouped(fetch_threads=8, **KINDS[kind])) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(OSError, match="no sample 13") as caught:
            next(iterator)
        cause = caught.value.__cause__
        assert (cause.index, cause.row, cause.seq) == (13, 5, 1)
        assert next(iterator)[1].tolist() == list(range(16, 24))
        assert sum(1 for _ in iterator) == 7


def test_a_sample_that_ends_its_worker_ends_it():
    with slipring.Loader(
        Failing(100), 10, sampler=range(70, 100), num_workers=1, workers=Workers(fetch_threads=4)
    ) as loader:
        iterator = iter(loader)
        assert next(iterator)[1].tolist() == list(range(70, 80))
        with pytest.raises(slipring.WorkerDied, match="code 3"):
            list(iterator)


@pytest.mark.parametrize(
    "kind", ["processes", pytest.param("threads", marks=pytest.mark.leaks_ok("threads wait for ever"))]
)
def test_a_read_that_never_returns_is_overdue_and_keeps_nobody(kind):
    # The timeout starts before the workers start.
    options = {"start_method": "fork", **KINDS[kind], "num_workers": 1}
    with slipring.Loader(Held(), 8, timeout=1, **grouped(fetch_threads=8, **options)) as loader:
        iterator = iter(loader)
        assert patiently(iterator).tolist() == list(range(8))
        with pytest.raises(TimeoutError):
            next(iterator)


def test_a_dataset_that_makes_its_batches_in_one_call_is_called_once():
    for dataset in (Fetched(50), Into(50)):
        with slipring.Loader(dataset, 16, num_workers=1, workers=Workers(fetch_threads=8)) as loader:
            assert numbers(loader) == numbers(slipring.Loader(Squares(50), 16))


def test_threads_end_with_their_worker():
    def readers():
        return {thread for thread in threading.enumerate() if thread.name.startswith("slipring-fetch")}

    before = readers()
    with slipring.Loader(
        Squares(), 10, num_workers=2, workers=Workers(start_method="thread", fetch_threads=3)
    ) as loader:
        list(loader)
        assert len(readers() - before) in (3, 6)  # one worker may have made all batches
    assert readers() <= before


@pytest.mark.parametrize("dataset", [Squares(50), AsyncSquares(50)], ids=["threads", "coroutines"])
def test_a_handler_that_raises_while_they_start_leaves_no_thread_and_no_descriptor(monkeypatch, dataset):
    def interrupted(thread):
        start(thread)
        signal.raise_signal(signal.SIGUSR1)

    def handler(number, frame):
        raise Raised

    start, before, previous = threading.Thread.start, Snapshot.take(), signal.signal(signal.SIGUSR1, handler)
    try:
        with slipring.Loader(dataset, 16, workers=Workers(fetch_threads=3)) as loader:
            iterator = iter(loader)
            with monkeypatch.context() as patch, pytest.raises(Raised):
                patch.setattr(threading.Thread, "start", interrupted)
                next(iterator)
            assert numbers(iterator) == numbers(slipring.Loader(Squares(50), 16))
    finally:
        signal.signal(signal.SIGUSR1, previous)
    del iterator
    assert before.leaks(wait_s=10) == []


def test_a_forked_child_has_threads_of_its_own():
    with slipring.Loader(Squares(), 10, workers=Workers(fetch_threads=3)) as loader:
        expected = numbers(loader)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = int(numbers(loader) != expected)
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert numbers(loader) == expected


class Slowest:
    """Sample 5 takes longer than the others on any machine; sample 7 reports a skipped sample."""

    def __init__(self):
        self.begun = time.monotonic()
        self.page = mmap.mmap(-1, 64)  # shared with forked workers: the samples that are ready; how long sample 5 slept

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if i == 5:
            while sum(self.page[:8]) < 7:
                time.sleep(0.001)
            # No other sample can take as long: it started after this dataset, and is ready already.
            slept = 2 * (time.monotonic() - self.begun)
            time.sleep(slept)
            self.page[8:16] = struct.pack("d", slept)
        if i == 7:
            skipping.skipped()
        self.page[i] = 1
        return i


@pytest.mark.parametrize("kind", ["processes", "none", "ranges"])
def test_the_slowest_sample_and_the_skipped_ones_are_known(kind):
    options = KINDS[kind] if kind == "none" else {**KINDS[kind], "start_method": "fork"}
    data = Slowest()
    with slipring.Loader(data, 8, **grouped(fetch_threads=4, **options)) as loader:
        list(loader)
        slowest = loader.report().slowest_samples[0]
        assert slowest["sample"] == "index 5"
        assert slowest["seconds"] >= struct.unpack("d", data.page[8:16])[0] > 0
        assert loader.stats().skipped_samples == 1


@pytest.mark.parametrize("given", [0, -1, 2.5, "many", 1 << 20])
def test_other_numbers_of_threads_are_refused(given):
    with pytest.raises((TypeError, ValueError), match="fetch_threads must be"):
        slipring.Loader(Squares(), workers=Workers(fetch_threads=given))


def test_an_iterable_dataset_has_no_use_for_them():
    with pytest.raises(ValueError, match="fetch_threads=4 cannot be used with an iterable dataset"):
        slipring.Loader({1, 2}, workers=Workers(fetch_threads=4))


def test_torchs_face_reads_by_threads_too_and_through_a_subset():
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    subset = torch.utils.data.Subset(Together(24, 4), range(24))
    for num_workers in (0, 1):
        with DataLoader(subset, 8, num_workers=num_workers, workers=Workers(fetch_threads=4)) as loader:
            batches = list(loader)
            assert torch.cat([which for which, _ in batches]).tolist() == list(range(24))
    with pytest.raises(ValueError, match="fetch_threads=4 cannot be used with an iterable dataset"):
        DataLoader(iterated(torch), workers=Workers(fetch_threads=4))


def iterated(torch):
    class Iterated(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    return Iterated()
