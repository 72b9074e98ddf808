"""Workers that have been busy with one thing for too long or do not start, and processes that are stopped."""

import dataclasses
from typing import Any

import numpy as np

from slipring._core._cache import NO_SLOT
from slipring._core.text import FORKED
from slipring.monitor import processes, records
from slipring.monitor.doing import SERVING
from slipring.monitor.words import seconds

HANGS = 10.0  # seconds for one sample or batch at least: a worker that hangs
TIMES = 10  # as long as any before
NAMED_S = 1.0  # a shorter activity is not worth a sentence
NAMED = 4  # workers in one sentence


@dataclasses.dataclass(frozen=True)
class AtWork:
    """What a worker has begun and not finished."""

    number: int  # of its participant
    pid: int
    since_s: float
    row: int | None  # None: it is told of no single sample
    batch: Any  # the record of its batch, or None
    what: str

    @property
    def who(self):
        return f"Worker {self.number - 1} (pid {self.pid})" if self.pid else "The loop itself"

    @property
    def where(self):
        """str: which sample, or batch, as far as it is known."""
        first = ""
        if self.batch is not None and self.batch["first_index"] != records.NO_INDEX:
            first = f", which begins at {records.index_text(self.batch['first_index'])}"
        if self.row is None:
            return f"batch {int(self.batch['seq'])}{first}"
        return f"row {self.row} of its batch{first}"

    @property
    def sentence(self):
        """str: who has been busy with what, and for how long."""
        return f"{self.who} has been {self.what} for {seconds(self.since_s)}: {self.where}."


def at_work(sight):
    """Return what the workers have begun and not finished, an `AtWork` each, the longest first; not of dead workers."""
    here = sight.segment_info.get("pid_namespace") in (0, processes.namespace())
    by_rows = bool((sight.table["slowest_ns"] > 0).any())
    lying = {int(slot["batch"]["slot"]): slot for slot in sight.slots}
    claimed = {
        int(slot["batch"]["participant"]): slot
        for slot, state in zip(sight.slots, records.states(sight.slots))
        if state == "claimed" and slot["batch"]["claimed_at"]
    }
    numbers = range(1, len(sight.participants)) if sight.inline else np.flatnonzero(sight.there).tolist()
    found = []
    for number in numbers:
        participant, row, slot, what = (
            sight.participants[number],
            None,
            claimed.get(number),
            "making one batch",
        )
        since = int(participant["at_since"])
        if participant["at_slot"] != NO_SLOT:
            slot, row, what = (
                lying.get(int(participant["at_slot"])),
                int(participant["at_row"]),
                "reading one sample",
            )
        elif slot is None:
            continue
        else:
            since = int(slot["batch"]["claimed_at"])
            what = "putting one batch together" if by_rows else what
        pid = 0 if sight.inline else int(participant["pid"])
        if here and pid and not processes.lives(processes.state_of(pid, int(participant["started"]))):
            continue  # it has died, which the loop has not seen yet
        batch = None if slot is None else slot["batch"]
        found.append(AtWork(number, pid, max(0.0, (sight.at_ns - since) / 1e9), row, batch, what))
    return sorted(found, key=lambda each: -each.since_s)


def hung(sight, forked=False):
    """Return (text, advice) if a worker has been busy with one thing for far longer than any before; else None.

    `forked`: whether the workers' start method is 'fork'.
    """
    stages = sight.stages
    for each in at_work(sight):
        usual = stages["fetch"].max_s + (0.0 if each.row is not None else stages["collate"].max_s)
        if each.since_s >= max(HANGS, TIMES * usual):
            return (
                each.sentence,
                ("" if each.row is None else "`slipring dump` with its number names the index; ")
                + "py-spy or gdb say where it is"
                + (FORKED if forked and each.pid else "")
                + ".",
            )
    return None


@dataclasses.dataclass(frozen=True)
class Starting:
    """Workers that have not started: they take no tasks yet."""

    numbers: list  # of the workers; empty: no worker has joined the segment
    pids: list
    since_s: float  # of the worker that began first

    @property
    def sentence(self):
        """str: which workers have not started, and for how long."""
        if not self.numbers:
            return (
                f"No worker has started after {seconds(self.since_s)}: worker processes first import modules and "
                "unpickle the dataset."
            )
        named = [f"worker {number} (pid {pid})" for number, pid in zip(self.numbers[:NAMED], self.pids)]
        if len(self.numbers) > NAMED:
            named.append(f"{len(self.numbers) - NAMED} more")
        text = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
        has, it_is = ("has", "it is") if len(self.numbers) == 1 else ("have", "they are")
        return (
            f"{text[0].upper()}{text[1:]} {has} not started after {seconds(self.since_s)}: {it_is} in worker_init_fn, "
            "or about to call it."
        )

    def advice(self, forked=False):
        """Return what shows the reason; `forked`: whether the workers' start method is 'fork'."""
        pid = self.pids[0] if self.pids else "PID"
        of = "" if self.pids else " of a worker process"
        return f"`py-spy dump --pid {pid}`{of} shows where it is{FORKED if forked else ''}."


def starting(sight):
    """Return the workers that have not started as `Starting`; None if all have, or if nothing waits for a worker."""
    if sight.segment_info["push"] or sight.inline:
        return None
    here = sight.segment_info.get("pid_namespace") in (0, processes.namespace())
    late = []
    for number in np.flatnonzero(sight.there & (sight.participants["status"] < SERVING)).tolist():
        participant = sight.participants[number]
        pid = int(participant["pid"])
        if not here or processes.lives(processes.state_of(pid, int(participant["started"]))):
            late.append((number - 1, pid, int(participant["at_since"])))
    if late:
        numbers, pids, since = zip(*late)
        return Starting(list(numbers), list(pids), max(0.0, (sight.at_ns - min(since)) / 1e9))
    tasks = sight.slots[sight.slots["batch"]["run"] == sight.segment_info["run"]]
    tasks = tasks["batch"]["dispatched_at"]
    if sight.there.any() or not sight.segment_info["ready_waiters"] or not len(tasks):
        return None
    return Starting([], [], max(0.0, (sight.at_ns - int(tasks.min())) / 1e9))


def not_starting(sight, forked=False):
    """Return (text, advice) if the loop waits, and workers have not started for long; else None."""
    found = starting(sight)
    if found is None or found.since_s < HANGS or not sight.segment_info["ready_waiters"]:
        return None
    # While other workers deliver batches, one that starts slowly stops nobody.
    if sight.at_ns - int(sight.table["taken_at"].max(initial=0)) < HANGS * 1e9:
        return None
    return found.sentence, found.advice(forked)


def under_way(sight):
    """Return sentences about workers that have not started, or that have been busy with one thing for a while."""
    found = starting(sight)
    said = [] if found is None or found.since_s < NAMED_S else [found.sentence]
    busy = [each for each in at_work(sight) if each.since_s >= NAMED_S]
    return said + [each.sentence for each in busy[:NAMED]]


def stopped(sight):
    """Return (text, advice) if processes of the job are stopped, by a signal or a debugger; else None."""
    if sight.segment_info.get("pid_namespace") not in (0, processes.namespace()):
        return None
    found = []
    if len(sight.participants) and sight.consumer_pid:
        found.append(("the loop's process", sight.consumer_pid, int(sight.participants[0]["started"])))
    for number in np.flatnonzero(sight.there).tolist():
        participant = sight.participants[number]
        if int(participant["pid"]) != sight.consumer_pid:
            found.append((f"worker {number - 1}", int(participant["pid"]), int(participant["started"])))
    still = [(who, pid) for who, pid, started in found if processes.state_of(pid, started) in ("T", "t")]
    if not still:
        return None
    named = ", ".join(f"{who} (pid {pid})" for who, pid in still[:4])
    more = f", and {len(still) - 4} more" if len(still) > 4 else ""
    return (
        f"Stopped, by a signal or a debugger: {named}{more}.",
        f"`kill -CONT {' '.join(str(pid) for _, pid in still)}` has them go on.",
    )
