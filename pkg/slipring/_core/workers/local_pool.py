"""Worker pools inside the consumer's process: `ThreadPool`, and `InlinePool` for `num_workers=0`."""

import threading
import time

from slipring._core.ring import process
from slipring._core.ring._ring import SERVING, Own
from slipring._core.ring.signals import no_interrupt
from slipring._core.workers.deaths import task_text
from slipring._core.workers.worker_main import run
from slipring._core.workers.worker_pool import GRACE_S, ResizablePool, WorkerPool, is_busy, processor_ns_of
from slipring.errors import WorkerDied


class InlinePool(WorkerPool):
    """A pool without workers: the consumer fills a slot itself when it needs one."""

    def __init__(self, ring, job):
        self.ring = ring
        self.job = job
        self.worker = None
        self.own = Own(ring)  # the current task, or the one that Ctrl-C interrupted
        self.thread = None  # the thread that makes it

    def start(self, base_seed):
        """Make the worker that lives in the consumer."""
        self.worker = self.job.worker(self.ring, 0, "inline")

    def advance(self):
        """Make the dispatched tasks. If Ctrl-C interrupts one, the next call continues it."""
        self.thread = threading.get_ident()
        try:
            while (fill := self.own.next()) is not None:
                if fill.range is None:
                    fill.rewind(keep=self.worker.kept_in(fill))
                self.worker.work(fill)
        finally:
            self.thread = None

    def error_of(self, seq):
        """Return the exception for the error record of a task."""
        return self.worker.errors.get(seq)

    def states_now(self, received):
        """Return `Worker.states_now`; `received`: a batch that was made has not been delivered."""
        if self.worker is None:
            return False, None
        return self.worker.states_now(received or self.own.unfinished() is not None)

    def begin_iteration(self):
        """Release the tasks that were interrupted while the last iteration ended."""
        self.end_iteration()

    def stop(self, overdue=False):
        """Release interrupted tasks, and close the worker that reads samples for the consumer."""
        self.end_iteration()
        if self.worker is not None and self.thread in (None, threading.get_ident()):
            self.worker.close()

    def end_iteration(self):
        """Release interrupted tasks, and let the worker drop the dataset's iterator."""
        if self.thread not in (None, threading.get_ident()):
            return  # the other thread ends its task itself
        while (fill := self.own.unfinished()) is not None:
            self.worker.give_up(fill)
        if self.worker is not None:
            self.worker.forget_iteration()


class ThreadPool(ResizablePool):
    """Workers as threads of the consumer's process, for datasets whose work releases the GIL."""

    def _begin(self, number):
        self.workers[number] = self._started(number)

    def _started(self, number, inherited=None):
        thread = threading.Thread(
            target=_thread_main,
            args=(self.ring, number, self.job, self.base_seed, inherited),
            name=f"slipring-worker-{number}",
            daemon=True,
        )
        thread.start()
        return thread

    @property
    def stuck(self):
        """bool: whether threads remain that did not end when they were asked to."""
        return bool(self.workers) and self.ring.closed

    def check(self, state_for=None):
        """Find threads that ended without being asked to; see `WorkerPool.check`."""
        for number, thread in list(self.workers.items()):
            if not thread.is_alive() and not self.ring.closed:
                self._ended(number, state_for)
        if not self.ring.closed and self.resizing:
            self._match()

    def reap_retired(self):
        """See `WorkerPool`."""
        for number in list(self.retiring):
            if not self.workers[number].is_alive() and not self.ring.closed and not self.ring.in_flight(number + 1):
                self._ended(number, None)

    def pids(self):
        """Return an empty list: thread workers have no processes."""
        return []

    def processor_ns(self):
        """Return the CPU time that the workers have used plus the time that they waited for a CPU, in ns."""
        return sum(processor_ns_of(thread.native_id, of_thread=True) for thread in list(self.workers.values()))

    def _ended(self, number, state_for):
        participant = number + 1
        serving, in_flight = (
            self.ring.participant(participant)[1] == SERVING,
            self.ring.in_flight(participant),
        )
        if number in self.retiring and not in_flight:
            self._gone(number)
            return
        had, asked = task_text(in_flight)
        error = WorkerDied(
            f"thread worker {number} has ended while it had {had} (its worker_init_fn called sys.exit, or "
            "slipring itself raised: the traceback is on stderr)",
            worker=number,
            pid=process.pid(),
            exitcode=None,
            indices=asked,
        )
        self.restarts.allow(number, serving, in_flight, error, number not in self.retiring)
        if number in self.retiring:
            self._gone(number)
            return
        self.ring.recover(participant, thread=True)
        self.workers[number] = self._started(number, None if state_for is None else state_for(number))

    def _gone(self, number):
        """Remove a thread that has retired; the next one with its number stays."""
        with no_interrupt():
            self.workers.pop(number, None)
            self.ring.recover(number + 1, thread=True)
            self.retiring.discard(number)

    def stop(self, overdue=False):
        """Wait for all threads to end their batch; see `WorkerPool.stop`."""
        deadline = time.monotonic() + GRACE_S
        for number, thread in self.workers.items():
            if thread is not threading.current_thread() and not (overdue and is_busy(self.ring, number)):
                thread.join(max(0.0, deadline - time.monotonic()))
        # A thread stuck in the dataset keeps the segment mapped, by its own reference.
        self.workers = {number: thread for number, thread in self.workers.items() if thread.is_alive()}
        for number in self.retiring.difference(self.workers):
            self._gone(number)


def _thread_main(ring, number, job, base_seed, inherited):
    ring.join(number + 1)
    run(job.worker(ring, number, "thread", inherited), base_seed)
