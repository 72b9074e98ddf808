"""Workers that are killed, interrupted and closed while they come and go."""

import itertools
import os
import random
import signal
import threading

import pytest

from slipring import Loader, Workers
from slipring.errors import Closed, WorkerDied
from tests.fault.test_respawn import undisturbed
from tests.support.inside import engine_of
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.processes import circulating, kill_worker, until, worker_pids
from tests.support.scenes import Gate, Rows, plain
from tests.support.scenes import respawning as options

pytestmark = pytest.mark.fault

SEED = os.environ.get("SLIPRING_TEST_SEED", "1")


@pytest.mark.parametrize(("method", "chunk_size"), [("fork", None), ("fork", 2), slow("spawn", None)])
def test_workers_killed_at_random_while_their_number_changes_lose_nothing(method, chunk_size):
    """With `respawning`, dead workers are replaced unless they were retiring."""
    rng = random.Random(f"{method} {chunk_size} {SEED}")
    data = Rows(2400)
    with Loader(data, **grouped(**options(start_method=method, chunk_size=chunk_size, max_restarts=50))) as loader:
        got = []
        for k, batch in enumerate(loader):
            got.append(plain(batch))
            if k % 7 == 0:
                loader.resize(rng.randrange(1, 7))
            if k % 11 == 0 and (pool := engine_of(loader).pool).pidfds:
                kill_worker(loader, rng.choice(list(pool.pidfds)))
        ring, batch = engine_of(loader).ring, None
        assert circulating(ring) == (ring.n_slots, ring.n_slots)
    assert got == undisturbed(data, chunk_size=chunk_size), f"seed {SEED}"


def test_a_worker_killed_before_it_has_left_has_its_batch_made_by_another(tmp_path):
    with Gate(tmp_path / "gate") as gate:
        data = Rows(80, on={9: gate})
        with Loader(data, **grouped(**options(num_workers=2))) as loader:
            batches = iter(loader)
            got = [plain(next(batches))]
            gate.arrived()
            ring = engine_of(loader).ring
            (busy,) = [n for n in range(2) if any(9 in rows for _, rows in ring.in_flight(n + 1))]
            loader.resize(1)
            if busy == 0:  # the other worker ends
                gate.open()
            else:
                kill_worker(loader, busy)
                gate.open()
            got += [plain(batch) for batch in batches]
            assert loader.stats().respawns == 0
            until(lambda: engine_of(loader).pool.reconcile() or not engine_of(loader).pool.retiring, "it has left")
            assert list(worker_pids(loader)) == [0]
    assert got == undisturbed(Rows(80))


def test_with_raise_the_death_of_one_that_leaves_is_reported_if_its_batch_goes_with_it(tmp_path):
    with (
        Gate(tmp_path / "a") as first,
        Gate(tmp_path / "b") as second,
        Loader(Rows(80, on={1: first, 9: second}), 8, num_workers=2, workers=Workers(start_method="fork")) as loader,
    ):
        batches = iter(loader)
        first.arrived()
        second.arrived()
        loader.resize(1)
        kill_worker(loader, 1)
        first.open()
        with pytest.raises(WorkerDied, match=r"worker 1 .*SIGKILL"):
            list(batches)


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_a_loader_closed_by_another_thread_while_it_is_resized_ends_all_workers(method):
    for _ in range(10):
        loader = Loader(Rows(4000), 8, num_workers=2, workers=Workers(start_method=method))
        batches = iter(loader)
        next(batches)
        pool = engine_of(loader).pool
        closer = threading.Thread(target=loader.close)
        closer.start()
        for n in itertools.cycle((5, 1)):
            try:
                loader.resize(n)
            except Closed:
                break
        closer.join()
        assert not pool.workers


class Interrupted:
    """A ring whose first `recover` is interrupted by Ctrl-C."""

    def __init__(self, ring):
        self.ring, self.came = ring, False

    def __getattr__(self, name):
        return getattr(self.ring, name)

    def recover(self, *arguments, **options):
        if not self.came:
            self.came = True
            signal.raise_signal(signal.SIGINT)
        return self.ring.recover(*arguments, **options)


def test_ctrl_c_while_a_thread_that_has_left_is_seen_to_leaves_nothing_half_done():
    with Loader(range(400), 4, num_workers=2, workers=Workers(start_method="thread")) as loader:
        iterator, got = iter(loader), []
        got += next(iterator).tolist()
        pool = engine_of(loader).pool
        pool.ring = Interrupted(pool.ring)
        leaver = pool.workers[1]
        loader.resize(1)
        leaver.join()  # otherwise all batches may come before it ends
        with pytest.raises(KeyboardInterrupt):
            for batch in iterator:
                got += batch.tolist()
        assert set(pool.workers) == {0} and not pool.retiring
        for batch in iterator:
            got += batch.tolist()
        assert got == list(range(400))


def test_a_resize_of_threads_that_was_interrupted_is_completed_at_the_next_check():
    with Loader(range(400), 4, num_workers=1, workers=Workers(start_method="thread")) as loader:
        iterator = iter(loader)
        got = next(iterator).tolist()
        pool = engine_of(loader).pool
        pool.target = 2  # as `resize` sets it before it starts a worker
        assert pool.resizing
        pool.check()
        assert set(pool.workers) == {0, 1} and not pool.resizing
        for batch in iterator:
            got += batch.tolist()
        assert got == list(range(400))
