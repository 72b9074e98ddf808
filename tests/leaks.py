"""What a test run holds of the machine: processes, files in /dev/shm, open file descriptors.

The checks look only at what can be ours, and give what is on its way out time to go, so that other work on
the machine, or a slow one, does not fail a test.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver, resource_tracker

SHM = "/dev/shm"

# multiprocessing's own helpers are started by the first test that needs them and serve all later ones.
HELPERS = (
    b"from multiprocessing.resource_tracker import main",
    b"from multiprocessing.forkserver import main",
)

# What libraries open once, at first use, and keep.
LAZY_FILES = ("/dev/nvidia", "/dev/urandom", "/dev/null", "/proc/", "/sys/")


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
    stat = read(f"/proc/{pid}/stat")
    return int(stat[stat.rindex(b")") + 2 :].split()[1]) if stat else 0


def is_helper(pid):
    """Whether `pid` is the resource tracker or the forkserver itself, and not a worker forked by it."""
    command = read(f"/proc/{pid}/cmdline")
    return parent(pid) == os.getpid() and any(helper in command for helper in HELPERS)


def is_marked(pid):
    """Whether `pid` was started, however indirectly, by a command of this test run."""
    mark = f"SLIPRING_TEST_RUN={os.environ.get('SLIPRING_TEST_RUN')}".encode()
    return mark in read(f"/proc/{pid}/environ").split(b"\0")


def started_by_us():
    """Descendants of this process, and orphans that carry our mark; without multiprocessing's helpers."""
    multiprocessing.active_children()  # reaps those that have ended
    subprocess._cleanup()
    everyone = pids()
    parents = {pid: parent(pid) for pid in everyone}
    ours = {os.getpid()}
    while more := {pid for pid, its_parent in parents.items() if its_parent in ours} - ours:
        ours |= more
    ours |= {pid for pid in everyone if pid not in ours and is_marked(pid)}
    return {pid for pid in ours if pid != os.getpid() and not is_helper(pid)}


def describe_process(pid):
    """One line about a process: state, parent and command."""
    stat = read(f"/proc/{pid}/stat")
    state = stat[stat.rindex(b")") + 2 :].split()[0].decode() if stat else "gone"
    if state == "Z":
        return f"process {pid}: ended, but nobody waited for it (zombie, parent {parent(pid)})"
    command = read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return f"process {pid}: state {state}, parent {parent(pid)}, {command[:200]}"


def shm_files():
    """Names in /dev/shm."""
    return set(os.listdir(SHM)) if os.path.isdir(SHM) else set()


def held_by_others(name):
    """Whether a process that is not of this run has a file of /dev/shm open or mapped."""
    path = os.path.join(SHM, name)
    ours = started_by_us() | {os.getpid()}
    for pid in pids():
        if pid in ours:
            continue
        if path.encode() in read(f"/proc/{pid}/maps"):
            return True
        with contextlib.suppress(OSError):
            if any(link(f"/proc/{pid}/fd/{fd}") == path for fd in os.listdir(f"/proc/{pid}/fd")):
                return True
    return False


def open_fds():
    """Open file descriptors and what they are, without those that are opened once, lazily, and kept."""
    with os.scandir("/proc/self/fd") as entries:
        fds = {int(entry.name): link(entry.path) for entry in entries}
    kept = {
        getattr(resource_tracker._resource_tracker, "_fd", None),
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
    }
    return {fd: to for fd, to in fds.items() if to and fd not in kept and not to.startswith(LAZY_FILES)}


def cuda_is_up():
    """Whether torch has opened a CUDA context in this process, which opens many descriptors for good."""
    torch = sys.modules.get("torch")
    return bool(torch and hasattr(torch, "cuda") and torch.cuda.is_initialized())


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What was there at one time, to be compared with what is there later."""

    processes: set[int]
    shm: set[str]
    fds: dict[int, str]
    cuda: bool

    @classmethod
    def take(cls):
        return cls(started_by_us(), shm_files(), open_fds(), cuda_is_up())

    def leaks(self, wait_s=0.0):
        """One line for each thing that is there now and was not before; waits that long for it to go."""
        deadline = time.monotonic() + wait_s
        while found := self._new_processes() + self._new_shm() + self._new_fds():
            if time.monotonic() >= deadline:
                break
            time.sleep(0.02)
        return found

    def kill_new_processes(self):
        """End what a test left running, so that it cannot disturb the next."""
        for pid in started_by_us() - self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _new_processes(self):
        return [describe_process(pid) for pid in sorted(started_by_us() - self.processes)]

    def _new_shm(self):
        names = sorted(name for name in shm_files() - self.shm if not held_by_others(name))
        return [f"{SHM}/{name}" for name in names]

    def _new_fds(self):
        now = open_fds()
        if len(now) <= len(self.fds) or cuda_is_up() != self.cuda:
            return []
        return [f"file descriptor {fd}: {to}" for fd, to in sorted(now.items()) if self.fds.get(fd) != to]
