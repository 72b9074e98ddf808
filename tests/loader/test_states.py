"""The state of a `slipring.Loader`: saved after any batch, and loaded by another loader."""

import itertools
import json
import multiprocessing
import pickle
import random
import signal
import threading
import warnings

import numpy as np
import pytest

import slipring
from slipring import BatchSampler, Loader, Workers
from tests.support.states import check_state

N, SIZE = 50, 4
FORKED = Workers(start_method="fork")
SPARSE = Workers(start_method="fork", snapshot_every_n_steps=5)


def first_of_worker():
    info = slipring.get_worker_info()
    return 0 if info is None else 100 * info.id


class Counting:
    """An iterable dataset that knows where it is."""

    def __init__(self, n=23):
        self.n, self.i = n, 0

    def __iter__(self):
        first = first_of_worker()
        while self.i < self.n:
            self.i += 1
            yield first + self.i
        self.i = 0

    def state_dict(self):
        return {"i": self.i}

    def load_state_dict(self, state):
        self.i = state["i"]


class Plain:
    """An iterable dataset that is read again up to its place."""

    def __iter__(self):
        first = first_of_worker()
        return iter(range(first, first + 23))


class Backwards:
    """A sampler that counts down and knows where it is."""

    def __init__(self, n):
        self.n, self.i = n, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        while self.i < self.n:
            self.i += 1
            yield self.n - self.i
        self.i = 0

    def state_dict(self):
        return {"i": self.i}

    def load_state_dict(self, state):
        self.i = state["i"]


class Forwards(Backwards):
    def __iter__(self):
        return map((self.n - 1).__sub__, super().__iter__())


class Read:
    """A map dataset that knows how many samples this copy has given."""

    def __init__(self):
        self.given = 0

    def __len__(self):
        return N

    def __getitem__(self, i):
        if i == 7:
            raise OSError(i)
        self.given += 1
        return i, self.given

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class Drawn:
    def __len__(self):
        return N

    def __getitem__(self, i):
        return i, random.random(), np.random.rand(), slipring.rng().random()


class Damaged:
    def __len__(self):
        return N

    def __getitem__(self, i):
        if i % 10 == 7:
            raise OSError(i)
        return i


KINDS = {
    "in-order": lambda: {"dataset": range(N)},
    "shuffled": lambda: {"dataset": range(N), "shuffle": True},
    "dropped-last": lambda: {"dataset": range(N), "shuffle": True, "drop_last": True},
    "batch-sampler": lambda: {"batch_sampler": BatchSampler(N, SIZE, shuffle=True, seed=1)},
    "listed": lambda: {"dataset": range(N), "sampler": list(range(N - 1, -1, -1))},
    "listed-batches": lambda: {"batch_sampler": [[1, 2], [3], [4, 5, 6], [7]]},
    "stateful-sampler": lambda: {"dataset": range(N), "sampler": Backwards(N)},
    "stateful-map": lambda: {"dataset": Read()},
    "stateful-iterable": lambda: {"dataset": Counting()},
    "iterable": lambda: {"dataset": Plain()},
    "drawn": lambda: {"dataset": Drawn(), "shuffle": True},
    "drawn-by-sample": lambda: {"dataset": Drawn(), "rng": "sample"},
    "single": lambda: {"dataset": range(9), "batch_size": None},
    "sparse-snapshots": lambda: {
        "dataset": Counting(),
        "workers": Workers(start_method="fork", snapshot_every_n_steps=5),
    },
    "damaged": lambda: {"dataset": Damaged(), "shuffle": True},
}


def made(kind, **options):
    given = {"seed": 3, "workers": FORKED, **KINDS[kind](), **options}
    dataset = given.pop("dataset", range(N))
    size = given.pop("batch_size", SIZE) if "batch_sampler" not in given else 1
    return Loader(dataset, size, **given)


def plain(batch):
    return [plain(part) for part in batch] if isinstance(batch, (list, tuple)) else np.asarray(batch).tolist()


def flat(lists):
    return [*itertools.chain.from_iterable(lists)]


def taken(batches, count=None):
    """So many batches as lists; an OSError in a batch's place as its text."""
    found = []
    while count is None or len(found) < count:
        try:
            found.append(plain(next(batches)))
        except StopIteration:
            break
        except OSError as error:
            found.append(str(error)[:40])
    return found


@pytest.fixture(autouse=True)
def _quietly():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the iterable dataset has no state_dict")
        yield


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_after_any_batch_the_rest_comes_as_without_the_interruption(kind, num_workers):
    with made(kind, num_workers=num_workers) as loader:
        whole, later = taken(iter(loader)), taken(iter(loader))
    for count in sorted({0, 1, 2, 5, len(whole) - 1, len(whole)} & {*range(len(whole) + 1)}):
        with made(kind, num_workers=num_workers) as loader:
            batches = iter(loader)
            begun = taken(batches, count)
            state = json.loads(json.dumps(check_state(loader.state_dict())))
            if count % 2:
                del batches
                assert json.loads(json.dumps(loader.state_dict())) == state
        with made(kind, num_workers=num_workers) as loader:
            loader.load_state_dict(state)
            assert json.loads(json.dumps(loader.state_dict())) == state
            assert begun + taken(iter(loader)) == whole, count
            if kind != "stateful-map" or num_workers == 0:  # new workers begin with the dataset as it is here
                assert taken(iter(loader)) == later, count


@pytest.mark.parametrize("kind", ["shuffled", "drawn", "batch-sampler", "drawn-by-sample"])
def test_another_number_of_workers_continues_a_map_dataset(kind):
    with made(kind) as loader:
        whole = taken(iter(loader))
    for saving, loading in itertools.permutations([0, 1, 3], 2):
        with made(kind, num_workers=saving) as loader:
            batches = iter(loader)
            begun = taken(batches, 5)
            state = loader.state_dict()
        with made(kind, num_workers=loading) as loader:
            loader.load_state_dict(state)
            assert begun + taken(iter(loader)) == whole


@pytest.mark.parametrize("kind", ["in-order", "batch-sampler", "stateful-sampler"])
def test_out_of_order_exactly_the_other_batches_come(kind):
    for count in range(1, 12, 2):
        with made(kind, num_workers=3, in_order=False) as loader:
            batches = iter(loader)
            begun = taken(batches, count)
            state = check_state(loader.state_dict())
        with made(kind, num_workers=2, in_order=False) as loader:
            loader.load_state_dict(state)
            rest = taken(iter(loader))
        assert sorted(flat(begun + rest)) == list(range(N))


class Held:
    """Numbers, of which one of the second batch comes only when the tenth batch has been read."""

    def __init__(self):
        self.read = multiprocessing.get_context("fork").Event()

    def __len__(self):
        return N

    def __getitem__(self, i):
        if i == SIZE:
            assert self.read.wait(30)
        if i == 9 * SIZE:
            self.read.set()
        return i


@pytest.mark.parametrize("order", ["own", "batch sampler", "stateful sampler"])
def test_batches_that_were_delivered_before_their_turn_do_not_come_again(order):
    def loader():
        orders = {
            "own": {"batch_size": SIZE},
            "batch sampler": {"batch_sampler": BatchSampler(N, SIZE)},
            "stateful sampler": {"batch_size": SIZE, "sampler": Forwards(N)},
        }
        return Loader(held, num_workers=3, in_order=False, workers=FORKED, **orders[order])

    held = Held()
    with loader() as one:
        batches = iter(one)
        begun = taken(batches, 3)
        state = json.loads(json.dumps(check_state(one.state_dict())))
        held.read.set()  # a worker that is killed while it waits would keep the event's lock
    assert state["delivered"] == 1 and len(state["beyond"]) == 2
    with loader() as other:
        other.load_state_dict(state)
        rest = taken(iter(other))
    assert sorted(flat(begun + rest)) == list(range(N))


def test_a_resumed_pass_can_be_resumed_again_and_again():
    for kind, num_workers in itertools.product(("shuffled", "stateful-iterable", "stateful-sampler"), (0, 2)):
        with made(kind, num_workers=num_workers) as loader:
            whole = taken(iter(loader))
        seen, state = [], {}
        while len(seen) < len(whole):
            with made(kind, num_workers=num_workers) as loader:
                loader.load_state_dict(state)
                batches = iter(loader)
                seen += taken(batches, 2)
                state = loader.state_dict()
        assert seen == whole


def test_the_state_is_that_of_the_newest_iteration():
    with made("shuffled", num_workers=1) as loader:
        first, second = iter(loader), iter(loader)
        taken(first, 5)
        assert loader.state_dict()["delivered"] == 0 and loader.state_dict()["epoch"] == 1
        taken(second, 2)
        taken(first, 1)
        assert loader.state_dict()["delivered"] == 2


def test_setting_the_epoch_after_loading_begins_that_epoch():
    with made("shuffled") as loader:
        epochs = [taken(iter(loader)) for _ in range(4)]
        loader.epoch = 1
        batches = iter(loader)
        taken(batches, 3)
        state = loader.state_dict()
    with made("shuffled") as loader:
        loader.load_state_dict(state)
        loader.epoch = 3
        assert taken(iter(loader)) == epochs[3]
        loader.load_state_dict(state)
        loader.epoch = 1
        assert taken(iter(loader)) == epochs[1][3:]


def test_loading_nothing_begins_anew():
    with made("shuffled") as loader:
        whole = taken(iter(loader))
    with made("shuffled") as loader:
        batches = iter(loader)
        taken(batches, 3)
        loader.load_state_dict(loader.state_dict())
        loader.load_state_dict({})
        loader.epoch = 0
        assert taken(iter(loader)) == whole


def test_a_copy_of_a_loader_has_the_state_that_was_loaded():
    with made("shuffled") as loader:
        batches = iter(loader)
        begun = taken(batches, 3)
        loader.load_state_dict(loader.state_dict())
        with pickle.loads(pickle.dumps(loader)) as copy:
            rest = taken(iter(copy))
        assert rest == taken(iter(loader)) and len(begun + rest) == 13


def test_a_closed_loader_still_says_where_it_was_and_loads_nothing():
    loader = made("shuffled", num_workers=1)
    batches = iter(loader)
    taken(batches, 3)
    loader.close()
    assert loader.state_dict()["delivered"] == 3
    with pytest.raises(slipring.errors.Closed):
        loader.load_state_dict(loader.state_dict())


@pytest.mark.parametrize(
    ("saved", "loaded", "error", "said"),
    [
        (
            {"batch_size": 4},
            {"batch_size": 5},
            ValueError,
            "counts batches of batch_size=4.*has batch_size=5",
        ),
        ({"shuffle": True}, {}, ValueError, "order=shuffled, 50 samples.*has order=ascending"),
        ({"shuffle": True}, {"shuffle": True, "dataset": range(49)}, ValueError, "50 samples.*49 samples"),
        ({"dataset": Counting()}, {}, ValueError, "of kind 'iterable'.*of kind 'map'"),
        ({"dataset": Counting(), "num_workers": 2}, {"dataset": Counting()}, AssertionError, "num_workers=2"),
        ({}, {"dataset": range(9)}, ValueError, "5 batches.*ends after 3"),
    ],
    ids=["batch size", "no shuffle", "other length", "other kind", "other workers", "shorter"],
)
def test_a_state_that_counts_something_else_is_refused(saved, loaded, error, said):
    def loader(dataset=range(N), batch_size=4, **options):
        return Loader(dataset, batch_size, workers=FORKED, **options)

    with loader(**saved) as one:
        batches = iter(one)
        taken(batches, 5)
        state = one.state_dict()
    with loader(**loaded) as other, pytest.raises(error, match=said):
        other.load_state_dict(state)
        iter(other)


@pytest.mark.parametrize("state", [3, [], ["a"], {"a": 1}, {"slipring": 99}], ids=str)
def test_something_that_is_no_state_is_refused(state):
    with made("shuffled") as loader, pytest.raises((TypeError, ValueError), match="state"):
        loader.load_state_dict(state)


def test_an_end_of_an_epoch_fits_any_loader():
    with made("shuffled") as loader:
        epochs = [taken(iter(loader)) for _ in range(2)]
    with made("shuffled") as loader:
        taken(iter(loader))
        state = loader.state_dict()
    assert state["finished"] and state["epoch"] == 1
    with made("shuffled", batch_size=10) as loader:
        loader.load_state_dict(state)
        assert flat(taken(iter(loader))) == flat(epochs[1])


class Unsayable(Counting):
    def state_dict(self):
        if self.i > 4:
            raise RuntimeError("lost")
        return {"i": self.i}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_that_cannot_be_said_is_raised_where_it_is_asked_for(num_workers):
    with Loader(Unsayable(), SIZE, num_workers=num_workers, workers=FORKED) as loader:
        batches = iter(loader)
        assert taken(batches, 1) and check_state(loader.state_dict())
        assert len(taken(batches)) == 5
        loader.load_state_dict({})
        batches = iter(loader)
        taken(batches, 3)
        with pytest.raises(RuntimeError, match="lost"):
            loader.state_dict()


class Asking(Counting):
    """Asks for the loader's state while it gives a sample."""

    def __iter__(self):
        for sample in super().__iter__():
            if sample == 6:
                self.loader.state_dict()
            yield sample


def test_a_dataset_that_asks_in_the_middle_of_a_batch_is_told_so():
    data = Asking()
    data.loader = loader = Loader(data, SIZE)
    with loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(RuntimeError, match=r"state_dict\(\) was called while this thread makes a batch"):
            next(batches)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_signal_handler_can_ask_within_next(num_workers):
    said = []
    with Loader(range(N), SIZE, shuffle=True, num_workers=num_workers, workers=FORKED, seed=3) as loader:
        batches = iter(loader)

        def handler(*_):
            said.append(loader.state_dict())

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            for _ in range(3):
                signal.raise_signal(signal.SIGUSR1)
                next(batches)
            signal.raise_signal(signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert [state["delivered"] for state in said] == [0, 1, 2, 3]


# ---- ranks


class Divided(Counting):
    """An iterable dataset that divides what nobody has read: samples first, first + step, ..."""

    def __init__(self, rank, world_size, n=40):
        self.rank, self.world_size, self.n = rank, world_size, n
        self.left = None

    def __iter__(self):
        info = slipring.get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if self.left is None:
            part = self.rank * workers + number
            self.left = list(range(part, self.n, self.world_size * workers))
        while self.left:
            yield self.left.pop(0)
        self.left = None

    def state_dict(self):
        return {"left": list(self.left or ())}

    def load_state_dict(self, state):
        self.left = list(state["left"])

    def rest_of(self, states, num_workers):
        left = sorted(i for rank in states for worker in rank for i in worker["dataset"]["left"])
        parts = self.world_size * num_workers
        return [{"dataset": {"left": left[self.rank * num_workers + k :: parts]}} for k in range(num_workers)]


@pytest.mark.parametrize("ranks", [1, 3])
def test_other_ranks_divide_the_rest_of_an_iterable_dataset(ranks):
    seen, states = [], []
    for rank in range(2):
        with Loader(Divided(rank, 2), 3, num_workers=1, workers=FORKED) as loader:
            batches = iter(loader)
            seen += flat(taken(batches, 2))
            states.append(loader.state_dict())
    for rank in range(ranks):
        with Loader(Divided(rank, ranks), 3, num_workers=2, workers=FORKED) as loader:
            loader.load_state_dict(states)
            seen += flat(taken(iter(loader)))
    assert sorted(seen) == list(range(40))


def test_a_state_of_torchs_loader_continues_here_and_the_other_way_round():
    pytest.importorskip("torch")
    from slipring.torch import DataLoader

    def sampler():
        return BatchSampler(N, SIZE, shuffle=True, seed=1)

    whole = list(sampler())
    theirs = DataLoader(range(N), batch_sampler=sampler(), collate_fn=np.array)
    batches = iter(theirs)
    begun = [next(batches).tolist() for _ in range(4)]
    with Loader(range(N), batch_sampler=sampler()) as ours:
        ours.load_state_dict(theirs.state_dict())
        batches = iter(ours)
        begun += taken(batches, 4)
        state = ours.state_dict()
    theirs.load_state_dict(state)
    assert begun + [batch.tolist() for batch in theirs] == whole


# ---- one by one


class Raising:
    """An iterable dataset without a state, whose third batch raises."""

    def __iter__(self):
        return iter(Sometimes())


class Sometimes:
    def __init__(self):
        self.i = -1

    def __iter__(self):
        return self

    def __next__(self):
        self.i += 1
        if self.i == 9:
            raise OSError("the third batch")
        if self.i == 24:
            raise StopIteration
        return self.i


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_that_raised_is_read_again_behind_the_exception(num_workers):
    def loader():
        return Loader(Raising(), SIZE, num_workers=num_workers, workers=FORKED)

    with loader() as one:
        whole = taken(iter(one))
    with loader() as one:
        batches = iter(one)
        begun = taken(batches, 4)
        state = one.state_dict()
    assert any("third" in str(batch) for batch in begun)
    with loader() as other:
        other.load_state_dict(state)
        assert begun + taken(iter(other)) == whole


def test_a_stateful_map_dataset_reads_again_behind_its_last_state():
    def loader():
        workers = Workers(start_method="fork", snapshot_every_n_steps=6)
        return Loader(Read(), SIZE, num_workers=2, workers=workers)

    with loader() as one:
        whole = taken(iter(one))
    for count in range(1, 10):
        with loader() as one:
            batches = iter(one)
            begun = taken(batches, count)
            state = check_state(one.state_dict())
        with loader() as other:
            other.load_state_dict(state)
            assert begun + taken(iter(other)) == whole, count


class Uneven(Counting):
    def __iter__(self):
        info = slipring.get_worker_info()
        self.n = 8 if info is None or info.id == 0 else 40
        return super().__iter__()


def test_a_stream_that_has_ended_stays_at_its_end():
    def loader():
        return Loader(Uneven(), SIZE, num_workers=2, workers=FORKED)

    with loader() as one:
        whole = taken(iter(one))
    with loader() as one:
        batches = iter(one)
        begun = taken(batches, 8)
        state = one.state_dict()
    assert state["workers"][0]["states"]["last"]
    with loader() as other:
        other.load_state_dict(state)
        assert begun + taken(iter(other)) == whole


def test_a_loader_without_a_seed_takes_that_of_the_state():
    with Loader(range(N), SIZE, shuffle=True) as one:
        batches = iter(one)
        begun = taken(batches, 3)
        state, rest = one.state_dict(), taken(batches)
    with Loader(range(N), SIZE, shuffle=True) as other:
        other.load_state_dict(state)
        assert taken(iter(other)) == rest and len(begun + rest) == 13


def test_the_epoch_of_a_loaded_state_is_whole_when_it_comes_again():
    with made("shuffled") as loader:
        whole = taken(iter(loader))
        loader.epoch = 0
        batches = iter(loader)
        taken(batches, 3)
        loader.load_state_dict(loader.state_dict())
        assert taken(iter(loader)) == whole[3:]
        loader.epoch = 0
        assert taken(iter(loader)) == whole


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["shuffled", "stateful-iterable", "stateful-sampler"])
def test_a_state_does_not_change_with_the_iteration(kind, num_workers):
    with made(kind, num_workers=num_workers) as loader:
        batches = iter(loader)
        taken(batches, 2)
        state = loader.state_dict()
        before = json.dumps(state)
        taken(batches)
        assert json.dumps(state) == before


class Interrupted(Counting):
    def __iter__(self):
        for sample in super().__iter__():
            if sample == 6:
                signal.raise_signal(signal.SIGUSR1)
            yield sample


class Stop(Exception):
    pass


def test_a_state_behind_an_interrupted_next_is_refused():
    interrupted = []

    def handler(*_):
        if not interrupted:
            interrupted.append(True)
            raise Stop

    class Object(Interrupted):
        """An iterator of its own, which an exception does not end."""

        def __iter__(self):
            return self

        def __next__(self):
            if self.i == self.n:
                raise StopIteration
            self.i += 1
            if self.i == 6:
                signal.raise_signal(signal.SIGUSR1)
            return self.i

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with Loader(Object(), SIZE) as loader:
            batches = iter(loader)
            next(batches)
            with pytest.raises(Stop):
                next(batches)
            with pytest.raises(RuntimeError, match=r"Call next\(\) once more"):
                loader.state_dict()
            next(batches)
            assert loader.state_dict()["delivered"] == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_state_has_no_generators_of_workers_that_may_be_replaced():
    workers = Workers(start_method="fork", on_death="respawn")
    with Loader(Counting(), SIZE, num_workers=1, workers=workers) as loader:
        batches = iter(loader)
        next(batches)
        state = check_state(loader.state_dict())
    assert state["workers"][0]["states"].keys() == {"dataset"}


class Failing:
    def __iter__(self):
        yield from range(10)
        raise LookupError("no more indices")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_pass_that_its_sampler_has_broken_off_is_not_finished(num_workers):
    with Loader(range(N), SIZE, sampler=Failing(), num_workers=num_workers, workers=FORKED) as loader:
        batches = iter(loader)
        assert taken(batches, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(LookupError):
            next(batches)
        state = check_state(loader.state_dict())
        assert not state["finished"] and state["delivered"] == 2


def test_a_loader_is_closed_while_another_thread_makes_a_batch_in_this_process():
    begun, go_on = threading.Event(), threading.Event()

    class Waiting(Counting):
        def __iter__(self):
            for sample in super().__iter__():
                if sample == 6:
                    begun.set()
                    go_on.wait(20)
                yield sample

    loader = Loader(Waiting(), SIZE)
    batches = iter(loader)
    next(batches)

    def read():
        with pytest.raises(slipring.errors.Closed):
            next(batches)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert begun.wait(20)
    loader.close()
    assert not go_on.is_set()
    with pytest.raises(RuntimeError, match="was closed while a batch was being made"):
        loader.state_dict()
    go_on.set()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_state_of_an_iterator_that_is_gone_is_that_of_its_last_batch(num_workers):
    with made("stateful-iterable", num_workers=num_workers) as loader:
        whole = taken(iter(loader))
    with made("stateful-iterable", num_workers=num_workers) as loader:
        batches = iter(loader)
        begun = taken(batches, 3)
        del batches
        state = loader.state_dict()
    assert state["workers"][0]["states"] == {"dataset": {"i": 12 if num_workers == 0 else 8}}
    with made("stateful-iterable", num_workers=num_workers) as loader:
        loader.load_state_dict(state)
        assert begun + taken(iter(loader)) == whole


class Loud:
    """Raises a signal when it is unpickled."""

    def __init__(self, number):
        self.number = number

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.number == 5:
            signal.raise_signal(signal.SIGUSR1)


class Loudly:
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return Loud(i)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_whose_delivery_was_interrupted_comes_with_the_next_call(num_workers):
    interrupted = []

    def handler(*_):
        if not interrupted:
            interrupted.append(True)
            raise Stop

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with Loader(Loudly(), SIZE, collate_fn=list, num_workers=num_workers, workers=FORKED) as loader:
            batches = iter(loader)
            next(batches)
            with pytest.raises(Stop):
                next(batches)
            assert loader.state_dict()["delivered"] == 1
            assert [loud.number for loud in next(batches)] == [4, 5, 6, 7]
            assert loader.state_dict()["delivered"] == 2
            assert [loud.number for loud in next(batches)] == [8, 9, 10, 11]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_batches_of_indices_that_are_single_samples_are_resumed():
    def loader():
        sampler = BatchSampler(12, batch_size=2, shuffle=True, seed=1)
        return Loader(np.arange(12), None, sampler=sampler)

    with loader() as one:
        whole = taken(iter(one))
    with loader() as one:
        batches = iter(one)
        begun = taken(batches, 2)
        state = check_state(one.state_dict())
    with loader() as other:
        other.load_state_dict(state)
        assert begun + taken(iter(other)) == whole
