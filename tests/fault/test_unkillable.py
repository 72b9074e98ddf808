"""Workers that cannot be killed, or whose own children survive, do not keep the consumer from ending."""

import contextlib
import logging
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from slipring import Loader, Memory, Workers
from tests.support.datasets import wait_for_file
from tests.support.inside import engine_of, process_pool
from tests.support.parts import slow
from tests.support.processes import alive, until, wait_dead, worker_pids
from tests.support.scenes import Rows

pytestmark = pytest.mark.fault

METHODS = ["fork", "spawn", slow("forkserver")]
FREEZER = pathlib.Path("/sys/fs/cgroup/freezer")  # cgroup v1: with v2 the kernel lets a frozen process die


@pytest.fixture
def frozen():
    """A function that puts a process into a frozen cgroup."""
    place = FREEZER / f"slipring-test-{os.getpid()}"
    try:
        place.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup freezer can be made here: {error}")
    pids = []

    def freeze(pid):
        pids.append(pid)
        (place / "cgroup.procs").write_text(str(pid))
        (place / "freezer.state").write_text("FROZEN")
        until(lambda: (place / "freezer.state").read_text() == "FROZEN\n", "it is frozen")

    yield freeze
    (place / "freezer.state").write_text("THAWED")
    for pid in pids:
        wait_dead(pid)
        with contextlib.suppress(ChildProcessError):  # it is a child of the fork server
            os.waitpid(pid, 0)
    until(lambda: not (place / "cgroup.procs").read_text(), "all have left")
    place.rmdir()


class Spinning(Rows):
    """Its first sample uses a processor forever, and ignores SIGTERM."""

    def __init__(self, path):
        super().__init__(8)
        self.path = path

    def __getitem__(self, i):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.path.touch()
        while True:
            pass


BURN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"


@contextlib.contextmanager
def processor_hog(cpu):
    """Run a process that uses all of one processor."""
    with subprocess.Popen([sys.executable, "-c", BURN, str(cpu)], stdout=subprocess.PIPE) as hog:
        try:
            hog.stdout.readline()
            yield
        finally:
            hog.kill()


def test_a_killed_worker_that_lacks_only_a_processor_is_waited_for(monkeypatch, caplog, tmp_path):
    for name in ("GRACE_S", "TERM_S", "KILL_S"):
        monkeypatch.setattr(process_pool, name, 0.0)
    loader = Loader(Spinning(tmp_path / "begun"), 2, num_workers=1, workers=Workers(start_method="fork"))
    it = iter(loader)
    wait_for_file(tmp_path / "begun")
    pid = worker_pids(loader)[0]
    cpus = os.sched_getaffinity(0)
    cpu = min(cpus)
    state_of = process_pool.state_of

    def looked(pid):
        """Give the process a processor after it was seen waiting for one."""
        state = state_of(pid)
        if state == "R":
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(pid, cpus)
                os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
        return state

    monkeypatch.setattr(process_pool, "state_of", looked)
    with processor_hog(cpu):
        os.sched_setaffinity(pid, {cpu})
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        loader.close()
    assert not alive(pid) and caplog.records == []
    it.close()


@pytest.mark.parametrize("method", METHODS)
def test_close_gives_up_on_a_frozen_worker_with_a_warning(frozen, monkeypatch, caplog, method):
    for name in ("GRACE_S", "TERM_S", "KILL_S"):
        monkeypatch.setattr(process_pool, name, 0.2)
    loader = Loader(Rows(80), 8, num_workers=2, persistent_workers=False, workers=Workers(start_method=method))
    it = iter(loader)
    assert len(next(it)[1]) == 8
    pid = worker_pids(loader)[1]
    frozen(pid)
    with caplog.at_level(logging.WARNING, "slipring"):
        it.close()
    assert f"worker 1 (pid {pid}) has not ended 0.2 s after SIGKILL" in caplog.text
    assert pid not in [p.pid for p in multiprocessing.active_children()]
    assert len(list(loader)) == 10  # with a new segment and new workers
    loader.close()


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


@pytest.mark.parametrize("method", METHODS)
def test_processes_that_a_worker_has_started_do_not_hide_its_end(tmp_path, monkeypatch, method):
    for name in ("GRACE_S", "TERM_S", "KILL_S"):
        monkeypatch.setattr(process_pool, name, 1e6)  # a wait for the wrong event takes forever
    path = tmp_path / "pid"
    with Loader(Parent(os.fspath(path)), 8, num_workers=1, workers=Workers(start_method=method)) as loader:
        assert len(list(loader)) == 10
        until(path.exists, "the child lives")
    os.kill(int(path.read_text()), signal.SIGKILL)


RECORDER = 300_000  # bytes, most of them records


def in_memory(fd):
    """Return how many bytes of memory a segment has."""
    return os.fstat(fd).st_blocks * 512


@pytest.mark.parametrize("method", METHODS)
def test_processes_that_a_worker_has_started_do_not_keep_the_segments_memory(tmp_path, method):
    path = tmp_path / "pid"
    dataset = Parent(os.fspath(path))
    loader = Loader(
        dataset, 8, num_workers=2, prefetch_factor=4, workers=Workers(start_method=method), memory=Memory(copy="never")
    )
    it = iter(loader)
    batches = [next(it), next(it)]
    until(path.exists, "the child lives")
    held, gone = batches[0], batches.pop()
    expected = [np.array(part) for part in held]
    fd = os.dup(engine_of(loader).ring.fd)
    controls = 4 * engine_of(loader).ring.n_slots * 4160 + RECORDER
    try:
        before = in_memory(fd)
        loader.close()
        with_views = in_memory(fd)
        assert all((part == other).all() for part, other in zip(held, expected, strict=True))
        del held, gone, it
        batches.clear()
        assert alive(int(path.read_text()))
        assert in_memory(fd) < with_views < before
        assert in_memory(fd) <= controls
    finally:
        os.close(fd)
        os.kill(int(path.read_text()), signal.SIGKILL)
