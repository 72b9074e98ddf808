"""A `__getitems__` that returns a finished batch in place of samples: its parts never become samples."""

import asyncio
from collections import OrderedDict, namedtuple

import numpy as np
import pytest

import slipring
from tests.support.kinds import kinds, loaded

Columns = namedtuple("Columns", ["x", "y"])
FINISHED = {
    "a dict": lambda indices: {"x": np.array(indices), "name": [str(i) for i in indices]},
    "an ordered dict": lambda indices: OrderedDict(x=np.array(indices), name=str(indices)),
    "a dict by number": lambda indices: {i: float(i) for i in range(len(indices))},
    "a text": lambda indices: "".join(str(i) for i in indices),
    "bytes": bytes,
    "a set": set,
    "a named tuple": lambda indices: Columns([float(i) for i in indices], indices),
    "a number": len,
    "nothing": lambda indices: None,
    "an array without rows": lambda indices: np.array(len(indices)),
}


class Finished:
    """Returns ``make(indices)`` for a batch."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 8

    def __getitem__(self, index):
        raise NotImplementedError

    def __getitems__(self, indices):
        return self.make(indices)


class Awaited(Finished):
    async def __getitems__(self, indices):
        await asyncio.sleep(0)
        return self.make(indices)


def unchanged(batch):
    return batch


@pytest.mark.usefixtures("forked")
@kinds("inline", "one fork", "one thread", "ranges")
@pytest.mark.parametrize("what", FINISHED)
def test_a_finished_batch_is_not_taken_for_samples(what, kind):
    for dataset in (Finished(FINISHED[what]), Awaited(FINISHED[what])):
        for more in ({}, {"fetch_threads": 2}, {"skip_none": True}, {"skip_none": True, "collate_fn": unchanged}):
            with pytest.raises(TypeError, match=r"samples must be a list .* type .*collate_fn"):
                loaded(dataset, 4, **kind, **more)


@kinds("inline", "one fork", "one thread")
@pytest.mark.parametrize("what", FINISHED)
def test_a_collate_fn_gets_a_finished_batch_unchanged(what, kind):
    batches = loaded(Awaited(FINISHED[what]), 4, collate_fn=lambda batch: [type(batch), repr(batch)], **kind)
    expected = [FINISHED[what](indices) for indices in ([0, 1, 2, 3], [4, 5, 6, 7])]
    assert batches == [[type(batch), repr(batch)] for batch in expected]


@pytest.mark.usefixtures("forked")
@kinds("inline", "one fork", "ranges")
def test_a_tuple_of_a_batchs_parts_is_not_taken_for_samples(kind):
    pair = Finished(lambda indices: (np.array(indices), np.array(indices)))
    with pytest.raises(ValueError, match="2 samples for 4 indices"):
        loaded(pair, 4, **kind)


@kinds("inline", "one fork", "ranges")
def test_the_rows_of_an_array_and_a_tuple_of_samples_are_samples(kind):
    for make in (np.array, tuple, iter):
        assert [batch.tolist() for batch in loaded(Finished(make), 4, **kind)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_tables_are_not_taken_for_samples():
    pa = pytest.importorskip("pyarrow")
    for make in (lambda indices: pa.table({"x": indices}), lambda indices: pa.record_batch({"x": indices})):
        with pytest.raises(TypeError, match="samples must be a list"):
            loaded(Finished(make), 4)


@pytest.mark.parametrize("what", FINISHED)
def test_a_cache_refuses_finished_batches(what):
    data = Finished(FINISHED[what])
    for cached in (slipring.cached(data, "1MiB"), slipring.cached(data, "1MiB").map(str)):
        with pytest.raises(TypeError, match="samples must be a list"):
            cached.__getitems__([1, 2])


def test_collation_refuses_a_batch():
    with pytest.raises(TypeError, match="samples must be a list"):
        slipring.default_collate({"x": 1})
