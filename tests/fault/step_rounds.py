"""Jobs of the run at every step that hit a loader's workers, or its consumer: see step_job.py."""

import contextlib
import dataclasses
import os
import signal
from collections import Counter

from tests.fault import points
from tests.fault.step_job import HOWS, POINTS, Job, Order, main
from tests.fault.steps import MODES

# isort: split
# At this point step_job has loaded the ring with the points.
from slipring.errors import LoaderTimeout, WorkerDied
from tests.fault import mortal
from tests.fault.rounds import Mode, compare, noted
from tests.support.inside import engine_of, manner, process_pool
from tests.support.processes import state, until

TIMEOUT_S = 0.1  # the loader's: how long it waits for a stopped worker
SEED = 7  # every loader's seed


@dataclasses.dataclass
class Scene(Mode):
    """A mode of this run."""

    workers: int = 2
    batches: int = 10
    epochs: int = 2
    init: bool = False  # with a worker_init_fn
    early: bool = False  # an abandoned epoch comes before each epoch

    def loader(self, seed, **more):
        if not self.init:
            more.setdefault("worker_init_fn", None)
        if self.data == "Kept":
            more["collate_fn"] = mortal.KeepingCollate()
        return super().loader(seed, **more)


class LoaderJob(Job):
    """Read some epochs of a loader."""

    def __init__(self, kind, mode, quick, rng):
        super().__init__(kind, Scene.of(MODES[mode]), quick, rng)
        self.want = None
        self.participant = points.CONSUMER if kind == "parent" else points.ANY_WORKER
        self.hows = {"stop": (signal.SIGSTOP,), "parent": (signal.SIGKILL,)}.get(kind, HOWS)

    # ---- one round

    def epoch(self, loader, got):
        """Append the batches of one epoch to `got`."""
        if self.mode.early:
            it = iter(loader)
            self.deliver(it, [], at_most=2)
            it.interrupt()
            it.close()
        self.deliver(iter(loader), got)

    def deliver(self, it, got, at_most=None):
        """Take all batches, and keep the last one; let stopped workers continue after a timeout."""
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
        """Let the stopped processes continue."""
        for strike in POINTS.strikes():
            if strike.done and strike.how == signal.SIGSTOP:
                strike.how = 0
                # It does not exist: it belonged to an abandoned iteration, whose workers have ended.
                until(lambda pid=strike.pid: state(pid) in ("T", "Z", ""), "it stands still")
                if state(strike.pid) == "T":
                    os.kill(strike.pid, signal.SIGCONT)

    def compare(self, epoch, got, want, orders):
        """Count the differences between an epoch's batches and the expected ones."""
        found = Counter()
        compare(got, want, self.mode, found)
        self.counts.update(found)
        self.counts["batches"] += len(got)
        if found.total():
            self.details.append(f"epoch {epoch} after {orders}: {dict(found)}")

    # ---- the kinds

    def respawn(self, orders):
        """A dead worker is replaced, and nothing is missing. A stopped one is not replaced."""
        options = {"on_death": "respawn", "max_restarts": 1000}
        if self.kind == "stop":
            options["timeout"] = TIMEOUT_S
        with self.mode.loader(SEED, **options) as loader:
            for epoch in range(self.mode.epochs):
                got = []
                self.epoch(loader, got)
                self.compare(epoch, got, self.want[epoch], orders)
            self.go_on()
            ring = engine_of(loader).ring
            at_work = [ring.in_flight(participant) for participant in range(1, self.mode.workers + 1)]
            if any(at_work) and not self.mode.early:
                self.wrong(f"after {orders} somebody still has {at_work}")
            if self.mode.data != "Kept" and ring.circulating != ring.n_slots:
                self.wrong(f"after {orders} {ring.circulating} of {ring.n_slots} slots circulate")
            if self.kind == "stop" and loader.stats().respawns:
                self.wrong(f"after {orders} {loader.stats().respawns} respawns")

    def raises(self, orders):
        """The death is raised unless all batches were delivered; the batches before it are right."""
        epoch, got = 0, []
        try:
            with self.mode.loader(SEED, on_death="raise") as loader:
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
        """Return the expected batches of an epoch that has delivered so many."""
        if self.mode.in_order:
            return self.want[epoch][: len(got)]
        came = {ids for ids, _ in got}
        return [batch for batch in self.want[epoch] if batch[0] in came]

    def parent(self, orders):
        """The consumer dies: all its workers end, too."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self.live()
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()  # this process has adopted its workers
        died = any(strike.done and strike.participant == points.CONSUMER for strike in POINTS.strikes())
        if code != (-signal.SIGKILL if died else 0):
            self.wrong(f"after {orders} the consumer ended with {code}")

    def live(self):
        """Be the consumer that dies."""
        with self.mode.loader(SEED, on_death="respawn", max_restarts=1000) as loader:
            for _ in range(self.mode.epochs):
                self.epoch(loader, [])

    # ---- all rounds

    def one(self, orders):
        {"raise": self.raises, "parent": self.parent}.get(self.kind, self.respawn)(orders)

    def fault_free(self):
        """Note the expected batches, and which process passes which points when no process dies."""
        self.want = []
        with self.mode.loader(SEED) as loader:
            for _ in range(self.mode.epochs):
                self.want.append([])
                self.epoch(loader, self.want[-1])
        self.round()
        self.round()

    def run(self):
        if self.kind == "parent":  # which points does the consumer pass after a worker's death?
            for name in POINTS.hits(workers=True):
                self.round(Order(name, signal.SIGKILL))
        super().run()


if __name__ == "__main__":
    process_pool.GRACE_S = process_pool.TERM_S = 0.5  # for workers that are stopped at the end
    main(LoaderJob)
