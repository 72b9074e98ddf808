"""slipring.adapters.torchdata: states; torchdata's own class is tested too."""

import copy
import json
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from slipring.adapters import torchdata as adapter  # noqa: E402
from tests.adapters.stateful import CountsEpochs, Drawing, Numbers, Own, made  # noqa: E402
from tests.support.datasets import after  # noqa: E402

# torchdata's own use of torch causes warnings, and so does fast-forwarding in both classes.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

SETTINGS = [(0, False), (2, False), (2, True)]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_stateful_map_dataset_continues_with_or_without_batching(stateful, setting, n, batch_size):
    state, rest = after(made(stateful, Drawing(), setting, seed=5, batch_size=batch_size), n)
    other = made(stateful, Drawing(), setting, seed=6, batch_size=batch_size)
    other.load_state_dict(state)
    assert [s[0] if batch_size is None else [i for i, _ in s] for s in other] == (
        [s[0] if batch_size is None else [i for i, _ in s] for s in rest]
    )
    if setting == (0, False):  # with workers, prefetched samples have drawn too
        other.load_state_dict(state)
        assert list(other) == rest


class Whole(Numbers):
    """Makes whole batches in the slot, and counts them."""

    made = 0

    def fetch_into(self, indices, empty):
        self.made += 1
        out = empty((len(indices), 2), np.int64)
        out[:, 0], out[:, 1] = indices, self.made
        return out

    def state_dict(self):
        return {"made": self.made}

    def load_state_dict(self, state):
        self.made = state["made"]


@pytest.mark.parametrize("setting", SETTINGS[1:])
def test_a_stateful_dataset_that_makes_whole_batches_continues(setting):
    state, rest = after(adapter.StatefulDataLoader(Whole(), 4, num_workers=2, persistent_workers=setting[1]), 3)
    other = adapter.StatefulDataLoader(Whole(), 4, num_workers=2, persistent_workers=setting[1])
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in rest]
    assert [int(batch[0, 1]) for batch in rest] == [2, 3, 3]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_dataset_that_is_its_own_iterator_is_reported_once_it_iterates(stateful, setting, n):
    state, rest = after(made(stateful, Own(), setting), n)
    other = made(stateful, Own(), setting)
    other.load_state_dict(state)
    assert list(other) == rest
    assert json.dumps(state).count('"left"') <= max(1, setting[0])  # once, and not also as the dataset's state


def test_a_state_at_once_brings_back_a_dataset_that_was_read_to_its_end_since(stateful):
    dataset = Own(8)
    state, rest = after(made(stateful, dataset), 0)
    other = made(stateful, dataset)
    other.load_state_dict(state)
    assert list(other) == rest


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_dataset_that_counts_its_epochs_goes_on_counting_where_it_lives_on(stateful, setting):
    loader = made(stateful, CountsEpochs(), setting, batch_size=2)
    first = list(loader)
    state = loader.state_dict()
    expected = [list(loader), list(loader)]
    other = made(stateful, CountsEpochs(), setting, batch_size=2)
    next(iter(other))
    other.load_state_dict(state)
    assert [list(other), list(other)] == expected
    counted = [epoch[0][0][0] for epoch in (first, *expected)]
    # New workers start with the loader's dataset.
    assert counted == ([0, 0, 0] if setting == (2, False) else [0, 1, 2])


@pytest.mark.parametrize("setting", SETTINGS)
def test_an_iterator_is_told_of_the_epoch_that_has_ended(stateful, setting):
    def loader(seed):
        generator = torch.Generator().manual_seed(seed)
        return made(stateful, DrawingStream(), setting, batch_size=2, generator=generator)

    one = loader(4)
    list(one)
    state = one.state_dict()
    expected = list(one)
    other = loader(4)
    other.load_state_dict(state)
    assert list(other) == expected


class DrawingStream(data.IterableDataset):
    """Its iterator's state is that of torch's generator."""

    def __iter__(self):
        return Drawer()


class Drawer(Drawing):
    def __init__(self):
        self.i = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.i == 6:
            raise StopIteration
        self.i += 1
        return self[self.i]

    def state_dict(self):
        return {"i": self.i, **super().state_dict()}

    def load_state_dict(self, state):
        self.i = state["i"]
        super().load_state_dict(state)


def test_loading_a_state_starts_persistent_workers_again_with_its_seeds(stateful):
    torch.manual_seed(5)
    loader = made(stateful, Drawing(), (2, True))
    state = loader.state_dict()
    expected = list(loader)
    other = made(stateful, Drawing(), (2, True))
    iterator = iter(other)
    for _ in range(3):
        next(iterator)
    del iterator
    other.load_state_dict(state)
    assert list(other) == expected


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_state_does_not_change_when_the_iteration_continues(stateful, setting):
    loader = made(stateful, Own(), setting)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    before = copy.deepcopy(state)
    for _ in range(4):
        next(iterator)
    assert state == before
    assert loader.state_dict() != state


def test_two_loaders_at_once_do_not_disturb_each_other(stateful):
    def pair():
        return [made(stateful, Own(), (2, False)) for _ in range(2)]

    state, rest = after(pair()[0], 3)
    one, other = pair()
    one.load_state_dict(state)
    together = list(zip(other, one))
    assert [b for _, b in together] == rest
    assert [a for a, _ in together] == list(other)[: len(rest)]


@pytest.mark.parametrize(("saved", "loads"), [(0, 2), (2, 0), (2, 3)])
def test_a_place_of_other_workers_is_an_assertion_error(stateful, saved, loads):
    state, _ = after(made(stateful, Own(), (saved, False)), 3)
    other = made(stateful, Own(), (loads, False))
    with pytest.raises(AssertionError):
        other.load_state_dict(state)
        iter(other)


class Held(data.Dataset):
    """Sample 0 waits until others have been delivered."""

    def __init__(self):
        self.go = torch.multiprocessing.get_context("fork").Event()

    def __len__(self):
        return 10

    def __getitem__(self, i):
        if i == 0:
            self.go.wait()
        return i


def test_out_of_order_a_slow_sample_delays_only_its_own_worker(stateful):
    dataset = Held()
    # With two workers, the worker of sample 0 has one more task: seven samples can come without it.
    release = threading.Timer(60, dataset.go.set)  # if the test fails: a worker would wait forever
    release.start()
    try:
        loader = made(stateful, dataset, (2, False), in_order=False, multiprocessing_context="fork")
        iterator = iter(loader)
        early = [next(iterator)[0] for _ in range(7)]
        assert not dataset.go.is_set()
        assert 0 not in early
        state = loader.state_dict()
        dataset.go.set()
        assert sorted([*early, *(b[0] for b in iterator)]) == list(range(10))
        if stateful is not adapter.StatefulDataLoader:
            return  # torchdata warns that its state may not hold out of order
        other = made(stateful, dataset, (2, False), in_order=False, multiprocessing_context="fork")
        other.load_state_dict(state)
        assert sorted([*early, *(b[0] for b in other)]) == list(range(10))
    finally:
        dataset.go.set()
        release.cancel()
        release.join()
