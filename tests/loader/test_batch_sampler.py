"""slipring.BatchSampler: batches of indices, of one rank or of all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring import BatchSampler, Loader, rng
from tests.support.datasets import flat


def test_indices_come_in_order_in_batches():
    assert list(BatchSampler(7, 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(BatchSampler(7, 3, drop_last=True)) == [[0, 1, 2], [3, 4, 5]]
    assert list(BatchSampler(["b", "a", "c"], 2)) == [["b", "a"], ["c"]]
    assert list(BatchSampler(0, 3)) == list(BatchSampler([], 3, shuffle=True)) == []


def test_indices_are_plain_ints():
    for sampler in (BatchSampler(5), BatchSampler(5, shuffle=True), BatchSampler(5, num_samples=9)):
        assert {type(i) for i in flat(sampler)} == {int}


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


def test_the_given_indices_are_shuffled_and_drawn_as_they_are():
    names = [f"n{i}" for i in range(9)]
    assert sorted(flat(BatchSampler(names, 2, shuffle=True))) == names
    assert set(flat(BatchSampler(names, 2, num_samples=40))) <= set(names)
    assert sorted(flat(BatchSampler(np.arange(5, 9), 2, shuffle=True))) == [5, 6, 7, 8]


@pytest.mark.parametrize("how", [{}, {"shuffle": True}, {"num_samples": 20}], ids=str)
def test_indices_of_an_array_are_plain_numbers_whatever_the_order(how):
    for indices in (np.arange(5, 9), np.arange(5, 9).astype(">i4"), Labelled([5, 6, 7, 8])):
        found = flat(BatchSampler(indices, 2, **how))
        assert {type(i) for i in found} == {int} and set(found) <= {5, 6, 7, 8}
    assert flat(BatchSampler(np.array(3))) == flat(BatchSampler(np.int64(3))) == [0, 1, 2]


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


def test_a_dataset_longer_than_memory_costs_nothing():
    endless = BatchSampler(1 << 60, 4, rank=1, world_size=2)
    batches = iter(endless)
    assert next(batches) == [1, 3, 5, 7] and len(endless) == 1 << 57


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_with_loaders_of_their_own_see_everything_once(workers):
    seen = []
    for rank in range(3):
        sampler = BatchSampler(30, 4, shuffle=True, rank=rank, world_size=3)
        with Loader(range(30), batch_sampler=sampler, num_workers=workers) as loader:
            assert len(loader) == 3
            seen.append([np.concatenate(list(loader)).tolist() for _ in range(2)])
    for epoch in range(2):
        assert sorted(i for rank in seen for i in rank[epoch]) == list(range(30))
    assert seen[0][0] != seen[0][1]


class Drawn:
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return i, int(rng().integers(1 << 62))


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_of_one_seed_have_random_numbers_of_their_own(workers):
    seen = []
    for rank in range(2):
        sampler = BatchSampler(8, 4, rank=rank, world_size=2)
        with Loader(Drawn(), batch_sampler=sampler, num_workers=workers, seed=1) as loader:
            (batch,) = [[part.tolist() for part in batch] for batch in loader]
            assert batch[0] == [rank, rank + 2, rank + 4, rank + 6]
            seen.append(batch[1])
    assert not set(seen[0]) & set(seen[1])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["slipring's", "torch's"])
def test_so_have_they_with_torchs_loader_and_rng_batch(workers, kind):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    seen = []
    for rank in range(2):
        if kind == "slipring's":
            given = {"batch_sampler": BatchSampler(8, 4, rank=rank, world_size=2)}
        else:
            sampler = torch.utils.data.DistributedSampler(range(8), num_replicas=2, rank=rank, shuffle=False)
            given = {"batch_size": 4, "sampler": sampler}
        torch.manual_seed(1)
        with DataLoader(Drawn(), **given, num_workers=workers, rng="batch") as loader:
            (batch,) = [[part.tolist() for part in batch] for batch in loader]
            assert batch[0] == [rank, rank + 2, rank + 4, rank + 6]
            seen.append(batch[1])
    assert not set(seen[0]) & set(seen[1])


@pytest.mark.parametrize("given", range(5))
def test_an_interrupted_pass_goes_on_and_the_next_ones_are_the_same(given):
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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 4, 5])
def test_a_loader_for_torch_goes_on_with_it(workers, stop):
    pytest.importorskip("torch")
    from slipring.torch import DataLoader

    def made():
        sampler = BatchSampler(9, 2, shuffle=True, seed=5)
        return DataLoader(range(9), batch_sampler=sampler, num_workers=workers)

    def epoch(loader):
        return [batch.tolist() for batch in loader]

    uninterrupted = made()
    expected = [epoch(uninterrupted) for _ in range(3)]
    first = made()
    epoch(first)
    batches = iter(first)
    seen = [next(batches).tolist() for _ in range(stop)]
    if stop == 5:
        assert next(batches, None) is None
    state = first.state_dict()
    second = made()
    second.load_state_dict(state)
    rest = [epoch(second), epoch(second)]
    if stop == 5:
        assert [seen, rest[0]] == expected[1:]
    else:
        assert [seen + rest[0], rest[1]] == expected[1:]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"indices": -1}, ValueError, "indices.*0.*-1"),
        ({"indices": 2.5}, TypeError, "indices.*2.5"),
        ({"indices": iter([1])}, TypeError, "indices"),
        ({"indices": {1, 2}}, TypeError, "indices.*sequence.*set"),
        ({"indices": {0: 1}}, TypeError, "indices.*sequence.*dict"),
        ({"indices": np.zeros((2, 3))}, ValueError, r"indices.*one dimension.*\(2, 3\)"),
        ({"indices": np.array([True, False])}, TypeError, "indices.*mask.*flatnonzero"),
        ({"indices": 0, "num_samples": 3}, ValueError, "indices.*none"),
        ({"batch_size": 0}, ValueError, "batch_size.*1.*0"),
        ({"batch_size": None}, TypeError, "batch_size"),
        ({"shuffle": 1}, TypeError, "shuffle.*1"),
        ({"drop_last": "no"}, TypeError, "drop_last.*no"),
        ({"num_samples": 0}, ValueError, "num_samples.*1.*0"),
        ({"world_size": 0}, ValueError, "world_size.*1.*0"),
        ({"rank": 1}, ValueError, "rank.*0.*1"),
        ({"rank": "0", "world_size": 2}, TypeError, "rank.*'0'"),
        ({"rank": -1, "world_size": 2}, ValueError, "rank.*-1"),
        ({"seed": "x"}, TypeError, "seed.*'x'"),
        ({"weights": [1, 2]}, ValueError, r"weights.*\(7,\).*\(2,\)"),
        ({"weights": [0] * 7}, ValueError, "weights"),
        ({"weights": [float("nan")] * 7}, ValueError, "weights"),
        ({"weights": [float("inf")] + [0] * 6}, ValueError, "weights"),
        ({"weights": [-1, 2, 0, 0, 0, 0, 0]}, ValueError, "weights"),
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


def test_a_resumed_pass_counts_with_its_first_batch():
    sampler = BatchSampler(8, 2, shuffle=True, seed=1)
    epoch = list(sampler)
    sampler.load_state_dict({**iter(sampler).state_dict(), "epoch": 0, "position": 2})
    unread = iter(sampler)
    assert sampler.epoch == 0 and unread.state_dict()["position"] == 2
    assert list(sampler) == epoch[1:] and sampler.epoch == 1
    assert len(list(sampler)) == 4


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("whose", ["torch's", "slipring's"])
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
