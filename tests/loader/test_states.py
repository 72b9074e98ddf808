"""The state of a `slipring.Loader`: saved after any batch, and loaded by another loader."""

import json
import multiprocessing
import pickle
from functools import partial

import pytest

import slipring
from slipring import BatchSampler, Loader, Workers
from tests.loader.kinds_of_states import FORKED, KINDS, SIZE, Forwards, N, Read, interrupted, made, taken, whole
from tests.support.datasets import Numbers, Yields, flat
from tests.support.parts import slow
from tests.support.processes import LONG_S
from tests.support.stateful import Counting, first_of_worker
from tests.support.states import check_state

pytestmark = pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict")


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_after_any_batch_the_rest_comes_as_without_the_interruption(kind, num_workers):
    with made(kind, num_workers=num_workers) as loader:
        expected, later = taken(iter(loader)), taken(iter(loader))
    for count in (0, min(5, len(expected) - 1), len(expected)):
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
            if count < len(expected):
                assert begun + taken(iter(loader)) == expected, count
            if kind != "stateful-map" or num_workers == 0:  # new workers start with this process's dataset
                assert taken(iter(loader)) == later, count


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (1, True), (2, False), slow(2, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_after_the_last_batch_continues_with_the_next_epoch(kind, num_workers, persistent):
    def loader():
        return made(kind, num_workers=num_workers, persistent_workers=persistent)

    with loader() as one:
        batches = iter(one)
        count = len(taken(iter(loader())))
        taken(batches, count)
        state = json.loads(json.dumps(one.state_dict()))
        assert not state["finished"] and taken(batches) == []
        later = [taken(iter(one)) for _ in range(2)]
    with loader() as other:
        other.load_state_dict(state)
        batches = iter(other)
        assert json.loads(json.dumps(other.state_dict())) == state
        first = taken(batches, 1)
        assert other.epoch == 2 and other.state_dict()["epoch"] == 1
        assert [first + taken(batches), taken(iter(other))] == later


def test_an_epoch_without_batches_is_followed_by_no_other():
    with made("single", dataset=[], num_workers=1) as loader:
        for _ in range(2):
            loader.load_state_dict(loader.state_dict())
            assert taken(iter(loader)) == []
        assert loader.epoch == 2


def test_only_the_newest_iterator_continues_with_the_next_epoch():
    with made("shuffled") as loader:
        batches = iter(loader)
        taken(batches, 13)
        loader.load_state_dict(loader.state_dict())
        older, newer = iter(loader), iter(loader)
        assert len(taken(newer)) == 13 and taken(older) == [] and loader.epoch == 2
        loader.load_state_dict({})
        assert taken(older) == []


class Fails(list):
    """Batches of indices; an exception comes after them."""

    def __iter__(self):
        yield from super().__iter__()
        raise OSError("no more")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sampler_that_fails_after_the_last_batch_ends_the_resumed_pass(num_workers):
    with Loader(range(9), batch_sampler=Fails([[1], [2]]), num_workers=num_workers, workers=FORKED) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(2)] == [[1], [2]]
        loader.load_state_dict(loader.state_dict())
        batches = iter(loader)
        with pytest.raises(OSError, match="no more"):
            next(batches)
        assert next(batches, None) is None and loader.epoch == 1


def test_empty_batches_at_the_end_of_an_epoch_do_not_count_as_its_rest():
    def loader():
        return Loader([0, 1, None, None], 1, num_workers=1, workers=FORKED, skip_none=True)

    with loader() as one, loader() as other:
        batches = iter(one)
        taken(batches, 2)
        other.load_state_dict(one.state_dict())
        assert taken(iter(other)) == [[0], [1]] and other.epoch == 2


@pytest.mark.parametrize("what", ["a state", "nothing"])
@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (1, True), (2, False)])
@pytest.mark.parametrize("kind", ["shuffled", "stateful-iterable", "stateful-map"])
def test_an_iterator_from_before_a_load_raises(kind, num_workers, persistent, what):
    with made(kind, num_workers=num_workers, persistent_workers=persistent) as loader:
        over, batches = iter(loader), iter(loader)
        whole, _ = taken(over), taken(batches, 2)
        state = loader.state_dict() if what == "a state" else {}
        loader.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(slipring.errors.Closed, match="make a new one"):
                next(batches)
        assert taken(over) == []
        if state:
            assert loader.state_dict() == state
            assert len(taken(iter(loader))) == len(whole) - 2
        assert taken(iter(loader)) and loader.state_dict()["finished"]


@pytest.mark.parametrize("order", ["own", "batch-sampler", "stateful-sampler"])
def test_batches_that_were_delivered_before_their_turn_do_not_come_again(order):
    def loader(num_workers):
        orders = {
            "own": {"batch_size": SIZE},
            "batch-sampler": {"batch_sampler": BatchSampler(N, SIZE)},
            "stateful-sampler": {"batch_size": SIZE, "sampler": Forwards(N)},
        }
        return Loader(held, num_workers=num_workers, in_order=False, workers=FORKED, **orders[order])

    read = multiprocessing.get_context("fork").Event()
    held = Numbers(N, {SIZE: partial(read.wait, 30), 9 * SIZE: read.set})  # the second batch waits for the tenth
    with loader(3) as one:
        batches = iter(one)
        begun = taken(batches, 3)
        state = json.loads(json.dumps(check_state(one.state_dict())))
        read.set()  # a worker that is killed while it waits would keep the event's lock
    assert state["delivered"] == 1 and len(state["beyond"]) == 2
    with loader(3) as other:
        other.load_state_dict(state)
        rest = taken(iter(other))
    assert sorted(flat(begun + rest)) == list(range(N))
    with loader(0) as other:  # its sampler skips batches that were delivered before their turn
        other.load_state_dict(state)
        begun += taken(iter(other), 1)
        state = check_state(other.state_dict())
    with loader(3) as other:
        other.load_state_dict(state)
        rest = taken(iter(other))
    assert sorted(flat(begun + rest)) == list(range(N))


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


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_that_raised_is_read_again_after_the_exception(num_workers):
    def loader():
        dataset = Yields(*range(9), OSError("the third batch"), *range(10, 24))
        return Loader(dataset, SIZE, num_workers=num_workers, workers=FORKED)

    _, begun, rest = interrupted(loader, 4)
    assert any("third" in str(batch) for batch in begun)
    assert begun + rest == whole(loader)


def test_a_stateful_map_dataset_reads_again_after_its_last_state():
    def loader():
        workers = Workers(start_method="fork", snapshot_every_n_steps=6)
        return Loader(Read(N), SIZE, num_workers=2, workers=workers)

    expected = whole(loader)
    for count in range(1, 10):
        _, begun, rest = interrupted(loader, count)
        assert begun + rest == expected, count


class Uneven(Counting):
    def __iter__(self):
        self.n = 8 if first_of_worker() == 0 else 40
        return super().__iter__()


def test_a_stream_that_has_ended_stays_at_its_end():
    def loader():
        return Loader(Uneven(), SIZE, num_workers=2, workers=FORKED)

    state, begun, rest = interrupted(loader, 8)
    assert state["workers"][0]["states"]["last"]
    assert begun + rest == whole(loader)


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
        expected = taken(iter(loader))
        loader.epoch = 0
        batches = iter(loader)
        taken(batches, 3)
        loader.load_state_dict(loader.state_dict())
        assert taken(iter(loader)) == expected[3:]
        loader.epoch = 0
        assert taken(iter(loader)) == expected


@pytest.mark.parametrize(("kind", "workers"), [("shuffled", 2), ("stateful-iterable", 0), ("stateful-sampler", 0)])
def test_a_state_does_not_change_with_the_iteration(kind, workers):
    with made(kind, num_workers=workers) as loader:
        batches = iter(loader)
        taken(batches, 2)
        state = loader.state_dict()
        before = json.dumps(state)
        taken(batches)
        assert json.dumps(state) == before


def test_a_state_has_no_generators_of_workers_that_may_be_replaced():
    workers = Workers(start_method="fork", on_death="respawn")
    with Loader(Counting(), SIZE, num_workers=1, workers=workers) as loader:
        batches = iter(loader)
        next(batches)
        state = check_state(loader.state_dict())
    assert state["workers"][0]["states"].keys() == {"dataset"}


class Slow(Counting):
    """The same, but worker 0 waits for `gate`."""

    def __init__(self):
        super().__init__()
        self.gate = multiprocessing.get_context("fork").Event()

    def __iter__(self):
        if first_of_worker() == 0:
            assert self.gate.wait(LONG_S)
        yield from super().__iter__()


def test_out_of_order_each_worker_of_an_iterable_dataset_continues_at_its_own_place():
    def loader():
        return Loader(dataset, SIZE, num_workers=2, in_order=False, workers=FORKED)

    dataset = Slow()
    with loader() as one:
        batches = iter(one)
        begun = taken(batches, 2)  # worker 1's batches
        state = json.loads(json.dumps(check_state(one.state_dict())))
        dataset.gate.set()
    assert state["delivered"] == 0 and len(state["beyond"]) == 2
    with loader() as other:
        other.load_state_dict(state)
        rest = taken(iter(other))
    assert sorted(flat(begun + rest)) == [*range(1, 24), *range(101, 124)]
