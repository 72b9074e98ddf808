"""States that torchdata 0.11 itself has saved: slipring continues where torchdata would."""

import pickle

import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata saves the states")

from torch.utils import data  # noqa: E402
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # noqa: E402

from slipring.adapters.torchdata import StatefulDataLoader  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support import stateful  # noqa: E402
from tests.support.samplers import Passes  # noqa: E402
from tests.support.torch_datasets import as_lists  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


class Plain(stateful.Plain, data.IterableDataset):
    """Worker 0 has less to read."""

    def items(self):
        info = data.get_worker_info()
        return range(5) if info is None or info.id == 0 else range(100, 113)


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


@pytest.mark.parametrize("taken", [1, 5, 7])
@pytest.mark.parametrize(("num_workers", "every"), [(0, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("dataset", [Plain, AtItsBeginning])
def test_a_stream_whose_workers_have_unequal_shares_continues(dataset, every, num_workers, taken):
    options = {"batch_size": 2, "num_workers": num_workers}
    whole = as_lists(theirs.StatefulDataLoader(dataset(), **options))
    taken = min(taken, len(whole))
    state = saved(theirs.StatefulDataLoader(dataset(), snapshot_every_n_steps=every, **options), taken)
    if dataset is AtItsBeginning and num_workers and taken % every:
        with pytest.raises(ValueError, match=f"{taken % every} batches after its last snapshot.*every_n_steps=1"):
            resumed(state, dataset(), **options)
        return
    assert as_lists(resumed(state, dataset(), **options)) == whole[taken:]


@pytest.mark.parametrize(
    ("dataset", "num_workers", "persistent"), [(Plain, 2, False), (AtItsBeginning, 0, False), (AtItsBeginning, 2, True)]
)
def test_a_stream_at_its_end_continues_with_the_next_epoch(dataset, num_workers, persistent):
    options = {"batch_size": 2, "num_workers": num_workers, "persistent_workers": persistent}
    whole = theirs.StatefulDataLoader(dataset(), **options)
    n, second = len(as_lists(whole)), as_lists(whole)
    state = saved(theirs.StatefulDataLoader(dataset(), **options), n, exhausted=True)
    assert as_lists(resumed(state, dataset(), **options)) == second


@pytest.mark.parametrize("taken", ["none", "some", "all", "end"])
@pytest.mark.parametrize(
    ("sampler", "batch_size", "num_workers"),
    [(Passes, 4, 0), (Passes, None, 2), (distributed, None, 0), (distributed, 4, 2)],
)
def test_a_stateful_sampler_continues(sampler, batch_size, num_workers, taken):
    options = {"batch_size": batch_size, "num_workers": num_workers}
    whole = DataLoader(range(11), sampler=sampler(11), **grouped(**options))
    epochs = [as_lists(whole) for _ in range(2)]
    n = {"none": 0, "some": 2}.get(taken, len(epochs[0]))
    state = saved(theirs.StatefulDataLoader(range(11), sampler=sampler(11), **options), n, taken == "end")
    loader = resumed(state, range(11), sampler=sampler(11), **options)
    if taken != "end":
        assert as_lists(loader) == epochs[0][n:]
    assert as_lists(loader) == epochs[1]


@pytest.mark.parametrize("taken", ["some", "all", "end"])
@pytest.mark.parametrize(
    ("cls", "num_workers", "batch_size"), [(DataLoader, 2, 4), (DataLoader, 0, None), (StatefulDataLoader, 0, 4)]
)
def test_a_shuffled_order_continues(cls, batch_size, num_workers, taken):
    options = {"batch_size": batch_size, "num_workers": num_workers, "shuffle": True}

    def loader():
        torch.manual_seed(5)
        return theirs.StatefulDataLoader(range(11), **options)

    whole = loader()
    epochs = [as_lists(whole) for _ in range(2)]
    n = {"none": 0, "some": 2}.get(taken, len(epochs[0]))
    state = saved(loader(), n, taken == "end")
    torch.manual_seed(6)
    again = resumed(state, range(11), cls, **options)
    if taken != "end":
        assert as_lists(again) == epochs[0][n:]
    later = as_lists(again)
    if cls is StatefulDataLoader and not num_workers:  # with workers torchdata draws orders that it does not use
        assert later == epochs[1]
    assert sorted(i for batch in later for i in torch.as_tensor(batch).flatten().tolist()) == list(range(11))
