"""The rank that seeds a loader: the argument's, else the sampler's, else torch.distributed's."""

import contextlib

import numpy as np
import pytest

from slipring import BatchSampler, Loader, rng
from slipring.adapters import megengine, paddle
from tests.support.datasets import Made

torch = pytest.importorskip("torch")

from torch.utils.data import DistributedSampler, IterableDataset  # noqa: E402

from slipring.torch import DataLoader  # noqa: E402

GLOBAL_RANK, RANKS = 3, 4


@contextlib.contextmanager
def in_a_group():
    """Initialize torch.distributed in a process whose global rank is 3."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    torch.distributed.init_process_group("fake", rank=GLOBAL_RANK, world_size=RANKS, store=fake.FakeStore())
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture
def group():
    with in_a_group():
        yield


DRAWS = Made(lambda i: int(rng().integers(1 << 62)), 8)  # depends on seed, epoch, batch and rank, not on the index


def core(**options):
    with Loader(DRAWS, seed=1, **options) as loader:
        return np.concatenate(list(loader)).tolist()


def torchs(**options):
    torch.manual_seed(1)
    with DataLoader(DRAWS, **{"rng": "batch", **options}) as loader:
        return torch.cat(list(loader)).tolist()


def ours(rank):
    return {"batch_sampler": BatchSampler(8, 2, rank=rank, world_size=2)}


def of_torch(rank):
    return {"batch_size": 2, "sampler": DistributedSampler(range(8), num_replicas=2, rank=rank)}


LOADERS = pytest.mark.parametrize("drawn", [core, torchs])
SAMPLERS = pytest.mark.parametrize("sampler", [ours, of_torch])


def draws_of_each_rank(drawn):
    found = [drawn(**ours(0), rank=rank) for rank in range(RANKS)]
    assert len({number for numbers in found for number in numbers}) == RANKS * len(found[0])
    return found


@LOADERS
@SAMPLERS
def test_rank_comes_before_the_samplers_and_that_before_the_rank_of_torch_distributed(group, drawn, sampler):
    of_ranks = draws_of_each_rank(drawn)
    assert drawn(**sampler(0)) == of_ranks[0]
    assert drawn(**sampler(1), num_workers=2) == of_ranks[1]
    assert drawn(**sampler(1), rank=0) == of_ranks[0]
    assert drawn(**sampler(0), rank=2) == of_ranks[2]


@LOADERS
def test_the_rank_of_torch_distributed_counts_where_no_sampler_has_one(drawn):
    of_ranks = draws_of_each_rank(drawn)
    batches = [[0, 1], [2, 3]]
    assert drawn(batch_sampler=batches) == of_ranks[0]
    with in_a_group():
        assert drawn(batch_sampler=batches) == of_ranks[GLOBAL_RANK]
        assert drawn(batch_sampler=batches, rank=0) == of_ranks[0]


@LOADERS
@SAMPLERS
def test_rank_moves_the_positions_that_samples_draw_from(group, drawn, sampler):
    by_position = drawn(**sampler(1), rng="sample")
    assert drawn(**sampler(0), rank=1, rng="sample") == by_position != drawn(**sampler(0), rng="sample")


@LOADERS
@pytest.mark.parametrize("options", [{"batch_sampler": BatchSampler(8, 2)}, {"shuffle": True}], ids=list)
def test_samples_have_no_positions_for_more_ranks_than_the_sampler_knows(drawn, options):
    with pytest.raises(ValueError, match="rank=1 must be less than the sampler's world_size"):
        drawn(**options, rank=1, rng="sample")


def test_an_automatic_number_of_workers_draws_as_the_samplers_rank(group):
    assert torchs(**ours(0), num_workers="auto") == draws_of_each_rank(torchs)[0]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


def test_a_state_says_the_rank(group):
    assert DataLoader(DRAWS, **ours(0)).state_dict()["ranks"]["rank"] == 0
    assert DataLoader(DRAWS, **of_torch(0), rank=1).state_dict()["ranks"]["rank"] == 1
    assert DataLoader(Stream()).state_dict()["ranks"]["rank"] == GLOBAL_RANK
    assert DataLoader(Stream(), rank=0).state_dict()["ranks"]["rank"] == 0


def test_a_streams_state_of_a_rank_of_torch_distributed_is_refused_without_it():
    with in_a_group():
        loader = DataLoader(Stream(), 2)
        next(iter(loader))
        state = loader.state_dict()
    with pytest.raises(ValueError, match="rank 3 of 4, by Stream; here is nothing that knows of ranks"):
        DataLoader(Stream(), 2).load_state_dict(state)


def test_a_rank_for_an_iterable_dataset_is_refused_whose_random_numbers_it_would_not_set():
    with pytest.raises(ValueError, match=r"rank=0.*iterable dataset \(Stream\).*seed="):
        Loader(Stream(), rank=0)


class Local(paddle.BatchSampler):
    """A sampler whose attributes for its rank are those of paddle.io.DistributedBatchSampler."""

    def __init__(self, rank):
        super().__init__(DRAWS, batch_size=2)
        self.local_rank, self.nranks = rank, 2


def of_paddle(rank):
    loader = paddle.DataLoader(DRAWS, batch_sampler=Local(rank))
    found = [np.asarray(batch).tolist() for batch in loader]
    loader.close()
    return found


def of_megengine(rank):
    sampler = megengine.SequentialSampler(DRAWS, 2, world_size=2, rank=rank)
    return [batch.tolist() for batch in megengine.DataLoader(DRAWS, sampler)]


@pytest.mark.parametrize("batches_of", [of_paddle, of_megengine])
def test_an_adapter_draws_as_its_samplers_rank(batches_of):
    def drawn(rank):
        np.random.seed(1)
        return batches_of(rank)

    of_ranks = [drawn(rank) for rank in range(2)]
    assert of_ranks[0] != of_ranks[1]
    with in_a_group():
        assert [drawn(rank) for rank in range(2)] == of_ranks
