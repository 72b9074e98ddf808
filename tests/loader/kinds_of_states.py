"""Datasets, samplers and loaders whose states are tested."""

import itertools
import random

import numpy as np

import slipring
from slipring import BatchSampler, Loader, Workers

N, SIZE = 50, 4
FORKED = Workers(start_method="fork")
SPARSE = Workers(start_method="fork", snapshot_every_n_steps=5)


def first_of_worker():
    info = slipring.get_worker_info()
    return 0 if info is None else 100 * info.id


class Counting:
    """An iterable dataset that knows where it is."""

    def __init__(self, n=23):
        self.n, self.i = n, 0

    def __iter__(self):
        first = first_of_worker()
        while self.i < self.n:
            self.i += 1
            yield first + self.i
        self.i = 0

    def state_dict(self):
        return {"i": self.i}

    def load_state_dict(self, state):
        self.i = state["i"]


class Plain:
    """An iterable dataset that is read again up to its place."""

    def __iter__(self):
        first = first_of_worker()
        return iter(range(first, first + 23))


class Backwards:
    """A sampler that counts down and knows where it is."""

    def __init__(self, n):
        self.n, self.i = n, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        while self.i < self.n:
            self.i += 1
            yield self.n - self.i
        self.i = 0

    def state_dict(self):
        return {"i": self.i}

    def load_state_dict(self, state):
        self.i = state["i"]


class Forwards(Backwards):
    def __iter__(self):
        return map((self.n - 1).__sub__, super().__iter__())


class Read:
    """A map dataset that knows how many samples this copy has given."""

    def __init__(self):
        self.given = 0

    def __len__(self):
        return N

    def __getitem__(self, i):
        if i == 7:
            raise OSError(i)
        self.given += 1
        return i, self.given

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class Drawn:
    def __len__(self):
        return N

    def __getitem__(self, i):
        return i, random.random(), np.random.rand(), slipring.rng().random()


class Damaged:
    def __len__(self):
        return N

    def __getitem__(self, i):
        if i % 10 == 7:
            raise OSError(i)
        return i


KINDS = {
    "in-order": lambda: {"dataset": range(N)},
    "shuffled": lambda: {"dataset": range(N), "shuffle": True},
    "dropped-last": lambda: {"dataset": range(N), "shuffle": True, "drop_last": True},
    "batch-sampler": lambda: {"batch_sampler": BatchSampler(N, SIZE, shuffle=True, seed=1)},
    "listed": lambda: {"dataset": range(N), "sampler": list(range(N - 1, -1, -1))},
    "listed-batches": lambda: {"batch_sampler": [[1, 2], [3], [4, 5, 6], [7]]},
    "stateful-sampler": lambda: {"dataset": range(N), "sampler": Backwards(N)},
    "stateful-map": lambda: {"dataset": Read()},
    "stateful-iterable": lambda: {"dataset": Counting()},
    "iterable": lambda: {"dataset": Plain()},
    "drawn": lambda: {"dataset": Drawn(), "shuffle": True},
    "drawn-by-sample": lambda: {"dataset": Drawn(), "rng": "sample"},
    "single": lambda: {"dataset": range(9), "batch_size": None},
    "sparse-snapshots": lambda: {
        "dataset": Counting(),
        "workers": Workers(start_method="fork", snapshot_every_n_steps=5),
    },
    "damaged": lambda: {"dataset": Damaged(), "shuffle": True},
}


def made(kind, **options):
    given = {"seed": 3, "workers": FORKED, **KINDS[kind](), **options}
    dataset = given.pop("dataset", range(N))
    size = given.pop("batch_size", SIZE) if "batch_sampler" not in given else 1
    return Loader(dataset, size, **given)


def plain(batch):
    return [plain(part) for part in batch] if isinstance(batch, (list, tuple)) else np.asarray(batch).tolist()


def flat(lists):
    return [*itertools.chain.from_iterable(lists)]


def taken(batches, count=None):
    """So many batches as lists; an OSError in a batch's place as its text."""
    found = []
    while count is None or len(found) < count:
        try:
            found.append(plain(next(batches)))
        except StopIteration:
            break
        except OSError as error:
            found.append(str(error)[:40])
    return found
