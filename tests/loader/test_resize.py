"""loader.resize(n): workers start and end in the middle of an epoch, and the batches stay the same."""

import threading

import numpy as np
import pytest

import slipring
from slipring import Loader, Memory, Workers
from slipring.errors import Closed
from tests.support.datasets import Made, Numbered, Numbers, Squares, flat, numbers
from tests.support.inside import WorkerPool, engine_of
from tests.support.kinds import loading
from tests.support.parts import slow
from tests.support.resizing import plain, resized


def drawn(i):
    return i, int(slipring.rng().integers(1 << 60)), float(np.random.random())


def informed(i):
    me = slipring.get_worker_info()
    return i, me.id, me.num_workers


def at_work(loader):
    """Return the number of workers that are not retiring."""
    pool = engine_of(loader).pool
    return len(pool.workers) - len(pool.retiring)


@pytest.mark.parametrize(
    ("method", "how"),
    [("fork", {}), ("fork", {"in_order": False}), ("thread", {"chunk_size": 2}), slow("spawn", {})],
    ids=str,
)
def test_every_byte_is_that_of_a_fixed_number(method, how):
    options = {"shuffle": True, "num_workers": 2, "seed": 7, **how}
    with loading(Made(drawn, 400), 5, start_method="fork", **options) as loader:
        want = [[plain(batch) for batch in loader] for _ in range(2)]
    with loading(Made(drawn, 400), 5, start_method=method, **options) as loader:
        got = [resized(loader) for _ in range(2)]
        assert at_work(loader) == 3 and loader.options.num_workers == 3
    if how == {"in_order": False}:
        want, got = [sorted(epoch) for epoch in want], [sorted(epoch) for epoch in got]
    if method == "thread":  # threads do not touch the process's own generators
        want, got = ([[b[:2] for b in epoch] for epoch in epochs] for epochs in (want, got))
    assert got == want


def test_as_many_tasks_are_in_flight_as_the_workers_want():
    gate = threading.Event()
    held = Numbers(400, dict.fromkeys(range(20, 400), gate.wait))
    loader = Loader(held, 1, num_workers=1, workers=Workers(start_method="thread"), memory=Memory(slots=40))
    with loader:
        batches = iter(loader)
        for _ in range(10):
            next(batches)
        loader.resize(6)
        for _ in range(10):
            next(batches)
        ring = engine_of(loader).ring
        assert ring.n_slots - ring.circulating == 0
        assert sum(len(ring.in_flight(n + 1)) for n in range(6)) <= 12
        gate.set()
        assert np.concatenate(list(batches)).tolist() == list(range(20, 400))


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_surplus_workers_end_with_their_batch(method):
    with Loader(Squares(2000), 1, num_workers=5, workers=Workers(start_method=method)) as loader:
        batches = iter(loader)
        next(batches)
        pool = engine_of(loader).pool
        loader.resize(2)
        assert pool.target == 2 and len(pool.retiring) == 3 - (5 - len(pool.workers))
        rest = flat(numbers(batches))
        assert rest == list(range(1, 2000))
        while pool.retiring:  # only this test waits for them
            pool.reconcile()
        assert sorted(pool.workers) == [0, 1]


def test_values_that_depend_on_the_workers_change_with_the_next_epoch():
    with Loader(Made(informed, 200), 4, num_workers=2, rng="worker", workers=Workers(start_method="fork")) as loader:
        first = resized(loader, {10: 3})
        assert {n for batch in first for n in batch[1]} == {0, 1}
        second = [plain(batch) for batch in loader]
        assert {n for batch in second for n in batch[1]} == {0, 1, 2}
        assert {n for batch in second for n in batch[2]} == {3}
        assert [n for batch in second for n in batch[0]] == list(range(200))


@pytest.mark.parametrize("persistent", [False, True])
def test_streams_keep_their_shares_until_the_epoch_ends(persistent):
    with Loader(Numbered(), 2, num_workers=2, persistent_workers=persistent) as loader:
        for workers, change in ((2, 3), (3, 3), (3, 1), (1, 1)):
            got = resized(loader, {4: change})
            assert {n for batch in got for n in batch[1]} == {workers}
            assert sorted(n for batch in got for n in batch[0]) == list(range(60))


@pytest.mark.filterwarnings("ignore:the iterable dataset has no state_dict")
def test_a_state_after_a_resize_is_of_the_workers_that_the_epoch_has():
    with Loader(Numbered(), 2, num_workers=3) as loader, Loader(Numbered(), 2, num_workers=3) as other:
        batches = iter(loader)
        begun = [n for _ in range(4) for n in next(batches)[0]]
        loader.resize(2)
        state = loader.state_dict()
        with pytest.raises(AssertionError, match="num_workers=3, the loader has num_workers=2"):
            loader.load_state_dict(state)
        other.load_state_dict(state)
        assert sorted(begun + [n for batch in other for n in batch[0]]) == list(range(60))


def test_more_than_the_segment_has_room_for_come_with_the_next_epoch():
    with Loader(Squares(40), 2, num_workers=1, workers=Workers(start_method="thread")) as loader:
        batches = iter(loader)
        next(batches)
        room = engine_of(loader).worker_capacity
        loader.resize(room + 1)
        assert engine_of(loader).pool.target == 1
        assert flat(numbers(batches)) == list(range(2, 40))
        assert flat(numbers(loader)) == list(range(40))
        assert at_work(loader) == room + 1


def test_a_second_number_that_comes_into_the_midst_of_the_first_is_not_lost(monkeypatch):
    """As a signal handler or another thread may call it."""
    first = WorkerPool.resize

    def interrupted(pool, num_workers):
        if num_workers == 3:
            loader.resize(4)
        first(pool, num_workers)

    monkeypatch.setattr(WorkerPool, "resize", interrupted)
    with Loader(Squares(60), 2, num_workers=1, workers=Workers(start_method="thread")) as loader:
        batches = iter(loader)
        next(batches)
        loader.resize(3)
        assert flat(numbers(batches)) == list(range(2, 60))
        assert engine_of(loader).pool.target == loader.options.num_workers == 4


def test_between_epochs_workers_stay_and_each_of_several_iterations_is_resized():
    with Loader(Squares(40), 2, num_workers=2, workers=Workers(start_method="fork")) as loader:
        list(loader)
        pool = engine_of(loader).pool
        before = {n: p.pid for n, p in pool.workers.items()}
        loader.resize(3)
        a, b = iter(loader), iter(loader)
        assert pool is engine_of(a).pool and before.items() < {n: p.pid for n, p in pool.workers.items()}.items()
        loader.resize(4)
        assert engine_of(a).pool.target == engine_of(b).pool.target == 4
        assert flat(numbers(a)) == flat(numbers(b)) == list(range(40))


def test_a_loader_without_workers_gets_some_with_its_next_epoch_only():
    with Loader(Squares(40), 2) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(ValueError, match="num_workers=2 for an iteration that makes its batches itself"):
            loader.resize(2)
        assert flat(numbers(batches)) == list(range(2, 40))
        loader.resize(2)
        assert flat(numbers(loader)) == list(range(40)) and at_work(loader) == 2


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [(0, ValueError, "at least 1|from 1 to 4093, not 0"), (5000, ValueError, "4093"), ("2", TypeError, "'2'")],
)
def test_a_bad_number_is_refused(value, kind, said):
    with Loader(Squares(4), num_workers=1) as loader, pytest.raises(kind, match=said):
        loader.resize(value)
    with pytest.raises(Closed):
        loader.resize(2)


def test_another_thread_may_ask_while_one_waits_for_a_batch():
    begun, gate = threading.Event(), threading.Event()
    held = Numbers(40, {0: lambda: (begun.set(), gate.wait()), 1: gate.set})  # only a second worker reads sample 1
    with Loader(held, 1, num_workers=1, prefetch_factor=2, workers=Workers(start_method="thread")) as loader:
        batches, got = iter(loader), []
        consumer = threading.Thread(target=lambda: got.extend(batches))
        consumer.start()
        begun.wait()
        loader.resize(2)
        consumer.join()
        assert np.concatenate(got).tolist() == list(range(40))
