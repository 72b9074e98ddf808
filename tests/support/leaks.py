"""What a test run holds of the machine: processes, threads, files in /dev/shm, open file descriptors.

The checks consider only resources that can be ours, and give processes and threads time to end. So other work on
the machine, or a slow machine, does not fail a test.
"""

import contextlib
import dataclasses
import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver, resource_tracker

from tests.support import warm

SHM = "/dev/shm"

# multiprocessing's own helpers are started by the first test that needs them and serve all later ones.
HELPERS = (
    b"from multiprocessing.resource_tracker import main",
    b"from multiprocessing.forkserver import main",
)

# What libraries open once, at first use, and keep.
LAZY_FILES = ("/dev/nvidia", "/dev/urandom", "/dev/null", "/proc/", "/sys/")

# Threads that libraries start once, at first use, and keep: fsspec's event loop and its executor, tqdm's monitor.
LAZY_THREADS = ("fsspecIO", "asyncio_", "tqdm_monitor")

# Program, as `stat` names it -> what its environment says of test runs.
marks = {}


def read(path):
    """The bytes of a file in /proc, or b"" where it is gone or not ours to read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


def link(path):
    """Where a symbolic link points, or "" where it is gone or not ours to read."""
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""


def pids():
    """All processes of the machine."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parent(pid):
    """The parent of `pid`, or 0 when it is gone."""
    return stat(pid)[0]


def stat(pid):
    """(parent, which program of which process it is) of `pid`; (0, None) when it is gone."""
    said = read(f"/proc/{pid}/stat")
    if not said:
        return 0, None
    fields = said[said.rindex(b")") + 2 :].split()
    # When it started, and its stack's begin, which each exec chooses anew.
    return int(fields[1]), (pid, fields[19], fields[25])


def is_helper(pid):
    """Return whether `pid` is the resource tracker, the forkserver or a `warm` server. Their children are none."""
    if pid in warm.helper_pids():
        return True
    command = read(f"/proc/{pid}/cmdline")
    return parent(pid) == os.getpid() and any(helper in command for helper in HELPERS)


def is_marked(program):
    """Whether a program, as `stat` names it, was started, however indirectly, by a command of this test run.

    It keeps the environment with which it began: one look suffices, and each test's check looks at all that runs here.
    """
    if program not in marks:
        environment = read(f"/proc/{program[0]}/environ")
        if not environment:  # it has ended, or has only begun
            return False
        marks[program] = [v for v in environment.split(b"\0") if v.startswith(b"SLIPRING_TEST_RUN=")]
    return f"SLIPRING_TEST_RUN={os.environ.get('SLIPRING_TEST_RUN')}".encode() in marks[program]


def started_by_us(apart_from=frozenset()):
    """Descendants of this process, and orphans that carry our mark; without multiprocessing's helpers.

    Ignore the pids in `apart_from`: after a test only new processes matter, and a machine may have hundreds. A new
    process that reuses one of these pids is not found.
    """
    multiprocessing.active_children()  # reaps those that have ended
    subprocess._cleanup()
    warm.reap()
    others = {os.getpid(), *apart_from}
    return {pid for pid in pids() if pid not in others and is_ours(pid) and not is_helper(pid)}


def is_ours(pid):
    """Whether `pid` is a descendant of this process, or carries its mark."""
    its_parent, program = stat(pid)
    if program is None:
        return False
    ancestor = its_parent
    while ancestor > 1 and ancestor != os.getpid():
        ancestor = parent(ancestor)
    return ancestor == os.getpid() or is_marked(program)


def describe_process(pid):
    """One line about a process: state, parent and command."""
    stat = read(f"/proc/{pid}/stat")
    state = stat[stat.rindex(b")") + 2 :].split()[0].decode() if stat else "gone"
    if state == "Z":
        return f"process {pid}: ended, but nobody waited for it (zombie, parent {parent(pid)})"
    command = read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return f"process {pid}: state {state}, parent {parent(pid)}, {command[:200]}"


def name_semaphores():
    """Have the semaphores of multiprocessing bear this run's name, in child processes too.

    They lie in /dev/shm by a name, under spawn and forkserver for as long as they live; what a dead process
    has left of them could be anybody's else.
    """
    multiprocessing.process.current_process()._config["semprefix"] = f"/{_semaphores_prefix()}"


def _semaphores_prefix():
    run = os.environ.get("SLIPRING_TEST_RUN", str(os.getpid()))
    return f"slipring-{hashlib.sha256(run.encode()).hexdigest()[:12]}"


def shm_files():
    """Name -> (device, inode) of each file in /dev/shm."""
    found = {}
    if os.path.isdir(SHM):
        with os.scandir(SHM) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process has removed it
                    stat = entry.stat(follow_symlinks=False)
                    found[entry.name] = stat.st_dev, stat.st_ino
    return found


def held_by(pid):
    """(device, inode) of all that a process has open or mapped.

    Not names: a semaphore is made under another one, by which it stays mapped.
    """
    held = set()
    for line in read(f"/proc/{pid}/maps").splitlines():
        device, inode = line.split(None, 5)[3:5]
        major, minor = device.split(b":")
        held.add((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                stat = os.stat(f"/proc/{pid}/fd/{fd}")
                held.add((stat.st_dev, stat.st_ino))
    return held


def new_in_shm(before):
    """Names in /dev/shm that were not there `before`, and are this run's: held by one of its processes, or
    called as it calls its semaphores, or as torch calls the memory of one of them.
    """
    new = {name: which for name, which in shm_files().items() if before.get(name) != which}
    if not new:
        return []
    ours = started_by_us() | {os.getpid()}
    named = (f"sem.{_semaphores_prefix()}-", *(f"torch_{pid}_" for pid in ours))
    held = set().union(*map(held_by, ours))
    return sorted(name for name, which in new.items() if name.startswith(named) or which in held)


def open_fds():
    """Open file descriptors and what they are, without those that are opened once, lazily, and kept."""
    with os.scandir("/proc/self/fd") as entries:
        fds = {int(entry.name): link(entry.path) for entry in entries}
    kept = {
        getattr(resource_tracker._resource_tracker, "_fd", None),
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
        *warm.helper_fds(),
    }
    return {fd: to for fd, to in fds.items() if to and fd not in kept and not to.startswith(LAZY_FILES)}


def threads():
    """Python threads of this process that run, without those that libraries keep.

    Native threads are not counted: in this process only libraries start them (torch, OpenBLAS, Arrow), and keep them.
    """
    return {
        thread
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread) and not thread.name.startswith(LAZY_THREADS)
    }


def cuda_is_up():
    """Whether torch has opened a CUDA context in this process, which opens many descriptors for good."""
    torch = sys.modules.get("torch")
    return bool(torch and hasattr(torch, "cuda") and torch.cuda.is_initialized())


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The resources in use at one time, to compare with those in use later."""

    pids: frozenset[int]  # of all processes of the machine
    threads: set[threading.Thread]
    shm: dict[str, tuple[int, int]]
    fds: dict[int, str]
    cuda: bool

    @classmethod
    def take(cls):
        return cls(frozenset(pids()), threads(), shm_files(), open_fds(), cuda_is_up())

    def leaks(self, wait_s=0.0):
        """One line for each thing that is there now and was not before; waits that long for it to go."""
        deadline = time.monotonic() + wait_s
        while found := self._new_processes() + self._new_threads() + self._new_shm() + self._new_fds():
            if time.monotonic() >= deadline:
                break
            time.sleep(0.02)
        return found

    def kill_new_processes(self):
        """End what a test left running, so that it cannot disturb the next."""
        for pid in started_by_us(self.pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _new_processes(self):
        return [describe_process(pid) for pid in sorted(started_by_us(self.pids))]

    def _new_threads(self):
        new = sorted(threads() - self.threads, key=lambda thread: thread.name)
        return [f"thread {thread.name}{' (daemon)' if thread.daemon else ''}" for thread in new]

    def _new_shm(self):
        return [f"{SHM}/{name}" for name in new_in_shm(self.shm)]

    def _new_fds(self):
        now = open_fds()
        if len(now) <= len(self.fds) or cuda_is_up() != self.cuda:
            return []
        return [f"file descriptor {fd}: {to}" for fd, to in sorted(now.items()) if self.fds.get(fd) != to]
