"""A batch that is made row by row equals the collated list of its samples, or raises the same error."""

import asyncio
import collections
import random
import weakref

import numpy as np
import pytest

from slipring import Memory, Workers
from slipring.errors import BatchTooLarge
from slipring.loader import Loader
from tests.support.drawn import LEAVES, ROWS, check_rows, described, drawn_samples, outcome
from tests.support.inside import NUMPY, RowWriter, default_collate
from tests.support.options import grouped
from tests.support.trip import Trip


@pytest.mark.parametrize("seed", range(30))
def test_any_samples_make_the_batch_or_the_error_that_their_list_makes(seed):
    check_rows(seed, LEAVES, NUMPY, default_collate)


class Values(list):
    """A dataset of ready samples."""


@pytest.mark.parametrize("seed", range(5))
def test_any_samples_in_chunks_make_the_batch_or_the_error_that_their_list_makes(seed):
    rng = random.Random(seed)
    trip = Trip()
    for _ in range(4):
        samples = Values(drawn_samples(rng, LEAVES))
        want = outcome(trip, lambda: default_collate(samples))  # noqa: B023
        with Loader(samples, ROWS, num_workers=2, workers=Workers(chunk_size=2)) as loader:
            try:
                got = described(next(iter(loader)))
            except Exception as error:
                got = type(error), str(error).replace(" index ", " index 10")
        assert got == want, samples


@pytest.mark.parametrize("num_workers", [1, 3])
def test_dtypes_that_differ_among_chunks_become_one_that_holds_all(num_workers):
    samples = Values([np.ones(2, "f4"), np.ones(2, "f8"), np.ones(2, "i1"), 1, 2.5, True, 2.5, 1, 1])
    with Loader(samples, 3, num_workers=num_workers, workers=Workers(chunk_size=1)) as loader:
        for _ in range(5):  # the workers finish the chunks in any order
            got = [(batch.dtype, batch.tolist()) for batch in loader]
            assert got == [(np.float64, values) for values in ([[1, 1]] * 3, [1, 2.5, 1], [2.5, 1, 1])]


class Reused:
    """Returns the same array for all samples, each time with other values."""

    def __init__(self):
        self.array = np.zeros(3)

    def __len__(self):
        return 8

    def __getitem__(self, i):
        self.array[:] = i
        return {"x": self.array} if i < 6 else [self.array]


def test_of_an_array_that_is_used_again_each_sample_has_its_own_values():
    with Loader(Reused(), 3, num_workers=1, sampler=range(6)) as loader:
        assert [batch["x"][:, 0].tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]


LIVE = weakref.WeakSet()


class Pixels(bytearray):
    """The memory of one sample; `LIVE` contains every live instance."""

    __hash__ = object.__hash__


def counted(i):
    """Return a sample with the number of live samples, including itself."""
    memory = Pixels(np.full(1000, i).tobytes())
    LIVE.add(memory)
    return np.frombuffer(memory, np.int64), len(LIVE)


class Map:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return counted(i)


class Async(Map):
    async def __getitem__(self, i):
        await asyncio.sleep(0)
        return counted(i)


class Stream:
    def __iter__(self):
        return map(counted, range(64))


@pytest.mark.parametrize(
    ("dataset", "options", "most"),
    [
        (Map(), {"num_workers": 0}, 4),
        (Map(), {"num_workers": 2, "chunk_size": 8}, 4),
        (Map(), {"num_workers": 1, "fetch_threads": 6}, 6),
        (Async(), {"num_workers": 1, "fetch_threads": 6}, 6),
        (Stream(), {"num_workers": 1}, 4),
    ],
    ids=["inline", "chunks", "fetch threads", "async", "stream"],
)
def test_a_worker_has_few_samples_at_a_time(dataset, options, most):
    with Loader(dataset, 32, **grouped(**options)) as loader:
        for arrays, live in loader:
            assert (arrays == arrays[:, :1]).all()
            assert live.max() <= most, live


class TooLargeFor:
    """A stream with a batch that fits into no slot."""

    def __iter__(self):
        for i in range(12):
            yield np.full(1 << 20 if 4 <= i < 8 else 10, i)


def test_a_stream_continues_after_a_batch_whose_rows_fit_no_slot():
    with Loader(TooLargeFor(), 4, num_workers=1, memory=Memory(slot_bytes=1 << 20)) as loader:
        it = iter(loader)
        assert next(it)[:, 0].tolist() == [0, 1, 2, 3]
        with pytest.raises(BatchTooLarge):
            next(it)
        assert next(it)[:, 0].tolist() == [8, 9, 10, 11]


def test_copies_to_rows_count_as_collation():
    with Loader(Values([np.zeros(1 << 20, np.uint8)] * 64), 16, num_workers=1) as loader:
        assert len(list(loader)) == 4
        assert loader.stats().collate_s > 0.001  # for 64 MB


class GivesNone(list):
    def __getitems__(self, indices):
        return None


def test_a_collate_fn_gets_the_very_object_that_getitems_returned():
    with Loader(GivesNone(range(16)), 8, num_workers=1) as loader, pytest.raises(TypeError, match="NoneType"):
        next(iter(loader))
    with Loader(GivesNone(range(16)), 8, num_workers=1, collate_fn=str) as loader:
        assert list(loader) == ["None", "None"]


class Lazy(collections.UserDict):
    """Counts how often a value is computed."""

    computed = 0

    def __getitem__(self, key):
        self.computed += 1
        return super().__getitem__(key)


def test_each_value_of_a_lazy_mapping_is_computed_once():
    samples = [Lazy(x=np.full(3, i), y=i) for i in range(4)]
    rows = RowWriter(0, 4, NUMPY)
    for row, sample in enumerate(samples):
        sample.computed = 0
        rows.put(row, sample)
    assert [sample.computed for sample in samples] == [2] * 4
    assert rows.batch(default_collate)["y"].tolist() == [0, 1, 2, 3]
