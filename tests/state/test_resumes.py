"""Resumes after which something repeats: a seed, an exception, an order that is skipped."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import IterableDataset, get_worker_info  # noqa: E402

from tests.support import stateful  # noqa: E402
from tests.support.torch_datasets import Made  # noqa: E402


@pytest.fixture
def make(make):
    """The same fixture, with one sample per batch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the iterable dataset has no state_dict")
        yield lambda *args, **kwargs: make(*args, **{"batch_size": None, **kwargs})


def given(iterator, most=100):
    """Return the values of an iterator, and the texts of its exceptions."""
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
    """Its iterator continues after an exception."""

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
    """Persistent workers resume in one iteration, not in each iteration with its seed."""
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


@pytest.mark.parametrize(("num_workers", "taken", "preload"), [(0, 2, None), (0, 3, 1), (2, 3, None), (2, 5, 1)])
def test_a_stream_continues_after_its_exceptions(make, num_workers, taken, preload):
    dataset = Numbers([(0, 1), (0, 2), (1, 1)])
    whole = given(iter(make(dataset, num_workers=num_workers)))
    loader = make(dataset, num_workers=num_workers, preload=preload)
    head = given(iter(loader), taken)
    resumed = make(dataset, num_workers=num_workers, preload=preload)
    resumed.load_state_dict(loader.state_dict())
    assert head + given(iter(resumed)) == whole


@pytest.mark.parametrize("preload", [None, 1])
def test_a_failed_batch_counts_as_delivered_if_batches_may_come_out_of_order(make, preload):
    """The state then names every delivered batch, not only the number of the last one."""
    options = {"num_workers": 1, "in_order": False, "preload": preload}
    loader = make(Made(fails_at_2, 6), **options)
    head = given(iter(loader), 4)
    assert [*head[:2], "no sample 2" in str(head[2]), head[3]] == [0, 1, True, 3]
    resumed = make(Made(fails_at_2, 6), **options)
    resumed.load_state_dict(loader.state_dict())
    assert given(iter(resumed)) == [4, 5]


def fails_at_2(i):
    if i == 2:
        raise ValueError("no sample 2")
    return i


class Told(Numbers):
    """The same; its iterator has a state."""

    def __iter__(self):
        made = super().__iter__()
        made.state_dict = lambda: {"at": made.at}
        made.load_state_dict = lambda state: vars(made).update(state)
        return made


class Reads(stateful.Reads):
    """A map dataset that counts its reads, including those of bad samples."""

    def __init__(self, n, bad=()):
        super().__init__(n)
        self.bad = bad

    def __getitem__(self, i):
        _, reads = super().__getitem__(i)
        if i in self.bad:
            raise ValueError(f"bad {i}")
        return 100 * reads + i


class WholeBatches(Reads):
    """The same, with one call per batch."""

    def fetch_into(self, indices, empty):
        return sum(self[i] for i in indices)


@pytest.mark.parametrize(
    ("dataset", "batch_size", "rng", "every", "taken"),
    [
        (Reads, None, "batch", 4, 10),
        (Reads, 1, "worker", 1, 10),
        (WholeBatches, 1, "batch", 1, 4),
        (WholeBatches, 1, "worker", 4, 10),
    ],
)
def test_a_stateful_map_dataset_continues_after_its_exceptions(make, dataset, batch_size, rng, every, taken):
    def loader():
        return make(dataset(20, [7]), batch_size=batch_size, num_workers=2, rng=rng, snapshot_every_n_steps=every)

    first, resumed = loader(), loader()
    iterator = iter(first)
    given(iterator, taken)
    resumed.load_state_dict(first.state_dict())
    rest = given(iterator)
    assert len(rest) == 20 - taken
    assert given(iter(resumed)) == rest


@pytest.mark.parametrize(("num_workers", "in_order"), [(0, False), (1, True), (2, False)])
def test_batches_that_came_out_of_order_do_not_come_again(make, num_workers, in_order):
    data = Made(int, 20)
    state = make(data, num_workers=1).state_dict()
    state.update(finished=False, delivered=3, beyond=[4, 6, 7], rng=None, sampler=None)
    resumed = make(data, num_workers=num_workers, in_order=in_order)
    resumed.load_state_dict(state)
    rest = given(iter(resumed))
    assert (rest if in_order else sorted(rest)) == [3, 5, *range(8, 20)]


class Uneven(IterableDataset):
    """Worker 0 has three items, each other worker eight."""

    def items(self):
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return range(100 * worker + 1, 100 * worker + (9 if worker else 4))


class Short(stateful.Walk, Uneven):
    """After its last item it is at its beginning again."""


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Short, {"batch_size": 2, "drop_last": True, "num_workers": 1}),
        (lambda: Reads(3), {"batch_size": 1, "device": ["cpu", "cpu"]}),
    ],
    ids=["last batch", "last step"],
)
def test_a_state_after_an_incomplete_last_batch_continues_with_the_next_epoch(make, dataset, options):
    def numbers(loader):
        return [torch.stack(list(step)).tolist() for step in loader]

    first, resumed = make(dataset(), **options), make(dataset(), **options)
    assert len(numbers(first)) == 1
    resumed.load_state_dict(first.state_dict())
    assert numbers(resumed) == numbers(first)


class Laps(stateful.Laps, Uneven):
    """Counts its passes."""


@pytest.mark.parametrize("dataset", [lambda: Reads(7), Laps])
@pytest.mark.parametrize("taken", [0, 2])
def test_a_state_early_in_an_epoch_knows_workers_from_the_epoch_before(make, dataset, taken):
    """The workers whose batches of the new epoch have not been delivered yet."""
    first, resumed = (make(dataset(), num_workers=3, persistent_workers=True) for _ in range(2))
    whole = [given(iter(first)) for _ in range(2)]
    first.load_state_dict({})
    assert given(iter(first)) == whole[0]
    iterator = iter(first)
    head = given(iterator, taken)
    resumed.load_state_dict(first.state_dict())
    assert head + given(iter(resumed)) == whole[1]


def test_without_workers_a_stateful_dataset_is_as_its_exceptions_have_left_it(make):
    first, resumed = make(Reads(6, [2])), make(Reads(6, [2]))
    iterator = iter(first)
    head = given(iterator, 3)
    resumed.load_state_dict(first.state_dict())
    assert head[-1] == "bad 2"
    assert given(iter(resumed)) == [403, 504, 605]


@pytest.mark.parametrize(
    ("kind", "num_workers", "takes"), [(Numbers, 2, (6, 1, 2)), (Told, 2, (6, 1, 2)), (Numbers, 0, (3, 1, 1))]
)
def test_a_resumed_stream_counts_its_exceptions_for_the_next_resume(make, kind, num_workers, takes):
    dataset = kind([(0, 3), (1, 4)])
    whole = given(iter(make(dataset, num_workers=num_workers)))
    got, loader = [], make(dataset, num_workers=num_workers)
    for taken in takes:
        iterator = iter(loader)
        got += given(iterator, taken)
        state = loader.state_dict()
        loader = make(dataset, num_workers=num_workers)
        loader.load_state_dict(state)
    assert got + given(iter(loader)) == whole
