"""What a loader keeps from epoch to epoch: the segment, and persistent workers."""

import os
import threading
import weakref

from slipring._ring import Meter
from slipring.engine import Engine
from slipring.stats import Tally


class Keeper:
    """Lends out one engine that is kept, and temporary ones beside it."""

    def __init__(self):
        self.tally = Tally()
        self.inline = Meter()  # batches that were made without workers
        self.tally.add(self.inline)
        self.lock, self.pid = threading.Lock(), os.getpid()
        self.engine = None
        self.lent = False
        self.iterators = weakref.WeakSet()

    def lend(self, options, job):
        """Return (engine, on_end) for one iteration; `on_end` takes the engine back."""
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
            elif kept.started and job.resume is not None:
                kept.stop_workers()  # they persist, and do not know where to go on
            if not kept.started:
                kept.pool.job = job
            self.lent = True
            return kept, self._take_back

    def _take_back(self, engine):
        if engine is self.engine:
            self.lent = False

    def stats(self, slots):
        """Return the `Stats` of all iterations so far."""
        engine = self.engine
        return self.tally.stats(None if engine is None or not engine.alive else engine.ring.info, slots)

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
