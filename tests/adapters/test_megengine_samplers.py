"""slipring.adapters.megengine's samplers: the behaviour of MegEngine's that is kept."""

import copy
import itertools
import sys
import types

import numpy as np
import pytest

from slipring.adapters.megengine import (
    DataLoader,
    Infinite,
    MapSampler,
    RandomSampler,
    ReplacementSampler,
    SequentialSampler,
)
from tests.support.adapters import Images, labels
from tests.support.datasets import flat


def test_samplers_give_batches_of_indices():
    data = Images(7)
    assert list(SequentialSampler(data, 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(SequentialSampler(data, 3, drop_last=True)) == [[0, 1, 2], [3, 4, 5]]
    assert list(SequentialSampler(data, 2, indices=[5, 1, 3])) == [[5, 1], [3]]
    shuffled = RandomSampler(data, 3, seed=1)
    first, second = (flat(shuffled) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(7)) and first != second
    assert flat(RandomSampler(data, 3, seed=1)) == first
    drawn = flat(ReplacementSampler(data, 4, num_samples=400, weights=[0, 1, 0, 0, 3, 0, 0], seed=2))
    assert len(drawn) == 400 and set(drawn) == {1, 4} and 250 < drawn.count(4) < 350
    assert len(flat(ReplacementSampler(data, 4))) == 7
    endless = Infinite(SequentialSampler(data, 4))
    assert [next(endless) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6], [0, 1, 2, 3]]
    assert len(endless) > 1 << 60
    with pytest.raises(StopIteration):
        next(Infinite(SequentialSampler(data, indices=[])))
    for sampler in (SequentialSampler(data, 3), SequentialSampler(data, 3, drop_last=True), RandomSampler(data, 2)):
        assert len(sampler) == len(list(sampler))


@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler, ReplacementSampler])
def test_ranks_share_the_indices_and_the_first_are_used_again(kind):
    seed = {} if kind is SequentialSampler else {"seed": 3}
    ranks = [kind(Images(7), 2, world_size=3, rank=rank, **seed) for rank in range(3)]
    shares = [flat(sampler) for sampler in ranks]
    assert [len(share) for share in shares] == [3, 3, 3] and {len(sampler) for sampler in ranks} == {2}
    assert {sampler.num_samples for sampler in ranks} == {3}, "the rank's"
    together = [share[k] for k in range(3) for share in shares]
    if kind is not ReplacementSampler:
        assert together[7:] == together[:2]
        assert sorted(together[:7]) == list(range(7))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch_size": 0}, "batch_size.*0"),
        ({"batch_size": 2.0}, "batch_size.*2.0"),
        ({"drop_last": 1}, "drop_last.*1"),
        ({"batch_size": 4, "world_size": 3}, "batch_size must be at most the 3 samples, not 4"),
        ({"batch_size": 3, "num_samples": 2}, "batch_size must be at most the 2 samples, not 3"),
        ({"weights": np.ones(7)}, "weights must be a list.*array"),
        ({"world_size": 2, "rank": 2}, "rank.*1"),
        ({"weights": [1, 2]}, "weights.*7.*2"),
        ({"weights": [0] * 7}, "weights"),
    ],
)
def test_bad_arguments_of_samplers_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        ReplacementSampler(Images(7), **arguments)


@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler])
def test_indices_that_are_no_sequence_are_refused(kind):
    for indices in (5, np.arange(3), iter([1])):
        with pytest.raises(ValueError, match="indices must be a list"):
            kind(Images(7), indices=indices)


def test_a_sampler_of_some_indices_has_their_length():
    for kind in (SequentialSampler, RandomSampler):
        some = kind(Images(9), 2, indices=[5, 1, 3])
        assert len(some) == len(list(some)) == 2 and sorted(flat(some)) == [1, 3, 5]
        shared = [kind(Images(9), 2, indices=[5, 1, 3], world_size=2, rank=rank) for rank in (0, 1)]
        assert [(s.num_samples, len(s), len(flat(s))) for s in shared] == [(2, 1, 2)] * 2
        assert set(itertools.chain(*map(flat, shared))) == {1, 3, 5}


def test_ranks_of_a_replacement_sampler_have_draws_of_their_own():
    """7 draws for 3 ranks become 9: no rank shares one with another."""
    ranks = [ReplacementSampler(Images(1000), 2, False, 7, None, 3, rank, seed=5) for rank in range(3)]
    drawn = np.random.RandomState(5).choice(1000, 9).tolist()
    assert [flat(sampler) for sampler in ranks] == [drawn[rank::3] for rank in range(3)]
    assert len(set(drawn)) == 9


class Blocks(SequentialSampler):
    """Ranks take their shares as one block."""

    def scatter(self, indices):
        size = len(indices) // self.world_size
        return indices[self.rank * size : (self.rank + 1) * size]


class Reversed(SequentialSampler):
    def batch(self):
        return reversed(list(super().batch()))


class Hard(MapSampler):
    """A sampler as MegEngine's documentation shows it: with `sample` alone."""

    def sample(self):
        return [9, 1, 5, 3]


def test_the_overridden_methods_of_a_sampler_are_called():
    def read(sampler):
        return labels(DataLoader(Images(), sampler, num_workers=2))

    assert read(Blocks(Images(), 2, world_size=2, rank=1)) == [[5, 6], [7, 8], [9]]
    assert read(Reversed(Images(), 4)) == [[8, 9], [4, 5, 6, 7], [0, 1, 2, 3]]
    assert read(Hard(Images(), 3)) == [[9, 1, 5], [3]]
    assert read(Hard(Images(), 3, drop_last=True)) == [[9, 1, 5]]
    assert read(Hard(Images(), 1, world_size=3, rank=2)) == [[5], [1]]


def test_infinite_shows_the_inner_samplers_attributes_and_can_be_copied():
    endless = copy.copy(Infinite(SequentialSampler(Images(7), 3, world_size=2, rank=1)))
    assert (endless.batch_size, endless.rank) == (3, 1) and isinstance(endless, MapSampler)
    with pytest.raises(AttributeError, match="no_such"):
        _ = endless.no_such


def test_ranks_are_those_of_megengines_processes(monkeypatch):
    there = types.SimpleNamespace(is_distributed=lambda: True, get_rank=lambda: 1, get_world_size=lambda: 3)
    monkeypatch.setitem(sys.modules, "megengine.distributed", there)
    sampler = SequentialSampler(Images(7))
    assert (sampler.rank, sampler.world_size, flat(sampler)) == (1, 3, [1, 4, 0])
    assert RandomSampler(Images(7)).rng.randint(1 << 30) == np.random.RandomState(0).randint(1 << 30)
    assert flat(SequentialSampler(Images(7), world_size=2, rank=0)) == [0, 2, 4, 6]
    there.is_distributed = lambda: False
    assert flat(SequentialSampler(Images(7))) == list(range(7))
