"""The leak check of each test finds every leak, and nothing else."""

import contextlib
import dataclasses
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from tests.support.leaks import SHM, Snapshot
from tests.support.processes import until

ROOT = Path(__file__).resolve().parents[2]


def run_pytest(tmp_path, source, *options):
    """Run `source` as a separate test file with this project's conftest; return (exit status, output)."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_inner.py").write_text(source)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            ROOT / "pyproject.toml",
            "--rootdir",
            tmp_path,
            *options,
            tmp_path,
        ],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def test_a_child_that_still_runs_is_reported_and_ended():
    before = Snapshot.take()
    with subprocess.Popen(["sleep", "600"]) as child:
        assert any(f"process {child.pid}: state" in line for line in before.leaks())
        before.kill_new_processes()
        assert before.leaks(wait_s=10) == []


def test_a_child_nobody_waited_for_is_reported():
    before = Snapshot.take()
    pid = os.posix_spawn("/bin/true", ["true"], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert any(f"process {pid}: ended" in line for line in before.leaks())
    os.waitpid(pid, 0)


def test_an_orphan_of_a_command_is_reported():
    before = Snapshot.take()
    command = "sleep 600 & exec >&-; true"
    subprocess.run(["sh", "-c", command], check=True)
    assert any("sleep 600" in line for line in before.leaks())
    before.kill_new_processes()


def test_a_new_file_in_dev_shm_is_reported_while_we_hold_it():
    name = f"slipring-test-{uuid.uuid4().hex}"
    before = Snapshot.take()
    with open(f"{SHM}/{name}", "x"):
        assert f"{SHM}/{name}" in before.leaks()
    os.unlink(f"{SHM}/{name}")


def test_a_thread_that_still_runs_is_reported():
    before, goes_on = Snapshot.take(), threading.Event()
    thread = threading.Thread(target=goes_on.wait, name="left behind", daemon=True)
    thread.start()
    assert before.leaks() == ["thread left behind (daemon)"]
    goes_on.set()
    thread.join()
    assert before.leaks(wait_s=10) == []


def test_a_new_child_of_a_child_that_was_there_before_is_reported():
    gate = ["sh", "-c", "read go; sleep 600"]
    with subprocess.Popen(gate, stdin=subprocess.PIPE, start_new_session=True) as shell:
        before = Snapshot.take()
        shell.stdin.write(b"on\n")
        shell.stdin.flush()
        assert any("sleep 600" in line for line in until(before.leaks, "it has a child"))
        os.killpg(shell.pid, signal.SIGKILL)


@contextlib.contextmanager
def another_program(source):
    """Run `source` without a mark of the test run; yield its first line of output."""
    command = [sys.executable, "-c", f"{source}\nimport sys; sys.stdout.flush(); sys.stdin.read()"]
    env = {name: value for name, value in os.environ.items() if name != "SLIPRING_TEST_RUN"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=env, text=True, **pipes) as program:
        yield program.stdout.readline().strip()


def seen_by_a_bystander(monkeypatch, before):
    """Return the leaks that the check would find if this process's children were not its own."""
    monkeypatch.setattr("tests.support.leaks.started_by_us", lambda *apart_from: set())
    return before.leaks()


def test_files_of_other_programs_in_dev_shm_are_not_reported(monkeypatch):
    before = Snapshot.take()
    semaphore = (
        "import multiprocessing\n"
        "lock = multiprocessing.get_context('spawn').Lock()\n"
        "print('sem.' + lock._semlock.name[1:])"
    )
    name = f"torch_{2**22}_{uuid.uuid4().hex}"
    with another_program(semaphore) as sem, another_program(f"open('{SHM}/{name}', 'x'); print()"):
        assert {sem, name} <= set(os.listdir(SHM))  # one is mapped, and no process holds the other
        before = dataclasses.replace(before, fds=Snapshot.take().fds)
        assert seen_by_a_bystander(monkeypatch, before) == []
    os.unlink(f"{SHM}/{name}")


def test_a_semaphore_that_a_dead_process_has_left_is_reported(tmp_path):
    status, output = run_pytest(
        tmp_path,
        "import multiprocessing, os, signal\n"
        "from multiprocessing import resource_tracker\n"
        "def make():\n"
        "    resource_tracker.register = lambda *_: None\n"
        "    lock = multiprocessing.get_context('spawn').Lock()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "def test_leaks():\n"
        "    process = multiprocessing.get_context('fork').Process(target=make)\n"
        "    process.start()\n"
        "    process.join()\n",
        "-o",
        "leak_grace=0",
    )
    found = re.findall(f"{SHM}/sem\\.slipring-\\S+", output)
    assert status == 1 and found
    for path in set(found):
        os.unlink(path)


def test_open_descriptors_are_reported_only_when_there_are_more():
    before = Snapshot.take()
    first, second = os.pipe()
    assert sum("file descriptor" in line for line in before.leaks()) == 2
    between = Snapshot.take()
    os.close(first)
    third = os.dup(second)
    assert between.leaks() == []
    os.close(second)
    os.close(third)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_helpers_of_multiprocessing_are_not_reported(method):
    before = Snapshot.take()
    process = multiprocessing.get_context(method).Process(target=os.getpid)
    process.start()
    process.join()
    process.close()
    assert before.leaks(wait_s=10) == []


def test_a_test_that_leaks_fails_with_the_details(tmp_path):
    status, output = run_pytest(
        tmp_path,
        "import os, pytest\n"
        "def test_leaks(): os.pipe()\n"
        "@pytest.mark.leaks_ok('on purpose')\n"
        "def test_excused(): os.pipe()\n",
        "-o",
        "leak_grace=0",
    )
    assert status == 1
    assert "the test left behind" in output and "file descriptor" in output
    assert "2 passed, 1 error" in output


def test_resources_of_a_concurrent_test_are_not_reported(tmp_path):
    name = f"slipring-test-{uuid.uuid4().hex}"
    status, output = run_pytest(
        tmp_path,
        "import os, pathlib, subprocess, threading, pytest\n"
        "HERE = pathlib.Path(__file__).parent\n"
        "def until(what):\n"
        "    while not (HERE / what).exists(): threading.Event().wait(0.01)\n"
        "@pytest.fixture(scope='module')\n"
        "def other():\n"
        "    yield\n"
        "    (HERE / 'looked').touch()\n"  # after the check
        "def test_ends_meanwhile(other):\n"
        "    (HERE / 'begun').touch(); until('held')\n"
        "def test_holds_something():\n"
        "    until('begun')\n"
        f"    with subprocess.Popen(['sleep', '600']) as child, open('{SHM}/{name}', 'x'):\n"
        "        (HERE / 'held').touch(); until('looked')\n"
        "        child.kill()\n"
        f"    os.unlink('{SHM}/{name}')\n",
        *("-n", "2", "--timeout=60", "-o", "leak_grace=0"),
    )
    assert (status, "2 passed" in output) == (0, True), output


def test_processes_of_a_failed_test_are_ended_without_a_second_error(tmp_path):
    status, output = run_pytest(
        tmp_path,
        "import subprocess\n"
        "def test_fails():\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    raise AssertionError(f'pid {child.pid} runs')\n",
    )
    assert status == 1
    assert "1 failed in" in output
    assert not os.path.exists(f"/proc/{re.search('pid ([0-9]+) runs', output)[1]}")


def test_a_hang_in_python_fails_that_test_alone_and_shows_where(tmp_path):
    status, output = run_pytest(
        tmp_path,
        "import threading, pytest\n"
        "@pytest.mark.timeout(1, func_only=True)\n"
        "def test_hangs(): threading.Event().wait()\n"
        "def test_next(): pass\n",
    )
    assert status == 1
    assert "Timeout" in output and "threading.Event().wait()" in output
    assert "1 failed, 1 passed" in output


def test_a_hang_in_c_ends_the_run_and_shows_where(tmp_path):
    status, output = run_pytest(
        tmp_path,
        "import ctypes, signal, pytest\n"
        "@pytest.mark.timeout(1, func_only=True)\n"
        "def test_hangs():\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n"
        "    ctypes.PyDLL(None).sleep(600)\n",
        "-o",
        "watchdog_grace=5",  # of the whole test, with its fixtures
    )
    assert status == 1
    assert "Timeout" in output and "in test_hangs" in output
