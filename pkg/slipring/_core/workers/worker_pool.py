"""`WorkerPool`, the base class of the pools of processes and of threads."""

import abc
import time
from typing import ClassVar

from slipring._core.ring._ring import SERVING
from slipring._core.ring.process import ForkLock

GRACE_S = 5.0  # for a worker to end its batch before it is terminated


class WorkerPool(abc.ABC):
    """The workers of one segment, which start and retire while others work: what processes and threads share."""

    death_fd = -1  # a descriptor, readable while a dead worker waits for `check`; -1: none can die
    # Workers remain that did not end when they were asked to. The segment is then of no more use.
    stuck = False
    target = 0  # how many workers there should be

    def __init__(self, ring, job, restarts):
        self.ring = ring
        self.job = job  # for new workers
        self.restarts = restarts
        self.workers = {}  # by number
        self.retiring = set()  # numbers of those that retire after their batch

    def start(self, base_seed):
        """Start all workers."""
        self.base_seed = base_seed
        self.target = self.job.num_workers
        self._match()

    def resize(self, num_workers):
        """Change the number of workers. Surplus workers, those with the highest numbers, retire after their batch."""
        self.target = num_workers
        self.job = self.job.resized(num_workers)
        self.reconcile()

    def reconcile(self):
        """Reap retired workers and start missing ones. It does not wait."""
        if not self.ring.closed:
            self.reap_retired()
            self._match()

    @property
    def resizing(self):
        """bool: workers are retiring or missing: call `reconcile` from time to time."""
        return bool(self.retiring) or len(self.workers) != self.target

    @property
    def at_target(self):
        """bool: whether all wanted workers exist and take tasks, and none is retiring."""
        return not self.resizing and all(self.ring.participant(number + 1)[1] == SERVING for number in self.workers)

    def _match(self):
        """Start missing workers and retire surplus ones; the call can be repeated if it was interrupted."""
        staying = [number for number in sorted(self.workers) if number not in self.retiring]
        self.retiring.update(staying[self.target :])
        for number in self.retiring:
            self.ring.retire(number + 1)
        for number in sorted(self.retiring):
            if len(staying) < self.target and self.ring.keep(number + 1):
                self.retiring.discard(number)
                staying.append(number)
        for number in range(self.ring.n_participants - 1):
            if len(staying) >= self.target or self.ring.closed:
                break  # retiring workers may have all other numbers; a later call starts the rest
            if number not in self.workers:
                self._begin(number)
                staying.append(number)

    @abc.abstractmethod
    def reap_retired(self):
        """Reap retired workers. It does not wait; the consumer's next wait finds a worker that has died."""

    @abc.abstractmethod
    def check(self, state_for=None):
        """Find dead workers; replace them or raise `WorkerDied`.

        `state_for` is called with a dead worker's number. It returns the position from which the replacement continues
        (see `Worker.inherited`).
        """

    @abc.abstractmethod
    def stop(self, overdue=False):
        """End all workers. The segment is closed already, so each leaves after its batch.

        `overdue`: the consumer's wait timed out. A worker that has a batch, or has not begun, gets no time to end it.
        """

    def close(self):  # noqa: B027 - most pools have nothing left
        """Release what the pool keeps between iterations; called after the last `stop`."""

    def abandon(self):  # noqa: B027 - threads do not exist in the child
        """Give up the parent's workers in a forked child: this process's exit must not end them."""

    @abc.abstractmethod
    def _begin(self, number):
        """Start the worker of that number."""


class LoaderNumber:
    """A loader's number in its pools: the first loader that a process begins with a pool has number 0.

    Loaders of several processes that have the same number share one dataset.
    """

    _next: ClassVar = {}  # address -> the next number
    _lock: ClassVar = ForkLock()  # two loaders may begin in two threads

    def __init__(self):
        self.given = {}

    def of(self, address):
        """Return the number in the pool with this address."""
        with self._lock.here():
            if address not in self.given:
                self.given[address] = self._next.get(address, 0)
                self._next[address] = self.given[address] + 1
            return self.given[address]


def is_busy(ring, number):
    """Return whether a worker has a batch, or has not begun to take tasks."""
    return ring.participant(number + 1)[1] != SERVING or bool(ring.in_flight(number + 1))


def cpu_ns_of(number, of_thread=False):
    """Return the CPU time of a process or thread plus the time that it waited for a CPU, in ns; 0 if it has ended.

    Any process's clock can be read by its pid: how the clock id is made of the pid is part of the kernel's interface.
    """
    directory = f"/proc/self/task/{number}" if of_thread else f"/proc/{number}"
    try:
        used = time.clock_gettime_ns(~number << 3 | (6 if of_thread else 2))
        with open(f"{directory}/schedstat") as file:
            return used + int(file.read().split()[1])
    except FileNotFoundError:  # a kernel that keeps no such figures
        return used
    except OSError:
        return 0
