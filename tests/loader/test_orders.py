"""slipring's own orders: uniform, of any length, and in constant memory."""

import copy
import itertools
import pickle

import numpy as np
import pytest

from slipring import BatchSampler
from tests.support.datasets import flat
from tests.support.inside import IndexOrder
from tests.support.memory import growth

BILLION = 10**9


def z_score(counts):
    """Return how many standard deviations the chi-square of counts that should be equal is above its mean.

    By E. B. Wilson and M. M. Hilferty, The distribution of chi-square, PNAS 17(12), 1931. 3.09: p is 0.001.
    """
    freedom = counts.size - 1
    chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    return ((chi_square / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / (2 / (9 * freedom)) ** 0.5


def orders_of(n, number):
    """Return `number` epochs of a shuffle of n indices as an array."""
    return np.stack([IndexOrder.shuffled(n, 17 * epoch + 1).part(0, n) for epoch in range(number)])


@pytest.mark.parametrize("n", [2, 7, 1000])
def test_a_short_shuffle_is_uniform_over_positions_and_neighbours(n):
    orders = orders_of(n, 30_000 if n < 1000 else 5_000)
    assert (np.sort(orders, axis=1) == np.arange(n)).all()
    for position in (0, n // 2, n - 1):
        assert z_score(np.bincount(orders[:, position], minlength=n)) < 3.09, position
    pairs = np.bincount((orders[:, :-1] * n + orders[:, 1:]).ravel(), minlength=n * n)
    assert z_score(pairs.reshape(n, n)[~np.eye(n, dtype=bool)]) < 3.09


@pytest.mark.parametrize("n", [65_600, BILLION])
def test_a_long_shuffle_is_uniform_over_positions_and_neighbours(n):
    """The indices are divided into 40 x 40 parts of equal, or nearly equal, size."""
    parts, cells = 40, np.zeros((3, 40, 40))
    for epoch in range(200):
        order = IndexOrder.shuffled(n, epoch, 0)
        for first in (0, n // 3, n - 1001):
            indices = order.part(first, 1001) * parts // n
            positions = np.arange(first, first + len(indices)) * parts // n
            np.add.at(cells[0], (positions, indices), 1)
            np.add.at(cells[1], (indices[:-1], indices[1:]), 1)
            np.add.at(cells[2], (indices[:-2], indices[2:]), 1)
    seen = cells[0][cells[0].sum(axis=1) > 0]
    assert all(z_score(row) < 4.5 for row in seen)  # the maximum of dozens of values
    assert z_score(cells[1]) < 3.09 and z_score(cells[2]) < 3.09


def test_an_array_of_another_kind_is_refused_as_an_order():
    for array in (np.arange(5, dtype=np.int32), np.arange(6).reshape(2, 3), np.arange(10)[::2], [0] * 5):
        with pytest.raises(TypeError, match=r"indices \(int64\) must be a contiguous array"):
            IndexOrder.stored(array)
    with pytest.raises(TypeError, match=r"bounds \(float64\) must be a contiguous array of 5 values"):
        IndexOrder.drawn(5, 5, 0, np.ones(4))
    with pytest.raises(IndexError, match="without positions"):
        IndexOrder(0).part(0, 1)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("list", {}),
        ("number", {"shuffle": True}),
        ("range", {"shuffle": True}),
        ("array", {"num_samples": 90_000}),
        ("number", {"weights": np.arange(70_000) % 5}),
    ],
    ids=["list-ascending", "number-shuffled", "range-shuffled", "array-drawn", "number-weighted"],
)
def test_the_order_of_an_epoch_is_a_sequence_that_computes_only_the_requested_part(how, kind):
    n = 70_000
    indices = {"number": n, "range": range(5, 5 + n), "array": np.arange(5, 5 + n), "list": list(range(n))}[kind]
    sampler = BatchSampler(indices, 1000, seed=3, **how)
    order = sampler.order(0)
    whole = list(order)
    assert whole == flat(sampler) and {type(index) for index in whole} == {int}
    assert len(order) == len(whole) and sampler.order(0)[:] == whole
    assert (list(sampler.order(1)) == whole) == (how == {})
    assert (np.asarray(order) == whole).all() and list(pickle.loads(pickle.dumps(order))) == whole
    assert order[0] == whole[0] and order[-1] == whole[-1] and order[69_999] == whole[69_999]
    slices = [(3, 9), (None, None, 1000), (100, 2, -7), (None, None, -1), (5, 5), (-99_999, None, -1)]
    for part in itertools.starmap(slice, slices):
        assert order[part] == whole[part]
    with pytest.raises(IndexError):
        order[len(whole)]
    if how == {"shuffle": True}:
        assert sorted(whole) == list(range(n) if kind == "number" else indices)


def test_a_billion_shuffled_indices_are_not_stored():
    """This holds for a sampler and for a loader."""
    code = """
from slipring import BatchSampler, Loader
sampler = BatchSampler(n, 8, shuffle=True, rank=1, world_size=3)
assert len(next(iter(sampler)) + sampler.order(0)[5:9]) == 12
for options in ({"shuffle": True, "batch_size": 8}, {"batch_sampler": sampler}):
    with Loader(range(n), **options, num_workers=1) as loader:
        assert len(next(iter(loader))) == 8
"""
    assert growth(code, 1000, BILLION) < 10_000


def test_a_pass_can_be_copied_and_keeps_its_seed():
    sampler = BatchSampler(100, 8, shuffle=True, seed=3)
    batches = iter(sampler)
    next(batches)
    copied, state = copy.deepcopy(batches), batches.state_dict()
    sampler.seed = 4
    assert next(copied) == next(batches) and batches.state_dict()["seed"] == state["seed"] == 3
    assert BatchSampler(0).order(0)[::-1] == []
