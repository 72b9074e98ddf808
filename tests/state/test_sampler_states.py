"""Resumes of samplers with and without a state."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import Sampler  # noqa: E402

from tests.support.samplers import Passes  # noqa: E402
from tests.support.torch_datasets import as_lists  # noqa: E402


def test_a_state_from_before_the_first_epoch_takes_the_same_loader_back_there(make):
    loader = make(range(11), batch_size=4, sampler=Passes(11), num_workers=2)
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


@pytest.mark.parametrize(("num_workers", "taken"), [(0, 0), (2, 3)])
@pytest.mark.parametrize("how", ["sampler", "batched", "batch_sampler"])
def test_an_order_that_iter_draws_continues(make, how, num_workers, taken):
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
