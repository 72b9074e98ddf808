"""The interface of all worker pools, and the base class of pools that can be resized."""

import abc
import time
from collections.abc import Callable
from typing import Protocol

from slipring._core._ring import SERVING
from slipring._core.worker import Job

GRACE_S = 5.0  # for a worker to end its batch before it is terminated


class WorkerPool(Protocol):
    """The workers of one segment, of any kind.

    Attributes
    ----------
    job : Job
        What a worker that begins has to know.
    watched : int
        A descriptor that is readable as long as there is a dead worker to `check`; -1: nobody can die.
    stuck : bool
        Whether workers are left that did not end when they were told to. The segment is of no more use then.
    wanted : int
        How many workers are to be there.
    changing : bool
        Whether some are about to leave, or missing still: `tend` has to be called now and then.
    """

    job: Job
    watched: int = -1
    stuck: bool = False
    wanted: int = 0
    changing: bool = False

    def start(self, base_seed: int) -> None:
        """Start all workers."""

    def begin_run(self) -> None:
        """Another pass over the data begins."""

    def see_leavers(self) -> None:
        """See who has left that was told to; it waits for nobody."""

    def check(self, snapshot_of: Callable[[int], bytes] | None = None) -> None:
        """Look for dead workers; replace them or raise `WorkerDied`.

        Parameters
        ----------
        snapshot_of : callable, optional
            Called with a dead worker's number: returns the snapshot that its replacement goes on from (see `Worker`).
        """

    def stop(self, overdue: bool = False) -> None:
        """End all workers. The segment is closed already, so each leaves after its batch.

        Parameters
        ----------
        overdue : bool
            The consumer has waited in vain: who is at a batch, or has not begun, gets no time to end it.
        """

    def abandon(self) -> None:
        """In a forked child: the workers are the parent's, and must not be ended by this process's exit."""


class ResizablePool(WorkerPool):
    """Workers that come and go while others work on: what processes and threads have in common.

    Parameters
    ----------
    ring : Ring
    job : Job
    restarts : Restarts

    Attributes
    ----------
    workers : dict of int
        Those that are there, by their number.
    leaving : set of int
        Those among them that have been told to leave after their batch.
    """

    def __init__(self, ring, job, restarts):
        self.ring = ring
        self.job = job
        self.restarts = restarts
        self.workers = {}
        self.leaving = set()

    def start(self, base_seed):
        """Start all workers."""
        self.base_seed = base_seed
        self.wanted = self.job.num_workers
        self._match()

    def begin_run(self):
        """See `Restarts`."""
        self.restarts.begin_run()

    def resize(self, num_workers):
        """Have so many workers. Those that are too many leave after their batch, the last to come first."""
        self.wanted = num_workers
        self.job = self.job.resized(num_workers)
        self.tend()

    def tend(self):
        """See who has left that was told to, and start those that are missing. It waits for nobody."""
        if not self.ring.closed:
            self.see_leavers()
            self._match()

    @property
    def changing(self):
        """bool: see `WorkerPool`."""
        return bool(self.leaving) or len(self.workers) != self.wanted

    @property
    def steady(self):
        """bool: as many as wanted are there and take tasks, and nobody is about to leave."""
        return not self.changing and all(
            self.ring.participant(number + 1)[1] == SERVING for number in self.workers
        )

    def _match(self):
        """Start those that are missing, dismiss those that are too many; again, if it was interrupted."""
        staying = [number for number in sorted(self.workers) if number not in self.leaving]
        self.leaving.update(staying[self.wanted :])
        for number in self.leaving:
            self.ring.retire(number + 1)
        for number in sorted(self.leaving):
            if len(staying) < self.wanted and self.ring.keep(number + 1):
                self.leaving.discard(number)
                staying.append(number)
        for number in range(self.ring.n_participants - 1):
            if len(staying) >= self.wanted or self.ring.closed:
                break  # or all numbers are taken, by those that leave: when one of them has gone
            if number not in self.workers:
                self._begin(number)
                staying.append(number)

    @abc.abstractmethod
    def see_leavers(self):
        """See `WorkerPool`; of a worker that has died the consumer's next wait tells."""

    @abc.abstractmethod
    def _begin(self, number):
        """Start the worker of that number."""


def is_busy(ring, number):
    """Whether a worker is at a batch, or has not begun to take tasks."""
    return ring.participant(number + 1)[1] != SERVING or bool(ring.in_flight(number + 1))


def processor_ns_of(number, of_thread=False):
    """Nanoseconds of processors that a process or a thread has used or was kept waiting for; 0 if it has gone.

    Any process's clock can be read by its pid: how it is made of that is part of the kernel's interface.
    """
    place = f"/proc/self/task/{number}" if of_thread else f"/proc/{number}"
    try:
        used = time.clock_gettime_ns(~number << 3 | (6 if of_thread else 2))
        with open(f"{place}/schedstat") as file:
            return used + int(file.read().split()[1])
    except FileNotFoundError:  # a kernel that keeps no such figures
        return used
    except OSError:
        return 0
