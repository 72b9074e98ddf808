"""Batches that are held, kept in lists, copied, or outlive their loader; arrays that datasets keep."""

import gc
import threading

import numpy as np
import pytest

import slipring
from slipring import Loader, Memory
from slipring.errors import SlotsHeld
from tests.support.datasets import Squares, batches_of, numbers
from tests.support.kinds import KINDS, kinds, loading

WORKERS = ["inline", "fork", "thread"]


@kinds(*WORKERS, "spawn")
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


@kinds("fork", "thread")
def test_all_batches_can_be_kept_in_a_list(kind):
    with loading(Squares(400), 4, **kind, memory=Memory(slots=10)) as loader:
        held = list(loader)
        assert numbers(held) == batches_of(400, 4)
        stats = loader.stats()
        assert stats.slots == 10 and stats.copied_batches == 100 - 8 and stats.copied_bytes > 92 * 4 * 24
        del held
        assert len(list(iter(loader))) == 100


def test_every_batch_is_copied_on_demand():
    with Loader(Squares(20), 4, num_workers=1, memory=Memory(copy="always")) as loader:
        assert all(rows.flags.writeable for rows, _ in loader)
        assert loader.stats().copied_batches == loader.stats().batches == 5


@kinds("fork", "thread")
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


class Keeping(Squares):
    """Keeps the last five arrays that it made in slots in each thread, and checks that they are unchanged."""

    def __init__(self, n):
        super().__init__(n)
        self.of_thread = threading.local()

    def __getitem__(self, i):
        kept = self.of_thread.__dict__.setdefault("kept", [])
        for value, array in kept:
            assert (array == value).all(), f"{value} has been overwritten"
        array = slipring.empty(1000, np.int64)
        array[:] = i
        kept[:] = [*kept, (i, array)][-5:]
        return array


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("inline", {"batch_size": 4, "chunk_size": 2}),
        ("fork", {"batch_size": None}),
        ("fork", {"batch_size": 2}),
        ("thread", {"batch_size": 4, "chunk_size": 2}),
    ],
)
def test_an_array_that_the_dataset_keeps_is_not_overwritten(kind, options):
    with loading(Keeping(60), slots=16, **KINDS[kind], **options) as loader:
        for _ in range(2):
            got = []
            for batch in loader:
                got += np.atleast_2d(batch)[:, 0].tolist()
                batch[...] = -1  # the dataset does not see it
            assert got == list(range(60))
        assert (loader.stats().kept_batches > 0) == (options["batch_size"] is None)


class KeepingSamples:
    """A collate_fn that returns the samples' arrays, keeps them, and overwrites them at its next call."""

    kept = ()

    def __call__(self, samples):
        for sample in self.kept:
            sample[:] = -1
        self.kept = [sample[0] for sample in samples]
        return self.kept


class Reusing:
    """A collate_fn that returns the same array for all batches."""

    array = None

    def __call__(self, samples):
        rows = np.stack([sample[0] for sample in samples])
        if self.array is None:
            self.array = slipring.empty(rows.shape, rows.dtype)
        self.array[:] = rows
        return self.array


@kinds("inline", "fork", "one thread")
@pytest.mark.parametrize(("collate_fn", "chunk_size"), [(Reusing, 2), (KeepingSamples, None), (KeepingSamples, 2)])
def test_a_collate_fn_that_uses_its_arrays_again_leaves_delivered_batches_alone(kind, chunk_size, collate_fn):
    with loading(Squares(40), 4, collate_fn=collate_fn(), slots=16, chunk_size=chunk_size, **kind) as loader:
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
