"""What `slipring top` shows of a segment: the figures of a frame, before it is drawn."""

import dataclasses

from slipring._core._cache import STAGES, STATES
from slipring._core._ring import now
from slipring._observe import jobs as processes
from slipring._observe import snapshot as records
from slipring._observe.activity import TICKS, Activity, activities
from slipring._observe.rates import Rates, lately, rates
from slipring._observe.snapshot import Snapshot, durations
from slipring._observe.verdict import verdict

# The kernel counts CPU time in ticks of 10 ms: a shorter time would show few different shares.
MEASURED_S = 0.25


@dataclasses.dataclass(frozen=True)
class Of:
    """A participant and its recent rates: batches per second, ms to fetch and collate one batch, share of a core."""

    doing: Activity
    rate: float
    fetch_ms: float | None
    collate_ms: float | None
    cpu: float | None


@dataclasses.dataclass(frozen=True)
class Seen:
    """The content of a frame."""

    snapshot: Snapshot
    rates: Rates
    participants: list
    stages: dict
    verdict: str
    job: object

    def dict(self):
        """Return the content, for JSON."""
        participants = [
            {**participant.doing.dict(), "batches_per_s": participant.rate, "fetch_ms": participant.fetch_ms,
             "collate_ms": participant.collate_ms, "cpu": participant.cpu}
            for participant in self.participants
        ]  # fmt: skip
        states = records.states(self.snapshot.slots)
        return {
            "pid": self.job.pid, "name": self.job.name, "push": self.job.push, "verdict": self.verdict,
            **self.rates.dict(), "total": self.snapshot.sums["batches"], "slots": self.snapshot.segment_info["n_slots"],
            "states": {state: states.count(state) for state in STATES if state in states}, "participants": participants,
            "stages": {
                name: {"p50_s": p50, "p99_s": p99, "max_s": most} for name, (p50, p99, most) in self.stages.items()
            },
        }  # fmt: skip


class Eye:
    """A sampler of a job: some figures cover the time between two looks."""

    def __init__(self, job):
        self.job = job
        self.before, self.cpu = None, {}

    def measure(self, seconds=MEASURED_S):
        """Measure CPU times for the first frame: wait `seconds`, or until the job ends."""
        at = now()
        for each in activities(Snapshot(self.job.watch), self.job):
            found = processes.process_of(each.pid)
            if found is not None and each.state:
                self.cpu[each.pid] = at, found.cpu_ticks, None
        with processes.Ending(self.job.pid) as ending:
            ending.wait(seconds)

    def look(self):
        """Return the content of a frame, as it is now."""
        snapshot = Snapshot(self.job.watch)
        recent = lately(snapshot)
        got = rates(snapshot, self.before)
        participants = [self._of(each, snapshot, recent, got) for each in activities(snapshot, self.job)]
        stages = {}
        for name, ns in durations(recent).items():
            if len(ns):
                ordered = sorted(ns.tolist())
                last = len(ordered) - 1
                marks = (ordered[int(q * last + 0.5)] / 1e9 for q in (0.5, 0.99, 1))
                stages[name] = tuple(marks)
        seen = Seen(
            snapshot,
            got,
            participants,
            {n: stages[n] for n in STAGES if n in stages},
            str(verdict(snapshot)),
            self.job,
        )
        self.before = snapshot
        return seen

    def _of(self, each, snapshot, recent, got):
        cpu = None
        found = processes.process_of(each.pid)
        if found is not None and each.state:
            known = self.cpu.get(each.pid)
            if known is None or known[0] != snapshot.at_ns:
                share = None
                if known is not None:
                    share = (found.cpu_ticks - known[1]) / TICKS / max(1e-9, (snapshot.at_ns - known[0]) / 1e9)
                self.cpu[each.pid] = snapshot.at_ns, found.cpu_ticks, share
            cpu = self.cpu[each.pid][2]
        kind, _, number = each.name.partition(" ")
        if kind == "consumer":
            return Of(each, got.batches, None, None, cpu)
        participant = int(number) if kind == "participant" else int(number) + 1 if kind == "worker" else 1
        its = recent[recent["participant"] == participant]
        if not len(its):
            return Of(each, 0.0, None, None, cpu)
        begin = max(snapshot.at_ns - int(got.over_s * 1e9), int(recent["published_at"].min()))
        n = int((its["published_at"] > begin).sum())
        seconds = max(1e-3, (snapshot.at_ns - begin) / 1e9)
        return Of(each, n / seconds, its["fetch_ns"].mean() / 1e6, its["collate_ns"].mean() / 1e6, cpu)
