"""A dead worker is reported once, with all known facts, and no other batch is lost with it."""

import os
import select
import signal

import pytest

from slipring import Loader, Workers
from slipring.errors import Closed, WorkerDied
from tests.fault.mortal import Init
from tests.support.inside import engine_of
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.processes import LONG_S, alive, circulating, sleeps_in_futex, until, wait_dead, worker_pids
from tests.support.scenes import Death, Gate, Once, Rows

pytestmark = pytest.mark.fault

SAYS = {
    "SIGKILL": ("was killed by SIGKILL", "OOM killer", -signal.SIGKILL),
    "SIGABRT": ("was killed by SIGABRT", "assertion", -signal.SIGABRT),
    "sys.exit": ("left with exit code 7", "sys.exit", 7),
}


@pytest.mark.parametrize(
    ("how", "method"),
    [
        ("SIGKILL", "fork"),
        ("SIGABRT", "fork"),
        ("sys.exit", "fork"),
        ("SIGKILL", "spawn"),
        slow("SIGKILL", "forkserver"),
    ],
)
def test_a_death_is_raised_with_all_known_facts_after_the_ready_batches(tmp_path, how, method):
    data = Rows(400, on={4 * 8 + 3: Once(tmp_path / "died", Death(how))})
    with Loader(data, 8, num_workers=2, prefetch_factor=4, seed=1, workers=Workers(start_method=method)) as loader:
        it = iter(loader)
        ring, pids = engine_of(loader).ring, worker_pids(loader)
        for batch in range(4):
            assert next(it)[1].tolist() == list(range(8 * batch, 8 * batch + 8))
            until(lambda: any(not alive(pid) for pid in pids.values()), "a worker dies")
        with pytest.raises(WorkerDied) as caught:
            next(it)
        manner, cause, code = SAYS[how]
        assert f"pid {caught.value.pid}" in str(caught.value)
        assert f"worker {caught.value.worker} " in str(caught.value)
        assert manner in str(caught.value) and cause in str(caught.value)
        assert caught.value.exitcode == code
        assert pids[caught.value.worker] == caught.value.pid
        assert caught.value.indices == list(range(32, 40))
        with pytest.raises(Closed, match="ended with an error"):
            next(it)
        del batch
        assert circulating(ring) == (ring.n_slots, ring.n_slots)
        for pid in pids.values():
            wait_dead(pid)
        # The mark exists: no worker dies in the second iteration.
        assert [b[1].tolist() for b in loader] == [list(range(i, i + 8)) for i in range(0, 400, 8)]


def test_an_idle_worker_that_is_killed_is_noticed_when_its_batch_is_awaited(tmp_path):
    with Gate(tmp_path / "gate") as gate:
        data = Rows(64, on={8: gate})
        options = {"num_workers": 2, "prefetch_factor": 2, "rng": "worker", "start_method": "fork"}
        with Loader(data, 4, **grouped(**options)) as loader:
            it = iter(loader)
            pids = worker_pids(loader)
            assert next(it)[1][0] == 0
            assert gate.arrived() == pids[0]  # it makes the third batch
            until(lambda: sleeps_in_futex(pids[1]), "worker 1 has nothing to do")
            os.kill(pids[1], signal.SIGKILL)
            wait_dead(pids[1])
            assert next(it)[1][0] == 4
            gate.open()
            with pytest.raises(WorkerDied) as caught:
                for _ in it:
                    pass
            assert (caught.value.worker, caught.value.pid) == (1, pids[1])


def test_a_forked_child_takes_no_descriptor_out_of_the_consumers_epoll():
    with Loader(Rows(800), 8, num_workers=2, workers=Workers(start_method="fork"), rng="worker") as loader:
        it = iter(loader)
        next(it)
        watched = engine_of(loader).pool.death_fd
        assert select.select([watched], [], [], 0)[0] == []
        if (child := os.fork()) == 0:
            os._exit(0)  # the handlers of fork have run in the child
        assert os.waitpid(child, 0)[1] == 0
        pid = worker_pids(loader)[1]
        os.kill(pid, signal.SIGKILL)
        assert select.select([watched], [], [], LONG_S)[0] == [watched]
        with pytest.raises(WorkerDied, match=rf"worker 1 \(pid {pid}\) was killed by SIGKILL"):
            list(it)


def test_a_death_is_noticed_where_others_do_the_work_and_no_wait_is_long():
    """Batches come without the dead worker; unless its death is noticed, half the throughput is lost."""
    with Loader(Rows(64), 8, num_workers=2, workers=Workers(start_method="fork")) as loader:
        assert len(list(loader)) == 8
        pid = worker_pids(loader)[0]
        os.kill(pid, signal.SIGKILL)
        wait_dead(pid)
        with pytest.raises(WorkerDied, match=r"worker 0 .* no batch in flight"):
            while True:
                list(loader)


@pytest.mark.parametrize(("init", "method"), [(True, "fork"), (False, "spawn")])
def test_a_worker_that_dies_before_it_serves_is_reported_and_a_new_iteration_works(tmp_path, method, init):
    action = Once(tmp_path / "once", Death("SIGKILL"))
    options = {"num_workers": 2, "start_method": method, "rng": "worker"}
    data = Rows(40)
    if init:
        options["worker_init_fn"] = Init(action)
    else:
        data = DiesAtUnpickling(40, action)
    with Loader(data, 4, **grouped(**options)) as loader:
        with pytest.raises(WorkerDied) as caught:
            list(loader)
        assert SAYS["SIGKILL"][0] in str(caught.value)
        assert [b[1][0] for b in loader] == list(range(0, 40, 4))


class DiesAtUnpickling(Rows):
    """Calls its action in the worker, before any code of slipring runs there."""

    def __init__(self, n, action):
        super().__init__(n)
        self.action = action

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.action()
