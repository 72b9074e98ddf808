"""One job of the run at every step, in a process of its own: see tests/fault/steps.py.

python -m tests.fault.step_rounds KIND MODE BUILD QUICK SEED
"""

import contextlib
import ctypes
import dataclasses
import faulthandler
import gc
import json
import logging
import os
import random
import resource
import signal
import sys
import time
from collections import Counter

from tests.fault import points
from tests.fault.steps import COLUMNS, MODES, MUST_BE_ZERO

POINTS = points.load(sys.argv[3])

import slipring.pool  # noqa: E402
from slipring.deaths import manner  # noqa: E402
from slipring.errors import LoaderTimeout, WorkerDied  # noqa: E402
from tests.fault import mortal  # noqa: E402
from tests.fault.procs import state, until  # noqa: E402
from tests.fault.rounds import Mode, compare, noted  # noqa: E402
from tests.leaks import Snapshot  # noqa: E402

HOWS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, 0)
HANG_S = 120  # of one round
TIMEOUT_S = 0.1  # of the loader: how long a stopped worker is waited for
TRIES = 3
SEED = 7  # of every loader
SET_CHILD_SUBREAPER = 36


@dataclasses.dataclass
class Scene(Mode):
    """A mode of this run."""

    workers: int = 2
    batches: int = 10
    epochs: int = 2
    init: bool = False  # with a worker_init_fn: the consumer waits for it
    early: bool = False  # before each epoch another one is begun, and left

    def loader(self, seed, **more):
        if not self.init:
            more.setdefault("worker_init_fn", None)
        if self.data == "Kept":
            more["collate_fn"] = mortal.KeepingCollate()
        return super().loader(seed, **more)


@dataclasses.dataclass(frozen=True)
class Order:
    """At which point somebody is struck, how, and after how many hits."""

    name: str
    how: int
    skip: int = 0
    party: int = points.ANY_WORKER


class Job:
    """The rounds of a kind of death in a mode."""

    def __init__(self, kind, mode, quick, rng):
        self.kind, self.rng, self.quick = kind, rng, quick
        self.mode = Scene.of(MODES[mode])
        self.counts = Counter(dict.fromkeys((*COLUMNS, *MUST_BE_ZERO), 0))
        self.missed = []
        self.details = []
        self.reached = set()  # by anybody, in any round
        self.ways = {}  # point -> (the orders by which somebody of our kind comes by it, how often)
        self.workers_strike = kind != "parent"
        self.slowest_s = 0.0
        self.want = None

    # ---- what one round is

    def epoch(self, loader, got):
        """Have the batches of one epoch put into `got`."""
        if self.mode.early:
            it = iter(loader)
            self.deliver(it, [], at_most=2)
            it.interrupt()
            it.close()
        self.deliver(iter(loader), got)

    def deliver(self, it, got, at_most=None):
        """Take the batches that come, and keep the last; whoever stands still goes on after a timeout."""
        while at_most is None or len(got) < at_most:
            try:
                batch = next(it)
            except LoaderTimeout:
                self.go_on()
                continue
            except StopIteration:
                return
            got.append(noted(batch))

    def go_on(self):
        """Let who was stopped go on."""
        for strike in POINTS.strikes():
            if strike.done and strike.how == signal.SIGSTOP:
                strike.how = 0
                # Gone: it belonged to an iteration that was left, whose workers are ended.
                until(lambda pid=strike.pid: state(pid) in ("T", "Z", ""), "it stands still")
                if state(strike.pid) == "T":
                    os.kill(strike.pid, signal.SIGCONT)

    def wrong(self, what):
        self.counts["wrong"] += 1
        self.details.append(what)

    def compare(self, epoch, got, want, orders):
        """Count in what an epoch's batches are not what they are to be."""
        found = Counter()
        compare(got, want, self.mode, found)
        self.counts.update(found)
        self.counts["batches"] += len(got)
        if found.total():
            self.details.append(f"epoch {epoch} after {orders}: {dict(found)}")

    # ---- the kinds

    def respawn(self, orders):
        """Whoever dies is replaced, and nothing is missing. Who only stands still is not replaced."""
        options = {"on_worker_death": "respawn", "max_restarts": 1000}
        if self.kind == "stop":
            options["timeout"] = TIMEOUT_S
        with self.mode.loader(SEED, **options) as loader:
            for epoch in range(self.mode.epochs):
                got = []
                self.epoch(loader, got)
                self.compare(epoch, got, self.want[epoch], orders)
            self.go_on()
            ring = loader._engine.ring
            at_work = [ring.in_flight(party) for party in range(1, self.mode.workers + 1)]
            if any(at_work) and not self.mode.early:
                self.wrong(f"after {orders} somebody still has {at_work}")
            if self.mode.data != "Kept" and ring.circulating != ring.n_slots:
                self.wrong(f"after {orders} {ring.circulating} of {ring.n_slots} slots circulate")
            if self.kind == "stop" and loader.stats().respawns:
                self.wrong(f"after {orders} {loader.stats().respawns} respawns")

    stop = respawn

    def raises(self, orders):
        """The death is raised, unless everything had been delivered; what came before it is right."""
        epoch, got = 0, []
        try:
            with self.mode.loader(SEED, on_worker_death="raise") as loader:
                for epoch in range(self.mode.epochs):
                    got = []
                    self.epoch(loader, got)
                    self.compare(epoch, got, self.want[epoch], orders)
        except WorkerDied as error:
            self.counts["raised"] += 1
            self.compare(epoch, got, self.part(epoch, got), orders)
            dead = [(s.worker, s.pid, -s.how or 3) for s in POINTS.strikes() if s.done]
            said = f"worker {error.worker} (pid {error.pid}) {manner(error.exitcode)}"
            if (error.worker, error.pid, error.exitcode) not in dead or said not in str(error):
                self.wrong(f"after {orders}: {error}, but {dead} died")

    def part(self, epoch, got):
        """What an epoch has to deliver of which so many batches came."""
        if self.mode.in_order:
            return self.want[epoch][: len(got)]
        came = {ids for ids, _ in got}
        return [batch for batch in self.want[epoch] if batch[0] in came]

    def parent(self, orders):
        """The consumer dies: all its workers go too."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self.live()
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        began = time.monotonic()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()  # its workers are ours now
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        died = any(strike.done and strike.party == points.CONSUMER for strike in POINTS.strikes())
        if code != (-signal.SIGKILL if died else 0):
            self.wrong(f"after {orders} the consumer ended with {code}")

    def live(self):
        """What the consumer does that dies."""
        with self.mode.loader(SEED, on_worker_death="respawn", max_restarts=1000) as loader:
            for _ in range(self.mode.epochs):
                self.epoch(loader, [])

    # ---- all rounds

    def round(self, *orders):
        """One round under these orders; returns whether the first was carried out."""
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        POINTS.forget()
        for slot, order in enumerate(orders):
            POINTS.order(order.name, order.how, order.skip, order.party, slot=slot)
        getattr(self, {"raise": "raises"}.get(self.kind, self.kind))(orders)
        self.counts["rounds"] += 1
        by_workers, by_consumer = POINTS.hits(True), POINTS.hits(False)
        self.reached |= set(by_workers) | set(by_consumer)
        for name, hits in (by_workers if self.workers_strike else by_consumer).items():
            if name not in self.ways:
                self.ways[name] = orders, hits
        carried_out = bool(orders) and POINTS.strikes()[0].done > 0
        self.counts["struck"] += sum(strike.done for strike in POINTS.strikes())
        return carried_out

    def peace(self):
        """Note what is to be delivered, and who comes by where when nobody dies."""
        self.want = []
        with self.mode.loader(SEED) as loader:
            for _ in range(self.mode.epochs):
                self.want.append([])
                self.epoch(loader, self.want[-1])
        self.round()
        self.round()

    def run(self):
        """Strike at every point that is come by, also at those that only deaths lead to."""
        if self.kind == "parent":  # what does the consumer do when a worker has died?
            for name in POINTS.hits(workers=True):
                self.round(Order(name, signal.SIGKILL))
        done = set()
        while more := [name for name in self.ways if name not in done]:
            for number, name in enumerate(more):
                self.strike_at(name, number)
            done.update(more)
        self.counts["points"] = len(done)

    def strike_at(self, name, number):
        """Strike at a point, in one way or in all."""
        hows = HOWS if self.kind in ("respawn", "raise") else (signal.SIGKILL,)
        if self.kind == "stop":
            hows = (signal.SIGSTOP,)
        if self.quick:
            hows = (hows[(number + len(name)) % len(hows)],)
        party = points.ANY_WORKER if self.workers_strike else points.CONSUMER
        for how in hows:
            for attempt in range(TRIES):
                before, hits = self.ways[name]
                skip = self.rng.randrange(hits) if attempt == 0 else 0
                if self.round(Order(name, how, skip, party), *before[: points.STRIKES - 1]):
                    break
            else:
                self.counts["missed"] += 1
                self.missed.append(f"{name} by {signal.Signals(how).name if how else '_exit'}")


def main():
    kind, mode, _, quick, seed = sys.argv[1:]
    # A crash is meant: no core, and nothing said for each of thousands.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    logging.getLogger("slipring").setLevel(logging.ERROR)
    slipring.pool.GRACE_S = slipring.pool.TERM_S = 0.5  # for those that stand still at the end
    if ctypes.CDLL(None, use_errno=True).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    job = Job(kind, mode, quick == "1", random.Random(f"{seed} {kind} {mode}"))
    job.peace()
    before = Snapshot.take()
    job.run()
    gc.collect()  # a raised exception and the frames that it came through refer to each other
    leaks = before.leaks(wait_s=10)
    faulthandler.cancel_dump_traceback_later()
    for what in leaks:
        job.wrong(what)
    result = {**job.counts, "details": job.details[:20], "names": POINTS.names, "slowest_s": job.slowest_s}
    print(json.dumps({**result, "missed_at": job.missed, "reached": sorted(job.reached)}))


if __name__ == "__main__":
    main()
