"""What a loader keeps from epoch to epoch: the segment, and persistent workers."""

import dataclasses
import os
import threading
import weakref

from slipring._ring import Meter
from slipring.engine import Engine
from slipring.stats import Tally


class Moves:
    """Counts batches on their way to devices."""

    moved_batches = staged_batches = 0


class Keeper:
    """Lends out one engine that is kept, and temporary ones beside it."""

    def __init__(self):
        self.tally = Tally()
        self.moves = Moves()
        self.inline = Meter()  # batches that were made without workers
        self.tally.add(self.inline)
        self.lock, self.pid = threading.Lock(), os.getpid()
        self.engine = None
        self.lent = False
        self.iterators = weakref.WeakSet()

    def lend(self, options, job, live_on=False):
        """Return (engine, on_end) for one iteration; `on_end` takes the engine back.

        Workers that persist have begun with another job: `live_on` says that they know what it resumes. Who
        replaces one of them begins with this one.
        """
        if self.pid != os.getpid():
            # In a forked child: another thread of the parent may have held the lock.
            self.lock, self.pid = threading.Lock(), os.getpid()
        with self.lock:
            kept = self.engine
            if kept is not None and kept.foreign:
                kept, self.engine, self.lent = None, None, False  # the parent's: this process has its own
            if self.lent:
                return Engine(options, job, self.tally), _shut_down
            if kept is not None and (not kept.alive or kept.options != options):
                kept.shut_down()
                kept = None
            if kept is None:
                kept = self.engine = Engine(options, job, self.tally)
            elif kept.started and job.resume is not None and not live_on:
                kept.stop_workers()  # they persist, and do not know where to go on
            kept.pool.job = job.begun_in(kept.running + 1)
            self.lent = True
            return kept, self._take_back

    def forget_workers(self):
        """End workers that persist: the next iteration's begin anew, with seeds of its own."""
        with self.lock:
            if self.engine is not None and not self.lent and not self.engine.foreign:
                self.engine.stop_workers()

    def _take_back(self, engine):
        if engine is self.engine:
            self.lent = False

    def stats(self, slots):
        """Return the `Stats` of all iterations so far."""
        engine = self.engine
        alive = engine is not None and engine.alive
        stats = self.tally.stats(engine.ring.info if alive else None, slots)
        pins = engine.attachment if alive else None
        return dataclasses.replace(
            stats,
            moved_batches=self.moves.moved_batches,
            staged_batches=self.moves.staged_batches,
            registered_bytes=0 if pins is None else pins.registered_bytes,
            registration_refused=None if pins is None else pins.refused,
        )

    def close(self):
        """End iterations and workers."""
        for iterator in list(self.iterators):
            iterator.close()
        with self.lock:
            engine, self.engine, self.lent = self.engine, None, False
        if engine is not None:
            engine.shut_down()


def _shut_down(engine):
    engine.shut_down()
