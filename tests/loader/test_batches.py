"""Batches that are held, kept in lists, copied, or outlive their loader; arrays that datasets keep."""

import copy
import gc
import os
import threading

import numpy as np
import pytest

import slipring
from slipring import Loader, Memory, Workers
from slipring.errors import SlotsHeld
from tests.support.datasets import Squares, batches_of, flat, numbers
from tests.support.kinds import kinds, loading

WORKERS = ["inline", "fork", "thread"]
EVERY_KIND = [*WORKERS, "spawn"]


@kinds(*EVERY_KIND)
def test_batches_live_longer_than_their_loader(kind):
    loader = loading(Squares(30), 4, **kind)
    held = list(loader)
    part = held[0][0][1:3, ::2]
    loader.close()
    del loader
    gc.collect()
    assert numbers(held) == batches_of(30, 4)
    del held
    assert part.tolist() == [[1, 1], [4, 4]]
    part[:] = 7
    assert part.sum() == 28


def test_a_batch_that_is_kept_is_not_overwritten():
    with Loader(Squares(400), 4, num_workers=2, memory=Memory(slots=8)) as loader:
        held = [batch for k, batch in enumerate(loader) if k % 80 == 0]
        for _ in range(3):
            for _ in loader:
                pass
        assert numbers(held) == batches_of(400, 4)[::80]
        assert loader.stats().copied_batches == 0


@kinds(*WORKERS)
def test_all_batches_can_be_kept_in_a_list(kind):
    with loading(Squares(400), 4, **kind, memory=Memory(slots=10)) as loader:
        held = list(loader)
        assert numbers(held) == batches_of(400, 4)
        stats = loader.stats()
        assert stats.slots == 10 and stats.copied_batches == 100 - 8 and stats.copied_bytes > 92 * 4 * 24
        del held
        assert len(list(iter(loader))) == 100


@pytest.mark.parametrize("num_workers", [0, 1])
def test_every_batch_is_copied_on_demand(num_workers):
    with Loader(Squares(20), 4, num_workers=num_workers, memory=Memory(copy="always")) as loader:
        for rows, _ in loader:
            assert rows.flags.writeable
        assert loader.stats().copied_batches == loader.stats().batches == 5


@kinds(*WORKERS)
def test_without_copies_kept_batches_are_an_error_instead_of_a_hang(kind):
    with loading(Squares(28), 4, **kind, slots=5, copy="never") as loader:
        held, iterator = [], iter(loader)
        for _ in range(2):
            with pytest.raises(SlotsHeld, match=r"all 5 slots.*copy='auto'"):
                while True:
                    held.append(next(iterator))
            assert len(held) == 5
        first = numbers(held)
        held.clear()
        assert first + numbers(iterator) == batches_of(28, 4)
        assert loader.stats().copied_batches == 0


def test_a_thousand_kept_batches_need_no_file_descriptors():
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    with Loader(Squares(4000), 4, num_workers=2) as loader:
        iterator = iter(loader)
        held = [next(iterator)]
        before = descriptors()
        held += iterator
        assert len(held) == 1000 and descriptors() == before
        assert loader.stats().copied_batches > 900


def test_empty_arrays_and_batches_without_arrays_are_delivered():
    class Nothing(Squares):
        def __getitem__(self, i):
            return np.empty((0, 3), np.float32), None, ()

    with Loader(Nothing(6), 2, num_workers=1, workers=Workers(start_method="fork")) as loader:
        for rows, none, empty in loader:
            assert rows.shape == (2, 0, 3) and none is None and empty == ()


class Keeping(Squares):
    """Keeps the last arrays that it made in slots, and checks that they are unchanged."""

    def __init__(self, n, keep):
        super().__init__(n)
        self.keep, self.kept = keep, []

    def __getitem__(self, i):
        for value, array in self.kept:
            assert (array == value).all(), f"{value} has been overwritten"
        array = slipring.empty(1000, np.int64)
        array[:] = i
        self.kept = [*self.kept, (i, array)][-self.keep :]
        return array


@kinds(*WORKERS)
@pytest.mark.parametrize("kwargs", [{"batch_size": None}, {"batch_size": 2}, {"batch_size": 4, "chunk_size": 2}])
def test_an_array_that_the_dataset_keeps_is_not_overwritten(kind, kwargs):
    kwargs = {**kwargs, **kind, "slots": 16}
    dataset = Keeping(60, keep=5)
    if kwargs.get("start_method") == "thread":
        dataset = OfThreads(dataset)
    with loading(dataset, **kwargs) as loader:
        for _ in range(3):
            got = [np.atleast_2d(batch)[:, 0].tolist() for batch in loader]
            assert flat(got) == list(range(60))


class OfThreads:
    """The same, with a copy in each thread."""

    def __init__(self, dataset):
        self.dataset, self.local = dataset, threading.local()

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        if not hasattr(self.local, "dataset"):
            self.local.dataset = copy.copy(self.dataset)
        return self.local.dataset[i]


class Sums:
    """Keeps the arrays of its first two samples, and returns them in the later ones."""

    def __init__(self):
        self.local = threading.local()

    def __len__(self):
        return 8

    def __getitem__(self, i):
        if not hasattr(self.local, "kept"):
            self.local.kept = []
        if len(self.local.kept) < 2:
            array = slipring.empty(500, np.int64)
            array[:] = i
            self.local.kept.append(array)
            return array
        return np.concatenate(self.local.kept)

    def __reduce__(self):
        return Sums, ()


@kinds("inline", "one fork", "one thread", "one spawn")
def test_the_dataset_does_not_see_the_consumers_changes_of_a_batch(kind):
    with loading(Sums(), None, **kind) as loader:
        for i, batch in enumerate(loader):
            assert sorted(set(batch.tolist())) == ([i] if i < 2 else [0, 1])
            batch[:] = 77
        assert loader.stats().kept_batches == 2


class Reusing:
    """A collate_fn that returns the same array for all batches."""

    array = None

    def __call__(self, samples):
        rows = np.stack([sample[0] for sample in samples])
        if self.array is None:
            self.array = slipring.empty(rows.shape, rows.dtype)
        self.array[:] = rows
        return self.array


class OfEachThread(Reusing):
    def __init__(self):
        self.local = threading.local()

    def __reduce__(self):
        return OfEachThread, ()

    def __call__(self, samples):
        if not hasattr(self.local, "own"):
            self.local.own = Reusing()
        return self.local.own(samples)


class KeepingSamples:
    """A collate_fn that returns the samples' arrays, keeps them, and overwrites them at its next call."""

    kept = ()

    def __call__(self, samples):
        for sample in self.kept:
            sample[:] = -1
        self.kept = [sample[0] for sample in samples]
        return self.kept


@kinds(*EVERY_KIND)
@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("collate_fn", [OfEachThread, KeepingSamples])
def test_a_collate_fn_that_uses_its_arrays_again_leaves_delivered_batches_alone(kind, chunk_size, collate_fn):
    one = {"num_workers": 1} if kind.get("start_method") == "thread" and collate_fn is KeepingSamples else {}
    # KeepingSamples keeps one batch, not one per thread.
    with loading(Squares(40), 4, collate_fn=collate_fn(), slots=16, chunk_size=chunk_size, **{**kind, **one}) as loader:
        held = list(loader)
        assert [[int(row[0]) for row in batch] for batch in held] == [
            [i * i for i in batch] for batch in batches_of(40, 4)
        ]


def rows_of_a_stream():
    row = slipring.empty(500, np.int64)
    for i in range(6):
        row[:] = i
        yield row


class OneRow:
    def __iter__(self):
        return rows_of_a_stream()


@kinds("inline", "one fork", "one thread")
def test_a_stream_that_uses_its_array_again_leaves_delivered_batches_alone(kind):
    with loading(OneRow(), None, **kind, memory=Memory(slots=10)) as loader:
        assert [batch[0] for batch in list(loader)] == list(range(6))
