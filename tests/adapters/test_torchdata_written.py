"""States that are written for torchdata 0.11: its own loader continues where slipring's would."""

import pickle

import pytest

from slipring import Workers

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata loads the states")

from torch.utils import data  # noqa: E402

from slipring.adapters.torchdata import torchdata_state  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support import stateful  # noqa: E402
from tests.support.stateful import Backwards, Reads  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


class Plain(stateful.Plain, data.IterableDataset):
    """Worker 0 has less to read than worker 1."""

    def items(self):
        info = data.get_worker_info()
        return range(17) if info is None or info.id == 0 else range(100, 123)


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
    assert sum(map(len, found)) == (23 if "stream" not in kind else 40 if num_workers else 17)


def test_positions_that_torchdatas_format_cannot_describe_are_refused():
    loader = DataLoader(range(23), 3, sampler=Backwards(23), num_workers=2)
    with pytest.raises(ValueError, match=r"asked ahead.*num_workers=0"):
        taken_from(loader, 2)
    loader = DataLoader(Says(), 2, num_workers=1, workers=Workers(snapshot_every_n_steps=4))
    with pytest.raises(ValueError, match=r"since its last snapshot.*snapshot_every_n_steps=1"):
        taken_from(loader, 2)
    with pytest.raises(TypeError, match=r"slipring\.torch\.DataLoader, not 3"):
        torchdata_state(3)
