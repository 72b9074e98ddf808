"""The pool of worker processes: it starts, watches, replaces and stops them."""

import contextlib
import errno
import gc
import logging
import multiprocessing
import multiprocessing.connection  # joins import it, which is too late if modules are being imported
import multiprocessing.process
import os
import pickle
import signal
import threading
import time

# Imported now, not when the first process starts: if a process forks while a thread imports, the child has a lock that
# no thread will release.
from multiprocessing import (  # noqa: F401
    forkserver,
    popen_fork,
    popen_forkserver,
    popen_spawn_posix,
    resource_tracker,
)
from multiprocessing.reduction import ForkingPickler

import numpy.random  # noqa: F401  numpy imports it at its first use: a fork in that instant would hang the worker

from slipring._core.ring._fd import Descriptor, Poll
from slipring._core.ring._ring import SERVING
from slipring._core.ring._segment import forking_worker
from slipring._core.ring.signals import no_collection, no_interrupt
from slipring._core.workers.deaths import StartupWatchdog, likely, manner, state_of, task_text, unkillable
from slipring._core.workers.pickling import SharedPickle
from slipring._core.workers.worker_main import PARTS, SentJob, parts_of, process_main
from slipring._core.workers.worker_pool import GRACE_S, WorkerPool, cpu_ns_of, is_busy
from slipring.errors import DescriptorClosed, SlipringError, WorkerDied, shown

TERM_S = 2.0  # for a worker to end after SIGTERM, before it is killed
KILL_S = 3.0  # and after SIGKILL, before it is left behind: it is frozen, or its system call does not return
LACK_S = 60.0  # if it only lacks a processor

log = logging.getLogger("slipring")


class ProcessPool(WorkerPool):
    """Workers as processes, each watched by a pidfd.

    `context` must have the start method `method`; None selects multiprocessing's own context of that method.
    """

    def __init__(self, ring, job, method, restarts, context=None):
        super().__init__(ring, job, restarts)
        self.method = method
        self.context = context or multiprocessing.get_context(method)
        self.kind = job.worker_class
        self.starts = StartupWatchdog(ring, method, self.kind.method_argument)
        self.processes = self.workers
        self.pidfds = {}
        self.poll = Poll("the epoll of a worker pool")  # can be polled itself, from C
        self.shared = None  # the parts of the job that are sent to all workers, if they do not inherit them
        self.stuck = False

    @property
    def death_fd(self):
        """int: see `WorkerPool`."""
        return self.poll.fd

    def start(self, base_seed):
        """Start all processes."""
        if self.method != "fork":
            # Now, because its start unblocks SIGINT, even if it was blocked before.
            resource_tracker.ensure_running()
        super().start(base_seed)

    def _begin(self, number):
        self.kind.check_start(self.job)
        with no_interrupt(self.forks) as mask:
            self._start_one(number, mask)

    def _start_one(self, number, mask, state_for=None):
        inherited = None if state_for is None else state_for(number)
        # SIGINT is blocked: between the fork and the worker's handler it would print a second traceback.
        collects = gc.isenabled()
        try:
            with no_collection(), forking_worker(), _environment(self.kind.environment(self.job)):
                process = self.context.Process(
                    target=process_main,
                    args=(self.ring, number, self._to_send(), self.base_seed, mask, inherited, collects),
                    name=f"slipring-worker-{number}",
                    daemon=True,
                )
                process.start()
        except Exception as error:
            self.kind.not_sent(error)
            explained = self._explain(error, number)
            if explained is None:
                raise
            raise explained from error
        self._watch(number, process, mask, state_for)

    def _to_send(self):
        """Return the job in the form in which a worker's process receives it."""
        if self.forks:
            return self.job
        parts = parts_of(self.job)
        if self.shared is not None and not self.shared.is_of(parts):
            self._forget_shared()
        if self.shared is None:
            self.shared = SharedPickle(parts)
        return SentJob(self.job, self.shared)

    def _forget_shared(self):
        with no_interrupt():
            if self.shared is not None:
                self.shared.close()
                self.shared = None

    def _watch(self, number, process, mask, state_for):
        try:
            fd = Descriptor(os.pidfd_open(process.pid), f"the pidfd of worker {number}")
            self.poll.add(fd.fd)
        except ProcessLookupError:  # it has died already, and another process (the fork server) has reaped it
            self.processes[number] = process
            self._died(number, mask, state_for)
            return
        except (OSError, DescriptorClosed):  # a worker that cannot be watched is not kept
            process.kill()
            process.join()
            _close(process)
            raise
        self.processes[number] = process
        self.pidfds[number] = fd
        self.starts.started(number, process.pid)

    def _explain(self, error, number):
        """Return a clearer error if a process could not be started, or None.

        It names the part that could not be pickled, or says that the fork server has ended, or that this process may
        have no children.
        """
        if isinstance(error, AssertionError) and multiprocessing.current_process().daemon:
            return AssertionError(
                f"{error}: multiprocessing made this process daemonic, so the loader cannot start "
                f"worker processes in it. Use threads, {self.kind.threads}, or num_workers=0; or start this process "
                "with daemon=False (in place of multiprocessing.Pool: concurrent.futures.ProcessPoolExecutor)"
            )
        if self.forks or isinstance(error, SlipringError):
            return None
        argument = self.kind.method_argument
        explained = pickling_error(self.job, error, argument.format(self.method), argument.format("fork"))
        if explained is not None:
            return explained
        if isinstance(error, FileNotFoundError) and not _has_folder():
            return FileNotFoundError(
                errno.ENOENT,
                f"worker {number} did not begin: the working directory has been deleted, and "
                f"{argument.format(self.method)} starts a Python in it: change to another directory (os.chdir) before, "
                f"or use {argument.format('fork')}",
            )
        if self.method == "forkserver" and isinstance(error, PermissionError):
            return PermissionError(
                error.errno,
                f"worker {number} did not begin: this process (user {os.geteuid()}) may not reach its fork server. It "
                "was started as another user: change the user (os.setuid) before the first loader, or use "
                + argument.format("spawn"),
            )
        # In newer Pythons, the fork server runs the script itself, and ends if the script has no guard.
        if self.method == "forkserver" and isinstance(error, (EOFError, ConnectionError)):
            return WorkerDied(
                f"worker {number} did not begin: the fork server ended while it was starting it. "
                f"{likely(1, False, False, argument=argument)}",
                worker=number,
                pid=0,
                exitcode=None,
                indices=[],
            )
        return None

    # ---- death

    def check(self, state_for=None):
        """Look for dead workers; see `WorkerPool.check`."""
        if not self.pidfds:
            return  # they are about to be started, or have been ended
        for number in self._ended():
            # next() would wait for a worker that is neither here nor replaced.
            with no_interrupt(self.forks) as mask:
                self._died(number, mask, state_for)
        if self.resizing:
            self._match()
        self.starts.look()

    def _ended(self, seconds=0.0):
        """Wait until a worker has ended; return those that have. DescriptorClosed: one cannot be watched any more."""
        pidfds = dict(self.pidfds)
        for fd in pidfds.values():
            fd.number()
        ready = self.poll.ready(seconds)
        return [number for number, fd in pidfds.items() if fd.fd in ready]

    def _died(self, number, mask, state_for):
        process = self.processes.pop(number)
        self._forget(number)
        self._join(process, GRACE_S)
        participant = number + 1
        serving = self.ring.participant(participant)[1] == SERVING
        in_flight = self.ring.in_flight(participant)
        self.ring.recover(participant)
        left = number in self.retiring
        self.retiring.discard(number)
        error = None if left and not in_flight else self._error(number, process, in_flight, serving)
        _close(process)
        if error is not None:
            if self.restarts.limit is not None:
                try:
                    self.kind.check_start(self.job)
                except Exception as reason:
                    raise reason from error
            self.restarts.allow(number, serving, in_flight, error, not left)
        if not left:
            self._start_one(number, mask, state_for)

    def cpu_ns(self):
        """Return the CPU time that the workers have used plus the time that they waited for a CPU, in ns."""
        return sum(cpu_ns_of(pid) for _, pid, _ in self.pids())

    def reap_retired(self):
        """See `WorkerPool`."""
        if not self.retiring:
            return
        for number in self._ended():
            if number in self.retiring and not self.ring.in_flight(number + 1):
                with no_interrupt(self.forks) as mask:
                    self._died(number, mask, None)

    def pids(self):
        """Return [(worker, pid, whether it has begun to take tasks)]."""
        found = []
        for number, process in sorted(self.processes.items()):
            with contextlib.suppress(ValueError):  # another thread has just closed it
                found.append((number, process.pid, self.ring.participant(number + 1)[1] == SERVING))
        return found

    @property
    def forks(self):
        """bool: whether workers begin with their parent's memory."""
        return self.method == "fork"

    def _forget(self, number):
        self.starts.forget(number)
        fd = self.pidfds.pop(number, None)
        if fd is not None:
            try:
                self.poll.remove(fd.fd)
            finally:
                fd.close()

    def _join(self, process, seconds):
        """Wait for a process that has ended, through the process that started it."""
        # With a timeout, multiprocessing waits for a pipe that the worker's own children may keep open. Without one, a
        # fork server that is stopped would block: it has the exit code.
        process.join(seconds if self.method == "forkserver" else None)

    def _error(self, number, process, in_flight, serving):
        code = process.exitcode
        had, asked = task_text(in_flight)
        return WorkerDied(
            f"worker {number} (pid {process.pid}) {manner(code)} while it had {had}. "
            f"{likely(code, serving, self.forks, argument=self.kind.method_argument)}",
            worker=number,
            pid=process.pid,
            exitcode=code,
            indices=asked,
        )

    # ---- the end

    def stop(self, overdue=False):
        """End all processes; see `WorkerPool.stop`. If one cannot be killed, the pool leaves it and is `stuck`."""
        self._forget_shared()  # the next workers get the dataset as it is by then
        try:
            self._end(overdue)
        except DescriptorClosed as error:
            log.warning("%s. The workers end by themselves, and are not waited for.", str(error))
            self.stuck = True
            with no_interrupt():
                self.pidfds.clear()
                self.processes.clear()

    def _end(self, overdue):
        stuck = [number for number in self.processes if overdue and is_busy(self.ring, number)]
        if stuck:
            self._send(signal.SIGTERM, stuck)
            self._reap(TERM_S)
            self._send(signal.SIGKILL, stuck)
        for number, seconds in ((None, GRACE_S), (signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
            self._send(number, self.processes)
            self._reap(seconds)
            if not self.processes:
                return
        # On a loaded machine, a killed process may wait that long for a processor to end on. A zombie whose pidfd is
        # not readable has threads that still wait for one.
        deadline = time.monotonic() + LACK_S
        while time.monotonic() < deadline and any(
            state_of(process.pid) in ("R", "Z") for process in self.processes.values()
        ):
            self._reap(KILL_S)
        self._reap(0.0)  # workers that ended after the last check
        if not self.processes:
            return
        self.stuck = True
        for number, process in list(self.processes.items()):
            log.warning("%s", unkillable(number, process.pid, KILL_S))
            with no_interrupt():
                self._forget(number)
                # Otherwise the interpreter's exit would wait for it.
                multiprocessing.process._children.discard(self.processes.pop(number))

    def _send(self, number, workers):
        """Send a signal (None: no signal) to those of the workers that exist."""
        for fd in [self.pidfds[worker] for worker in workers if number and worker in self.pidfds]:
            # Not through multiprocessing, which believes that a worker is dead if the fork server is.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fd.number(), number)

    def _reap(self, seconds):
        deadline = time.monotonic() + seconds
        while self.processes:
            left = max(0.0, deadline - time.monotonic())
            gone = self._ended(left)
            for number in gone:
                self._join(self.processes[number], left)
            with no_interrupt():  # once for all that have ended: entering it takes as long as handling one of them
                for number in gone:
                    self._forget(number)
                    _close(self.processes.pop(number))
                    self.ring.recover(number + 1)
                    self.retiring.discard(number)
            if left == 0.0 and self.processes:
                return

    def abandon(self):
        """Give up the parent's workers in a forked child: this process's exit must not end them."""
        for process in self.processes.values():
            multiprocessing.process._children.discard(process)
        self.pidfds.clear()  # closes this process's copies
        if self.shared is not None:
            self.shared.close()
        self.poll.close()  # closes this process's copy; removing descriptors would change the parent's epoll, too


@contextlib.contextmanager
def _environment(variables):
    """Set environment variables until the end of the block: a process that starts in it inherits them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _close(process):
    """Release a process that has ended."""
    try:
        process.close()
    except ValueError:  # other code has reaped it, so that multiprocessing believes forever that it lives
        multiprocessing.process._children.discard(process)


def pickling_error(job, error, needs, instead):
    """Return an exception that names the part of the job that cannot be pickled; None: all can be.

    `needs` is the option that needs pickling, `instead` the one that does not.
    """
    for name, part in zip(PARTS, parts_of(job), strict=True):
        culprit = _unpicklable(part, name)
        if culprit:
            kind = type(error) if type(error) in (AttributeError, TypeError) else pickle.PicklingError
            return kind(
                f"{culprit} cannot be pickled, which {needs} needs: {error}. Define functions and classes at the top "
                "level of a module, and open files, connections and locks in the worker, where they are first used; "
                f"or use {instead}"
            )
    return None


def _unpicklable(value, name, above=()):
    """Return the dotted name of the part of `value` that cannot be pickled.

    None: `value` can be pickled, or is among the objects `above` it.
    """
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


def _has_folder():
    """Return whether the working directory exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _leave_server():
    """Forget the fork server in a forked child: multiprocessing would wait for another process's child."""
    server = forkserver._forkserver
    server._lock = threading.Lock()  # a thread that does not exist here may have held it
    if server._forkserver_pid is not None:
        with contextlib.suppress(OSError):  # other code has closed it
            os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = server._forkserver_pid = server._forkserver_address = None
        server._forkserver_authkey = None


os.register_at_fork(after_in_child=_leave_server)
