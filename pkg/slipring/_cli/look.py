"""`slipring ps` and `slipring top`: which jobs there are, and what one of them does."""

import argparse
import dataclasses
import json
import os
import sys

from slipring._cli.main import USAGE, Failure, ended_by_signals
from slipring._core.ring._segment import now
from slipring._core.ring._watch import STAGES, STATES
from slipring._core.ring.text import count, mb, share, short
from slipring._observe.activity import Activity, activities
from slipring._observe.jobs import Ending, attach, command_of, environ_of, is_alive, jobs, last_busy, process_of
from slipring._observe.peers import by_job, peers, rank_of, verdict_of, verdicts
from slipring._observe.ranks import judged
from slipring._observe.rates import WINDOW_S, Rates, lately, rates
from slipring._observe.snapshot import Snapshot, durations, part_shares, states

COLUMNS = ("PID", "rank", "segment", "kind", "workers", "slots", "batches", "batches/s", "MB/s", "waiting", "job")
ENDING_S = 0.5  # to wait for a process to end
TICKS = os.sysconf("SC_CLK_TCK")
# The kernel counts CPU time in ticks of 10 ms: a shorter time would show few different shares.
MEASURED_S = 0.25
SEARCH_S = 5.0  # how often the other ranks of a job are searched


# ---- slipring ps


def ps_arguments(parser):
    """Add the arguments of `slipring ps`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--arguments", action="store_true", help="show the arguments of scripts, which may be secrets")


def ps(args):
    """List slipring's jobs on this machine: your own, or as root those of all users.

    Rates cover the last five seconds, as far as each job's flight recorder has them. Nothing is stopped or written.
    """
    found, refused = jobs()
    found.sort(key=last_busy, reverse=True)
    rows = [row_of(job, found, args.arguments) for job in found]
    rows.sort(key=lambda row: (row["pid"], row["segment"]))
    if args.json:
        unreadable = [{"pid": pid, "reason": reason} for pid, reason in refused]
        print(json.dumps({"window_s": WINDOW_S, "jobs": rows, "refused": unreadable}, indent=1))
        return 0
    if rows:
        from slipring._cli.view import print_table

        print_table(COLUMNS, [cells(row) for row in rows], left=("kind", "job"))
        print(f"batches: since the start; batches/s, MB/s, waiting: over the last {WINDOW_S:g} s")
    elif not refused:
        print("no jobs")
    for _, reason in refused:
        print(f"slipring ps: {reason}", file=sys.stderr)
    return 0


def row_of(job, found, arguments=False):
    """Return the figures of a job among those that were found, as a dict."""
    snapshot = Snapshot(job.watch)
    recent = rates(snapshot)
    pid = job.pid
    rank, size = rank_of(environ_of(pid)) or (None, None)
    return {
        "pid": pid,
        "rank": rank,
        "ranks": size,
        "segment": [other.key for other in found if pid in other.holders or other is job].index(job.key) + 1,
        "kind": job.kind,
        "name": job.named(arguments),
        "label": snapshot.segment_info["label"],
        "command": command_of(pid, arguments),
        "workers": int((snapshot.participants["status"] > 0 if job.push else snapshot.there).sum()),
        "slots": snapshot.segment_info["n_slots"],
        "batches": snapshot.sums["batches"],
        "bytes": snapshot.sums["bytes"],
        "batches_per_s": recent.batches,
        "bytes_per_s": recent.bytes,
        "waiting": recent.waiting,
        "over_s": recent.over_s,
        "file": job.path,
        "processes": sorted(job.holders),
        "elsewhere": job.elsewhere,
    }


def cells(row):
    """Return the texts of a table line."""
    return (
        str(row["pid"] or "?") + ("*" if row["elsewhere"] else ""),
        "-" if row["rank"] is None else str(row["rank"]),
        str(row["segment"]),
        row["kind"],
        str(row["workers"]),
        str(row["slots"]),
        f"{row['batches']:,}",
        f"{row['batches_per_s']:,.1f}",
        mb(row["bytes_per_s"]),
        share(row["waiting"]),
        short(row["name"], 70),
    )


# ---- slipring top


def top_arguments(parser):
    """Add the arguments of `slipring top`."""
    parser.add_argument("pid", metavar="PID", type=int, nargs="?", help="a job's process, or one of its workers")
    parser.add_argument("--once", action="store_true", help="print one frame")
    parser.add_argument(
        "--interval", type=interval, default=1.0, metavar="S", help="seconds from frame to frame (default 1)"
    )
    parser.add_argument(
        "--segment",
        type=int,
        default=1,
        metavar="N",
        help="of a job with several loaders: which, from 1 (default: the one that was busy last)",
    )
    parser.add_argument("--json", action="store_true", help="print one frame as one JSON object")


def interval(text):
    """Return seconds between frames."""
    value = float(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"must be from 0.05 to 3600, not {text}")
    return value


def top(args):
    """Watch a job live: how fast it is, what its workers and slots do, and what it waits for.

    Without a PID, watch the only job on this machine. If it has several ranks, show the lowest one, and compare all. On
    a terminal, the command uses the whole screen, and Ctrl-C ends it; otherwise it prints one frame after another. The
    job is neither stopped nor slowed.
    """
    found = only_job() if args.pid is None else attach(args.pid)
    if not 1 <= args.segment <= len(found):
        raise Failure(f"--segment {args.segment}: the job has {len(found)}", USAGE)
    job = found[args.segment - 1]
    sampler = ParticipantSampler(job, f", segment {args.segment} of {len(found)}" if len(found) > 1 else "")
    if args.json:
        sampler.measure()
        print(json.dumps(sampler.frame().dict(), indent=1))
        return 0
    from slipring._cli.view import FrameView

    view = FrameView()
    if args.once:
        sampler.measure()
        view.screen.print(view.draw(sampler.frame()))
        return 0
    with ended_by_signals():
        try:
            watch(job, sampler, view, args.interval)
        finally:
            view.stop()
    raise Failure(why_ended(job))


def only_job():
    """Return the segments of the lowest rank of the only job; raise a `Failure` that lists the jobs if not one."""
    found, refused = jobs()
    of = by_job(found)
    if not of:
        why = f"; {refused[0][1]}" if refused else ""
        who = "on this machine" if os.geteuid() == 0 else "of this user"
        raise Failure(f"there is no job of slipring's {who}{why}")
    if len(of) > 1:
        listed = ", ".join(map(in_short, sorted(of, key=lambda its: its[0].pid)))
        raise Failure(f"there are several jobs, give the PID of one: {listed}", USAGE)
    pid = of[0][0].pid
    return attach(pid) if pid else found


def in_short(segments):
    """Return a job's PID, what it is, and how many other processes it has."""
    pid, others = segments[0].pid, len({job.pid for job in segments}) - 1
    more = f" and {count(others, 'other process', 'other processes')}" if others else ""
    return f"{pid} ({short(segments[0].named(), 40)}){more}"


def watch(job, sampler, view, seconds):
    """Show a frame every `seconds`, until the segment disappears."""
    with Ending(job.pid) as ending:
        while True:
            view.show(sampler.frame())
            ending.wait(seconds)  # it returns at once if the process ends
            if not job.is_there():
                return


def why_ended(job):
    """Return why a segment has disappeared, as text."""
    pid = job.pid
    if not pid:
        return "the job has ended"
    with Ending(pid) as ending:
        # A process that ends closes its files first.
        ended = ending.wait(ENDING_S)
    found = process_of(pid)
    ended = ended or not is_alive(found) or found.ending
    return f"process {pid} has ended" if ended else f"process {pid} has closed the segment"


# ---- a frame's content


@dataclasses.dataclass(frozen=True)
class Participant:
    """A participant and its recent figures: batches per second, ns to fetch and collate one batch, share of a core."""

    activity: Activity
    rate: float = 0.0
    fetch_ns: float | None = None
    collate_ns: float | None = None
    cpu: float | None = None

    def dict(self):
        """Return the content, for JSON."""
        ms = {f"{name}_ms": None if ns is None else ns / 1e6 for name, ns in
              (("fetch", self.fetch_ns), ("collate", self.collate_ns))}  # fmt: skip
        return {**self.activity.dict(), "batches_per_s": self.rate, **ms, "cpu": self.cpu}


@dataclasses.dataclass(frozen=True)
class Frame:
    """The content of a frame."""

    job: object
    rank_text: str  # of several ranks or segments of the job
    snapshot: Snapshot
    rates: Rates
    participants: list[Participant]
    stages: dict  # stage -> its p50, p99 and maximum, in seconds
    parts: dict  # part of fetching -> its share, if the dataset reports them
    verdict: str
    ranks: list  # a dict for each rank of the job on this machine; see `verdicts`

    def dict(self):
        """Return the content, for JSON."""
        found = states(self.snapshot.slots)
        return {
            "pid": self.job.pid,
            "name": self.job.named(),
            "push": self.job.push,
            "ranks": self.ranks,
            "verdict": self.verdict,
            **self.rates.dict(),
            "total": self.snapshot.sums["batches"],
            "slots": self.snapshot.segment_info["n_slots"],
            "states": {state: found.count(state) for state in STATES if state in found},
            "participants": [one.dict() for one in self.participants],
            "stages": {name: dict(zip(("p50_s", "p99_s", "max_s"), marks)) for name, marks in self.stages.items()},
            "parts": self.parts,
        }


class ParticipantSampler:
    """A sampler of a job's participants: some figures cover the time between two frames."""

    def __init__(self, job, rank_text=""):
        self.job, self.rank = job, rank_of(environ_of(job.pid))
        self.rank_text = (f", rank {self.rank[0]} of {self.rank[1]}" if self.rank else "") + rank_text
        self.before, self.cpu = None, {}
        self.peers, self.searched_at = {}, 0

    def measure(self, seconds=MEASURED_S):
        """Measure CPU times for the first frame: wait `seconds`, or until the job ends."""
        at = now()
        for each in activities(Snapshot(self.job.watch), self.job):
            self._cpu_of(each, at)
        with Ending(self.job.pid) as ending:
            ending.wait(seconds)

    def frame(self):
        """Return the content of a frame, as it is now."""
        snapshot = Snapshot(self.job.watch)
        recent, got = lately(snapshot), rates(snapshot, self.before)
        participants = [self._participant(each, snapshot, recent, got) for each in activities(snapshot, self.job)]
        times, stages = durations(recent), {}
        for name in STAGES:
            ordered = sorted(times.get(name, ()))
            if ordered:
                marks = (ordered[int(q * (len(ordered) - 1) + 0.5)] for q in (0.5, 0.99, 1))
                stages[name] = tuple(float(ns) / 1e9 for ns in marks)
        parts = part_shares(float(recent["fetch_ns"].sum()), lambda field: recent[field].sum())
        self.before = snapshot
        ranks = self._ranks(snapshot)
        found = judged(ranks, self.rank and self.rank[1]) if ranks else None
        said = " ".join(found[1:]) if found else str(verdict_of(self.job, snapshot))
        return Frame(self.job, self.rank_text, snapshot, got, participants, stages, parts, said, ranks)

    def _ranks(self, snapshot):
        """Return `verdicts` of the job's ranks on this machine. The ranks are searched every `SEARCH_S` seconds."""
        if not self.searched_at or snapshot.at_ns > self.searched_at + SEARCH_S * 1e9:
            self.peers, self.searched_at = peers(self.job), snapshot.at_ns
        return verdicts(self.job, self.peers, snapshot)

    def _participant(self, each, snapshot, recent, got):
        cpu = self._cpu_of(each, snapshot.at_ns)
        if each.number == 0 and each.name == "consumer":
            return Participant(each, got.batches, cpu=cpu)
        its = recent[recent["participant"] == each.number]
        if not len(its):
            return Participant(each, cpu=cpu)
        begin = max(snapshot.at_ns - int(got.over_s * 1e9), int(recent["published_at"].min()))
        rate = (its["published_at"] > begin).sum() / max(1e-3, (snapshot.at_ns - begin) / 1e9)
        return Participant(each, float(rate), float(its["fetch_ns"].mean()), float(its["collate_ns"].mean()), cpu)

    def _cpu_of(self, each, at_ns):
        """Return the share of a core that a process used since the last frame; None for a process not seen before."""
        found = process_of(each.pid)
        if found is None or not each.state:
            return None
        known = self.cpu.get(each.pid)
        if known is None or known[0] != at_ns:  # thread workers share their pid: it is measured once in a frame
            used = None
            if known is not None:
                used = (found.cpu_ticks - known[1]) / TICKS / max(1e-9, (at_ns - known[0]) / 1e9)
            self.cpu[each.pid] = at_ns, found.cpu_ticks, used
        return self.cpu[each.pid][2]
