"""Looking at other processes, and running programs that are to be killed."""

import contextlib
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from tests.support import warm
from tests.support.leaks import parent, pids, read
from tests.support.inside import engine_of

ROOT = pathlib.Path(__file__).parents[2]
FUTEX = (b"202", b"98")  # the call's number, by processor
FUTEX_PRIVATE_FLAG = 128
LONG_S = 120.0  # what surely suffices on a loaded machine


def until(condition, what, seconds=LONG_S):
    """Wait for what only /proc can tell; returns the condition's value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.002)
    return value


def state(pid):
    """One letter: R, S, D, T, Z; "" when the process has gone."""
    stat = read(f"/proc/{pid}/stat").decode(errors="replace")
    return stat[stat.rindex(")") + 2] if stat else ""


def alive(pid):
    """Whether a process still runs (a zombie does not)."""
    return state(pid) not in ("", "Z", "X")


def wait_dead(pid, seconds=LONG_S):
    """Wait until a process does not run any more."""
    until(lambda: not alive(pid), f"process {pid} ({state(pid)}) ends", seconds)


def sleeps_in_futex(pid):
    """Whether a process's main thread waits on a futex with a deadline, as an idle worker does."""
    call = read(f"/proc/{pid}/syscall").split()
    return bool(call) and call[0] in FUTEX and state(pid) == "S"


def waits(pid):
    """Whether a process's main thread sleeps, and neither for Python's lock nor for another of its threads."""
    call = read(f"/proc/{pid}/syscall").split()
    if not call or not call[0].isdigit():  # it runs
        return False
    return call[0] not in FUTEX or not int(call[2], 16) & FUTEX_PRIVATE_FLAG


def descendants(pid):
    """All processes below `pid`."""
    parents = {p: parent(p) for p in pids()}
    found = {pid}
    while more := {p for p, its in parents.items() if its in found} - found:
        found |= more
    return found - {pid}


def worker_pids(loader):
    """{worker: pid} of a loader's live workers."""
    return {n: p.pid for n, p in engine_of(loader).pool.processes.items()}


def kill_worker(loader, number):
    """Kill a worker if it lives.

    Whoever starts a process in between waits for all that have died, and their pids may be anybody's then.
    """
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(engine_of(loader).pool.pidfds[number].fd, signal.SIGKILL)


def in_child(function):
    """Call a function in a forked child; return what it returned.

    A file carries the result: a pipe would stay open in processes that another thread forks meanwhile.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed below, after the child
    pid = os.fork()
    if pid == 0:
        try:
            try:
                answer = True, function()
            except BaseException:
                answer = False, traceback.format_exc()
            pickle.dump(answer, file)
            file.flush()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    with file:
        file.seek(0)
        answer = file.read()
    assert status == 0 and answer, f"the child ended with {status}"
    fine, value = pickle.loads(answer)
    assert fine, value
    return value


def circulating(ring):
    """Slots that can still carry tasks, and how many there are."""
    return ring.circulating, ring.n_slots


def told(module, *args):
    """Run `python -m module args --json` in a session of its own: its exit code, its last line's value.

    Whatever it started is killed with it where the watchdog's exception breaks the wait off.
    """
    command = [sys.executable, "-W", "ignore", "-m", module, "--json", *args]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said = run.communicate()[0]
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    print(said)  # for the report of a failure
    return run.returncode, json.loads(said.splitlines()[-1])


def run(module, *args, seconds=220):
    """Run `python -m tests.fault.module args`; fails the test with what it says. Returns its standard output."""
    command = [sys.executable, "-m", f"tests.fault.{module}", *map(str, args)]
    try:
        done = warm.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"not done in {seconds} s: {error.stdout} {error.stderr}") from None
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


class Program:
    """A function of tests.fault.programs in a process (and session) of its own."""

    def __init__(self, name, *args, **options):
        command = [sys.executable, "-m", "tests.fault.programs", name, *map(str, args)]
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        self.process = warm.Program(
            command, cwd=ROOT, text=True, start_new_session=True, stdin=subprocess.DEVNULL, **options
        )
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with self.process:
            pass

    def line(self):
        """The next line that the program says; "" at its end."""
        return self.process.stdout.readline().rstrip("\n")

    def signal_all(self, number):
        """Send a signal to the program and all that it started, as a terminal does."""
        os.killpg(self.pid, number)

    def end(self, seconds=LONG_S):
        """Wait for its end; returns (exit code, stdout, stderr)."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err
