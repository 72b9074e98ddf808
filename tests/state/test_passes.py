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


class OwnIterator(Sampled):
    """Its own iterator, which iter() restarts: Lightning's ``_IndexBatchSamplerWrapper`` is one."""

    def __iter__(self):
        self.left = self.order()
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        return self.left.pop(0)


class Grouped(Sampled):
    def __iter__(self):
        order = self.order()
        return iter([order[i : i + 3] for i in range(0, N, 3)])


KINDS = {
    "stream": lambda: (Passes(), {"batch_size": 3}),
    "sample by sample": lambda: (Passes(), {"batch_size": None}),
    "sampler": lambda: (range(N), {"batch_size": 3, "sampler": Sampled()}),
    "its own iterator": lambda: (range(N), {"batch_size": 3, "sampler": OwnIterator()}),
    "batch sampler": lambda: (range(N), {"batch_sampler": Grouped()}),
    "index by index": lambda: (range(N), {"batch_size": None, "sampler": Sampled()}),
}


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


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_asks_for_one_pass(kind):
    dataset, options = KINDS[kind]()
    loader = DataLoader(dataset, collate_fn=as_is, **options)
    asked = dataset if isinstance(dataset, Orders) else options.get("sampler") or options["batch_sampler"]
    assert asked.epoch == 0
    for epoch in 1, 2, 3:
        assert sum(1 for _ in loader) == (12 if kind in ("sample by sample", "index by index") else 4)
        assert asked.epoch == epoch
