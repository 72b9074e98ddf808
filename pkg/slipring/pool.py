"""The workers of one segment: started, watched, replaced, stopped."""

import contextlib
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
from slipring.errors import WorkerDied
from slipring.worker import process_main, run

GRACE_S = 5.0  # for a worker to end its batch before it is terminated
TERM_S = 2.0  # and after SIGTERM, before it is killed


class InlinePool:
    """No workers: the consumer fills the slots itself when it needs one."""

    stuck = False

    def __init__(self, ring, job):
        self.ring = ring
        self.job = job
        self.worker = None
        self.fill = None  # what is being made, or was when Ctrl-C came

    def start(self, base_seed):
        """Make the worker that lives in the consumer."""
        self.worker = self.job.worker(self.ring, 0, "inline")

    def advance(self):
        """Do what is dispatched. Whoever catches Ctrl-C and goes on gets the interrupted batch next."""
        if self.fill is not None and self.fill.range is None:
            self.fill.rewind()
        while self.fill is not None or self._claim():
            self.worker.work(self.fill)
            self.fill = None

    def _claim(self):
        self.fill = self.ring.claim(1, 0)
        return self.fill is not None

    def take_error(self, ticket):
        """Return the exception behind the error record of a ticket."""
        return self.worker.errors.pop(ticket, None)

    def begin_run(self):
        """Nothing to forget."""

    def check(self):
        """Nobody to die."""

    def stop(self):
        """Nobody to stop; what was interrupted goes back, and the dataset's iterator may go."""
        fill, self.fill = self.fill, None
        if fill is not None:
            self.worker.give_up(fill)
        if self.worker is not None:
            self.worker.forget_run()


class ThreadPool:
    """Workers as threads of the consumer's process, for datasets whose work releases the GIL."""

    def __init__(self, ring, job):
        self.ring = ring
        self.job = job
        self.threads = []

    def start(self, base_seed):
        """Start all threads."""
        for number in range(self.job.num_workers):
            thread = threading.Thread(
                target=_thread_main,
                args=(self.ring, number, self.job, base_seed),
                name=f"slipring-worker-{number}",
                daemon=True,
            )
            thread.start()
            self.threads.append(thread)

    @property
    def stuck(self):
        """bool: whether threads are left that did not end when they were told to."""
        return bool(self.threads) and self.ring.closed

    def begin_run(self):
        """Nothing to forget."""

    def check(self):
        """Raise WorkerDied if a thread has ended although nobody told it to."""
        for number, thread in enumerate(self.threads):
            if not thread.is_alive() and not self.ring.closed:
                raise WorkerDied(
                    f"thread worker {number} has ended (its worker_init_fn called sys.exit, or slipring "
                    "itself raised: the traceback is on stderr)",
                    worker=number,
                    pid=os.getpid(),
                    exitcode=None,
                    indices=[],
                )

    def stop(self):
        """Wait for all threads to end their batch. The segment is closed already."""
        deadline = time.monotonic() + GRACE_S
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        # A thread stuck in the dataset keeps the segment mapped, by its own reference.
        self.threads = [t for t in self.threads if t.is_alive()]


def _thread_main(ring, number, job, base_seed):
    run(job.worker(ring, number, "thread"), base_seed)


class ProcessPool:
    """Workers as processes, each watched by a pidfd.

    Parameters
    ----------
    ring : Ring
    job : Job
    method : {'fork', 'forkserver', 'spawn'}
    max_restarts : int or None
        How often a dead worker is replaced; None: a death is raised.
    on_respawn : callable
        Called for every replacement.
    """

    stuck = False

    def __init__(self, ring, job, method, max_restarts, on_respawn):
        self.ring = ring
        self.job = job
        self.context = multiprocessing.get_context(method)
        self.max_restarts = max_restarts
        self.on_respawn = on_respawn
        self.processes = {}
        self.pidfds = {}
        self.deaths = {}  # ticket, or ("start", number) -> how many workers died over it in this run
        self.poll = select.poll()

    def start(self, base_seed):
        """Start all processes."""
        self.base_seed = base_seed
        if self.context.get_start_method() != "fork":
            # Now, because its own start ends with SIGINT unblocked, whatever it was before.
            resource_tracker.ensure_running()
        for number in range(self.job.num_workers):
            with _no_interrupt() as mask:
                self._start_one(number, mask)

    def _start_one(self, number, mask):
        # With SIGINT blocked: between fork and the worker's handler it would print a second traceback.
        process = self.context.Process(
            target=process_main,
            args=(self.ring, number, self.job, self.base_seed, mask),
            name=f"slipring-worker-{number}",
            daemon=True,
        )
        try:
            process.start()
        except Exception as error:
            explained = self._explain(error)
            if explained is None:
                raise
            raise explained from error
        self._watch(number, process, mask)

    def _watch(self, number, process, mask):
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:  # it has died already, and somebody (the forkserver) has waited for it
            self.processes[number] = process
            self._died(number, mask)
            return
        except OSError:  # no descriptor left: what cannot be watched is not kept
            process.kill()
            process.join()
            _close(process)
            raise
        self.processes[number] = process
        self.pidfds[number] = fd
        self.poll.register(fd, select.POLLIN)

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
                    f"needs: {error}. Define it at the top level of a module, or use start_method='fork'"
                )
        return None

    # ---- death

    def check(self):
        """Look for dead workers; replace them or raise `WorkerDied`."""
        if not self.pidfds:
            return
        ready = {fd for fd, _ in self.poll.poll(0)}
        for number in [n for n, fd in self.pidfds.items() if fd in ready]:
            with _no_interrupt() as mask:  # a worker that is neither here nor replaced would be waited for
                self._died(number, mask)

    def _died(self, number, mask):
        process = self.processes.pop(number)
        self._forget(number)
        process.join()
        party = number + 1
        serving = self.ring.party(party)[1] == SERVING
        in_flight = self.ring.in_flight(party)
        self.ring.recover(party)
        error = self._error(number, process, in_flight)
        _close(process)
        if self.max_restarts is None or not self._may_restart(number, serving, in_flight, error):
            raise error
        self.on_respawn()
        self._start_one(number, mask)

    def _may_restart(self, number, serving, in_flight, error):
        """Count a death against what it came from; says so in `error` when that was once too often."""
        if serving and not in_flight:
            return True  # somebody killed an idle worker: no batch is to blame
        key = in_flight[0][0] if serving else ("start", number)  # it works on the lowest ticket
        self.deaths[key] = self.deaths.get(key, 0) + 1
        if self.deaths[key] <= self.max_restarts:
            return True
        if serving:
            error.indices = in_flight[0][1] or []
            where = f"over batch {key}" + (f", indices {_brief(error.indices)}" if error.indices else "")
        else:
            where = "before it could serve"
        error.args = (
            f"{error.args[0]}\nWorkers have died {self.deaths[key]} times {where}: more than "
            f"max_restarts={self.max_restarts}.",
        )
        return False

    def begin_run(self):
        """Tickets begin anew, and what died over them is forgotten."""
        self.deaths.clear()

    def _forget(self, number):
        fd = self.pidfds.pop(number, None)
        if fd is not None:
            self.poll.unregister(fd)
            os.close(fd)

    def _error(self, number, process, in_flight):
        code = process.exitcode
        asked = [i for _, indices in in_flight if indices is not None for i in indices]
        batches = ", ".join(f"batch {ticket}" for ticket, _ in in_flight) or "no batch"
        return WorkerDied(
            f"worker {number} (pid {process.pid}) {_manner(code)} while it had {batches} in flight"
            f"{f', indices {_brief(asked)}' if asked else ''}. {_likely(code)}",
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
            ended = {fd for fd, _ in self.poll.poll(None if left is None else left * 1000)}
            for number in [n for n, fd in self.pidfds.items() if fd in ended]:
                self.processes[number].join(left)
                with _no_interrupt():
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


@contextlib.contextmanager
def _no_interrupt():
    """Put Ctrl-C off until the end of the block; gives the signal mask of before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # asked first: blocking may raise what was pending
    handler = signal.getsignal(signal.SIGINT)
    came = []
    # The mask is for what is started here. It is not enough: a native thread may take the signal, and then
    # Python's handler runs in the main thread all the same.
    deferred = callable(handler) and threading.current_thread() is threading.main_thread()
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if deferred:
            signal.signal(signal.SIGINT, lambda *what: came.append(what))
        yield before
    finally:
        try:
            if deferred:
                signal.signal(signal.SIGINT, handler)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if came:
            handler(*came[0])


def _close(process):
    """Let go of a process that has ended."""
    try:
        process.close()
    except ValueError:  # somebody else waited for it, so that multiprocessing believes it alive for ever
        multiprocessing.process._children.discard(process)


def _manner(code):
    if code is None:
        return "has gone (its exit code went to a waitpid or SIGCHLD handler outside slipring)"
    if code >= 0:
        return f"left with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _likely(code):
    if code == -signal.SIGKILL:
        return (
            "Likely cause: the kernel's OOM killer (see dmesg), the container's memory limit, or a kill -9; "
            "fewer workers or a smaller prefetch_factor need less memory."
        )
    if code == -signal.SIGSEGV:
        return (
            "Likely cause: a crash in native code that the dataset uses; python -X faulthandler shows where."
        )
    if code == -signal.SIGBUS:
        return "Likely cause: a file that the dataset maps was truncated, or its file system is full."
    if code == -signal.SIGABRT:
        return "Likely cause: an assertion or memory corruption in native code; see stderr."
    if code is not None and code >= 0:
        return "Likely cause: the dataset or a library called sys.exit, or the worker could not start."
    return "Likely cause: something outside sent the signal."


def _brief(indices):
    shown = ", ".join(repr(i) for i in indices[:16])
    return f"[{shown}{f', ... {len(indices)} in all' if len(indices) > 16 else ''}]"


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
