"""The workers of one segment: started, watched, replaced, stopped."""

import contextlib
import gc
import logging
import multiprocessing
import multiprocessing.connection  # by joins, too late if modules are being imported
import multiprocessing.process
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable

# Now, not in the first start of a process: who forks while a thread imports leaves the child with a lock
# that nobody opens.
from multiprocessing import popen_fork, popen_forkserver, popen_spawn_posix, resource_tracker  # noqa: F401
from multiprocessing.reduction import ForkingPickler
from typing import Protocol

import numpy.random  # noqa: F401  by numpy at its first use: a fork in that instant would hang the worker

from slipring.errors import WorkerDied, shown
from slipring.ring._descriptors import Descriptor, Poll, standard_taken
from slipring.ring._ring import SERVING, Own, forking_worker, start_time
from slipring.workers.deferred import no_collection, no_interrupt
from slipring.workers.main import process_main, run
from slipring.workers.restarts import left_behind, likely, manner, task_text
from slipring.workers.startup import StartupWatchdog
from slipring.workers.worker import Job

GRACE_S = 5.0  # for a worker to end its batch before it is terminated
TERM_S = 2.0  # and after SIGTERM, before it is killed
KILL_S = 3.0  # and after SIGKILL, before it is left behind: it is frozen, or its system call does not return

log = logging.getLogger("slipring")


class Pool(Protocol):
    """The workers of one segment, of any kind.

    Attributes
    ----------
    job : Job
        What a worker that begins has to know.
    watched : int
        A descriptor that is readable as long as there is a dead worker to `check`; -1: nobody can die.
    stuck : bool
        Whether workers are left that did not end when they were told to. The segment is of no more use then.
    """

    job: Job
    watched: int = -1
    stuck: bool = False

    def start(self, base_seed: int) -> None:
        """Start all workers."""

    def begin_run(self) -> None:
        """Another pass over the data begins."""

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


class InlinePool(Pool):
    """No workers: the consumer fills the slots itself when it needs one."""

    def __init__(self, ring, job):
        self.ring = ring
        self.job = job
        self.worker = None
        self.own = Own(ring)  # what is being made, or was when Ctrl-C came
        self.thread = None  # that makes it

    def start(self, base_seed):
        """Make the worker that lives in the consumer."""
        self.worker = self.job.worker(self.ring, 0, "inline")

    def advance(self):
        """Do what is dispatched. Whoever catches Ctrl-C and goes on gets the interrupted batch next."""
        self.thread = threading.get_ident()
        try:
            while (fill := self.own.next()) is not None:
                if fill.range is None:
                    fill.rewind()
                self.worker.work(fill)
        finally:
            self.thread = None

    def error_of(self, ticket):
        """Return the exception behind the error record of a ticket."""
        return self.worker.errors.get(ticket)

    def begin_run(self):
        """What was interrupted in the last run's end goes back now."""
        self.stop()

    def stop(self, overdue=False):
        """Nobody to stop; what was interrupted goes back, and the dataset's iterator may go."""
        if self.thread not in (None, threading.get_ident()):
            return  # what another thread is making, it ends itself
        while (fill := self.own.unfinished()) is not None:
            self.worker.give_up(fill)
        if self.worker is not None:
            self.worker.forget_run()


class ThreadPool(Pool):
    """Workers as threads of the consumer's process, for datasets whose work releases the GIL.

    Parameters
    ----------
    ring : Ring
    job : Job
    restarts : Restarts
    """

    def __init__(self, ring, job, restarts):
        self.ring = ring
        self.job = job
        self.restarts = restarts
        self.threads = []

    def start(self, base_seed):
        """Start all threads."""
        self.base_seed = base_seed
        for number in range(self.job.num_workers):
            self.threads.append(self._started(number))

    def _started(self, number, snapshot=None):
        thread = threading.Thread(
            target=_thread_main,
            args=(self.ring, number, self.job, self.base_seed, snapshot),
            name=f"slipring-worker-{number}",
            daemon=True,
        )
        thread.start()
        return thread

    @property
    def stuck(self):
        """bool: whether threads are left that did not end when they were told to."""
        return bool(self.threads) and self.ring.closed

    def begin_run(self):
        """See `Restarts`."""
        self.restarts.begin_run()

    def check(self, snapshot_of=None):
        """Look for threads that have ended although nobody told them to; see `Pool.check`."""
        for number, thread in enumerate(self.threads):
            if not thread.is_alive() and not self.ring.closed:
                self._ended(number, snapshot_of)

    def _ended(self, number, snapshot_of):
        party = number + 1
        serving, in_flight = self.ring.party(party)[1] == SERVING, self.ring.in_flight(party)
        had, asked = task_text(in_flight)
        error = WorkerDied(
            f"thread worker {number} has ended while it had {had} (its worker_init_fn called sys.exit, or "
            "slipring itself raised: the traceback is on stderr)",
            worker=number,
            pid=os.getpid(),
            exitcode=None,
            indices=asked,
        )
        self.restarts.allow(number, serving, in_flight, error)
        self.ring.recover(party, thread=True)
        self.threads[number] = self._started(number, None if snapshot_of is None else snapshot_of(number))

    def stop(self, overdue=False):
        """Wait for all threads to end their batch; see `Pool.stop`."""
        deadline = time.monotonic() + GRACE_S
        for number, thread in enumerate(self.threads):
            if thread is not threading.current_thread() and not (overdue and _is_busy(self.ring, number)):
                thread.join(max(0.0, deadline - time.monotonic()))
        # A thread stuck in the dataset keeps the segment mapped, by its own reference.
        self.threads = [t for t in self.threads if t.is_alive()]


def _thread_main(ring, number, job, base_seed, snapshot):
    run(job.worker(ring, number, "thread", snapshot), base_seed)


class ProcessPool(Pool):
    """Workers as processes, each watched by a pidfd.

    Parameters
    ----------
    ring : Ring
    job : Job
    method : {'fork', 'forkserver', 'spawn'}
    restarts : Restarts
    """

    def __init__(self, ring, job, method, restarts):
        self.ring = ring
        self.job = job
        self.context = multiprocessing.get_context(method)
        self.restarts = restarts
        self.starts = StartupWatchdog(ring, method, job.method_argument)
        self.processes = {}
        self.pidfds = {}
        self.begun = {}  # when each process has: a number may be another process's by now
        self.poll = Poll()  # can be polled itself, from C
        self.stuck = False

    @property
    def watched(self):
        """int: see `Pool`."""
        return self.poll.fd

    def start(self, base_seed):
        """Start all processes."""
        self.base_seed = base_seed
        if self.context.get_start_method() != "fork":
            # Now, because its own start ends with SIGINT unblocked, whatever it was before.
            with standard_taken():
                resource_tracker.ensure_running()
        for number in range(self.job.num_workers):
            with no_interrupt(self.forks) as mask:
                self._start_one(number, mask)

    def _start_one(self, number, mask, snapshot_of=None):
        snapshot = None if snapshot_of is None else snapshot_of(number)
        # With SIGINT blocked: between fork and the worker's handler it would print a second traceback.
        process = self.context.Process(
            target=process_main,
            args=(self.ring, number, self.job, self.base_seed, mask, snapshot, gc.isenabled()),
            name=f"slipring-worker-{number}",
            daemon=True,
        )
        try:
            with no_collection(), forking_worker(), standard_taken():
                process.start()
        except Exception as error:
            self.job.not_sent(error)
            explained = self._explain(error)
            if explained is None:
                raise
            raise explained from error
        self._watch(number, process, mask, snapshot_of)

    def _watch(self, number, process, mask, snapshot_of):
        try:
            fd = Descriptor(os.pidfd_open(process.pid))
            try:
                self.poll.add(fd.fd)
            except OSError:
                fd.close()
                raise
        except ProcessLookupError:  # it has died already, and somebody (the forkserver) has waited for it
            self.processes[number] = process
            self._died(number, mask, snapshot_of)
            return
        except OSError:  # no descriptor left, or no place in the epoll: what cannot be watched is not kept
            process.kill()
            process.join()
            _close(process)
            raise
        self.processes[number] = process
        self.pidfds[number] = fd
        self.begun[number] = start_time(process.pid)
        self.starts.started(number, process.pid)

    def _explain(self, error):
        """A better text for what cannot be sent to a new process: the attribute's name."""
        if self.context.get_start_method() == "fork":
            return None
        argument = self.job.method_argument
        for name in ("dataset", "collate_fn", "worker_init_fn"):
            culprit = _unpicklable(getattr(self.job, name), name)
            if culprit:
                kind = type(error) if type(error) in (AttributeError, TypeError) else pickle.PicklingError
                return kind(
                    f"{culprit} cannot be pickled, which {argument}={self.context.get_start_method()!r} "
                    f"needs: {error}. Define functions and classes at the top level of a module, and open "
                    "files, connections and locks in the worker, where they are first used; or use "
                    f"{argument}='fork'"
                )
        return None

    # ---- death

    def check(self, snapshot_of=None):
        """Look for dead workers; see `Pool.check`."""
        if not self.pidfds:
            return
        if not all(fd.seems_intact() for fd in (self.poll, *self.pidfds.values())):
            with no_interrupt():
                self._reopen()
        ready = self.poll.ready()
        for number in [n for n, fd in self.pidfds.items() if fd.fd in ready or fd.fd < 0]:
            # A worker that is neither here nor replaced would be waited for.
            with no_interrupt(self.forks) as mask:
                self._died(number, mask, snapshot_of)
        self.starts.look()

    def _reopen(self):
        """Code of the program has closed our descriptors: open others; what has their numbers stays."""
        self.poll.close()
        self.poll = Poll()
        for number, old in list(self.pidfds.items()):
            old.close()
            try:
                self.pidfds[number] = new = Descriptor(os.pidfd_open(self.processes[number].pid))
            except ProcessLookupError:
                continue  # it has died, and somebody has waited for it
            # In this order: who still has the number has had it when the descriptor was opened.
            if start_time(self.processes[number].pid) != self.begun[number]:
                new.close()
                continue
            try:
                self.poll.add(new.fd)
            except OSError:
                new.close()  # seen at the next look, which tries again
                raise

    def _died(self, number, mask, snapshot_of):
        process = self.processes.pop(number)
        self._forget(number)
        self._join(process, GRACE_S)
        party = number + 1
        serving = self.ring.party(party)[1] == SERVING
        in_flight = self.ring.in_flight(party)
        self.ring.recover(party)
        error = self._error(number, process, in_flight, serving)
        _close(process)
        self.restarts.allow(number, serving, in_flight, error)
        self._start_one(number, mask, snapshot_of)

    def begin_run(self):
        """See `Restarts`."""
        self.restarts.begin_run()

    def pids(self):
        """Return [(worker, its process, whether it has begun to take tasks)]."""
        found = []
        for number, process in sorted(self.processes.items()):
            with contextlib.suppress(ValueError):  # another thread has just closed it
                found.append((number, process.pid, self.ring.party(number + 1)[1] == SERVING))
        return found

    @property
    def forks(self):
        """bool: whether workers begin with their parent's memory."""
        return self.context.get_start_method() == "fork"

    def _forget(self, number):
        self.starts.forget(number)
        fd = self.pidfds.pop(number, None)
        if fd is not None and fd.fd >= 0:
            try:
                self.poll.remove(fd.fd)
            finally:
                fd.close()

    def _join(self, process, seconds):
        """Have a process that has ended waited for, by whoever started it."""
        # A time would be spent on multiprocessing's pipe, which the worker's own children may keep open. The
        # fork server's has its exit code, but may be stopped itself.
        process.join(seconds if self.context.get_start_method() == "forkserver" else None)

    def _error(self, number, process, in_flight, serving):
        code = process.exitcode
        had, asked = task_text(in_flight)
        return WorkerDied(
            f"worker {number} (pid {process.pid}) {manner(code)} while it had {had}. "
            f"{likely(code, serving, self.forks, self.job.method_argument)}",
            worker=number,
            pid=process.pid,
            exitcode=code,
            indices=asked,
        )

    # ---- the end

    def stop(self, overdue=False):
        """End all processes; see `Pool.stop`. Who cannot be killed is left behind: then the pool is `stuck`."""
        stuck = [number for number in self.processes if overdue and _is_busy(self.ring, number)]
        if stuck:
            self._send(signal.SIGTERM, stuck)
            self._reap(TERM_S)
            self._send(signal.SIGKILL, stuck)
        for number, seconds in ((None, GRACE_S), (signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
            self._send(number, self.processes)
            self._reap(seconds)
            if not self.processes:
                return
        self.stuck = True
        for number, process in list(self.processes.items()):
            log.warning("%s", left_behind(number, process.pid, KILL_S))
            with no_interrupt():
                self._forget(number)
                # Or the interpreter's exit would wait for it.
                multiprocessing.process._children.discard(self.processes.pop(number))

    def _send(self, number, workers):
        """Send a signal (None: none) to those of the workers that there are."""
        if not all(fd.intact() for fd in (self.poll, *self.pidfds.values())):
            with no_interrupt():
                self._reopen()
        for fd in [self.pidfds[worker] for worker in workers if number and worker in self.pidfds]:
            # Not through multiprocessing: it thinks a worker dead when the forkserver is.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fd.fd, number)

    def _reap(self, seconds):
        deadline = time.monotonic() + seconds
        while self.processes:
            left = max(0.0, deadline - time.monotonic())
            ended = self.poll.ready(left)
            for number in [n for n, fd in self.pidfds.items() if fd.fd in ended or fd.fd < 0]:
                self._join(self.processes[number], left)
                with no_interrupt():
                    self._forget(number)
                    _close(self.processes.pop(number))
                self.ring.recover(number + 1)
            if left == 0.0 and self.processes:
                return

    def abandon(self):
        """In a forked child: the workers are the parent's, and must not be ended by this process's exit."""
        for process in self.processes.values():
            multiprocessing.process._children.discard(process)
        for fd in self.pidfds.values():
            fd.close()
        self.pidfds.clear()
        self.poll.close()  # this process's; nothing is taken out, for that would be the parent's too


def _is_busy(ring, number):
    """Whether a worker is at a batch, or has not begun to take tasks."""
    return ring.party(number + 1)[1] != SERVING or bool(ring.in_flight(number + 1))


def _close(process):
    """Let go of a process that has ended."""
    try:
        process.close()
    except ValueError:  # somebody else waited for it, so that multiprocessing believes it alive for ever
        multiprocessing.process._children.discard(process)


def _unpicklable(value, name, above=()):
    """The dotted name of what cannot be pickled in `value`; None if it can, or is among those `above`."""
    try:
        ForkingPickler.dumps(value)
        return None
    except Exception:
        if any(value is a for a in above):
            return None
        named = {f".{attribute}": inner for attribute, inner in getattr(value, "__dict__", {}).items()}
        if isinstance(value, dict):
            named |= {f"[{shown(key)}]": inner for key, inner in value.items()}
        elif isinstance(value, (list, tuple)):
            named |= {f"[{i}]": inner for i, inner in enumerate(value)}
        for part, inner in named.items():
            found = _unpicklable(inner, f"{name}{part}", (*above, value))
            if found:
                return found
        return f"{name} ({type(value).__name__})"
