"""A loader on a simulated clock, whose number of workers a real `Tuner` finds.

A test sets how long a batch and a step take, so the `Tuner`'s measurements do not depend on the machine.
"""

import dataclasses
from types import SimpleNamespace

from tests.support.inside import Tuner, tuning

MS = 1_000_000  # ns
LOOP_NS = 50_000  # between two batches, in addition to the step
ENDLESS = 1 << 40  # batches of an epoch


@dataclasses.dataclass
class Options:
    """The options of a loader that a `Tuner` reads."""

    num_workers: int
    prefetch_factor: int = 2
    persistent_workers: bool = True
    preload_depth: int = 0


class Tuned:
    """A loop over a loader with ``num_workers="auto"``; times in ms.

    Parameters
    ----------
    monkeypatch : pytest.MonkeyPatch
        It replaces the ring's clock by the simulated one: one job at a time.
    each, step : float
        The time of a worker for one batch, and of the loop for one step. A test may change both.
    on_cpu : float
        Share of `each` that needs one of the `cpus` processors.
    serves : int
        How many workers the shared resource serves at a time, such as 1 for a lock. The others wait their turn.
    begins : float
        How long a worker takes to start.
    stream : bool
        The workers of an iterable dataset: their number changes between two epochs.
    """

    def __init__(
        self, monkeypatch, each=8.0, step=0.0, on_cpu=0.02, cpus=2, workers=2, least=1, most=6, slots=None,
        begins=0.0, stream=False, persistent=True, serves=1 << 20,
    ):  # fmt: skip
        self.serves = serves
        self.each, self.step, self.on_cpu, self.begins, self.stream = each, step, on_cpu, begins, stream
        self.clock = 1
        self.monkeypatch = monkeypatch
        monkeypatch.setattr(tuning, "memory_available", lambda root: None)  # no limit
        self.tuner = Tuner(workers, least, most)
        self.cpus = self.tuner.cpus = cpus
        self.options = Options(workers, persistent_workers=persistent)
        self.meter = SimpleNamespace(batches=0, wait_ns=0, fetch_ns=0, collate_ns=0)
        self.pool = Pool(self, workers)
        ring = SimpleNamespace(meter=self.meter, n_slots=slots or 2 * most + 16)
        self.engine = SimpleNamespace(ring=ring, pool=self.pool, options=self.options)
        self.tried = []  # numbers of workers, in the order of the requests

    @property
    def tuning(self):
        return self.tuner.tuning

    def epoch(self, batches, tail=0.0):
        """Iterate over `batches`, the last of which takes `tail` longer; yield after each step."""
        self.monkeypatch.setattr(tuning, "now", lambda: self.clock)
        self._begin()
        took_at, look_next, in_flight, drawn, ended_at = self.clock, 0, [], 0, None
        try:
            for number in range(batches):
                if took_at >= look_next:
                    look_next = self._look(drawn == batches)
                asked = self.clock
                while drawn < batches and len(in_flight) < self.options.prefetch_factor * self.pool.target:
                    in_flight.append(self.pool.make(tail if drawn == batches - 1 else 0.0))
                    drawn += 1
                    if drawn == batches:
                        look_next = 0  # the tuner must learn of it, as in the real iterator
                ready_at, busy = in_flight.pop(0)
                took_at = self.clock = max(self.clock, ready_at)
                self.meter.wait_ns += took_at - asked
                self.meter.fetch_ns += busy
                self.meter.batches += 1
                self.clock += LOOP_NS + int(self.step * MS)
                yield number
            ended_at = self.clock
        finally:
            self.tuner.end(ended_at or took_at)  # the program's actions after a break are unknown

    def settle(self, batches=ENDLESS, take=None, between=0.0, tail=0.0):
        """Iterate until the search has ended; return the number of batches of each epoch.

        The loop leaves an epoch after `take` batches, and waits for `between` ms before the next one.
        """
        counts = []
        while not self.tuning.settled:
            assert sum(counts) < 10 * tuning.BATCHES, (counts, self.tuning)
            counts.append(0)
            for number in self.epoch(batches, tail):
                counts[-1] += 1
                if number + 1 == take or (self.tuning.settled and batches == ENDLESS):
                    break
            self.clock += int(between * MS)
        return counts

    def _look(self, exhausted):
        changed = self.tuner.look(self.engine, self.options, exhausted)
        if changed is not None and not self.stream:
            self._resize(changed.num_workers)
        return self.tuner.look_next

    def _begin(self):
        new = not self.options.persistent_workers
        self._resize(self.tuner.workers, new)
        self.clock = max([self.clock, *self.pool.free_at])  # the loader waits until its workers have started
        self.tuner.begin(self.engine)

    def _resize(self, workers, new=False):
        if self.tried[-1:] != [workers]:
            self.tried.append(workers)
        pool = self.pool
        pool.target = self.options.num_workers = workers
        kept = [] if new else pool.free_at[:workers]
        pool.free_at = kept + [self.clock + int(self.begins * MS)] * (workers - len(kept))
        pool.begun_at = max(pool.begun_at, *pool.free_at[len(kept) :], 0)


class Pool:
    """The simulated workers."""

    def __init__(self, job, workers):
        self.job, self.target = job, workers
        self.ring = SimpleNamespace(info={"committed": 0}, n_slots=1)
        self.free_at, self.begun_at, self.used_ns = [0] * workers, 0, 0

    @property
    def at_target(self):
        return self.job.clock >= self.begun_at

    def pids(self):
        return [(number, 1, True) for number in range(self.target)]

    def cpu_ns(self):
        return self.used_ns

    def make(self, longer):
        """Let the first free worker make a batch; return when it is ready, and how long the worker took."""
        crowded = max(1.0, self.target * self.job.on_cpu / self.job.cpus, self.target / self.job.serves)
        busy = int((self.job.each * crowded + longer) * MS)
        worker = self.free_at.index(min(self.free_at))
        self.free_at[worker] = max(self.job.clock, self.free_at[worker]) + busy
        self.used_ns += int(busy * self.job.on_cpu)
        return self.free_at[worker], busy
