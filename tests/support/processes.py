"""Functions that observe other processes, and run programs that a test kills."""

import contextlib
import json
import multiprocessing
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
from tests.support.inside import engine_of
from tests.support.leaks import parent, pids, read

ROOT = pathlib.Path(__file__).parents[2]
FUTEX = (b"202", b"98")  # the number of the system call on x86-64 and arm64
FUTEX_PRIVATE_FLAG = 128
LONG_S = 600.0  # more than any wait needs on a loaded machine, and half of the limit of a test


def until(condition, what, seconds=LONG_S):
    """Poll a condition until it is true; return its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.002)
    return value


def state(pid):
    """Return the state of a process, one letter (R, S, D, T, Z); "" if it does not exist."""
    stat = read(f"/proc/{pid}/stat").decode(errors="replace")
    return stat[stat.rindex(")") + 2] if stat else ""


def alive(pid):
    """Return whether a process still runs (a zombie does not)."""
    return state(pid) not in ("", "Z", "X")


def wait_dead(pid, seconds=LONG_S):
    """Wait until a process has ended."""
    until(lambda: not alive(pid), f"process {pid} ({state(pid)}) ends", seconds)


def sleeps_in_futex(pid):
    """Return whether a process's main thread waits on a futex with a deadline, as an idle worker does."""
    call = read(f"/proc/{pid}/syscall").split()
    return bool(call) and call[0] in FUTEX and state(pid) == "S"


def waits(pid):
    """Return whether a process's main thread sleeps, but not for the GIL or another thread of the process."""
    call = read(f"/proc/{pid}/syscall").split()
    if not call or not call[0].isdigit():  # it runs
        return False
    return call[0] not in FUTEX or not int(call[2], 16) & FUTEX_PRIVATE_FLAG


def descendants(pid):
    """Return all descendants of `pid`."""
    parents = {p: parent(p) for p in pids()}
    found = {pid}
    while more := {p for p, its in parents.items() if its in found} - found:
        found |= more
    return found - {pid}


def worker_pids(loader):
    """Return {worker: pid} of a loader's live workers."""
    return {n: p.pid for n, p in engine_of(loader).pool.processes.items()}


def kill_worker(loader, number):
    """Kill a worker if it lives.

    A pidfd, not a pid: multiprocessing reaps dead workers whenever it starts a process, and pids are reused.
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
    """Return the number of slots that can still carry tasks, and the number of all slots."""
    return ring.circulating, ring.n_slots


def told(module, *args):
    """Run `python -m module args --json` in its own session; return its exit code and the value of its last line.

    If the watchdog's exception interrupts the wait, all processes of the session are killed.
    """
    command = [sys.executable, "-W", "ignore", "-m", module, "--json", *args]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said = run.communicate()[0]
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    print(said)  # pytest shows it if the test fails
    return run.returncode, json.loads(said.splitlines()[-1])


def run(module, *args):
    """Run `python -m tests.fault.module args`; return its standard output, or fail with its output."""
    command = [sys.executable, "-m", f"tests.fault.{module}", *map(str, args)]
    done = warm.run(command, cwd=ROOT, capture_output=True, text=True)
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
        """Return the next line of the program's output; "" at its end."""
        return self.process.stdout.readline().rstrip("\n")

    def signal_all(self, number):
        """Send a signal to the program and its child processes, as a terminal does."""
        os.killpg(self.pid, number)

    def end(self, seconds=LONG_S):
        """Wait for the program's end; return (exit code, stdout, stderr)."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err


def from_a_daemon(function, *args):
    """Return what a function sends from a daemonic process."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=function, args=(sender, *args), daemon=True)
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()
