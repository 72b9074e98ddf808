"""The consumer ends in any way: no worker outlives it, and nothing stays in /dev/shm."""

import json
import os
import random
import signal
import threading

import pytest

from tests.support.leaks import new_in_shm, shm_files
from tests.support.parts import slow
from tests.support.processes import Program, descendants, sleeps_in_futex, state, until, wait_dead
from tests.support.scenes import Gate

pytestmark = pytest.mark.fault

LOOPS = [
    ("fork", "persistent", "map"),
    ("fork", "temporary", "stream"),
    slow("spawn", "persistent", "map"),
    slow("forkserver", "persistent", "map"),
]
# Seconds in which a program makes a loader, iterates two epochs and closes it.
ROUND_S = {"fork": 0.15, "spawn": 0.8, "forkserver": 0.8}
TIMES = 6  # in each mode
STAGES = ["starting", "idle", "fetching", "in native code", "writing"]


@pytest.mark.parametrize(
    ("method", "stage"), [*(("fork", stage) for stage in STAGES), ("spawn", "starting"), slow("forkserver", "fetching")]
)
def test_workers_end_when_the_consumer_is_killed(tmp_path, method, stage):
    with Gate(tmp_path / "gate") as gate, Program("hold", method, stage, tmp_path / "gate") as program:
        assert "begun" in program.line()
        if stage == "idle":
            pids = json.loads(program.line())["pids"]
            for pid in pids:
                until(lambda pid=pid: sleeps_in_futex(pid), "a worker is idle")
        else:
            pids = [gate.arrived(), gate.arrived()]
            if stage == "in native code":
                gate.open(2)
                for pid in pids:
                    until(lambda pid=pid: waits_for_a_signal(pid), "a worker is stuck")
        assert len(set(pids)) == 2
        os.kill(program.pid, signal.SIGKILL)
        for pid in pids:
            wait_dead(pid)
        code, _, err = program.end()
        assert (code, err) == (-signal.SIGKILL, "")


@pytest.mark.parametrize(("method", "persistent", "dataset"), LOOPS)
def test_workers_end_when_the_consumer_is_killed_at_a_random_instant(method, persistent, dataset):
    seed = os.environ.get("SLIPRING_TEST_SEED") or str(int.from_bytes(os.urandom(4), "little"))
    print("seed", seed)
    rng = random.Random(f"{method} {persistent} {dataset} {seed}")
    for _ in range(TIMES):
        shm = shm_files()
        with Program("loop", method, persistent, dataset, "respawn") as program:
            assert "begun" in program.line()
            threading.Event().wait(rng.random() * ROUND_S[method])
            os.kill(program.pid, signal.SIGSTOP)  # so that it starts no process after the next line
            until(lambda: state(program.pid) == "T", "it stands still")
            below = descendants(program.pid)
            os.kill(program.pid, signal.SIGKILL)
            for pid in below:
                wait_dead(pid)
            assert program.end()[0] == -signal.SIGKILL
        assert new_in_shm(shm) == []


def waits_for_a_signal(pid):
    """Return whether a process's main thread is in pause(2)."""
    with open(f"/proc/{pid}/syscall") as file:
        return file.read().split()[0] in ("34", "133", "73")  # pause, or ppoll on arm64


@pytest.mark.parametrize(("how", "exit_code"), [("end", 0), ("exception", 1), ("os._exit", 6), ("SIGTERM", -15)])
def test_workers_end_when_the_consumer_leaves_with_everything_alive(how, exit_code):
    with Program("leave", how) as program:
        pids = json.loads(program.line())["pids"]
        assert len(set(pids)) == 4
        code, _, err = program.end()
        assert code == exit_code and err.count("Traceback") == (how == "exception")
        assert ("LookupError: meant" in err) if how == "exception" else err == ""
        for pid in pids:
            wait_dead(pid)


def test_workers_that_began_later_end_when_the_consumer_is_killed():
    with Program("resizing", "fork") as program:
        assert "begun" in program.line()
        until(lambda: len(json.loads(program.line())["pids"]) > 2, "more workers begin")
        below = descendants(program.pid)
        os.kill(program.pid, signal.SIGKILL)
        for pid in below:
            wait_dead(pid)


@pytest.mark.parametrize("method", ["fork", slow("spawn")])
def test_workers_end_when_the_consumer_becomes_another_program(method):
    with Program("becomes", method) as program:
        pids = json.loads(program.line())["pids"]
        assert len(pids) == 2
        for pid in pids:
            wait_dead(pid)
        assert state(program.pid) in "RSD"
        os.kill(program.pid, signal.SIGKILL)
