"""Describe dead workers, decide whether a dead worker is replaced, and report workers that do not start."""

import logging
import os
import signal
import threading
import time

from slipring._core.ring._ring import JOINED, SERVING
from slipring.errors import brief

PATIENCE_S = 30.0  # for a worker to begin

log = logging.getLogger("slipring")


class Restarts:
    """The decision whether a dead worker is replaced.

    `limit` is how often workers may die over the same batch; None: every death is raised. `on_respawn` is called for
    every replacement.
    """

    def __init__(self, limit, on_respawn):
        self.limit, self.on_respawn = limit, on_respawn
        self.deaths = {}  # sequence number, or ("start", number) -> how many workers died over it in this iteration

    def begin_iteration(self):
        """Forget the deaths of the last iteration: sequence numbers start again from 0."""
        self.deaths.clear()

    def allow(self, number, serving, in_flight, error, replaced=True):
        """Count a worker's replacement, or raise `error`.

        `serving`: the worker had begun to take tasks. `in_flight` is the result of `Ring.in_flight` for it. `replaced`
        is False for a worker that was about to retire: other workers make its batches.
        """
        if self.limit is None or not self._may_restart(number, serving, in_flight, error):
            raise error
        if replaced:
            self.on_respawn()
        then = "Another worker takes its place." if replaced else "It was retiring; other workers make its batches."
        log.warning("%s\n%s", error, then)

    def _may_restart(self, number, serving, in_flight, error):
        """Count a death against its batch, or against the worker's start; if there were too many, say so in `error`."""
        if serving and not in_flight:
            return True  # an idle worker was killed: no batch is to blame
        key = in_flight[0][0] if serving else ("start", number)  # it works on the lowest sequence number
        self.deaths[key] = self.deaths.get(key, 0) + 1
        if self.deaths[key] <= self.limit:
            return True
        if serving:
            error.indices = in_flight[0][1] or []
            where = f"over batch {key}" + (f", indices {brief(error.indices)}" if error.indices else "")
        else:
            where = "before it could serve"
        error.args = (
            f"{error.args[0]}\nWorkers have died {self.deaths[key]} times {where}: more than "
            f"max_restarts={self.limit}.",
        )
        return False


def log_replay(number, batches, by_state):
    """Log that the new worker of a stream reads `batches` batches again."""
    if batches:
        why = "" if by_state else ": neither the dataset nor its iterator has state_dict() and load_state_dict()"
        log.warning("worker %d reads again, and drops, %d batches of its stream%s", number, batches, why)


def task_text(in_flight):
    """Return (text, indices) of the tasks that a worker had in flight."""
    asked = [i for _, indices in in_flight if indices is not None for i in indices]
    batches = ", ".join(f"batch {seq}" for seq, _ in in_flight) or "no batch"
    return f"{batches} in flight{f', indices {brief(asked)}' if asked else ''}", asked


def manner(code):
    """Return a text that says how a process ended; None as `code`: its exit code is unknown."""
    if code is None:
        return "has gone (its exit code went to a waitpid or SIGCHLD handler outside slipring)"
    if code >= 0:
        return f"left with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def likely(code, begun=True, forked=True, *, argument):
    """Return a text with the likely cause of an exit code.

    `begun`: the worker had begun to take tasks. `argument`: see `Worker.method_argument`.
    """
    if code == -signal.SIGKILL:
        return (
            "Likely cause: the kernel's OOM killer (see dmesg), the container's memory limit, or a kill -9; "
            "fewer workers or a smaller prefetch_factor need less memory."
        )
    if code == -signal.SIGSEGV:
        return "Likely cause: a crash in native code that the dataset uses; python -X faulthandler shows where."
    if code == -signal.SIGBUS:
        return "Likely cause: a file that the dataset maps was truncated, or its file system is full."
    if code == -signal.SIGABRT:
        return "Likely cause: an assertion or memory corruption in native code; see stderr."
    if code is not None and code >= 0:
        if begun:
            return (
                "Likely cause: the dataset or a library called sys.exit, or raised something other than an Exception "
                "(KeyboardInterrupt, a panic of Rust code); the traceback is on stderr."
            )
        if forked:
            return "Likely cause: it could not start, or its worker_init_fn called sys.exit; see stderr."
        return (
            "Likely cause: it could not start; the traceback is on stderr. If workers are not forked, a script must "
            "make its loaders under `if __name__ == '__main__':`, and their arguments must be in a module that can "
            f"be imported, not in a notebook; or use {argument.format('fork')}."
        )
    return "Likely cause: something outside sent the signal."


def state_of(pid):
    """Return a process's state as /proc reports it: "R", "S", "D", "T", "Z", ..."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "unknown"


def unkillable(number, pid, seconds):
    """Return a text that says that a worker could not be killed, and what happens to it."""
    return (
        f"worker {number} (pid {pid}) has not ended {seconds:g} s after SIGKILL (its state in /proc: "
        f"{state_of(pid)}). Likely cause: it is frozen (a cgroup's freezer, a paused container), or waits in the "
        "kernel for a disk or a network file system that does not answer. It is left behind: it ends as soon "
        "as it can, and keeps what it holds of the segment's memory until then."
    )


class StartupWatchdog:
    """The worker processes of a segment that have not begun to take tasks yet.

    `argument`: see `Worker.method_argument`.
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
