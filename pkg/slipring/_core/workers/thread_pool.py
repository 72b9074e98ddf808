"""The pool of workers that are threads of the consumer's process."""

import threading
import time

from slipring._core.ring import process
from slipring._core.ring._ring import SERVING
from slipring._core.ring.signals import no_interrupt
from slipring._core.workers.deaths import task_text
from slipring._core.workers.worker_main import run, stay_near
from slipring._core.workers.worker_pool import GRACE_S, WorkerPool, cpu_ns_of, is_busy
from slipring.errors import WorkerDied


class ThreadPool(WorkerPool):
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

    def cpu_ns(self):
        """Return the CPU time that the workers have used plus the time that they waited for a CPU, in ns."""
        return sum(cpu_ns_of(thread.native_id, of_thread=True) for thread in list(self.workers.values()))

    def _ended(self, number, state_for):
        participant = number + 1
        serving = self.ring.participant(participant)[1] == SERVING
        in_flight = self.ring.in_flight(participant)
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
    stay_near(job, number)
    ring.join(number + 1)
    run(job.worker_class(ring, number, job, False, inherited), base_seed)
