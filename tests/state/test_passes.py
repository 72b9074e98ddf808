"""A loader calls iter() of the user's objects once for each pass, resumed or not, as torch's does.

Otherwise an object that counts its passes (``self.epoch += 1`` in ``__iter__``) would yield another pass's order.
"""

import random

import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from slipring.torch import DataLoader  # noqa: E402
from tests.support.datasets import as_is  # noqa: E402
from tests.support.parts import slow  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict")

N = 12


class Orders:
    """Another order in every pass; it counts the passes."""

    epoch = 0

    def order(self):
        self.epoch += 1
        return random.Random(self.epoch).sample(range(N), N)


class Passes(Orders, data.IterableDataset):
    def __iter__(self):
        return iter([(self.epoch, i) for i in self.order()])


class Sampled(Orders, data.Sampler):
    def __iter__(self):
        return iter(self.order())

    def __len__(self):
        return N


class Grouped(Sampled):
    def __iter__(self):
        order = self.order()
        return iter([order[i : i + 3] for i in range(0, N, 3)])


class Told(Sampled):
    """Stateful, and its own iterator: its state is the number of the pass and the indices left in it."""

    left = ()

    def __iter__(self):
        self.left = self.order()
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop(0)

    def state_dict(self):
        return {"epoch": self.epoch, "left": list(self.left)}

    def load_state_dict(self, state):
        self.epoch, self.left = state["epoch"], list(state["left"])


class Counting(data.Dataset):
    def __init__(self):
        self.lengths, self.read = 0, []

    def __len__(self):
        self.lengths += 1
        return N

    def __getitem__(self, i):
        self.read.append(i)
        return i


KINDS = {
    "stream": lambda: (Passes(), {"batch_size": 3}),
    "sample by sample": lambda: (Passes(), {"batch_size": None}),
    "sampler": lambda: (range(N), {"batch_size": 3, "sampler": Sampled()}),
    "batch sampler": lambda: (range(N), {"batch_sampler": Grouped()}),
    "index by index": lambda: (range(N), {"batch_size": None, "sampler": Sampled()}),
    "a sampler of lists": lambda: (Lists(), {"batch_size": None, "sampler": Grouped()}),
    "stateful sampler": lambda: (range(N), {"batch_size": 3, "sampler": Told()}),
}


class Lists:
    def __getitem__(self, indices):
        return list(indices)


@pytest.mark.parametrize(("num_workers", "taken"), [(0, 0), (1, 2), slow(0, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_continues_in_the_pass_of_its_state(kind, num_workers, taken):
    def made():
        dataset, options = KINDS[kind]()
        return DataLoader(dataset, num_workers=num_workers, collate_fn=as_is, **options)

    with made() as first, made() as second, made() as third:
        iterator = iter(first)
        for _ in range(taken):
            next(iterator)
        state, want = first.state_dict(), list(iterator)
        second.load_state_dict(state)
        iterator = iter(second)
        assert second.state_dict() == state
        assert list(iterator) == want
        third.load_state_dict(state)
        assert list(third) == want
        assert list(third) == list(first)  # and the pass after it is the next one


@pytest.mark.parametrize("loader_class", [data.DataLoader, DataLoader])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_is_asked_for_its_length_and_samples_as_often_as_by_torch(loader_class, num_workers):
    asked = Counting()
    loader = loader_class(asked, 3, num_workers=num_workers)
    assert len(loader) == 4
    assert len(list(loader)) == len(list(loader)) == 4
    assert asked.lengths == 5  # by len(loader), by list(), and by the sampler in each pass
    assert asked.read == ([] if num_workers else [*range(N)] * 2)


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_asks_for_one_pass(kind):
    dataset, options = KINDS[kind]()
    loader = DataLoader(dataset, collate_fn=as_is, **options)
    asked = dataset if isinstance(dataset, Orders) else options.get("sampler") or options["batch_sampler"]
    assert asked.epoch == 0
    for epoch in 1, 2, 3:
        assert sum(1 for _ in loader) == (12 if kind in ("sample by sample", "index by index") else 4)
        assert asked.epoch == epoch


class Draws(data.Dataset):
    """Sample i is (i, a number from torch's global generator)."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return i, torch.rand(()).item()


class Eager(Sampled):
    """Draws its order from torch's global generator, in iter()."""

    def order(self):
        return torch.randperm(N).tolist()


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": Eager()}, {}])
def test_a_resume_before_the_first_batch_draws_as_the_epoch_did(options):
    def made():
        return DataLoader(Draws(), collate_fn=as_is, **options)

    torch.manual_seed(1)
    iterator = iter(first := made())
    state = first.state_dict()
    want, after = list(iterator), torch.rand(())
    second = made()
    second.load_state_dict(state)
    torch.manual_seed(2)
    assert list(second) == want
    assert torch.rand(()) == after
