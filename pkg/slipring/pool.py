"""The workers of one segment: started, watched, replaced, stopped."""

import contextlib
import gc
import multiprocessing
import multiprocessing.connection  # by joins, too late if modules are being imported
import multiprocessing.process
import os
import pickle
import select
import signal
import threading
import time

# Now, not in the first start of a process: who forks while a thread imports leaves the child with a lock
# that nobody opens.
from multiprocessing import popen_fork, popen_forkserver, popen_spawn_posix, resource_tracker  # noqa: F401
from multiprocessing.reduction import ForkingPickler

from slipring._ring import SERVING
from slipring.deaths import likely, manner, task_text
from slipring.deferred import no_collection, no_interrupt
from slipring.errors import WorkerDied
from slipring.life import process_main, run
from slipring.starts import Starts

GRACE_S = 5.0  # for a worker to end its batch before it is terminated
TERM_S = 2.0  # and after SIGTERM, before it is killed


class InlinePool:
    """No workers: the consumer fills the slots itself when it needs one."""

    stuck = False
    watched = -1  # nothing to wait for besides batches: see ProcessPool

    def __init__(self, ring, job):
        self.ring = ring
        self.job = job
        self.worker = None
        self.fill = None  # what is being made, or was when Ctrl-C came
        self.thread = None  # that makes it

    def start(self, base_seed):
        """Make the worker that lives in the consumer."""
        self.worker = self.job.worker(self.ring, 0, "inline")

    def advance(self):
        """Do what is dispatched. Whoever catches Ctrl-C and goes on gets the interrupted batch next."""
        if self.fill is not None and self.fill.range is None:
            self.fill.rewind()
        self.thread = threading.get_ident()
        try:
            while self.fill is not None or self._claim():
                self.worker.work(self.fill)
                self.fill = None
        finally:
            self.thread = None

    def _claim(self):
        self.fill = self.ring.claim(1, 0)
        return self.fill is not None

    def take_error(self, ticket):
        """Return the exception behind the error record of a ticket."""
        return self.worker.errors.pop(ticket, None)

    def begin_run(self):
        """Nothing to forget."""

    def check(self, mark_of=None):
        """Nobody to die."""

    def stop(self):
        """Nobody to stop; what was interrupted goes back, and the dataset's iterator may go."""
        if self.thread not in (None, threading.get_ident()):
            return  # what another thread is making, it ends itself
        fill, self.fill = self.fill, None
        if fill is not None:
            self.worker.give_up(fill)
        if self.worker is not None:
            self.worker.forget_run()


class ThreadPool:
    """Workers as threads of the consumer's process, for datasets whose work releases the GIL.

    Parameters
    ----------
    ring : Ring
    job : Job
    restarts : Restarts
    """

    watched = -1

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

    def _started(self, number, mark=None):
        thread = threading.Thread(
            target=_thread_main,
            args=(self.ring, number, self.job, self.base_seed, mark),
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

    def check(self, mark_of=None):
        """Look for threads that have ended although nobody told them to; see `ProcessPool.check`."""
        for number, thread in enumerate(self.threads):
            if not thread.is_alive() and not self.ring.closed:
                self._ended(number, mark_of)

    def _ended(self, number, mark_of):
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
        self.threads[number] = self._started(number, None if mark_of is None else mark_of(number))

    def stop(self):
        """Wait for all threads to end their batch. The segment is closed already."""
        deadline = time.monotonic() + GRACE_S
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        # A thread stuck in the dataset keeps the segment mapped, by its own reference.
        self.threads = [t for t in self.threads if t.is_alive()]


def _thread_main(ring, number, job, base_seed, mark):
    run(job.worker(ring, number, "thread", mark), base_seed)


class ProcessPool:
    """Workers as processes, each watched by a pidfd.

    Parameters
    ----------
    ring : Ring
    job : Job
    method : {'fork', 'forkserver', 'spawn'}
    restarts : Restarts

    Attributes
    ----------
    watched : int
        A descriptor that is readable as long as there is a dead worker to `check`.
    """

    stuck = False

    def __init__(self, ring, job, method, restarts):
        self.ring = ring
        self.job = job
        self.context = multiprocessing.get_context(method)
        self.restarts = restarts
        self.starts = Starts(ring, method)
        self.processes = {}
        self.pidfds = {}
        self.poll = select.epoll()  # can be polled itself, from C
        self.watched = self.poll.fileno()

    def start(self, base_seed):
        """Start all processes."""
        self.base_seed = base_seed
        if self.context.get_start_method() != "fork":
            # Now, because its own start ends with SIGINT unblocked, whatever it was before.
            resource_tracker.ensure_running()
        for number in range(self.job.num_workers):
            with no_interrupt(self.forks) as mask:
                self._start_one(number, mask)

    def _start_one(self, number, mask, mark_of=None):
        mark = None if mark_of is None else mark_of(number)
        # With SIGINT blocked: between fork and the worker's handler it would print a second traceback.
        process = self.context.Process(
            target=process_main,
            args=(self.ring, number, self.job, self.base_seed, mask, mark, gc.isenabled()),
            name=f"slipring-worker-{number}",
            daemon=True,
        )
        try:
            with no_collection():
                process.start()
        except Exception as error:
            explained = self._explain(error)
            if explained is None:
                raise
            raise explained from error
        self._watch(number, process, mask, mark_of)

    def _watch(self, number, process, mask, mark_of):
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:  # it has died already, and somebody (the forkserver) has waited for it
            self.processes[number] = process
            self._died(number, mask, mark_of)
            return
        except OSError:  # no descriptor left: what cannot be watched is not kept
            process.kill()
            process.join()
            _close(process)
            raise
        self.processes[number] = process
        self.pidfds[number] = fd
        self.poll.register(fd, select.EPOLLIN)
        self.starts.started(number, process.pid)

    def _explain(self, error):
        """A better text for what cannot be sent to a new process: the attribute's name."""
        if self.context.get_start_method() == "fork":
            return None
        for name in ("dataset", "collate_fn", "worker_init_fn"):
            culprit = _unpicklable(getattr(self.job, name), name)
            if culprit:
                kind = type(error) if type(error) in (AttributeError, TypeError) else pickle.PicklingError
                return kind(
                    f"{culprit} cannot be pickled, which start_method={self.context.get_start_method()!r} "
                    f"needs: {error}. Define functions and classes at the top level of a module, and open "
                    "files, connections and locks in the worker, where they are first used; or use "
                    "start_method='fork'"
                )
        return None

    # ---- death

    def check(self, mark_of=None):
        """Look for dead workers; replace them or raise `WorkerDied`.

        Parameters
        ----------
        mark_of : callable, optional
            Called with a dead worker's number: returns what its replacement is told (see `Worker`).
        """
        if not self.pidfds:
            return
        ready = {fd for fd, _ in self.poll.poll(0)}
        for number in [n for n, fd in self.pidfds.items() if fd in ready]:
            # A worker that is neither here nor replaced would be waited for.
            with no_interrupt(self.forks) as mask:
                self._died(number, mask, mark_of)
        self.starts.look()

    def _died(self, number, mask, mark_of):
        process = self.processes.pop(number)
        self._forget(number)
        process.join()
        party = number + 1
        serving = self.ring.party(party)[1] == SERVING
        in_flight = self.ring.in_flight(party)
        self.ring.recover(party)
        error = self._error(number, process, in_flight, serving)
        _close(process)
        self.restarts.allow(number, serving, in_flight, error)
        self._start_one(number, mask, mark_of)

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
        if fd is not None:
            self.poll.unregister(fd)
            os.close(fd)

    def _error(self, number, process, in_flight, serving):
        code = process.exitcode
        had, asked = task_text(in_flight)
        return WorkerDied(
            f"worker {number} (pid {process.pid}) {manner(code)} while it had {had}. "
            f"{likely(code, serving, self.forks)}",
            worker=number,
            pid=process.pid,
            exitcode=code,
            indices=asked,
        )

    # ---- the end

    def stop(self):
        """End all processes. The segment is closed already, so each leaves after its batch."""
        for number, seconds in ((None, GRACE_S), (signal.SIGTERM, TERM_S), (signal.SIGKILL, None)):
            for fd in self.pidfds.values() if number is not None else ():
                # Not through multiprocessing: it thinks a worker dead when the forkserver is.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, number)
            self._reap(seconds)
            if not self.processes:
                break

    def _reap(self, seconds):
        deadline = None if seconds is None else time.monotonic() + seconds
        while self.processes:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ended = {fd for fd, _ in self.poll.poll(left)}
            for number in [n for n, fd in self.pidfds.items() if fd in ended]:
                self.processes[number].join(left)
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
            os.close(fd)
        self.pidfds.clear()
        self.poll.close()  # this process's; nothing is taken out, for that would be the parent's too


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
            named |= {f"[{key!r}]": inner for key, inner in value.items()}
        elif isinstance(value, (list, tuple)):
            named |= {f"[{i}]": inner for i, inner in enumerate(value)}
        for part, inner in named.items():
            found = _unpicklable(inner, f"{name}{part}", (*above, value))
            if found:
                return found
        return f"{name} ({type(value).__name__})"
