"""A stopped worker is not dead: it keeps its slot, and the consumer waits up to its timeout."""

import multiprocessing
import os
import signal
from multiprocessing import forkserver

import pytest

from slipring import Loader, LoaderTimeout, Workers
from tests.fault.mortal import Init
from tests.support.datasets import patiently
from tests.support.inside import engine_of, process_pool
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.processes import circulating, state, until, wait_dead, worker_pids
from tests.support.scenes import Gate, Rows, plain

pytestmark = pytest.mark.fault


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T", f"process {pid} has stopped")


@pytest.mark.parametrize("method", ["fork", "spawn", slow("forkserver")])
@pytest.mark.parametrize("death", ["raise", "respawn"])
def test_the_timeout_counts_and_after_it_the_iteration_continues(tmp_path, method, death):
    with Gate(tmp_path / "gate") as gate:
        data = Rows(80, on={17: gate})
        options = {"num_workers": 2, "start_method": method, "seed": 3, "on_death": death}
        with Loader(data, 8, timeout=0.2, **grouped(**options)) as loader:
            it = iter(loader)
            got = [plain(patiently(it)) for _ in range(2)]
            pid = gate.arrived()
            stop(pid)
            gate.open()
            for _ in range(2):
                with pytest.raises(LoaderTimeout, match=r"timeout=0\.2 s: batch 2 "):
                    next(it)
            os.kill(pid, signal.SIGCONT)
            got += [plain(patiently(it)) for _ in range(8)]
            assert next(it, None) is None
            assert circulating(engine_of(loader).ring)[0] == loader.stats().slots
            assert loader.stats().respawns == 0
            assert pid in worker_pids(loader).values()
    with Loader(Rows(80), 8, **grouped(**options)) as loader:
        assert got == [plain(batch) for batch in loader]


@pytest.mark.parametrize("method", ["fork", "spawn", slow("forkserver")])
def test_close_ends_stopped_workers_too(tmp_path, monkeypatch, method):
    monkeypatch.setattr(process_pool, "GRACE_S", 0.1)
    monkeypatch.setattr(process_pool, "TERM_S", 0.1)
    loader = Loader(Rows(80), 8, num_workers=3, workers=Workers(start_method=method))
    kept = next(iter(loader))
    pids = worker_pids(loader)
    stop(pids[0])
    stop(pids[2])
    loader.close()
    for pid in pids.values():
        wait_dead(pid)
    assert kept[1].tolist() == list(range(8))


def test_close_ends_stopped_workers_also_without_the_forkserver(monkeypatch):
    """multiprocessing then considers its workers dead, and would not signal them."""
    monkeypatch.setattr(process_pool, "GRACE_S", 0.1)
    monkeypatch.setattr(process_pool, "TERM_S", 0.1)
    loader = Loader(Rows(80), 8, num_workers=2, workers=Workers(start_method="forkserver"))
    assert len(list(loader)) == 10
    pids = worker_pids(loader)
    stop(pids[0])
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    wait_dead(forkserver._forkserver._forkserver_pid)
    multiprocessing.active_children()  # as any code may call it
    assert len(list(loader)) == 10
    loader.close()
    for pid in pids.values():
        wait_dead(pid)
    forkserver.ensure_running()  # multiprocessing notices the death, and starts another


def test_a_worker_that_does_not_listen_to_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(process_pool, "GRACE_S", 0.1)
    monkeypatch.setattr(process_pool, "TERM_S", 0.1)
    with Gate(tmp_path / "gate") as gate:
        loader = Loader(
            Rows(80, on={0: Deaf(gate)}), 8, num_workers=1, timeout=0.01, workers=Workers(start_method="fork")
        )
        it = iter(loader)
        with pytest.raises(LoaderTimeout):
            next(it)
        pid = gate.arrived()
        loader.close()
        wait_dead(pid)


def test_a_worker_that_is_stopped_before_it_serves_is_not_waited_for_longer_than_timeout(tmp_path):
    with Gate(tmp_path / "gate") as gate:
        loader = Loader(
            Rows(80), 8, num_workers=1, timeout=0.2, worker_init_fn=Init(gate), workers=Workers(start_method="fork")
        )
        with loader:
            it = iter(loader)  # its next() would wait forever
            stop(gate.arrived())
            gate.open()
            with pytest.raises(LoaderTimeout, match=r"timeout=0\.2 s: batch 0 "):
                next(it)
            os.kill(worker_pids(loader)[0], signal.SIGCONT)
            assert [plain(patiently(it))[1] for _ in range(10)] == [plain(b)[1] for b in Loader(Rows(80), 8)]
            assert next(it, None) is None


class Deaf:
    """Ignores SIGTERM, and then waits."""

    def __init__(self, gate):
        self.gate = gate

    def __call__(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.gate()
