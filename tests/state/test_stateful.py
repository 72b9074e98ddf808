"""A loader's state: behaviour that users of torchdata's StatefulDataLoader rely on; that class is tested too."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from slipring import Workers  # noqa: E402
from slipring.torch import DataLoader  # noqa: E402
from tests.support import stateful as stateful_objects  # noqa: E402
from tests.support.datasets import Values  # noqa: E402
from tests.support.torch_datasets import Stream, assert_same  # noqa: E402

# torchdata's own use of torch warns, and so does fast-forwarding, there as here.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

NUMBERS = Values(list(range(20)))
SETTINGS = [(0, False), (2, False), (2, True)]


def workers(setting):
    return {"num_workers": setting[0], "persistent_workers": setting[1]}


class Resumable(data.IterableDataset):
    """Its iterator has a state."""

    def __init__(self, n=20):
        self.n = n

    def __iter__(self):
        return ResumableIterator(self.n)


class ResumableIterator:
    def __init__(self, n):
        info = data.get_worker_info()
        self.first, self.step = (0, 1) if info is None else (info.id, info.num_workers)
        self.n, self.i = n, 0

    def __iter__(self):
        return self

    def __next__(self):
        value = self.first + self.i * self.step
        if value >= self.n:
            raise StopIteration
        self.i += 1
        return value

    def state_dict(self):
        return {"i": self.i}

    def load_state_dict(self, state):
        self.i = state["i"]


class Jumping(stateful_objects.Walk, data.Sampler):
    """A sampler with a state."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def items(self):
        return [7 * i % self.n for i in range(1, self.n + 1)]


SOURCES = {
    "map": lambda: {"dataset": NUMBERS},
    "shuffled": lambda: {"dataset": NUMBERS, "shuffle": True},
    "shuffled by a generator": lambda: {
        "dataset": NUMBERS,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(4),
    },
    "sampler": lambda: {"dataset": NUMBERS, "sampler": Jumping(20)},
    "stream": lambda: {"dataset": Stream(20)},
    "resumable stream": lambda: {"dataset": Resumable(20)},
}


def made(cls, kind, setting, seed=3, every=None, **options):
    torch.manual_seed(seed)
    if every is not None and cls is DataLoader:
        options["workers"] = Workers(snapshot_every_n_steps=every)
    elif every is not None:
        options["snapshot_every_n_steps"] = every
    return cls(**SOURCES[kind](), batch_size=3, **workers(setting), **options)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", SOURCES)
def test_a_state_goes_on_behind_the_last_batch_in_another_loader(stateful, kind, setting):
    loader = made(stateful, kind, setting)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    assert len(rest) >= 3

    other = made(stateful, kind, setting, seed=99)
    other.load_state_dict(state)
    assert_same(list(other), rest)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", ["map", "shuffled by a generator", "resumable stream"])
def test_a_state_at_the_end_goes_on_with_a_whole_epoch(stateful, kind, setting):
    loader = made(stateful, kind, setting)
    whole = sorted(random_order(list(loader)))
    state = loader.state_dict()

    other = made(stateful, kind, setting)
    other.load_state_dict(state)
    assert sorted(random_order(list(other))) == whole == list(range(20))


def random_order(batches):
    return [int(i) for batch in batches for i in batch]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", SOURCES)
def test_after_a_resume_the_next_epoch_is_whole(stateful, kind, setting):
    loader = made(stateful, kind, setting)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    other = made(stateful, kind, setting)
    other.load_state_dict(loader.state_dict())
    del iterator
    assert len(random_order(list(other))) == 14
    assert sorted(random_order(list(other))) == list(range(20))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", ["map", "resumable stream"])
def test_a_state_from_before_the_first_batch_is_the_whole_epoch(stateful, kind, setting):
    state = made(stateful, kind, setting).state_dict()
    other = made(stateful, kind, setting)
    other.load_state_dict(state)
    assert sorted(random_order(list(other))) == list(range(20))


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_loader_takes_its_own_state_back(stateful, setting):
    loader = made(stateful, "resumable stream", setting)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    loader.load_state_dict(state)
    assert_same(list(loader), rest)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("setting", SETTINGS[:2])
@pytest.mark.parametrize("kind", ["map", "resumable stream"])
def test_the_number_of_steps_between_snapshots_changes_no_batch(stateful, kind, setting, every):
    loader = made(stateful, kind, setting, every=every)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    other = made(stateful, kind, setting, every=every)
    other.load_state_dict(state)
    assert_same(list(other), rest)
