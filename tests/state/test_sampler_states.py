"""Resumes of samplers with and without a state."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import Sampler  # noqa: E402

from tests.support.parts import slow  # noqa: E402
from tests.support.samplers import Both, Counted, OfItsIterator, Passes  # noqa: E402
from tests.support.torch_datasets import as_lists  # noqa: E402

WORKERS = [0, 2]


SAMPLERS = [Passes, Counted, OfItsIterator, Both]


def after(loader, epochs, taken, exhausted=False):
    """Return the batches of some epochs and `taken` batches of the next; if `exhausted`, check that it ends there."""
    got = [as_lists(loader) for _ in range(epochs)]
    iterator = iter(loader)
    got.append(as_lists(next(iterator) for _ in range(taken)))
    if exhausted:
        assert next(iterator, None) is None
    return got


@pytest.mark.parametrize(("num_workers", "batch_size"), [(0, None), (0, 4), (0, 11), slow(2, 4)])
@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("taken", ["none", "some", "all", "end"])
def test_a_stateful_sampler_continues_into_later_epochs(make, kind, num_workers, batch_size, taken):
    def loader():
        return make(range(11), batch_size=batch_size, sampler=kind(11), num_workers=num_workers)

    whole = loader()
    want = [as_lists(whole) for _ in range(4)]
    first, resumed = loader(), loader()
    n = min({"none": 0, "some": 2}.get(taken, 11), len(want[0]))
    got = after(first, 1, n, taken == "end")
    resumed.load_state_dict(first.state_dict())
    if taken != "end":
        got[-1] += as_lists(resumed)
    while len(got) < 4:
        got.append(as_lists(resumed))
    assert got == want


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_state_from_before_the_first_epoch_takes_the_same_loader_back_there(make, num_workers):
    loader = make(range(11), batch_size=4, sampler=Passes(11), num_workers=num_workers)
    state = loader.state_dict()
    epochs = [as_lists(loader) for _ in range(2)]
    loader.load_state_dict(state)
    assert [as_lists(loader) for _ in range(2)] == epochs


class DrawsAtOnce(Sampler):
    """Draws its order from torch's global generator in iter()."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        return iter(torch.randperm(self.n).tolist())


class BatchesAtOnce(DrawsAtOnce):
    def __iter__(self):
        return iter(torch.randperm(self.n).reshape(-1, 2).tolist())


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("taken", [0, 3, 5])
@pytest.mark.parametrize("how", ["sampler", "batched", "batch_sampler"])
def test_an_order_that_iter_draws_continues(make, how, taken, num_workers):
    options = {
        "sampler": {"batch_size": None, "sampler": DrawsAtOnce(10)},
        "batched": {"batch_size": 2, "sampler": DrawsAtOnce(10)},
        "batch_sampler": {"batch_sampler": BatchesAtOnce(10)},
    }[how]
    torch.manual_seed(1)
    loader = make(range(10), num_workers=num_workers, **options)
    iterator = iter(loader)
    as_lists(next(iterator) for _ in range(taken))
    state = loader.state_dict()
    rest = as_lists(iterator)
    torch.manual_seed(2)
    resumed = make(range(10), num_workers=num_workers, **options)
    resumed.load_state_dict(state)
    assert as_lists(resumed) == rest


@pytest.mark.parametrize("preload", [None, 1])
def test_a_state_before_the_first_batch_counts_nothing_that_was_asked_for_ahead(make, preload):
    loader = make(range(8), batch_size=2, num_workers=2, preload=preload)
    iterator = iter(loader)
    assert loader.state_dict()["delivered"] == 0
    assert len(as_lists(iterator)) == 4


def test_an_older_iterator_that_is_dropped_last_leaves_no_state(make):
    loader = make(range(8), batch_size=2)
    older, newer = iter(loader), iter(loader)
    as_lists(next(older) for _ in range(3))
    next(newer)
    del newer
    del older
    assert loader.state_dict()["delivered"] == 1
