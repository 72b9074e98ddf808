"""Runs that are interrupted, saved and resumed at random, compared with uninterrupted ones."""

import io
import json
import pickle
import random
import warnings

import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")

from torch.utils.data import IterableDataset, get_worker_info  # noqa: E402

from slipring.torch import DataLoader  # noqa: E402
from tests.support import samplers, stateful  # noqa: E402
from tests.support.parts import fast  # noqa: E402

# Seeds 69 and 117 are the only ones with `Case.free`. The fast seeds have each value of each setting.
SEEDS = [*range(40), 69, 117]
FAST = [0, 2, 3, 4, 5, 8, 9, 12, 15, 18, 21, 23, 26, 30, 32, 33, 35, 39, 117]
EPOCHS = 6  # more than any case needs


class Reads(stateful.Reads):
    """Sample i: i, and how many samples this copy has read."""

    def __getitem__(self, i):
        _, reads = super().__getitem__(i)
        return 1000 * reads + i


class Draws:
    """Sample i is i, and a number from two generators."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.tensor([i, torch.rand(()), random.random()], dtype=torch.float64)


class Stream(stateful.Plain, IterableDataset):
    """Has no state. Workers have unequal shares."""

    def __init__(self, n):
        self.n = n

    def items(self):
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return range(1000 * worker, 1000 * worker + self.n // (worker + 1))


class Laps(stateful.Laps, Stream):
    """Its state is its position and the number of passes."""


class OwnIterator(stateful.OwnIterator, Stream):
    """Is its own iterator, with a state."""


SAMPLERS = [None, "shuffle", samplers.Passes, samplers.Counted, samplers.OfItsIterator, samplers.Both]


def through_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


WAYS = [
    lambda state: state,
    lambda state: pickle.loads(pickle.dumps(state)),
    lambda state: json.loads(json.dumps(state)),
    through_torch,
]


class Case:
    """A loader's settings, and the points where its run is interrupted."""

    def __init__(self, seed):
        self.pick = random.Random(seed)
        choice = self.pick.choice
        self.stream = choice([False, True])
        self.dataset = choice([Stream, Laps, OwnIterator] if self.stream else [range, range, Reads])
        self.sampler = None if self.stream else choice(SAMPLERS)
        self.n = choice([5, 12, 13])
        batch_size, workers = choice([None, 1, 2, 4]), choice([0, 0, 1, 2, 3])
        self.options = {
            "batch_size": batch_size,
            "drop_last": batch_size is not None and choice([False, False, True]),
            "num_workers": workers,
            "persistent_workers": workers > 0 and choice([False, True]),
            "prefetch_factor": choice([1, 2, 3]) if workers else None,
            "in_order": choice([True, True, False]),
            "snapshot_every_n_steps": choice([1, 3]),
            "rng": choice(["worker", "batch"]),
            "preload": choice([None, None, 1]),
        }
        # With its generator in the state, and seeds per batch, workers and resumes change no bit.
        self.free = self.dataset is range and self.sampler == "shuffle" and self.options["rng"] == "batch"
        if self.free:
            self.dataset = Draws
        self.stops = [
            (choice(["none", "iter", "some", "some", "all", "end"]), self.pick.randint(1, 6), choice(WAYS))
            for _ in range(choice([1, 2, 3]))
        ]

    def loader(self, seed=1):
        options = dict(self.options)
        if self.free and seed > 1:
            workers = self.pick.choice([0, 1, 2])
            keep = workers > 0 and self.pick.choice([False, True])
            options.update(num_workers=workers, persistent_workers=keep, prefetch_factor=None)
        if self.sampler == "shuffle":
            options.update(shuffle=True, generator=torch.Generator().manual_seed(seed))
        elif self.sampler is not None:
            options["sampler"] = self.sampler(self.n)
        return DataLoader(self.dataset(self.n), **grouped(**options))

    def whole(self):
        with self.loader() as loader:
            return [[torch.as_tensor(batch).tolist() for batch in loader] for _ in range(EPOCHS)]

    def comparable(self, epochs):
        """Return epochs for comparison: out of order, without the order and without the worker of each sample."""
        if self.options["in_order"] or (self.options["num_workers"] < 2 and not self.free):
            return epochs
        if self.dataset is Reads:
            epochs = [[(torch.as_tensor(batch) % 1000).tolist() for batch in epoch] for epoch in epochs]
        return [sorted(epoch, key=json.dumps) for epoch in epochs]

    def interrupted(self, batches):
        """Return the epochs of loaders that resume from each other's states; an epoch has `batches` batches."""
        loader, seen = self.loader(), Seen()
        for seed, (where, few, way) in enumerate(self.stops, start=2):
            left = batches - len(seen.epochs[-1])
            if where != "none":
                seen.take(loader, {"iter": 0, "some": min(few, left), "all": left}.get(where))
            state, older, seen.iterator = loader.state_dict(), loader, None
            if self.pick.random() < 0.5:
                loader = self.loader(seed)
            loader.load_state_dict(way(state))
            if self.pick.random() < 0.2:  # again, before anything is read
                loader.load_state_dict(loader.state_dict())
            if len(seen.epochs[-1]) == batches:  # a resume after the last batch continues with the next epoch
                seen.epochs.append([])
            if older is not loader:
                older.close()
        for _ in range(2):
            seen.take(loader, None)
        loader.close()
        return seen.epochs[:-1]


class Seen:
    def __init__(self):
        self.epochs, self.iterator = [[]], None

    def take(self, loader, batches):
        """Take so many batches of the current epoch; None: all, and its end."""
        self.iterator = self.iterator or iter(loader)
        while batches is None or batches > 0:
            batch = next(self.iterator, None)
            if batch is None:
                self.epochs.append([])
                self.iterator = None
                return
            self.epochs[-1].append(torch.as_tensor(batch).tolist())
            batches = None if batches is None else batches - 1


@pytest.mark.parametrize("seed", fast(SEEDS, *FAST))
def test_an_interrupted_run_gives_the_same_epochs_as_an_uninterrupted_one(seed):
    case = Case(seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        warnings.filterwarnings("ignore", message="the iterable dataset has no state_dict")
        whole = case.whole()
        got = case.interrupted(len(whole[0]))
    assert case.comparable(got) == case.comparable(whole[: len(got)]), vars(case)
