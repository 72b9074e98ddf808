"""States of torchdata 0.11 in slipring's loader, and of slipring's in torchdata's: each continues where both would."""

import pickle

import pytest

from slipring import Workers
from tests.support.options import grouped

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata saves and loads the states")

from torch.utils import data  # noqa: E402
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # noqa: E402

from slipring.adapters.torchdata import StatefulDataLoader, torchdata_state  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support import stateful  # noqa: E402
from tests.support.samplers import Passes  # noqa: E402
from tests.support.stateful import Backwards, Reads  # noqa: E402
from tests.support.torch_datasets import as_lists  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


class Plain(stateful.Plain, data.IterableDataset):
    """Worker 0 has less to read."""

    def items(self):
        info = data.get_worker_info()
        return range(9) if info is None or info.id == 0 else range(100, 113)


class AtItsBeginning(stateful.Laps, Plain):
    """After its last item it is at its beginning again; it counts its passes."""


def distributed(n):
    return StatefulDistributedSampler(range(n), num_replicas=1, rank=0, seed=3)


def saved(loader, taken, exhausted=False):
    """Return torchdata's state after `taken` batches, or after the end of the epoch."""
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    if exhausted:
        assert next(iterator, None) is None
    return pickle.loads(pickle.dumps(loader.state_dict()))


def resumed(state, dataset, cls=DataLoader, **options):
    loader = cls(dataset, **options)
    loader.load_state_dict(state)
    return loader


@pytest.mark.parametrize("taken", [1, 5, 11])
@pytest.mark.parametrize(("num_workers", "every"), [(0, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("dataset", [Plain, AtItsBeginning])
def test_a_stream_whose_workers_have_unequal_shares_continues(dataset, every, num_workers, taken):
    options = {"batch_size": 2, "num_workers": num_workers}
    loader = theirs.StatefulDataLoader(dataset(), **options)
    whole, later = as_lists(loader), as_lists(loader)
    taken = min(taken, len(whole))
    state = saved(theirs.StatefulDataLoader(dataset(), snapshot_every_n_steps=every, **options), taken)
    if dataset is AtItsBeginning and num_workers and taken % every:
        with pytest.raises(ValueError, match=f"{taken % every} batches after its last snapshot.*every_n_steps=1"):
            resumed(state, dataset(), **options)
        return
    assert as_lists(resumed(state, dataset(), **options)) == (whole[taken:] or later)


@pytest.mark.parametrize(
    ("dataset", "num_workers", "persistent"), [(Plain, 2, False), (AtItsBeginning, 0, False), (AtItsBeginning, 2, True)]
)
def test_a_stream_at_its_end_continues_with_the_next_epoch(dataset, num_workers, persistent):
    options = {"batch_size": 2, "num_workers": num_workers, "persistent_workers": persistent}
    whole = theirs.StatefulDataLoader(dataset(), **options)
    n, second = len(as_lists(whole)), as_lists(whole)
    state = saved(theirs.StatefulDataLoader(dataset(), **options), n, exhausted=True)
    assert as_lists(resumed(state, dataset(), **options)) == second


@pytest.mark.parametrize(
    ("sampler", "batch_size", "num_workers", "taken"),
    [
        (Passes, 4, 0, "some"),
        (Passes, None, 2, "end"),
        (Passes, 4, 2, "all"),
        (distributed, None, 0, "end"),
        (distributed, 4, 2, "some"),
        (distributed, 4, 0, "none"),
    ],
)
def test_a_stateful_sampler_continues(sampler, batch_size, num_workers, taken):
    options = {"batch_size": batch_size, "num_workers": num_workers}
    whole = DataLoader(range(11), sampler=sampler(11), **grouped(**options))
    epochs = [as_lists(whole) for _ in range(2)]
    n = {"none": 0, "some": 2}.get(taken, len(epochs[0]))
    state = saved(theirs.StatefulDataLoader(range(11), sampler=sampler(11), **options), n, taken == "end")
    loader = resumed(state, range(11), sampler=sampler(11), **options)
    if taken not in ("all", "end"):
        assert as_lists(loader) == epochs[0][n:]
    assert as_lists(loader) == epochs[1]


@pytest.mark.parametrize(
    ("cls", "num_workers", "batch_size", "taken"),
    [
        (DataLoader, 2, 4, "some"),
        (DataLoader, 2, 4, "end"),
        (DataLoader, 0, None, "all"),
        (StatefulDataLoader, 0, 4, "some"),
        (StatefulDataLoader, 0, 4, "end"),
    ],
)
def test_a_shuffled_order_continues(cls, batch_size, num_workers, taken):
    options = {"batch_size": batch_size, "num_workers": num_workers, "shuffle": True}

    def loader():
        torch.manual_seed(5)
        return theirs.StatefulDataLoader(range(11), **options)

    whole = loader()
    epochs = [as_lists(whole) for _ in range(2)]
    n = 2 if taken == "some" else len(epochs[0])
    state = saved(loader(), n, taken == "end")
    torch.manual_seed(6)
    again = resumed(state, range(11), cls, **options)
    if taken == "some":
        assert as_lists(again) == epochs[0][n:]
    later = as_lists(again)
    if cls is StatefulDataLoader and not num_workers:  # with workers torchdata draws orders that it does not use
        assert later == epochs[1]
    assert sorted(i for batch in later for i in torch.as_tensor(batch).flatten().tolist()) == list(range(11))


# ---- states that are written for torchdata


class Says(stateful.Walk, Plain):
    """The same stream, with a state."""


KINDS = {
    "in turn": lambda: {"dataset": range(23), "batch_size": 3},
    "drop_last": lambda: {"dataset": range(23), "batch_size": 3, "drop_last": True},
    "shuffled": lambda: {"dataset": range(23), "batch_size": 3, "shuffle": True},
    "a generator": lambda: {
        "dataset": range(23), "batch_size": 3, "shuffle": True, "generator": torch.Generator().manual_seed(4),
    },
    "batches of a list": lambda: {"dataset": range(23), "batch_sampler": [[i, i + 1] for i in range(20)]},
    "a Stateful dataset": lambda: {"dataset": Reads(23), "batch_size": 3},
    "a stream": lambda: {"dataset": Plain(), "batch_size": 2},
    "a Stateful stream": lambda: {"dataset": Says(), "batch_size": 2},
}  # fmt: skip


def numbers(batches):
    return [torch.as_tensor(batch).tolist() if torch.is_tensor(batch) else [part.tolist() for part in batch]
            if isinstance(batch, list) else batch for batch in batches]  # fmt: skip


def taken_from(loader, taken):
    """Read `taken` batches; return the state for torchdata and the rest of the epoch."""
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    state = pickle.loads(pickle.dumps(torchdata_state(loader)))
    return state, numbers(iterator)


@pytest.mark.parametrize(("num_workers", "taken"), [(0, 3), (2, 0), (2, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_torchdatas_loader_continues_from_a_state_of_ours(num_workers, taken, kind):
    torch.manual_seed(1)
    state, rest = taken_from(DataLoader(**KINDS[kind](), num_workers=num_workers), taken)
    loader = theirs.StatefulDataLoader(**KINDS[kind](), num_workers=num_workers)
    loader.load_state_dict(state)
    assert rest and numbers(loader) == rest


def test_torchdatas_loader_continues_a_stateful_sampler_without_workers():
    state, rest = taken_from(DataLoader(range(23), 3, sampler=Backwards(23)), 3)
    loader = theirs.StatefulDataLoader(range(23), 3, sampler=Backwards(23))
    loader.load_state_dict(state)
    assert numbers(loader) == rest


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["a generator", "a stream", "a Stateful stream"])
def test_after_an_epoch_the_next_one_is_whole_and_has_the_order_that_ours_has(kind, num_workers):
    torch.manual_seed(1)
    loader = DataLoader(**KINDS[kind](), num_workers=num_workers)
    list(loader)
    state = torchdata_state(loader)
    other = theirs.StatefulDataLoader(**KINDS[kind](), num_workers=num_workers)
    other.load_state_dict(state)
    found = numbers(other)
    # With workers torchdata draws a permutation that it does not use, so no state can give it the same order.
    assert found == numbers(loader) or (kind == "a generator" and num_workers)
    assert sum(map(len, found)) == (23 if "stream" not in kind else 22 if num_workers else 9)


def test_positions_that_torchdatas_format_cannot_describe_are_refused():
    loader = DataLoader(range(23), 3, sampler=Backwards(23), num_workers=2)
    with pytest.raises(ValueError, match=r"asked ahead.*num_workers=0"):
        taken_from(loader, 2)
    loader = DataLoader(Says(), 2, num_workers=1, workers=Workers(snapshot_every_n_steps=4))
    with pytest.raises(ValueError, match=r"since its last snapshot.*snapshot_every_n_steps=1"):
        taken_from(loader, 2)
    with pytest.raises(TypeError, match=r"slipring\.torch\.DataLoader, not 3"):
        torchdata_state(3)
