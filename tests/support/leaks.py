"""The resources that a test run uses: processes, threads, files in /dev/shm, open file descriptors.

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

# multiprocessing starts its helper processes when a test first needs them, and keeps them for all later tests.
HELPERS = (b"from multiprocessing.resource_tracker import main", b"from multiprocessing.forkserver import main")

# Descriptors that libraries open once, at first use, and keep.
LAZY_FILES = ("/dev/nvidia", "/dev/urandom", "/dev/null", "/proc/", "/sys/")

# Threads that libraries start once, at first use, and keep: fsspec's event loop and its executor, tqdm's monitor.
LAZY_THREADS = ("fsspecIO", "asyncio_", "tqdm_monitor")

# Program, as `stat` identifies it -> the mark of the test run in its environment.
marks = {}


def read(path):
    """Return the bytes of a file in /proc, or b"" if it does not exist or we may not read it."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read()
    return b""


def link(path):
    """Return the target of a symbolic link, or "" if it does not exist or we may not read it."""
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""


def pids():
    """Return the pids of all processes of the machine."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def parent(pid):
    """Return the parent of `pid`, or 0 if the process has ended."""
    return stat(pid)[0]


def stat(pid):
    """Return (parent, an identifier of process and program) of `pid`; (0, None) if the process has ended."""
    said = read(f"/proc/{pid}/stat")
    if not said:
        return 0, None
    fields = said[said.rindex(b")") + 2 :].split()
    # Its start time, and the start of its stack, which each exec chooses again.
    return int(fields[1]), (pid, fields[19], fields[25])


def is_helper(pid):
    """Return whether `pid` is the resource tracker, the forkserver or a `warm` server; their children are not."""
    if pid in warm.helper_pids():
        return True
    command = read(f"/proc/{pid}/cmdline")
    return parent(pid) == os.getpid() and any(helper in command for helper in HELPERS)


def is_marked(program):
    """Return whether a command of this test run started a program, directly or indirectly.

    A program keeps the environment of its start. One look suffices, and each test's check looks at all processes.
    """
    if program not in marks:
        environment = read(f"/proc/{program[0]}/environ")
        if not environment:  # it has ended, or it is starting
            return False
        marks[program] = [v for v in environment.split(b"\0") if v.startswith(b"SLIPRING_TEST_RUN=")]
    return f"SLIPRING_TEST_RUN={os.environ.get('SLIPRING_TEST_RUN')}".encode() in marks[program]


def started_by_us(apart_from=frozenset()):
    """Return descendants of this process, and orphans that carry our mark; without multiprocessing's helpers.

    Ignore the pids in `apart_from`: after a test only new processes matter, and a machine may have hundreds. A new
    process that reuses one of these pids is not found.
    """
    multiprocessing.active_children()  # this reaps children that have ended
    subprocess._cleanup()
    warm.reap()
    others = {os.getpid(), *apart_from}
    return {pid for pid in pids() if pid not in others and is_ours(pid) and not is_helper(pid)}


def is_ours(pid):
    """Return whether `pid` is a descendant of this process, or carries its mark."""
    its_parent, program = stat(pid)
    if program is None:
        return False
    ancestor = its_parent
    while ancestor > 1 and ancestor != os.getpid():
        ancestor = parent(ancestor)
    return ancestor == os.getpid() or is_marked(program)


def describe_process(pid):
    """Return one line about a process: state, parent and command."""
    stat = read(f"/proc/{pid}/stat")
    state = stat[stat.rindex(b")") + 2 :].split()[0].decode() if stat else "gone"
    if state == "Z":
        return f"process {pid}: ended, but nobody waited for it (zombie, parent {parent(pid)})"
    command = read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return f"process {pid}: state {state}, parent {parent(pid)}, {command[:200]}"


def name_semaphores():
    """Let the names of multiprocessing's semaphores contain this run's mark, in child processes too.

    With spawn and forkserver they have a name in /dev/shm while they exist. Without the mark, semaphores of a
    dead process could belong to any program.
    """
    multiprocessing.process.current_process()._config["semprefix"] = f"/{_semaphores_prefix()}"


def _semaphores_prefix():
    run = os.environ.get("SLIPRING_TEST_RUN", str(os.getpid()))
    return f"slipring-{hashlib.sha256(run.encode()).hexdigest()[:12]}"


def shm_files():
    """Return name -> (device, inode) of each file in /dev/shm."""
    found = {}
    if os.path.isdir(SHM):
        with os.scandir(SHM) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process has removed it
                    stat = entry.stat(follow_symlinks=False)
                    found[entry.name] = stat.st_dev, stat.st_ino
    return found


def held_by(pid):
    """Return (device, inode) of each file that a process has open or mapped.

    Names would not do: a semaphore is created with a temporary name, which its mapping keeps.
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
    """Return the new names in /dev/shm that belong to this run.

    Either one of the run's processes holds the file, or the name is that of one of its semaphores, or of torch's
    memory of one of its processes.
    """
    new = {name: which for name, which in shm_files().items() if before.get(name) != which}
    if not new:
        return []
    ours = started_by_us() | {os.getpid()}
    named = (f"sem.{_semaphores_prefix()}-", *(f"torch_{pid}_" for pid in ours))
    held = set().union(*map(held_by, ours))
    return sorted(name for name, which in new.items() if name.startswith(named) or which in held)


def open_fds():
    """Return the open file descriptors and their files, except those that libraries open once and keep."""
    with os.scandir("/proc/self/fd") as entries:
        fds = {int(entry.name): link(entry.path) for entry in entries}
    kept = {
        getattr(resource_tracker._resource_tracker, "_fd", None),
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
        *warm.helper_fds(),
    }
    return {fd: to for fd, to in fds.items() if to and fd not in kept and not to.startswith(LAZY_FILES)}


def threads():
    """Return the running Python threads of this process, except those that libraries keep.

    Native threads are not counted: in this process only libraries start them (torch, OpenBLAS, Arrow), and keep them.
    """
    return {
        thread
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread) and not thread.name.startswith(LAZY_THREADS)
    }


def cuda_is_up():
    """Return whether torch has opened a CUDA context in this process, which keeps many descriptors open."""
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
        """Return one line for each new resource; wait up to `wait_s` for it to go."""
        deadline = time.monotonic() + wait_s
        while found := self._new_processes() + self._new_threads() + self._new_shm() + self._new_fds():
            if time.monotonic() >= deadline:
                break
            time.sleep(0.02)
        return found

    def kill_new_processes(self):
        """Kill processes that a test left running, so that they cannot disturb the next test."""
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
