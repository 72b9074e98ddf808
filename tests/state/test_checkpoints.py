"""States in torch's distributed checkpoints, which flatten dicts and load the keys of a fresh loader's state."""

import itertools
import json

import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")

from torch.distributed import checkpoint  # noqa: E402
from torch.distributed.checkpoint._nested_dict import flatten_state_dict  # noqa: E402
from torch.utils.data import DistributedSampler  # noqa: E402

from slipring import BatchSampler  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support.parts import slow  # noqa: E402
from tests.support.stateful import Backwards  # noqa: E402
from tests.support.torch_datasets import Counting, PlainRange  # noqa: E402

N = 24


class Remembers(torch.utils.data.Dataset):
    """A map dataset whose state grows with each read."""

    def __init__(self):
        self.read = {}

    def __len__(self):
        return N

    def __getitem__(self, i):
        self.read[str(i)] = len(self.read)
        return i, self.read[str(i)]

    def state_dict(self):
        return {"read": dict(self.read)}

    def load_state_dict(self, state):
        self.read = dict(state["read"])


def seeded():
    return torch.Generator().manual_seed(1)


KINDS = {
    "in order": lambda: {"dataset": range(N)},
    "shuffled": lambda: {"dataset": range(N), "shuffle": True, "generator": seeded()},
    "out of order": lambda: {"dataset": range(N), "shuffle": True, "generator": seeded(), "in_order": False},
    "a rank": lambda: {"dataset": range(N), "sampler": DistributedSampler(range(N), 2, 1)},
    "a stateful sampler": lambda: {"dataset": range(N), "sampler": Backwards(N)},
    "our sampler": lambda: {
        "dataset": range(N),
        "batch_size": 1,
        "batch_sampler": BatchSampler(N, 2, shuffle=True, seed=1, rank=1, world_size=2),
    },
    "a stateful dataset": lambda: {"dataset": Remembers()},
    "a stateful dataset, snapshots": lambda: {"dataset": Remembers(), "snapshot_every_n_steps": 3},
    "a stateful stream": lambda: {"dataset": Counting(N)},
    "a stream without a state": lambda: {"dataset": PlainRange()},
}


def loader(kind, num_workers):
    return DataLoader(num_workers=num_workers, **grouped(**{"batch_size": 2, **KINDS[kind]()}))


def plain(batches):
    return [torch.stack(batch).tolist() if isinstance(batch, list) else batch.tolist() for batch in batches]


def keys(state):
    return sorted(flatten_state_dict({"loader": state})[0])


kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
@pytest.mark.parametrize("num_workers", [slow(0), 2])
@pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict:UserWarning", "ignore:torch.distributed is")
def test_a_fresh_loader_continues_from_a_torch_checkpoint(tmp_path, kind, num_workers):
    saved = loader(kind, num_workers)
    whole = plain(loader(kind, num_workers))
    batches = iter(saved)
    got = plain(itertools.islice(batches, 3))
    checkpoint.save({"loader": saved}, checkpoint_id=tmp_path / "3")
    got += plain(batches)
    as_expected = sorted if kind == "out of order" else list
    assert as_expected(got) == as_expected(whole)
    checkpoint.save({"loader": saved}, checkpoint_id=tmp_path / "end")
    fresh = loader(kind, num_workers)
    checkpoint.load({"loader": fresh}, checkpoint_id=tmp_path / "3")
    assert as_expected(got[:3] + plain(fresh)) == as_expected(whole)
    checkpoint.load({"loader": fresh}, checkpoint_id=tmp_path / "end")
    assert len(plain(fresh)) == len(whole)


@kinds
@pytest.mark.parametrize("num_workers", [0, slow(2)])
@pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict:UserWarning")
def test_a_state_has_the_same_keys_at_all_times(kind, num_workers):
    made = loader(kind, num_workers)
    expected = keys(made.state_dict())
    batches = iter(made)
    states = [made.state_dict()]
    for _ in range(3):
        next(batches)
        states.append(made.state_dict())
    for _ in batches:
        pass
    states.append(made.state_dict())
    for state in states:
        assert keys(state) == expected
        for given in (state, json.loads(json.dumps(state))):
            made.load_state_dict(given)
            assert keys(made.state_dict()) == expected
            next(iter(made), None)
            assert keys(made.state_dict()) == expected
