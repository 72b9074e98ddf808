"""The engine: it owns a segment and its workers, and iterations run on it."""

import atexit
import dataclasses
import logging  # noqa: F401 - its fork hook then takes its lock after `_importing`, as the import of the pool does
import multiprocessing.util  # its exit handler terminates workers; handlers that are registered later run before it
import os
import threading
import weakref
from functools import partial

from slipring._core.ring._ring import Ring
from slipring._core.ring._segment import Meter
from slipring._core.ring.process import ForkLock, Owner, lock_held_by_forks
from slipring._core.ring.signals import no_interrupt
from slipring._core.ring.weak_registry import WeakRegistry
from slipring._core.workers.concurrency import Concurrency
from slipring._core.workers.deaths import Restarts
from slipring._core.workers.worker_pool import LoaderNumber
from slipring.errors import Closed, DescriptorClosed
from slipring.stats import Counters

SPARE_SLOTS = 8  # free slots that an engine must have beyond its tasks in flight to serve more workers than before

_live = WeakRegistry()
_importing = lock_held_by_forks()  # a forked child would wait forever for a half-imported module


class Engine:
    """A segment and its workers. The segment is made at once, the workers when an iteration begins."""

    def __init__(self, options, job, counters, number=None):
        self.options = options
        self.counters = counters
        self.number = number  # the loader's, in a pool that several processes share
        self.worker_capacity = options.room
        size = getattr(options if options.batch_sampler is None else options.batch_sampler, "batch_size", None)
        by = f"batch_size={size}" if options.batch_sampler is None or type(size) is int else "batch_sampler"
        self.ring = Ring(
            options.n_slots,
            self.worker_capacity + 1,
            os.fspath(options.memory.backing),
            options.memory.slot_bytes or 0,
            label=f"{type(job.dataset).__name__}, {by}",
            node=job.node,
            readers=options.readers,
        )
        self.node = job.node
        self.meter = self.ring.meter
        counters.meters.append(self.meter)
        self.memory = None  # of worker processes
        self.pool = self._pool(job)
        self.started = False
        self.running = 0  # the current iteration's number
        self.unfinished = None  # the same, until that iteration has ended
        self.busy_slot = -1  # a slot that a worker still had when the last iteration ended
        self.idle = False  # no iteration runs or begins: any thread may reap retired workers
        self.overdue = False  # the last iteration ended because a batch had not come in time
        self.pinned_slots = None  # an object of a higher layer; closed before the segment
        self.owner, self.lock = Owner(), ForkLock()
        self.alive = True
        _live.add(self)
        _end_before_join()

    def _pool(self, job):
        # Imported lazily: this import takes half of `import slipring`. Compiled modules that register a class with an
        # ABC when they are imported, as numpy's do, swallow exceptions of signal handlers. So Ctrl-C is deferred.
        with _importing, no_interrupt():
            from slipring._core.passes.reporting import look
            from slipring._core.workers.process_pool import ProcessPool
            from slipring._core.workers.thread_pool import ThreadPool

        self.look = look

        options = self.options
        # No reference to the engine itself: a cycle would keep the workers of a dropped loader.
        restarts = Restarts(options.workers.max_restarts if job.respawns else None, self.counters.respawned)
        if options.workers.pool is not None:
            with _importing, no_interrupt():
                from slipring._core.workers.node_pool import NodePool
            return NodePool(self.ring, job, restarts, self.number)
        if options.method == "thread":
            return ThreadPool(self.ring, job, restarts)
        pool = ProcessPool(self.ring, job, options.method, restarts, options.context)
        self.memory = self.counters.memory
        self.memory.watch(pool)
        return pool

    @property
    def inherited(self):
        """bool: whether this process has inherited the engine by a fork."""
        return not self.owner.is_here

    def serves(self, options):
        """Return whether an iteration with these options can use this engine.

        The number of workers may differ if they fit.
        """
        if not self.alive or self.options == options:
            return self.alive
        if not 0 < options.num_workers <= self.worker_capacity:
            return False
        needed = options.prefetch_depth + options.preload_depth + SPARE_SLOTS
        if needed > self.ring.n_slots and options.memory.slots is None:
            return False
        return dataclasses.replace(self.options, num_workers=options.num_workers) == options

    @property
    def by_turns(self):
        """bool: whether a batch depends on the worker that makes it, so that workers take batches in turn."""
        return self.options.rng == "worker" or self.pool.job.is_stream or self.pool.job.tracked

    def resize(self, num_workers):
        """Change the number of workers during an iteration; return False if only the next one can have it.

        Surplus workers retire after their batch. The caller does not wait for them.
        """
        with self.lock.here():
            if self.by_turns or not self.started or self.ring.closed or num_workers > self.worker_capacity:
                return False
            if self.options.workers.pool is not None:
                return False
            self.pool.resize(num_workers)
            return True

    def begin_iteration(self, base_seed):
        """Start workers if necessary, make the tasks of earlier iterations stale, and return the iteration's number."""
        with self.lock.here():
            self.idle = False
        self.running += 1
        self.overdue = False
        self.ring.begin_iteration(self.running)
        self.pool.restarts.begin_iteration()
        if self.pool.resizing and not self.ring.closed:
            self.pool.reap_retired()
        wanted = self.options.num_workers
        if self.started and (self.ring.closed or not (self.pool.target == wanted or self.resize(wanted))):
            self.stop_workers()  # the start was interrupted, or the workers must learn their new number
            if self.pool.stuck:
                self.shut_down()
                raise Closed("workers of the iteration before could not be ended: iterate again for new ones")
        if not self.started:
            if self.ring.closed:
                self.ring.reopen()
            try:
                self.started = True  # before the start: an interrupted start must be ended
                self.pool.start(base_seed)
            except BaseException:
                self.shut_down()  # all or none: the next iteration starts them, and another segment
                raise
        self.unfinished = self.running
        return self.running

    def end_iteration(self, iteration, tasks):
        """Cancel the tasks in flight; persistent workers stay.

        The call can be repeated if it was interrupted, but not after another iteration has begun.
        """
        if self.ring.closed or self.unfinished != iteration:
            return
        self.running += 1
        self.ring.begin_iteration(self.running)
        for task in tasks:
            if not self.ring.cancel(task.slot, task.gen):
                self.busy_slot = task.slot
        if not self.options.persistent_workers:
            if self.memory is not None:
                self.memory.measure()
            self.stop_workers()
            if self.pool.stuck:
                self.shut_down()  # otherwise they would also serve the next iteration, next to its own workers
        self.unfinished = None
        self.idle = True
        self.reap_retired()

    def reap_retired(self):
        """Reap retired workers between two iterations. It does not wait, and any thread may call it."""
        if self.inherited or not (self.idle and self.pool.resizing) or not self.lock.here().acquire(blocking=False):
            return
        try:
            if self.idle and not self.ring.closed:
                self.pool.reap_retired()
        finally:
            self.lock.here().release()

    def stop_workers(self):
        """End the workers; the segment stays for the next ones."""
        with self.lock.here():
            self.ring.close()
            if self.started:
                self.pool.stop(self.overdue)
                self.started = False  # only now, so that an interrupted stop can be repeated

    def shut_down(self):
        """End the workers and the segment; leases that are still held keep the memory mapped."""
        if self.inherited or not self.alive:
            return
        self.stop_workers()
        with self.lock.here():
            if self.alive:
                self.alive = False
                self.counters.fold(self.ring.meter, self.ring.info, self._last_look())
                if self.memory is not None:
                    self.memory.forget(self.pool)
                _live.discard(self)
                if self.pinned_slots is not None:
                    self.pinned_slots.close()
                self.ring.release_free()
                self.pool.close()

    def _last_look(self):
        """Return a snapshot of the segment for later reports; None if there is none."""
        if self.ring.meter.batches == 0 or exiting():
            return None
        try:
            return self.look(self.ring)
        except (DescriptorClosed, OSError):  # other code has closed the descriptor: the report contains less
            return None

    def __del__(self):
        # An engine without a segment has nothing to end, nor has one that the exit has ended.
        if getattr(self, "alive", False):
            self.shut_down()


_exit_begun = threading.Event()
_with_threads = WeakRegistry()  # objects with a thread that uses an engine; their `stop` ends it

# Returns whether the exit has begun. A __del__ needs its own reference: the module may be gone by then.
exiting = _exit_begun.is_set


def stop_at_exit(thing):
    """Register an object whose `stop` is called at the interpreter's exit, before all engines are shut down."""
    _with_threads.add(thing)


@atexit.register
def _shut_down_all():
    _exit_begun.set()
    for thing in _with_threads:
        thing.stop()
    for engine in _live:
        engine.shut_down()


_finalizer = None  # of this process


def _end_before_join():
    """Register a finalizer with multiprocessing that ends worker processes.

    At the end of a process that multiprocessing started, it sends SIGTERM to its daemons and joins them without a
    limit, and older Pythons call no `atexit` there. Workers ignore that signal if the program handles it. A finalizer
    with a priority of 0 or more runs earlier.
    """
    global _finalizer
    if _finalizer is None or not _finalizer.still_active():  # a started process forgets its parent's
        _finalizer = multiprocessing.util.Finalize(None, _end_processes, exitpriority=0)


def _end_processes():
    """Shut down engines with worker processes; threads may still iterate over the others."""
    _exit_begun.set()
    for engine in _live:
        if engine.memory is not None:
            engine.shut_down()


def stay_if_exiting():
    """Block a daemon thread at the interpreter's exit, so that it does not report the end of its loader."""
    if _exit_begun.is_set() and threading.current_thread().daemon:
        threading.Event().wait()


def _abandon_all():
    global _with_threads, _finalizer
    _finalizer = None
    _with_threads = WeakRegistry()  # those were the parent's
    for engine in _live:
        engine.pool.abandon()


os.register_at_fork(after_in_child=_abandon_all)


class EngineCache:
    """The engine that is kept from epoch to epoch, and temporary engines for concurrent iterations.

    A segment serves one iteration at a time. If another iterator is alive, an iteration gets an engine of its own,
    which ends with it.
    """

    def __init__(self):
        self.counters = Counters()
        self.local = Meter()  # batches that were made without workers, or by another process
        self.counters.meters.append(self.local)
        self.number = LoaderNumber()  # in the pools that it shares with other processes
        self._concurrency = None  # of such batches
        self._lock = ForkLock()
        self.engine = None  # the one that is kept
        # Weak reference to the function that returns the kept engine; an iteration that is dropped drops it.
        self._lease = None
        self.iterators = WeakRegistry()  # `close` closes these; each iteration adds itself

    def locked(self):
        """Return the lock of the loader."""
        return self._lock.here()

    @property
    def lent(self):
        """bool: whether an iteration uses the kept engine."""
        return self._lease is not None and self._lease() is not None

    def lend(self, options, job, live_on=False):
        """Return (engine, on_end) for one iteration; `on_end` takes the engine back.

        Persistent workers began with another job. `live_on`: they already know the state that this job resumes. A
        replacement for one of them begins with this job.
        """
        with self.locked():
            kept = self.engine
            if kept is not None and kept.inherited:
                kept, self.engine, self._lease = None, None, None  # it is the parent's: this process makes its own
            if self.lent:
                return Engine(options, job, self.counters, self.number), Engine.shut_down
            if kept is not None and not (kept.serves(options) and kept.node == job.node):
                kept.shut_down()
                kept = None
            if kept is None:
                kept = self.engine = Engine(options, job, self.counters, self.number)
            elif kept.started and job.resume is not None and not live_on:
                kept.stop_workers()  # persistent workers do not know the position to resume from
            kept.options = options
            kept.pool.job = job.begun_in(kept.running + 1)
            lease = partial(self.take_back)
            self._lease = weakref.ref(lease)
            return kept, lease

    def concurrency(self, fetch_threads):
        """Return the `Concurrency` of iterations without workers."""
        if self._concurrency is None or self._concurrency.most != fetch_threads:
            self._concurrency = Concurrency(fetch_threads)
        return self._concurrency

    def take_back(self, engine):
        """Take the engine back when its iteration ends. An engine that failed is not kept."""
        if engine is self.engine:
            self._lease = None
            if not engine.alive:
                self.engine = None

    def stats(self, slots):
        """Return the `Stats` of all iterations so far."""
        engine = self.engine
        alive = engine is not None and engine.alive
        if alive:
            engine.reap_retired()
        stats = self.counters.stats(engine.ring.info if alive else None, engine.ring.n_slots if alive else slots)
        pins = engine.pinned_slots if alive else None
        return dataclasses.replace(
            stats,
            registered_bytes=0 if pins is None else pins.registered_bytes,
            registration_refused=None if pins is None else pins.refused,
        )

    def end_iterations(self, reason=None):
        """Close all iterations; see `Iteration.close` for `reason`."""
        for iterator in self.iterators:
            iterator.close(reason)

    def close(self, reason=None):
        """End iterations and workers."""
        self.end_iterations(reason)
        with self.locked():
            if self.engine is not None:
                self.engine.shut_down()
            self.engine = self._lease = None  # only now, so that an interrupted close can be repeated
            if self._concurrency is not None:
                self._concurrency.close()
