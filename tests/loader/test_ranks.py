"""The rank that seeds a loader: the argument's, else the sampler's, else torch.distributed's."""

import contextlib

import numpy as np
import pytest

from slipring import BatchSampler, Loader, rng
from slipring.adapters import megengine, paddle

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


class Draws:
    """A sample is a random number: it depends on seed, epoch, batch and rank, not on the index."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return int(rng().integers(1 << 62))


def core(**options):
    with Loader(Draws(), seed=1, **options) as loader:
        return np.concatenate(list(loader)).tolist()


def torchs(**options):
    torch.manual_seed(1)
    with DataLoader(Draws(), **{"rng": "batch", **options}) as loader:
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
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_samplers_rank_comes_before_that_of_torch_distributed_also_if_it_is_0(
    group, drawn, sampler, rank, num_workers
):
    assert drawn(**sampler(rank), num_workers=num_workers) == draws_of_each_rank(drawn)[rank]


@LOADERS
@SAMPLERS
def test_rank_comes_before_the_samplers(group, drawn, sampler):
    of_ranks = draws_of_each_rank(drawn)
    for rank in (0, 2):
        assert drawn(**sampler(1), rank=rank) == of_ranks[rank]


@LOADERS
def test_the_rank_of_torch_distributed_counts_where_no_sampler_has_one(group, drawn):
    of_ranks = draws_of_each_rank(drawn)
    batches = [[0, 1], [2, 3]]
    assert drawn(batch_sampler=batches) == of_ranks[GLOBAL_RANK]
    assert drawn(batch_sampler=batches, rank=0) == of_ranks[0]


@LOADERS
def test_without_any_rank_it_is_0(drawn):
    assert drawn(batch_sampler=[[0, 1], [2, 3]]) == draws_of_each_rank(drawn)[0]


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


@SAMPLERS
def test_a_state_says_the_rank(group, sampler):
    assert DataLoader(Draws(), **sampler(0)).state_dict()["ranks"]["rank"] == 0
    assert DataLoader(Draws(), **sampler(0), rank=1).state_dict()["ranks"]["rank"] == 1


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


def test_a_state_of_an_iterable_dataset_says_the_rank(group):
    assert DataLoader(Stream()).state_dict()["ranks"]["rank"] == GLOBAL_RANK
    assert DataLoader(Stream(), rank=0).state_dict()["ranks"]["rank"] == 0


def test_a_rank_for_an_iterable_dataset_is_refused_whose_random_numbers_it_would_not_set():
    with pytest.raises(ValueError, match=r"rank=0.*iterable dataset \(Stream\).*seed="):
        Loader(Stream(), rank=0)


# ---- adapters


class Local(paddle.BatchSampler):
    """A sampler whose attributes for its rank are those of paddle.io.DistributedBatchSampler."""

    def __init__(self, rank):
        super().__init__(Draws(), batch_size=2)
        self.local_rank, self.nranks = rank, 2


def of_paddle(sampler):
    np.random.seed(1)
    loader = paddle.DataLoader(Draws(), batch_sampler=sampler)
    batches = [np.asarray(batch).tolist() for batch in loader]
    loader.close()
    return batches


def of_megengine(sampler):
    np.random.seed(1)
    return [batch.tolist() for batch in megengine.DataLoader(Draws(), sampler)]


def ranked(rank):
    return megengine.SequentialSampler(Draws(), 2, world_size=2, rank=rank)


@pytest.mark.parametrize(("drawn", "sampler"), [(of_paddle, Local), (of_megengine, ranked)])
def test_adapters_draw_as_their_samplers_ranks(drawn, sampler):
    first, second = drawn(sampler(0)), drawn(sampler(1))
    assert first != second
    with in_a_group():
        assert [drawn(sampler(0)), drawn(sampler(1))] == [first, second]
