"""Report workers that do not start, once, with the usual causes."""

import logging
import os
import threading
import time

from slipring._core._ring import JOINED, SERVING

log = logging.getLogger("slipring")

PATIENCE_S = 30.0


class StartupWatchdog:
    """The worker processes of a segment that have not begun to take tasks yet.

    `argument`: see `Job.method_argument`.
    """

    def __init__(self, ring, method, argument):
        self.ring, self.method, self.argument = ring, method, argument
        self.waiting = {}  # worker -> (its process, since when, how many threads this one had then)

    def started(self, number, pid):
        """Watch a worker from now on."""
        self.waiting[number] = pid, time.monotonic(), _threads()

    def forget(self, number):
        """Stop watching a worker: it has died, has begun or was reported."""
        self.waiting.pop(number, None)

    def look(self):
        """Forget workers that have begun; report those that should have."""
        for number, (pid, since, threads) in list(self.waiting.items()):
            status = self.ring.participant(number + 1)[1]
            seconds = time.monotonic() - since
            if status != SERVING and seconds < PATIENCE_S:
                continue
            self.forget(number)
            if status != SERVING:
                why = "it is in its worker_init_fn" if status == JOINED else self._before_joining(threads)
                log.warning(
                    "worker %d (pid %d) has not begun %.0f s after its start: %s. "
                    "`py-spy dump --pid %d` shows where it is.",
                    *(number, pid, seconds, why, pid),
                )

    def _before_joining(self, threads):
        if self.method != "fork":
            return "it imports modules, or unpickles the dataset"
        if threads == 1:
            return "functions that run after a fork (os.register_at_fork) take that long"
        return (
            f"it probably waits for a lock that one of this process's {threads} threads held at the fork, and that no "
            "thread of the worker will release. Start the loader before the threads, or use "
            + self.argument.format("forkserver")
        )


def _threads():
    """Return the number of this process's threads; only Python's if the kernel does not report them.

    The kernel does not report them without /proc or without a free descriptor.
    """
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()
