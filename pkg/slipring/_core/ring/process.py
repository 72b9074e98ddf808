"""This process: the state that a forked child must not share with it, its processors, and its rank in the job."""

from __future__ import annotations

import math
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = ""  # prefix of /proc and /sys; tests put a tree of their own there

# Variables with the number of a job's processes on this machine, set by torchrun, Open MPI and MPICH.
LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


pid = os.getpid


class Owner:
    """The process that made an object.

    A forked child has a copy of the object, but none of its threads, workers or connections.
    """

    def __init__(self):
        self._pid = os.getpid()

    @property
    def is_here(self):
        """bool: whether this process made the object."""
        return self._pid == os.getpid()


class ForkLock:
    """A lock that is open in a forked child: the thread that held it does not exist there.

    It is reentrant, because a signal handler may need it in the thread that holds it.
    """

    def __init__(self):
        self._owner, self._lock = Owner(), threading.RLock()

    def here(self):
        """Return the `threading.RLock` of this process. (A ``with`` on it has no step in which a handler can raise.)"""
        if not self._owner.is_here:
            self.__init__()
        return self._lock


def lock_held_by_forks():
    """Return a reentrant lock that each fork acquires first, so that a child never sees guarded data half changed."""
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


def ranks(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks of this job share the machine; 1 if no variable says so."""
    for name in LOCAL_RANKS:
        text = environ.get(name, "")
        if text.isdigit() and int(text) > 0:
            return int(text)
    return 1


def global_rank() -> tuple[int, int] | None:
    """Return (this process's rank, how many there are) in torch.distributed; None if that is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def cpus(pid: int = 0, environ: Mapping[str, str] = os.environ) -> int:
    """Return how many processors this process, or the process `pid` with that environment, may keep busy; at least 1.

    These are the processors that it may run on, at most its cgroups' quotas. Processors that all ranks of the machine
    share are divided equally. Ranks that are bound to processors of their own (fewer than the cgroup has) share only
    the quota.
    """
    own, among = len(os.sched_getaffinity(pid)), ranks(environ)
    allowed, quota = set(), math.inf
    for directory, v2 in _groups("cpuset", pid):
        allowed = allowed or listed(read(directory, "cpuset.cpus.effective" if v2 else "cpuset.cpus"))
    for directory, v2 in _groups("cpu", pid):
        quota = min(quota, _quota(directory, v2))
    bound = own < len(allowed)
    return max(1, min(own if bound else own // among, math.ceil(quota / among) if quota < math.inf else own))


def read(directory, name):
    """Return the text of a file in /proc or /sys; "" if it does not exist or cannot be read."""
    try:
        with open(f"{directory}/{name}") as file:
            return file.read().strip()
    except (OSError, ValueError):  # there is no such limit, or it cannot be read
        return ""


def _quota(directory, v2):
    """Return the processors that a cgroup may use on average; infinity if it has no limit."""
    if v2:
        fields = read(directory, "cpu.max").split()
    else:
        fields = [read(directory, "cpu.cfs_quota_us"), read(directory, "cpu.cfs_period_us")]
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or int(fields[1]) == 0:
        return math.inf
    return int(fields[0]) / int(fields[1])


def listed(text):
    """Return the set of numbers that a text such as "0-3,8" lists; an empty one if it is not such a list."""
    found = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return set()
        found.update(range(int(first), int(last or first) + 1))
    return found


def _groups(controller, pid):
    """Yield (directory, whether it is v2) of a process's cgroup of a controller, then of those above it."""
    who = f"{ROOT}/proc/{pid or 'self'}"
    own = {}  # controller -> path; "" for v2
    for line in read(who, "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    for line in read(who, "mountinfo").splitlines():
        mounted, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        v2 = kind == "cgroup2"
        of_v1 = kind == "cgroup" and controller in options.split()[-1].split(",")
        path = own.get("" if v2 else controller)
        if path is None or not (v2 or of_v1):
            continue
        top, mount = mounted.split()[3:5]
        # In a container the path may be the host's, while only the container's own group is mounted.
        if top != "/" and (path == top or path.startswith(f"{top}/")):
            path = path[len(top) :]
        path = path.rstrip("/")
        while True:
            yield f"{ROOT}{mount}{path}", v2
            if not path:
                break
            path = path.rpartition("/")[0]
