"""The common part of the jobs of the run at every step: rounds with orders, and a hit at each point.

A job is a process of its own, whose arguments are KIND MODE BUILD QUICK SEED: see tests/fault/steps.py.
"""

import ctypes
import dataclasses
import faulthandler
import gc
import json
import logging
import random
import resource
import signal
import sys
from collections import Counter

from tests.fault import points
from tests.fault.steps import COLUMNS, MUST_BE_ZERO
from tests.support.leaks import Snapshot

POINTS = points.load(sys.argv[3])
HOWS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, 0)
HANG_S = 600  # for one round
TRIES = 3
SET_CHILD_SUBREAPER = 36


@dataclasses.dataclass(frozen=True)
class Order:
    """An order: the point, the kind of hit, and the number of passes before it."""

    name: str
    how: int
    skip: int = 0
    participant: int = points.ANY_WORKER


class Job:
    """The rounds of a kind of death in a mode.

    Parameters
    ----------
    quick : bool
        Hit at each point in one way, not in all.
    """

    hows = HOWS
    participant = points.ANY_WORKER  # the process that is hit

    def __init__(self, kind, mode, quick, rng):
        self.kind, self.mode, self.quick, self.rng = kind, mode, quick, rng
        self.counts = Counter(dict.fromkeys((*COLUMNS, *MUST_BE_ZERO), 0))
        self.missed = []
        self.details = []
        self.reached = set()  # by any process, in any round
        self.ways = {}  # point -> (the orders that lead our participant to it, how often)

    def fault_free(self):
        """Learn the behaviour without hits."""
        self.round()

    def prepare(self):
        """Prepare a round, before its orders."""

    def one(self, orders):
        """Run a round; count its errors."""
        raise NotImplementedError

    def wrong(self, what):
        self.counts["wrong"] += 1
        self.details.append(what)

    def round(self, *orders):
        """Run one round with these orders; return whether the first one was executed."""
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        self.prepare()
        POINTS.forget()
        for slot, order in enumerate(orders):
            POINTS.order(order.name, order.how, order.skip, order.participant, slot=slot)
        self.one(orders)
        self.counts["rounds"] += 1
        by_workers, by_consumer = POINTS.hits(True), POINTS.hits(False)
        self.reached |= set(by_workers) | set(by_consumer)
        for name, hits in (by_consumer if self.participant == points.CONSUMER else by_workers).items():
            if name not in self.ways:
                self.ways[name] = orders, hits
        carried_out = bool(orders) and POINTS.strikes()[0].done > 0
        self.counts["interrupted"] += sum(strike.done for strike in POINTS.strikes())
        return carried_out

    def run(self):
        """Hit at every point that is passed, also at those that are passed only after deaths."""
        done = set()
        while more := [name for name in self.ways if name not in done]:
            for number, name in enumerate(more):
                self.strike_at(name, number)
            done.update(more)
        self.counts["points"] = len(done)

    def strike_at(self, name, number):
        """Hit at a point, in one way or in all."""
        hows = self.hows
        if self.quick:
            hows = (hows[(number + len(name)) % len(hows)],)
        for how in hows:
            for attempt in range(TRIES):
                before, hits = self.ways[name]
                skip = self.rng.randrange(hits) if attempt == 0 else 0
                if self.round(Order(name, how, skip, self.participant), *before[: points.STRIKES - 1]):
                    break
            else:
                self.counts["missed"] += 1
                self.missed.append(f"{name} by {signal.Signals(how).name if how else '_exit'}")


def main(make):
    """Run the job that the arguments name, and print its results; `make` returns a `Job`."""
    kind, mode, _, quick, seed = sys.argv[1:]
    # Crashes are intended: no core dumps, and no message for each one.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    logging.getLogger("slipring").setLevel(logging.ERROR)
    if ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    job = make(kind, mode, quick == "1", random.Random(f"{seed} {kind} {mode}"))
    job.fault_free()
    before = Snapshot.take()
    job.run()
    gc.collect()  # a raised exception and its frames refer to each other
    leaks = before.leaks(wait_s=10)
    faulthandler.cancel_dump_traceback_later()
    for what in leaks:
        job.wrong(what)
    result = {**job.counts, "details": job.details[:20], "names": POINTS.names}
    print(json.dumps({**result, "missed_at": job.missed, "reached": sorted(job.reached)}))
