"""Measure the private memory of worker processes, and warn before the machine's memory is used up.

A forked worker shares its parent's pages until one of the two writes to them, and reading a Python object writes its
reference count. For each page, /proc/<pid>/pagemap shows whether only one process maps it. This module reads some
thousand evenly spread pages, because smaps_rollup, which walks all of them, is slow (docs/architecture.md has the
figures).
"""

import logging
import os
import time
import warnings

import numpy as np

from slipring._core.ring import process
from slipring._core.ring._segment import memory_available
from slipring._core.ring.process import ROOT, Owner
from slipring._core.ring.text import megabytes
from slipring.errors import WorkerMemoryWarning

RUNS, RUN = 512, 32  # a sample is so many runs of so many pages; a smaller process is read completely
SPARSE = 1 << 30  # bytes; a larger mapping may be a mere reservation
LOOK_S = 5.0  # how often the available memory is checked during an iteration
SHARE = 100  # measuring takes less than one part in so many of the time

PRESENT, FILE, ALONE = 1 << 63, 1 << 61, 1 << 56  # bits of a pagemap entry


def private_bytes(pid):
    """Estimate a process's private bytes: pages that it alone maps, without those of the segment and of files.

    The error is some percent of the process's memory. Return None if /proc does not report it.
    """
    try:
        if not _proc_is_ours():
            return None
        with open(f"/proc/{pid}/status", "rb") as file:
            resident = next((int(line.split()[1]) << 10 for line in file if line.startswith(b"RssAnon")), None)
        if resident is None:  # it has ended
            return None
        with open(f"/proc/{pid}/maps", "rb") as file:
            spans = _writable(file.read(), 8 * resident + SPARSE)
        entries = _sample(pid, spans)
    except OSError:
        return None
    anonymous = entries[entries & (PRESENT | FILE) == PRESENT]
    alone = np.count_nonzero(anonymous & ALONE)
    # The kernel counts all resident pages itself; the sample gives the share of private ones.
    return resident * int(alone) // max(1, len(anonymous))


def copied_bytes(pid, parent):
    """Estimate the bytes of its parent's pages that a forked process has copied; None if /proc does not report it.

    Only memory that both have mapped counts. Memory that the child has mapped since the fork lies elsewhere, unless the
    parent has mapped the same addresses since.
    """
    try:
        if not _proc_is_ours():
            return None
        spans = []
        for each in (pid, parent):
            with open(f"/proc/{each}/maps", "rb") as file:
                spans.append(_writable(file.read(), 1 << 62))
        both = _common(*spans)
        entries = _sample(pid, both)
    except OSError:
        return None
    own = np.count_nonzero(entries & (PRESENT | FILE | ALONE) == PRESENT | ALONE)
    pages = sum(last - first for first, last in both)
    return pages * int(own) // max(1, len(entries)) * os.sysconf("SC_PAGESIZE")


def caches_of(dataset):
    """Yield the open caches of slipring's in a dataset, and in those that it wraps: its attribute ``cache``."""
    cache = getattr(dataset, "cache", None)
    if type(cache).__module__.startswith("slipring.") and not getattr(cache, "closed", True):
        yield cache
    for inner in (getattr(dataset, "dataset", None), *(getattr(dataset, "datasets", None) or ())):
        if inner is not None and inner is not dataset:
            yield from caches_of(inner)


def _common(ours, theirs):
    """Return the overlaps of two ascending lists of spans."""
    found, others = [], iter(theirs)
    first, last = next(others, (0, 0))
    for begin, end in ours:
        while last:
            low, high = max(begin, first), min(end, last)
            if low < high:
                found.append((low, high))
            if last > end:
                break
            first, last = next(others, (0, 0))
    return found


def _proc_is_ours():
    """Return whether /proc shows this process's PID namespace.

    A container may have the host's /proc, whose numbers are those of other processes. One number of a process may be
    the same in both namespaces, so /proc/self is not enough. Its NSpid lists all numbers, from /proc's namespace
    inwards.
    """
    with open("/proc/self/status", "rb") as file:
        numbers = next((line.split()[1:] for line in file if line.startswith(b"NSpid:")), None)
    own = process.pid()
    return os.readlink("/proc/self") == str(own) if numbers is None else numbers == [b"%d" % own]


def _writable(maps, most):
    """Return (first, last + 1) page of each private writable mapping of at most `most` bytes."""
    spans = []
    page = os.sysconf("SC_PAGESIZE")
    for line in maps.splitlines():
        addresses, flags, _ = line.split(None, 2)
        if flags[1:2] == b"w" and flags[3:4] == b"p":
            first, last = (int(address, 16) for address in addresses.split(b"-"))
            if last - first <= most:  # a reserve of some runtime or sanitizer is nearly all holes
                spans.append((first // page, last // page))
    return spans


def _sample(pid, spans):
    """Return the pagemap entries of runs of pages, evenly spread over `spans`, as uint64."""
    total = sum(last - first for first, last in spans)
    step = max(RUN, total / RUNS)
    position, base, found = (step - RUN) / 2, 0, []
    fd = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for first, last in spans:
            end = base + last - first
            while position < end:
                begin, stop = int(position), int(position) + RUN
                at = max(begin, base)
                found.append(os.pread(fd, (min(stop, end) - at) * 8, (first + at - base) * 8))
                if stop > end:
                    break  # the run continues in the next mapping
                position += step
            base = end
    finally:
        os.close(fd)
    return np.frombuffer(b"".join(found), np.uint64)


def check_copies(num_workers):
    """Log a warning if this process and a copy of it in each of the workers to be forked would not fit."""
    room = memory_available(ROOT)
    if room is None or num_workers == 0:
        return
    with open(f"{ROOT}/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    _, size, limit, file = room
    together = (num_workers + 1) * resident
    if together > size:
        logging.getLogger("slipring").warning(
            f"each of {num_workers} workers may come to have all of this process's {megabytes(resident)}, "
            f"{megabytes(together)} in all, which is more than the {megabytes(size)} of {limit} ({file}): "
            "use fewer workers, or keep what the dataset reads in numpy arrays"
        )


class WorkerMemory:
    """The memory of one loader's worker processes."""

    def __init__(self):
        self.pools = []
        self.sizes = ()  # of the last measurement
        self.warned = False
        self.owner = Owner()
        self._begun = {}  # pid -> its own bytes when it began
        self._mark = 0  # bytes available at the last measurement, at first when the workers began
        self._next = 0.0  # time of the next measurement

    def watch(self, pool):
        """Include a pool's workers."""
        if not self.owner.is_here:
            self.__init__()  # in a forked child: the workers until now are the parent's
        self.pools.append(pool)

    def forget(self, pool):
        """Exclude a pool's workers. If there are no others, the last measurement stays."""
        if self.owner.is_here:
            self.pools.remove(pool)

    def _worker_pids(self):
        return [(pool, *worker) for pool in list(self.pools) for worker in pool.pids()]

    def measure(self):
        """Return each worker's private bytes; the last measurement if it is recent, or if there are no workers."""
        begin = time.monotonic()
        if begin < self._next or not self.owner.is_here:
            return self.sizes
        workers = self._worker_pids()
        if workers:
            self.sizes = tuple(private_bytes(pid) for _, _, pid, _ in workers)
            end = time.monotonic()
            self._next = end + SHARE * (end - begin)
        return self.sizes

    def look(self, ring):
        """Warn once if the workers cannot grow by as much again as they have grown.

        They are measured only when half of the memory that was available has been used. Return the seconds until the
        next look.
        """
        if self.warned or not self.owner.is_here:
            return float("inf")
        room = memory_available(ROOT)
        if room is None:
            return LOOK_S
        free, size, limit, file = room
        workers = self._worker_pids()
        self._mark = max(self._mark, free)
        all_began = self._record_begin(workers)
        if free <= self._mark // 2:
            self._mark = free  # measure again only when half of this has been used
            grown = self._grown(workers)
            if sum(grown.values()) >= max(free, size // 16):
                self.warned = True
                self._warn(grown, ring.info["committed"], free, size, limit, file)
        return LOOK_S if all_began else LOOK_S / 10

    def _record_begin(self, workers):
        """Record the size of new workers when they begin, 0 for forked ones; return whether all have begun."""
        self._begun = {pid: self._begun[pid] for _, _, pid, _ in workers if pid in self._begun}
        for pool, _, pid, serving in workers:
            if pid not in self._begun and pool.forks:
                self._begun[pid] = 0
            elif pid not in self._begun and serving:  # it has imported and unpickled what it needs
                self._begun[pid] = private_bytes(pid)
        return len(self._begun) == len(workers)

    def _grown(self, workers):
        """Return {worker: bytes by which it has grown}."""
        grown = {}
        for _, number, pid, _ in workers:
            begun, now = self._begun.get(pid), private_bytes(pid)
            if begun is not None and now is not None:
                grown[number] = grown.get(number, 0) + max(0, now - begun)
        return grown

    def _warn(self, grown, segment, free, size, limit, file):
        each = ", ".join(f"worker {n}: {megabytes(b)}" for n, b in sorted(grown.items())[:16])
        each += f", ... {len(grown)} in all" if len(grown) > 16 else ""
        total = sum(grown.values())
        warnings.warn(
            f"the memory of {len(grown)} workers has grown by {megabytes(total)} ({each}), and only "
            f"{megabytes(free)} are left of {limit}, {megabytes(size)} in all ({file}); the segment takes "
            f"{megabytes(segment)} of it. Before they have grown as much again, the kernel kills a process. "
            "A forked worker copies each page of Python objects that it reads: keep text in "
            "slipring.StringList and numbers in arrays, not in lists; or use fewer workers, or raise the "
            "limit (docs/workers.md)",
            WorkerMemoryWarning,
            stacklevel=4,
        )
