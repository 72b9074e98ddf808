"""Workers that are stopped or cannot be killed, or whose own children survive: the consumer waits, or ends."""

import logging
import multiprocessing
import os
import signal
from multiprocessing import forkserver

import pytest

from slipring import Loader, LoaderTimeout, Memory, Workers
from tests.fault.mortal import Init
from tests.support.datasets import patiently, wait_for_file
from tests.support.inside import engine_of, process_pool
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.processes import alive, circulating, state, until, wait_dead, worker_pids
from tests.support.scenes import Gate, Rows, plain

pytestmark = pytest.mark.fault


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T", f"process {pid} has stopped")


@pytest.mark.parametrize(("method", "death"), [("fork", "raise"), ("fork", "respawn"), slow("spawn", "raise")])
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


@pytest.fixture
def short_waits(monkeypatch):
    """Let close() signal workers soon that do not end."""
    monkeypatch.setattr(process_pool, "GRACE_S", 0.1)
    monkeypatch.setattr(process_pool, "TERM_S", 0.1)


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("method", ["fork", slow("spawn")])
def test_close_ends_stopped_workers_too(method):
    loader = Loader(Rows(80), 8, num_workers=3, workers=Workers(start_method=method))
    kept = next(iter(loader))
    pids = worker_pids(loader)
    stop(pids[0])
    stop(pids[2])
    loader.close()
    for pid in pids.values():
        wait_dead(pid)
    assert kept[1].tolist() == list(range(8))


@pytest.mark.usefixtures("short_waits")
def test_close_ends_stopped_workers_also_without_the_forkserver():
    """multiprocessing then considers its workers dead, and would not signal them."""
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


@pytest.mark.usefixtures("short_waits")
def test_a_worker_that_ignores_sigterm_is_killed(tmp_path):
    def busy():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        gate()

    with Gate(tmp_path / "gate") as gate:
        loader = Loader(Rows(8, on={0: busy}), 8, num_workers=1, workers=Workers(start_method="fork"))
        it = iter(loader)
        pid = gate.arrived()
        loader.close()
        wait_dead(pid)
        del it


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


WAITS = "GRACE_S", "TERM_S", "KILL_S"


@pytest.fixture
def no_signals(monkeypatch):
    """Let the pool's signals reach no worker; return a function that sets the waits for a worker's end."""
    monkeypatch.setattr(process_pool.ProcessPool, "_send", lambda *arguments: None)
    return lambda seconds: [monkeypatch.setattr(process_pool, name, seconds) for name in WAITS]


class Spinning(Rows):
    """Its first sample uses a processor forever."""

    def __init__(self, path):
        super().__init__(8)
        self.path = path

    def __getitem__(self, i):
        self.path.touch()
        while True:
            pass


def test_a_killed_worker_that_lacks_only_a_processor_is_waited_for(no_signals, monkeypatch, caplog, tmp_path):
    no_signals(0.0)
    loader = Loader(Spinning(tmp_path / "begun"), 2, num_workers=1, workers=Workers(start_method="fork"))
    it = iter(loader)
    wait_for_file(tmp_path / "begun")
    pid = worker_pids(loader)[0]
    state_of = process_pool.state_of

    def looked(pid):
        """Let the worker end after the pool has seen it run."""
        if (state := state_of(pid)) == "R":
            os.kill(pid, signal.SIGKILL)
        return state

    monkeypatch.setattr(process_pool, "state_of", looked)
    loader.close()
    assert not alive(pid) and caplog.records == []
    it.close()


def test_close_gives_up_on_a_worker_that_cannot_be_killed_with_a_warning(no_signals, caplog):
    no_signals(0.2)
    loader = Loader(Rows(80), 8, num_workers=2, persistent_workers=False, workers=Workers(start_method="fork"))
    it = iter(loader)
    assert len(next(it)[1]) == 8
    pid = worker_pids(loader)[1]
    os.kill(pid, signal.SIGSTOP)
    with caplog.at_level(logging.WARNING, "slipring"):
        it.close()
    assert f"worker 1 (pid {pid}) has not ended 0.2 s after SIGKILL" in caplog.text
    assert pid not in [p.pid for p in multiprocessing.active_children()]
    assert len(list(loader)) == 10  # with a new segment and new workers
    loader.close()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


class Parent(Rows):
    """Each sample starts a process that outlives its worker."""

    def __init__(self, path):
        super().__init__(80)
        self.path = path

    def __getitem__(self, i):
        if i == 0:
            if (child := os.fork()) == 0:
                with open(f"{self.path}.new", "w") as file:
                    file.write(str(os.getpid()))
                os.rename(f"{self.path}.new", self.path)
                signal.pause()
                os._exit(0)
            assert child > 0
        return super().__getitem__(i)


def test_processes_that_a_worker_has_started_do_not_keep_the_segments_memory(tmp_path):
    path, memory = tmp_path / "pid", Memory(copy="never")
    loader = Loader(Parent(path), 8, num_workers=2, workers=Workers(start_method="fork"), memory=memory)
    it = iter(loader)
    held, gone = next(it), next(it)
    until(path.exists, "the child lives")
    expected = plain(held)
    fd = os.dup(engine_of(loader).ring.fd)
    try:
        before = os.fstat(fd).st_blocks
        loader.close()
        with_views = os.fstat(fd).st_blocks
        assert plain(held) == expected
        del held, gone, it
        assert alive(int(path.read_text()))
        assert os.fstat(fd).st_blocks < with_views < before
    finally:
        os.close(fd)
        os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("method", ["fork", slow("spawn"), slow("forkserver")])
def test_processes_that_a_worker_has_started_do_not_hide_its_end(tmp_path, monkeypatch, method):
    for name in WAITS:
        monkeypatch.setattr(process_pool, name, 1e6)  # a wait for the wrong event takes forever
    path = tmp_path / "pid"
    with Loader(Parent(os.fspath(path)), 8, num_workers=1, workers=Workers(start_method=method)) as loader:
        assert len(list(loader)) == 10
        until(path.exists, "the child lives")
    os.kill(int(path.read_text()), signal.SIGKILL)
