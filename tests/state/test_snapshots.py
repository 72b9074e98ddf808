"""The times when Stateful objects are asked for their states; every state is exact."""

import threading

import pytest

from tests.support.options import grouped

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from slipring.torch import DataLoader  # noqa: E402
from tests.support import stateful  # noqa: E402
from tests.support.datasets import after, as_is, share  # noqa: E402
from tests.support.parts import slow  # noqa: E402


class Counted(stateful.Positioned):
    """Counts how often it is asked for its state."""

    calls = 0

    def state_dict(self):
        self.calls += 1
        return super().state_dict()


class Stream(Counted, stateful.Walk, data.IterableDataset):
    """Each worker's share of the numbers, each with how often this worker's copy was asked for its state."""

    def __init__(self, n=40):
        self.n = n

    def items(self):
        return share(self.n)

    def __iter__(self):
        for value in super().__iter__():
            yield value, self.calls


class Rows(Counted, stateful.Reads):
    """A map dataset of 40 samples."""


class Backwards(Counted, stateful.Backwards):
    """A sampler."""


def made(dataset, num_workers, every=1, **options):
    options.setdefault("collate_fn", as_is)
    return DataLoader(dataset, 2, num_workers=num_workers, **grouped(snapshot_every_n_steps=every, **options))


@pytest.mark.parametrize(
    ("asked", "num_workers"), [(Stream(), 0), (Rows(), 0), (Backwards(40), 2)], ids=["stream", "map", "sampler"]
)
def test_an_object_in_this_process_is_asked_only_when_the_loader_is(asked, num_workers):
    sampled = isinstance(asked, Backwards)
    loader = made(range(40), num_workers, sampler=asked) if sampled else made(asked, num_workers)
    iterator = iter(loader)
    for _ in range(10):
        next(iterator)
    assert asked.calls == 0
    loader.state_dict()
    assert asked.calls == 1


@pytest.mark.parametrize(("every", "least", "most"), [(0, 1, 1), (1, 9, 10), (4, 3, 6)])
def test_workers_ask_as_often_as_they_are_told_to(every, least, most):
    asked = {}
    for batch in made(Stream(), 2, every):  # ten batches of each worker
        for value, calls in batch:
            asked[value % 2] = calls
    assert all(least <= calls <= most for calls in asked.values()), asked


@pytest.mark.parametrize(("taken", "every"), [(1, 1), (5, 3), (19, 100), slow(12, 0), slow(2, 4), slow(19, 3)])
@pytest.mark.parametrize("dataset", [Stream, Rows])
def test_a_state_between_two_snapshots_is_exact(dataset, taken, every):
    state, rest = after(made(dataset(), 2, every), taken)
    other = made(dataset(), 2, every)
    other.load_state_dict(state)
    found = list(other)
    if dataset is Stream:  # (the count of calls is not a part of the stream)
        found, rest = ([[value for value, _ in batch] for batch in run] for run in (found, rest))
    assert found == rest


class Locked(Stream):
    def state_dict(self):
        return {"at": self.at, "lock": threading.Lock()}


class Refusing(Stream):
    def state_dict(self):
        raise OSError("no place")


class RefusingRows(Rows):
    def state_dict(self):
        raise OSError("no place")


SETTINGS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 0, "device": ["cpu", "cpu"]},
    {"num_workers": 1, "persistent_workers": True, "every": 3},
]


@pytest.mark.parametrize(
    ("dataset", "setting"),
    list(zip([Refusing, RefusingRows, Locked, RefusingRows, Refusing], SETTINGS, strict=True)),
    ids=str,
)
def test_a_dataset_whose_state_fails_is_iterated_in_every_epoch(dataset, setting):
    with made(dataset(), **setting) as loader:
        for _ in range(3):
            steps = list(loader)
            parts = [part for step in steps for part in step] if "device" in setting else steps
            assert sorted(value for part in parts for value, _ in part) == list(range(40))
        with pytest.raises((OSError, RuntimeError), match=r"no place|cannot pickle"):
            loader.state_dict()


class RefusingSampler(Backwards):
    def state_dict(self):
        raise OSError("no place")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_whose_state_fails_gives_every_epoch(num_workers):
    with DataLoader(range(40), 2, sampler=RefusingSampler(40), num_workers=num_workers) as loader:
        for _ in range(2):
            assert sorted(torch.cat(list(loader)).tolist()) == list(range(40))
            with pytest.raises(OSError, match="no place"):
                loader.state_dict()


class Asking(Stream):
    """Its state_dict needs arguments, as that of MosaicML's streams does."""

    def state_dict(self, samples, from_beginning=True):
        raise AssertionError


@pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_whose_state_dict_needs_arguments_is_not_stateful(num_workers):
    with made(Asking(), num_workers) as loader:
        whole = list(loader)
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
    with made(Asking(), num_workers) as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == whole[1:]


class Plain(stateful.Plain, data.IterableDataset):
    def __init__(self, n):
        self.n = n

    def items(self):
        return share(self.n)


@pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict")
@pytest.mark.parametrize(("dataset", "num_workers"), [(Plain, 0), (Plain, 2), (Stream, 2)])
def test_a_stream_that_has_become_shorter_than_its_state_is_noticed(dataset, num_workers):
    state, _ = after(made(dataset(40), num_workers, 100), 12)
    shorter = made(dataset(12), num_workers, 100)
    shorter.load_state_dict(state)
    with pytest.raises(ValueError, match="the dataset may have changed"):
        list(shorter)
