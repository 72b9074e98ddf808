"""Resumes behind which something repeats itself: a seed, an exception, an order that is skipped."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import IterableDataset, Sampler, get_worker_info  # noqa: E402

from slipring.torch import DataLoader  # noqa: E402
from tests.torch.common import Made  # noqa: E402


@pytest.fixture
def make():
    """Make loaders that are closed in the end."""
    made = []

    def loader(*args, **kwargs):
        made.append(DataLoader(*args, **{"batch_size": None, **kwargs}))
        return made[-1]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        warnings.filterwarnings("ignore", message="the iterable dataset has no state_dict")
        yield loader
    for each in made:
        each.close()


def given(iterator, most=100):
    """What it gives, exceptions among it."""
    got = []
    while len(got) < most:
        try:
            got.append(int(next(iterator)))
        except StopIteration:
            break
        except ValueError as error:
            got.append(str(error))
    return got


class Numbers(IterableDataset):
    """Its iterator goes on behind an exception."""

    def __init__(self, bad=()):
        self.bad = bad

    def __iter__(self):
        info = get_worker_info()
        return Iterator(0 if info is None else info.id, self.bad)


class Iterator:
    def __init__(self, worker, bad):
        self.worker, self.bad, self.at = worker, bad, -1

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        if self.at == 6:
            raise StopIteration
        if (self.worker, self.at) in self.bad:
            raise ValueError(f"bad {self.worker} {self.at}")
        return 100 * self.worker + self.at


@pytest.mark.parametrize("rng", ["batch", "worker"])
def test_an_epoch_of_the_same_seed_as_the_resumed_one_is_whole(make, rng):
    """Workers that persist are told where to go on in one run, not in all that have its seed."""
    first, second = (make(Numbers(), num_workers=2, persistent_workers=True, rng=rng) for _ in range(2))
    torch.manual_seed(1)
    whole = given(iter(first))
    torch.manual_seed(1)
    iterator = iter(first)
    assert given(iterator, 5) == whole[:5]
    second.load_state_dict(first.state_dict())
    torch.manual_seed(1)
    assert given(iter(second)) == whole[5:]
    for _ in range(2):
        torch.manual_seed(1)
        assert given(iter(second)) == whole


@pytest.mark.parametrize("preload", [None, 1])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("taken", [2, 3, 4, 5])
def test_a_stream_goes_on_behind_its_exceptions(make, num_workers, taken, preload):
    dataset = Numbers([(0, 1), (0, 2), (1, 1)])
    whole = given(iter(make(dataset, num_workers=num_workers)))
    loader = make(dataset, num_workers=num_workers, preload=preload)
    head = given(iter(loader), taken)
    resumed = make(dataset, num_workers=num_workers, preload=preload)
    resumed.load_state_dict(loader.state_dict())
    assert head + given(iter(resumed)) == whole


class Shuffled(Sampler):
    """An order of its own, which only its state tells."""

    def __init__(self, seed):
        self.order = torch.randperm(20, generator=torch.Generator().manual_seed(seed)).tolist()
        self.at = 0

    def __iter__(self):
        while self.at < len(self.order):
            self.at += 1
            yield self.order[self.at - 1]
        self.at = 0

    def __len__(self):
        return len(self.order)

    def state_dict(self):
        return {"order": self.order, "at": self.at}

    def load_state_dict(self, state):
        self.order, self.at = state["order"], state["at"]


@pytest.mark.parametrize("look_ahead", [{"num_workers": 0}, {"num_workers": 1, "prefetch_factor": 1}])
def test_a_state_is_exact_before_what_is_skipped_has_been_drawn(make, look_ahead):
    data = Made(int, 20)
    loader = make(data, sampler=Shuffled(1), num_workers=2, in_order=False)
    iterator = iter(loader)
    got = given(iterator, 1)
    state = loader.state_dict()
    # As if four of later tickets had come before.
    got += [state["sampler"]["order"][ticket] for ticket in range(2, 6)]
    state["above"] = [2, 3, 4, 5]
    for seed in range(2, 5):
        loader = make(data, sampler=Shuffled(seed), in_order=False, **look_ahead)
        loader.load_state_dict(state)
        iterator = iter(loader)
        got += given(iterator, 1)
        state = loader.state_dict()
    assert sorted(got + given(iterator)) == list(range(20))


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_what_came_out_of_order_does_not_come_again(make, num_workers):
    data = Made(int, 20)
    state = make(data, num_workers=1).state_dict()
    state.update(finished=False, yielded=3, above=[4, 6, 7], rng=None, sampler=None)
    resumed = make(data, num_workers=num_workers, in_order=False)
    resumed.load_state_dict(state)
    assert sorted(given(iter(resumed))) == [3, 5, *range(8, 20)]


class Short(IterableDataset):
    """At its end it is at its beginning again."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        info = get_worker_info()
        while self.at < (3 if info is None or info.id == 0 else 8):
            self.at += 1
            yield self.at + (0 if info is None else 100 * info.id)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(("num_workers", "taken"), [(0, 2), (1, 2), (2, 3), (2, 4)])
def test_a_stream_does_not_begin_again_behind_a_last_batch_that_was_not_full(
    make, num_workers, taken, persistent
):
    def loader():
        return make(
            Short(), batch_size=2, num_workers=num_workers, persistent_workers=persistent and num_workers > 0
        )

    whole = [batch.tolist() for batch in loader()]
    first, resumed = loader(), loader()
    iterator = iter(first)
    head = [next(iterator).tolist() for _ in range(taken)]
    resumed.load_state_dict(first.state_dict())
    assert head + [batch.tolist() for batch in resumed] == whole
    assert [batch.tolist() for batch in resumed] == whole
