"""The threads of a worker that read samples concurrently."""

import queue
import threading
from concurrent.futures import Future

from slipring._core.process import Owner
from slipring._core.read_counts import count_in, counts


class FetchThreads:
    """Threads that read samples. They refer only to the queue, so they can be ended when this object is dropped."""

    def __init__(self, n):
        self.tasks, self.threads, self.owner = queue.SimpleQueue(), [], Owner()
        try:
            for number in range(n):
                name = f"slipring-fetch-{number}"
                thread = threading.Thread(target=_read, args=(self.tasks, counts()), name=name, daemon=True)
                thread.start()
                self.threads.append(thread)
        except RuntimeError as error:
            self.end()
            raise RuntimeError(
                f"fetch_threads={n}, of which only {len(self.threads)} could be started: {error}. Give fewer, or "
                "have fewer workers"
            ) from error

    def submit(self, sample, read, one):
        """Return the future of ``read(one)``."""
        future = Future()
        self.tasks.put((future, sample, read, one))
        return future

    def end(self):
        """End the threads after the reads that were submitted so far."""
        if self.owner.is_here:
            for _ in self.threads:
                self.tasks.put(None)


def _read(tasks, reads):
    """Read samples until the queue returns None. This is the main function of a thread."""
    count_in(reads)
    while (task := tasks.get()) is not None:
        future, sample, read, one = task
        if future.set_running_or_notify_cancel():
            try:
                with sample:
                    made = read(one)
            except BaseException as error:  # the worker raises it
                future.set_exception(error)
                del error
            else:
                future.set_result(made)
                del made
        del task, future, sample, read, one  # drop the references before the next wait
