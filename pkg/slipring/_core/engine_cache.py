"""The engine that a loader keeps from epoch to epoch: its segment, and its persistent workers."""

import dataclasses
import weakref

from slipring._core._ring import Meter
from slipring._core.engine import Engine
from slipring._core.process import ForkLock
from slipring._core.weak_registry import WeakRegistry
from slipring.stats import Counters


class DeviceCounters:
    """Counters of the batches that move to devices."""

    moved_batches = staged_batches = 0


class EngineLease:
    """A callable that returns the kept engine to the cache when the iteration ends.

    If an iteration is dropped with its engine, the lease ends without a call.
    """

    def __init__(self, engines):
        self.engines = engines

    def __call__(self, engine):
        self.engines.take_back(engine)


class EngineCache:
    """The engine that is kept from epoch to epoch, and temporary engines for concurrent iterations.

    A segment serves one iteration at a time. If another iterator is alive, an iteration gets an engine of its own,
    which ends with it.
    """

    def __init__(self):
        self.counters = Counters()
        self.moves = DeviceCounters()
        self.inline = Meter()  # batches that were made without workers
        self.counters.add(self.inline)
        self._lock = ForkLock()
        self.engine = None  # the one that is kept
        self._loan = None  # weak reference to an iteration's `EngineLease`
        self.iterators = WeakRegistry()  # `close` closes these; each iteration adds itself

    def locked(self):
        """Return the lock of the loader."""
        return self._lock.here()

    @property
    def lent(self):
        """bool: whether an iteration uses the kept engine."""
        return self._loan is not None and self._loan() is not None

    def lend(self, options, job, live_on=False):
        """Return (engine, on_end) for one iteration; `on_end` takes the engine back.

        Persistent workers began with another job. `live_on`: they already know the state that this job resumes. A
        replacement for one of them begins with this job.
        """
        with self.locked():
            kept = self.engine
            if kept is not None and kept.foreign:
                kept, self.engine, self._loan = None, None, None  # it is the parent's: this process makes its own
            if self.lent:
                return Engine(options, job, self.counters), _shut_down
            if kept is not None and not kept.serves(options):
                kept.shut_down()
                kept = None
            if kept is None:
                kept = self.engine = Engine(options, job, self.counters)
            elif kept.started and job.resume is not None and not live_on:
                kept.stop_workers()  # persistent workers do not know the position to resume from
            kept.options = options
            kept.pool.job = job.begun_in(kept.running + 1)
            loan = EngineLease(self)
            self._loan = weakref.ref(loan)
            return kept, loan

    def forget_workers(self):
        """End persistent workers: the next iteration starts new ones, with seeds of its own."""
        with self.locked():
            if self.engine is not None and not self.lent and not self.engine.foreign:
                self.engine.stop_workers()

    def take_back(self, engine):
        """Take the engine back when its iteration ends. An engine that failed is not kept."""
        if engine is self.engine:
            self._loan = None
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
            moved_batches=self.moves.moved_batches,
            staged_batches=self.moves.staged_batches,
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
            self.engine = self._loan = None  # only now, so that an interrupted close can be repeated


def _shut_down(engine):
    engine.shut_down()
