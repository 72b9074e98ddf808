"""slipring.BatchSampler: batches of indices, of one rank or of all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring import BatchSampler
from tests.support.datasets import flat


def test_indices_come_in_order_in_batches():
    assert list(BatchSampler(7, 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(BatchSampler(7, 3, drop_last=True)) == [[0, 1, 2], [3, 4, 5]]
    assert list(BatchSampler(["b", "a", "c"], 2)) == [["b", "a"], ["c"]]
    assert list(BatchSampler(0, 3)) == list(BatchSampler([], 3, shuffle=True)) == []


def test_a_seed_repeats_the_orders_and_epochs_differ():
    a, b = (BatchSampler(50, 8, shuffle=True, seed=3) for _ in range(2))
    epochs = [flat(a) for _ in range(3)]
    assert [flat(b) for _ in range(3)] == epochs
    assert len({tuple(order) for order in epochs}) == 3
    assert all(sorted(order) == list(range(50)) for order in epochs)
    assert flat(BatchSampler(50, 8, shuffle=True, seed=4)) != epochs[0]
    a.set_epoch(1)
    assert flat(a) == epochs[1] and a.epoch == 2
    assert flat(BatchSampler(50, 8, shuffle=True)) != flat(BatchSampler(50, 8, shuffle=True))


@pytest.mark.parametrize("how", [{}, {"shuffle": True}, {"num_samples": 20}], ids=str)
def test_indices_of_an_array_are_plain_numbers_whatever_the_order(how):
    for indices in (np.arange(5, 9), np.arange(5, 9).astype(">i4"), Labelled([5, 6, 7, 8])):
        found = flat(BatchSampler(indices, 2, **how))
        assert {type(i) for i in found} == {int} and set(found) <= {5, 6, 7, 8}
    assert flat(BatchSampler(np.array(3))) == flat(BatchSampler(np.int64(3))) == [0, 1, 2]


def test_indices_of_other_types_are_shuffled_and_drawn_as_they_are():
    names = [f"n{i}" for i in range(9)]
    assert sorted(flat(BatchSampler(names, 2, shuffle=True))) == names
    assert set(flat(BatchSampler(names, 2, num_samples=40))) <= set(names)
    for unit in ("s", "ns"):
        assert flat(BatchSampler(np.array(["2020-01-01"], f"M8[{unit}]"))) == [np.datetime64("2020-01-01")]


class Labelled:
    """Like a pandas series: indexed by labels, but an array by positions."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, label):
        raise KeyError(label)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


def test_weights_say_how_often_an_index_is_drawn():
    drawn = flat(BatchSampler(5, 16, weights=[0, 1, 0, 3, 0], num_samples=4000, seed=1))
    assert len(drawn) == 4000 and set(drawn) == {1, 3} and 2800 < drawn.count(3) < 3200
    assert len(flat(BatchSampler(5, 2, weights=[1] * 5))) == 5
    assert len(flat(BatchSampler(5, 2, num_samples=12))) == 12
    given = np.array([1.0, 0.0, 3.0])
    sampler = BatchSampler(3, weights=given, num_samples=50, seed=1)
    before = flat(sampler)
    given[:] = 0, 1, 0
    sampler.set_epoch(0)
    assert flat(sampler) == before and sampler.weights.tolist() == [0.25, 0, 0.75]


@given(
    n=st.integers(0, 40),
    size=st.integers(1, 7),
    ranks=st.integers(1, 6),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_ranks_together_have_every_index_and_as_many_each(n, size, ranks, shuffle, drop_last):
    of_ranks = [
        BatchSampler(n, size, shuffle=shuffle, drop_last=drop_last, rank=rank, world_size=ranks)
        for rank in range(ranks)
    ]
    for _ in range(2):
        batches = [list(sampler) for sampler in of_ranks]
        assert {len(sampler) for sampler in of_ranks} == {len(own) for own in batches}
        assert len({tuple(map(len, own)) for own in batches}) == 1
        assert all(len(batch) == size for own in batches for batch in (own if drop_last else own[:-1]))
        shares = [[i for batch in own for i in batch] for own in batches]
        if not drop_last:
            together = [share[k] for k in range(len(shares[0])) for share in shares]
            assert sorted(together[:n]) == list(range(n)) and len(together) - n < ranks
            assert all(together[k] == together[k % n] for k in range(n, len(together)))


@pytest.mark.parametrize("given", [0, 3])
def test_an_interrupted_pass_continues_and_the_next_ones_are_the_same(given):
    whole = BatchSampler(13, 3, shuffle=True, seed=8)
    next(iter(whole))
    expected = [list(whole) for _ in range(2)]
    broken = BatchSampler(13, 3, shuffle=True, seed=8)
    broken.set_epoch(1)
    batches = iter(broken)
    for _ in range(given):
        next(batches)
    resumed = BatchSampler(13, 3, shuffle=True, seed=8)
    rest = iter(resumed)
    rest.load_state_dict(batches.state_dict())
    assert list(rest) == expected[0][given:]
    assert list(resumed) == expected[1]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"indices": {1, 2}}, TypeError, "indices.*sequence.*set"),
        ({"indices": np.zeros((2, 3))}, ValueError, r"indices.*one dimension.*\(2, 3\)"),
        ({"indices": np.array([True, False])}, TypeError, "indices.*mask.*flatnonzero"),
        ({"indices": 0, "num_samples": 3}, ValueError, "indices.*none"),
        ({"rank": 1}, ValueError, "rank.*0.*1"),
        ({"weights": [1, 2]}, ValueError, r"weights.*\(7,\).*\(2,\)"),
        ({"weights": [0] * 7}, ValueError, "weights"),
        ({"weights": [float("inf")] * 7}, ValueError, "weights"),
        ({"weights": [1] * 7, "shuffle": True}, ValueError, "shuffle.*weights"),
        ({"num_samples": 3, "shuffle": True}, ValueError, "shuffle.*num_samples"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, said):
    with pytest.raises(error, match=said):
        BatchSampler(**{"indices": 7, **arguments})


def test_a_pass_counts_with_its_first_batch():
    sampler, alike = (BatchSampler(8, 2, shuffle=True, seed=1) for _ in range(2))
    epochs = [list(alike) for _ in range(3)]
    unread = iter(sampler)
    assert sampler.epoch == 0 and list(sampler) == epochs[0]
    batches = iter(sampler)
    assert sampler.epoch == 1 and batches.state_dict()["epoch"] == 1
    assert next(batches) == epochs[1][0] and sampler.epoch == 2
    assert list(unread) == epochs[2]


@pytest.mark.parametrize(
    ("workers", "persistent", "whose"),
    [(0, False, "torch's"), (2, True, "torch's"), (0, False, "slipring's"), (2, True, "slipring's")],
)
def test_no_epoch_is_skipped_in_loaders_for_torch(workers, persistent, whose):
    torch = pytest.importorskip("torch")
    if whose == "slipring's":
        from slipring.torch import DataLoader
    else:
        from torch.utils.data import DataLoader
    sampler, alike = (BatchSampler(8, 2, shuffle=True, seed=1) for _ in range(2))
    options = {"multiprocessing_context": "fork", "persistent_workers": persistent} if workers else {}
    loader = DataLoader(torch.arange(8), batch_sampler=sampler, num_workers=workers, **options)
    for epoch in range(3):
        assert [batch.tolist() for batch in loader] == list(alike), epoch
    assert sampler.epoch == 3
