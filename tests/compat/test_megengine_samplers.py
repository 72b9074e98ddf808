"""slipring.compat.megengine's samplers: each line that is kept of MegEngine's."""

import pytest

from slipring.compat.megengine import (
    Infinite,
    RandomSampler,
    ReplacementSampler,
    SequentialSampler,
    StreamSampler,
)
from tests.compat.images import Images
from tests.datasets import flat


def test_samplers_give_batches_of_indices():
    """Keep: sequential, random, with replacement (weights), infinite."""
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
        next(Infinite(SequentialSampler(Images(0))))
    for sampler in (
        SequentialSampler(data, 3),
        SequentialSampler(data, 3, drop_last=True),
        RandomSampler(data, 2),
    ):
        assert len(sampler) == len(list(sampler))


@pytest.mark.parametrize("kind", [SequentialSampler, RandomSampler, ReplacementSampler])
def test_ranks_share_the_indices_and_the_first_are_used_again(kind):
    """Keep: rank/world_size padding by wrap-around; seed."""
    seed = {} if kind is SequentialSampler else {"seed": 3}
    ranks = [kind(Images(7), 2, world_size=3, rank=rank, **seed) for rank in range(3)]
    shares = [flat(sampler) for sampler in ranks]
    assert [len(share) for share in shares] == [3, 3, 3] and {len(sampler) for sampler in ranks} == {2}
    together = [share[k] for k in range(3) for share in shares]
    assert together[7:] == together[:2]
    if kind is not ReplacementSampler:
        assert sorted(together[:7]) == list(range(7))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch_size": 0}, "batch_size.*0"),
        ({"batch_size": 2.0}, "batch_size.*2.0"),
        ({"drop_last": 1}, "drop_last.*1"),
        ({"world_size": 2, "rank": 2}, "rank.*1"),
        ({"world_size": 2, "rank": 0.5}, r"rank.*0\.5"),
        ({"world_size": 2, "rank": "0"}, "rank.*'0'"),
        ({"num_samples": 1.5}, r"num_samples.*1\.5"),
        ({"world_size": 0}, "world_size.*0"),
        ({"num_samples": 0}, "num_samples.*0"),
        ({"weights": [1, 2]}, "weights.*7.*2"),
        ({"weights": [0] * 7}, "weights"),
        ({"weights": [-1, 2, 0, 0, 0, 0, 0]}, "weights"),
    ],
)
def test_bad_arguments_of_samplers_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        ReplacementSampler(Images(7), **arguments)
    if "batch_size" in arguments:
        with pytest.raises(ValueError, match=said):
            StreamSampler(arguments["batch_size"])
