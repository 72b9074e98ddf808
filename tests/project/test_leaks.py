"""The leak check and the watchdog of each test: leaks and hangs fail, and are described."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

from tests.support.leaks import SHM, Snapshot
from tests.support.processes import until

ROOT = Path(__file__).resolve().parents[2]


def run_pytest(tmp_path, source, *options):
    """Run `source` as a separate test file with this project's conftest; return (exit status, output)."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_inner.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, *options, tmp_path]
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.returncode, done.stdout


def test_processes_that_remain_are_reported_and_ended():
    with contextlib.ExitStack() as stack:
        gate = ["sh", "-c", "read go; sleep 600"]
        older = stack.enter_context(subprocess.Popen(gate, stdin=subprocess.PIPE, start_new_session=True))
        stack.callback(os.killpg, older.pid, signal.SIGKILL)  # otherwise a failed test waits for its processes
        before = Snapshot.take()

        def reported(text):
            until(lambda: any(text in line for line in before.leaks()), f"{text!r} is reported")

        ended = os.posix_spawn("/bin/true", ["true"], os.environ)
        os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
        reported(f"process {ended}: ended")  # no one has waited for it
        os.waitpid(ended, 0)
        child = stack.enter_context(subprocess.Popen(["sleep", "601"]))
        stack.callback(child.kill)
        reported(f"process {child.pid}: state")
        subprocess.run(["sh", "-c", "sleep 602 & exec >&-; true"], check=True)
        reported("sleep 602")  # an orphan; its program may begin after its parent has ended
        before.kill_new_processes()
        child.wait()
        assert before.leaks(wait_s=10) == []
        older.stdin.write(b"on\n")
        older.stdin.flush()
        reported("sleep 600")  # the child of a process from before


def test_files_threads_and_descriptors_that_remain_are_reported():
    before, goes_on = Snapshot.take(), threading.Event()
    thread = threading.Thread(target=goes_on.wait, name="left behind", daemon=True)
    thread.start()
    assert before.leaks() == ["thread left behind (daemon)"]
    goes_on.set()
    thread.join()
    path = f"{SHM}/slipring-test-{uuid.uuid4().hex}"
    with open(path, "x"):
        assert path in before.leaks()
    os.unlink(path)
    first, second = os.pipe()
    assert sum("file descriptor" in line for line in before.leaks()) == 2
    between = Snapshot.take()
    os.close(first)
    third = os.dup(second)
    assert between.leaks() == []  # as many as before
    os.close(second)
    os.close(third)
    assert before.leaks(wait_s=10) == []


INNER = """
import multiprocessing, os, signal, subprocess, threading, pytest
from multiprocessing import resource_tracker
def test_leaks_a_pipe():
    os.pipe()
@pytest.mark.leaks_ok("on purpose")
def test_is_excused():
    os.pipe()
def make():
    resource_tracker.register = lambda *_: None
    lock = multiprocessing.get_context("spawn").Lock()
    os.kill(os.getpid(), signal.SIGKILL)
def test_leaks_a_semaphore():
    process = multiprocessing.get_context("fork").Process(target=make)
    process.start()
    process.join()
def test_fails():
    child = subprocess.Popen(["sleep", "600"])
    raise AssertionError(f"pid {child.pid} runs")
@pytest.mark.timeout(1, func_only=True)
def test_hangs():
    threading.Event().wait()
def test_next():
    pass
"""


def test_tests_that_leak_fail_or_hang_are_reported_and_the_next_ones_run(tmp_path):
    status, output = run_pytest(tmp_path, INNER, "-o", "leak_grace=0")
    semaphores = set(re.findall(f"{SHM}/sem\\.slipring-\\S+", output))
    for path in semaphores:
        os.unlink(path)
    assert status == 1 and len(semaphores) == 1
    assert len(re.findall("^the test left behind", output, re.M)) == 2 and "file descriptor" in output
    assert "2 failed, 4 passed, 2 errors" in output  # a test that failed gets no second error
    assert not os.path.exists(f"/proc/{re.search('pid ([0-9]+) runs', output)[1]}")
    assert "Timeout" in output and "threading.Event().wait()" in output


def test_a_hang_in_c_ends_the_run_and_shows_where(tmp_path):
    status, output = run_pytest(
        tmp_path,
        "import ctypes, signal, pytest\n"
        "@pytest.mark.timeout(1, func_only=True)\n"
        "def test_hangs():\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n"
        "    ctypes.PyDLL(None).sleep(600)\n",
        *("-o", "watchdog_grace=5"),  # of the whole test, with its fixtures
    )
    assert status == 1
    assert "Timeout" in output and "in test_hangs" in output
