"""Datasets, samplers and loaders whose states are tested."""

import json
import random
from functools import partial

import numpy as np

import slipring
from slipring import BatchSampler, Loader, Workers
from tests.support.datasets import Made, Numbers, throw
from tests.support.stateful import Backwards, Counting, PlainRange, Positioned, Range, Reads
from tests.support.states import check_state

N, SIZE = 50, 4
FORKED = Workers(start_method="fork")
SPARSE = Workers(start_method="fork", snapshot_every_n_steps=5)


class Forwards(Backwards):
    """A sampler with a state, which counts up."""

    def __iter__(self):
        return map((self.n - 1).__sub__, super().__iter__())


class Read(Reads):
    """Cannot read sample 7."""

    def __getitem__(self, i):
        if i == 7:
            raise OSError(i)
        return super().__getitem__(i)


class InPasses(Range):
    """Its state is the number of its passes, that of its iterator the position in the pass."""

    passes = 0

    def __iter__(self):
        self.passes += 1
        return InPass([10000 * self.passes + i for i in self.items()])

    def state_dict(self):
        return {"passes": self.passes}

    def load_state_dict(self, state):
        self.passes = state["passes"] - 1


class InPass(Positioned):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.items):
            raise StopIteration
        self.at += 1
        return self.items[self.at - 1]


DRAWN = Made(lambda i: (i, random.random(), np.random.rand(), slipring.rng().random()), N)
DAMAGED = {i: partial(throw, OSError, i) for i in range(7, N, 10)}  # samples that cannot be read
KINDS = {
    "in-order": lambda: {"dataset": range(N)},
    "shuffled": lambda: {"dataset": range(N), "shuffle": True},
    "dropped-last": lambda: {"dataset": range(N), "shuffle": True, "drop_last": True},
    "batch-sampler": lambda: {"batch_sampler": BatchSampler(N, SIZE, shuffle=True, seed=1)},
    "listed-batches": lambda: {"batch_sampler": [[1, 2], [3], [4, 5, 6], [7]]},
    "stateful-sampler": lambda: {"dataset": range(N), "sampler": Backwards(N)},
    "stateful-map": lambda: {"dataset": Read(N)},
    "stateful-iterable": lambda: {"dataset": Counting()},
    "stateful-with-iterator": lambda: {"dataset": InPasses()},
    "iterable": lambda: {"dataset": PlainRange()},
    "drawn": lambda: {"dataset": DRAWN, "shuffle": True},
    "drawn-by-sample": lambda: {"dataset": DRAWN, "rng": "sample"},
    "single": lambda: {"dataset": range(9), "batch_size": None},
    "single-lists": lambda: {
        "dataset": np.arange(N),
        "batch_size": None,
        "sampler": BatchSampler(N, 2, shuffle=True, seed=1),
    },
    "sparse-snapshots": lambda: {"dataset": Counting(), "workers": SPARSE},
    "damaged": lambda: {"dataset": Numbers(N, DAMAGED), "shuffle": True},
}


def made(kind, **options):
    given = {"seed": 3, "workers": FORKED, **KINDS[kind](), **options}
    dataset = given.pop("dataset", range(N))
    size = given.pop("batch_size", SIZE) if "batch_sampler" not in given else 1
    return Loader(dataset, size, **given)


def plain(batch):
    return [plain(part) for part in batch] if isinstance(batch, (list, tuple)) else np.asarray(batch).tolist()


def taken(batches, count=None):
    """Return `count` batches as lists (None: all that follow); the text of an OSError stands for its batch."""
    found = []
    while count is None or len(found) < count:
        try:
            found.append(plain(next(batches)))
        except StopIteration:
            break
        except OSError as error:
            found.append(str(error)[:40])
    return found


def interrupted(loader, count, resumed=None):
    """Return a loader's state after `count` batches, these batches, and those of a second loader that loads the state.

    `loader` and `resumed` are functions that make them.
    """
    with loader() as one:
        batches = iter(one)
        begun = taken(batches, count)
        state = json.loads(json.dumps(check_state(one.state_dict())))
    with (resumed or loader)() as other:
        other.load_state_dict(state)
        return state, begun, taken(iter(other))


def whole(loader):
    """Return all batches of one epoch of a new loader."""
    with loader() as one:
        return taken(iter(one))
