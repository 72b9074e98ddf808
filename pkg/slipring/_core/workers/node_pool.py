"""The worker pool that the loaders of all processes of a machine share, as one of these loaders sees it."""

import logging
import time

from slipring._core.ring._ring import SERVING
from slipring._core.ring.signals import no_interrupt
from slipring._core.workers.deaths import likely, task_text
from slipring._core.workers.pool_client import Link, address_of
from slipring._core.workers.worker_main import rest_of
from slipring._core.workers.worker_pool import GRACE_S, WorkerPool, cpu_ns_of
from slipring.errors import SlipringError, WorkerDied

log = logging.getLogger("slipring")


class NodePool(WorkerPool):
    """Workers that belong to the pool's own process, which starts, watches and replaces them.

    `number` is the loader's `Number`; the other arguments are those of `WorkerPool`.
    """

    def __init__(self, ring, job, restarts, number):
        super().__init__(ring, job, restarts)
        self.kind, self.name, self.number = job.worker_class, job.options.workers.pool, number
        self.link = None

    @property
    def death_fd(self):
        """int: see `WorkerPool`; also readable when the pool's process has ended."""
        return -1 if self.link is None else self.link.poll.fd

    def start(self, base_seed):
        """Let the pool's workers serve the segment; see `WorkerPool.start`."""
        check_job(self.job)
        self.base_seed, self.target = base_seed, self.job.num_workers
        if self.link is not None and self._is_over():
            self.close()
        if self.link is None:
            address = address_of(self.name)
            self.link = Link(self.name, address, self.number.of(address), self.job)
        self.workers = dict.fromkeys(range(self.target))
        self.ring.use_wake_file(self.link.wake.number())
        if self.job.options.workers.memory is not None and not self.ring.budget:
            self.ring.set_budget(0, self.ring.usage["used"])  # the pool gives it more before a worker takes a task
        with no_interrupt():
            try:
                self.link.channel.send("serve", self.ring, rest_of(self.job), base_seed)
            except EOFError:
                raise self.link.died() from None

    def _is_over(self):
        try:
            return any(what != "died" for what, *_ in iter(self.link.message, None))
        except EOFError:
            return True

    def check(self, state_for=None):
        """See `WorkerPool.check`. The pool replaces its workers itself."""
        try:
            while self.link is not None and (message := self.link.message()) is not None:
                self._hear(*message)
        except EOFError:
            raise self.link.died() from None

    def _hear(self, what, *said):
        if what == "died":
            self._died(*said)
        elif what == "refused":
            raise SlipringError(f"pool={self.name!r} failed:\n{said[0]}")

    def _died(self, number, pid, code, manner, in_flight, serving):
        had, asked = task_text(in_flight)
        error = WorkerDied(
            f"worker {number} (pid {pid}) of pool={self.name!r} {manner} while it had {had}. "
            f"{likely(code, serving, False, argument=self.kind.method_argument)}",
            worker=number,
            pid=pid,
            exitcode=code,
            indices=asked,
        )
        self.restarts.allow(number, serving, in_flight, error)

    def _begin(self, number):
        """Do nothing: the pool's own process starts its workers."""

    def reap_retired(self):
        """Do nothing: workers of a pool do not retire."""

    def reconcile(self):
        """Do nothing: the pool's own process keeps the number of workers."""

    def pids(self):
        """Return [(worker, pid, whether it has begun to take tasks)]."""
        known = [(number, *self.ring.participant(number + 1)) for number in self.workers]
        return [(number, pid, status == SERVING) for number, pid, status in known if status]

    def cpu_ns(self):
        """Return the CPU time that the workers have used plus the time that they waited for a CPU, in ns."""
        return sum(cpu_ns_of(pid) for _, pid, _ in self.pids())

    def stop(self, overdue=False):
        """Let the workers leave the segment; see `WorkerPool.stop`.

        A worker that does not end its batch in time is left to the pool; the segment is then of no more use.
        """
        if self.link is None or not self.workers:
            return
        try:
            with no_interrupt():
                self.link.channel.send("stop")
            self.stuck = not self._left(0.0 if overdue else GRACE_S)
            if self.stuck:
                log.warning(
                    "pool=%r: workers still make batches of a loader that has ended; they leave its segment afterwards",
                    self.name,
                )
        except EOFError:
            self.stuck = True  # the kernel is ending the workers, which may still write to the segment
        self.workers = {}

    def _left(self, seconds):
        """Return whether all workers leave the segment within that time."""
        deadline = time.monotonic() + seconds
        while (message := self.link.message(max(0.0, deadline - time.monotonic()))) is not None:
            if message[0] == "stopped":
                return True
        return False

    def close(self):
        """Leave the pool, which ends when its last loader has left."""
        if self.link is not None:
            self.link.close()
            self.link = None

    def abandon(self):
        """Close this forked process's copies of the connection."""
        self.close()


def check_job(job):
    """Raise ValueError for a dataset whose batches depend on the worker that makes them."""
    kind = type(job.dataset).__name__
    if job.is_stream:
        raise ValueError(
            f"workers=Workers(pool={job.options.workers.pool!r}) cannot read an iterable dataset ({kind}), whose "
            "iterators belong to one loader: use a map dataset, or leave pool= out"
        )
    if job.tracked:
        raise ValueError(
            f"workers=Workers(pool={job.options.workers.pool!r}) cannot read a Stateful dataset ({kind}), whose state "
            "belongs to one loader: leave its state_dict() out, or leave pool= out"
        )
