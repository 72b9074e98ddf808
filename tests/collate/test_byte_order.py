"""Collated arrays are in native byte order; arrays that are not collated keep theirs."""

import itertools

import numpy as np
import pytest

import slipring
from slipring import Loader
from tests.support.datasets import as_is
from tests.support.kinds import kinds
from tests.support.options import grouped

FIELDS = [("a", ">i4"), ("b", "u1"), ("c", ">f4", (2,))]  # `isnative` overlooks the order of arrays in fields
SWAPPED = [">i2", ">f8", ">c8", ">U3", ">M8[s]", FIELDS]
WAYS = kinds("inline", "fork", "thread", "ranges")


def values(dtype, i):
    if np.dtype(dtype).names:
        return np.array([(i, i + 1, (i + 2, 0.5)), (i, 2, (3, 4))], dtype)
    return np.array([i, i + 1], "i8").astype(dtype)


def scalar(dtype, i):
    return values(dtype, i)[0]


def number(dtype, i):
    return values(dtype, i)[1, ...]


class Samples:
    """Sample i is `function(i)`; with `reused`, always the same array with other values."""

    def __init__(self, function, n=8, reused=False):
        self.function, self.n, self.array = function, n, function(0) if reused else None

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if self.array is None:
            return self.function(i)
        self.array[...] = self.function(i)
        return self.array


def assert_stacked(got, parts):
    """Fail unless an array is numpy's stack of the parts, to the bit."""
    wanted = np.stack(parts)
    assert type(got) is np.ndarray and got.dtype == wanted.dtype and got.dtype == got.dtype.newbyteorder("=")
    assert got.shape == wanted.shape and got.tobytes() == wanted.tobytes()


@WAYS
@pytest.mark.parametrize("make", [values, scalar, number], ids=lambda make: make.__name__)
@pytest.mark.parametrize("reused", [False, True])
def test_arrays_and_scalars_of_any_byte_order_make_native_batches(kind, make, reused):
    if reused and make is scalar:
        pytest.skip("scalars cannot be changed")
    for dtype in SWAPPED:
        samples = Samples(lambda i, dtype=dtype: make(dtype, i), reused=reused)
        for first, batch in zip((0, 4), Loader(samples, 4, **grouped(**kind)), strict=True):
            assert_stacked(batch, [make(dtype, i) for i in range(first, first + 4)])


@WAYS
def test_byte_orders_may_be_mixed_in_a_batch(kind):
    for dtype, first in itertools.product(SWAPPED, (0, 1)):
        orders = [dtype, np.dtype(dtype).newbyteorder("=")]
        made = [{"x": [values(orders[(i + first) % 2], i)]} for i in range(8)]
        batches = list(Loader(made, 4, **grouped(**kind)))
        for k, batch in zip((0, 4), batches, strict=True):
            assert_stacked(batch["x"][0], [made[i]["x"][0] for i in range(k, k + 4)])


@WAYS
def test_a_batch_of_several_dtypes_is_native_too(kind):
    mixes = [[">f8", ">f4"], [">i4", ">f8"], [">U3", "<U5"], ["<f4", ">f8", ">i2"], [">f8", 1.5]]
    for mix in mixes:
        made = [values(d, 1)[1, ...] if isinstance(d, str) else d for d in mix]
        (batch,) = Loader(made, len(made), **grouped(**kind))
        assert_stacked(batch, made)


@kinds("inline", "fork", "thread")
def test_arrays_that_are_not_collated_keep_their_byte_order(kind):
    for dtype in SWAPPED:
        made = [values(dtype, i) for i in range(4)]
        for got, sent in zip(Loader(made, batch_size=None, **grouped(**kind)), made, strict=True):
            assert got.dtype == sent.dtype and got.tobytes() == sent.tobytes()
        for got in Loader(made, 2, collate_fn=as_is, **grouped(**kind)):
            assert [part.dtype for part in got] == [np.dtype(dtype)] * 2


def test_queues_caches_and_empty_keep_the_byte_order():
    queue, cache = slipring.Queue(2), slipring.Cache("1MiB")
    for key, dtype in enumerate(SWAPPED):
        sent = values(dtype, 3)
        queue.put(sent)
        cache.put(key, sent)
        for got in (queue.get(), cache.get(key)):
            assert got.dtype == sent.dtype and got.tobytes() == sent.tobytes()
        assert slipring.empty(3, dtype).dtype == np.dtype(dtype)


@pytest.mark.parametrize("shuffle", [0, 6])
def test_the_columns_of_streams_are_native(shuffle):
    blocks = [{"x": values(d, i), "y": np.ma.masked_array(values(d, i))} for i, d in enumerate([">f8", "<f8", ">f8"])]
    source = slipring.stream(blocks, 2, **({"shuffle_buffer": shuffle} if shuffle else {}))
    batches = list(source)
    for name in "xy":
        column = np.concatenate([batch[name] for batch in batches])
        assert column.dtype == np.dtype(np.float64) and sorted(column.tolist()) == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_torchs_face_refuses_other_byte_orders_as_torch_does(num_workers):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader
    from tests.support.torch_datasets import raises

    native = np.ones(2)
    for samples in ([values(">f8", i) for i in range(2)], [native, values(">f8", 1)], [{"x": values(">f8", 1)}] * 2):
        for make in (torch.utils.data.DataLoader, DataLoader):
            with raises(ValueError, match="given numpy array has byte order different from the native byte order"):
                list(make(samples, 2, num_workers=num_workers))
