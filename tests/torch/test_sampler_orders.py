"""torch's own samplers: the same indices from the same draws, in an array. Unusual samplers, as clients have them."""

import itertools
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DistributedSampler, RandomSampler  # noqa: E402

from slipring.torch import DataLoader  # noqa: E402
from tests.support.datasets import flat  # noqa: E402
from tests.support.inside import pickled  # noqa: E402
from tests.support.memory import growth  # noqa: E402
from tests.support.stateful import Reads, Walk  # noqa: E402

N = 10_007


def both(make):
    """Return the samples of torch and slipring.torch in two epochs of one sampler, and the generators' states after."""
    found = []
    for loader_class in (torch.utils.data.DataLoader, DataLoader):
        torch.manual_seed(5)
        sampler = make()
        loader = loader_class(range(N), sampler=sampler, batch_size=100, collate_fn=list)
        epochs = []
        for epoch in range(2):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            epochs.append(flat(loader))
        own = getattr(sampler, "generator", None)
        found.append((epochs, torch.get_rng_state().tolist(), own and own.get_state().tolist()))
    return found


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("more", [{}, {"num_samples": 37}, {"num_samples": 2 * N + 5}, {"replacement": True}], ids=str)
def test_a_random_sampler_draws_the_same(more, seeded):
    def make():
        generator = torch.Generator().manual_seed(3) if seeded else None
        return RandomSampler(range(N), generator=generator, **more)

    torchs, ours = both(make)
    assert ours == torchs and ours[0][0] != ours[0][1]
    assert {type(index) for index in ours[0][0]} == {int}


@pytest.mark.parametrize(("drop_last", "shuffle"), [(False, True), (True, False)])
@pytest.mark.parametrize(("n", "ranks"), [(N, 3), (5, 4), (3, 8)])
def test_a_distributed_sampler_gives_each_rank_the_same(n, ranks, drop_last, shuffle):
    for rank in {0, ranks - 1}:
        torchs, ours = both(
            lambda rank=rank: DistributedSampler(
                range(n), num_replicas=ranks, rank=rank, shuffle=shuffle, drop_last=drop_last
            )
        )
        assert ours == torchs


def test_a_subclass_with_an_order_of_its_own_is_asked_for_it():
    class Backwards(RandomSampler):
        def __iter__(self):
            return iter(range(N - 1, -1, -1))

    assert flat(DataLoader(range(N), sampler=Backwards(range(N)), batch_size=100)) == list(range(N - 1, -1, -1))


@pytest.mark.slow
def test_an_index_of_a_long_order_costs_8_bytes():
    code = """
from torch.utils.data import DistributedSampler, RandomSampler
from slipring.torch import DataLoader
for sampler in (RandomSampler(range(n)), DistributedSampler(range(n), 3, 1)):
    next(iter(DataLoader(range(n), batch_size=8, sampler=sampler)))
"""
    assert growth(code, 1000, 20_000_000) < 180_000


def test_the_rest_of_an_epoch_is_divided_among_other_ranks_as_torch_would_continue():
    n = 1007
    whole = list(DistributedSampler(range(n), num_replicas=1, rank=0))

    def loader(rank, ranks, batch_size):
        return DataLoader(
            range(n),
            batch_size=batch_size,
            sampler=DistributedSampler(range(n), num_replicas=ranks, rank=rank),
            collate_fn=list,
        )

    first = loader(0, 2, 50)
    batches = iter(first)
    list(itertools.islice(batches, 7))
    state = first.state_dict()
    for rank in range(3):
        other = loader(rank, 3, 30)
        other.load_state_dict(state)
        left = whole[700:]
        left += whole[: -len(left) % 3]
        assert flat(other) == left[rank::3]


# ---- unusual samplers


class Tensors(Walk):
    """A stateful batch sampler of tensors of indices."""

    def __len__(self):
        return 4

    def items(self):
        return torch.arange(12).split(3)


def test_a_part_of_a_permutation_is_sent_without_the_rest_of_it():
    permutation = torch.randperm(100_000)
    for part in (permutation[:4], list(permutation[:4]), permutation[:4].double().expand(3, 4)[0]):
        assert len(pickled(part)) < 3000
        assert [int(index) for index in pickle.loads(pickled(part))] == permutation[:4].tolist()


class Asked:
    """Its samples are the types of the requested indices."""

    def __getitems__(self, indices):
        return [type(indices).__name__ for _ in indices]

    def fetch_into(self, indices, empty):
        assert type(indices) is list
        return [type(index).__name__ for index in indices]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_that_were_drawn_ahead_are_resumed_as_the_sampler_gave_them(num_workers):
    def loader():
        return DataLoader(Asked(), batch_sampler=Tensors(), num_workers=num_workers, collate_fn=list)

    with loader() as first:
        iterator = iter(first)
        next(iterator)
        state = pickle.loads(pickle.dumps(first.state_dict()))
        del iterator
    with loader() as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == [["Tensor"] * 3] * 3


def test_fetch_into_gets_a_list_of_indices():
    batches = [torch.tensor([3, 1]), (2, 4)]
    with DataLoader(Asked(), batch_sampler=batches, num_workers=1) as loader:
        assert list(loader) == [["Tensor"] * 2, ["int"] * 2]


def test_a_sampler_that_cannot_begin_is_asked_once():
    class NoManifest:
        begun = 0

        def __iter__(self):
            self.begun += 1
            raise LookupError("the manifest is missing")

    sampler = NoManifest()
    with DataLoader(range(6), 2, sampler=sampler, num_workers=2) as loader:
        iterator = iter(loader)
        with pytest.raises(LookupError, match="the manifest is missing"):
            next(iterator)
        assert list(iterator) == [] and sampler.begun == 1
        assert loader.state_dict()["finished"]


def test_a_batch_that_is_no_list_is_refused_after_the_batches_before_it():
    batches = [[0, 1], [2, 3], torch.tensor(3)]
    with DataLoader(Reads(6), collate_fn=list, batch_sampler=batches, num_workers=1) as loader:
        iterator = iter(loader)
        assert [[i for i, _ in next(iterator)] for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(TypeError):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
