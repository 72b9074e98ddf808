"""Workers that have been busy with one thing for too long or do not start, and processes that are stopped."""

import dataclasses

import numpy as np

from slipring._core.text import FORKED
from slipring.monitor import processes, records
from slipring.monitor.doing import SERVING, doing
from slipring.monitor.words import seconds

HANGS = 10.0  # seconds for one sample or batch at least: a worker that hangs
TIMES = 10  # as long as any before
NAMED_S = 1.0  # a shorter activity is not worth a sentence
NAMED = 4  # workers in one sentence
# `Doing.what` of a worker that has begun something -> the activity as a sentence names it
WORK = {
    "reading": "reading one sample",
    "making": "making one batch",
    "collating": "putting one batch together",
}


def at_work(sight):
    """Return the `Doing` of each worker that has begun something and not finished it, the longest first.

    Dead workers are left out.
    """
    if not len(sight.participants) or not (sight.inline or sight.there.any()):
        return []
    here = sight.segment_info.get("pid_namespace") in (0, processes.namespace())
    found = [each for each in doing(sight) if each.what in WORK and (not here or processes.lives(each.state))]
    return sorted(found, key=_since, reverse=True)


def _since(each):
    return each.since_s or 0.0


def sentence_of(each, when=""):
    """Return a sentence about what `at_work` has found: which worker has been busy with what, and for how long."""
    who = (
        f"{each.name.capitalize()} (pid {each.pid})" if each.name.startswith("worker") else "The loop itself"
    )
    where = f"batch {each.seq}" if each.row is None else f"row {each.row} of its batch"
    if each.first_index is not None:
        where += f", which begins at {records.index_text(each.first_index)}"
    return f"{who} has been {WORK[each.what]} for {seconds(_since(each))}{when}: {where}."


def hung(sight, forked=False):
    """Return (text, advice) if a worker has been busy with one thing for far longer than any before; else None.

    `forked`: whether the workers' start method is 'fork'.
    """
    stages = sight.stages
    for each in at_work(sight):
        usual = stages["fetch"].max_s + (0.0 if each.row is not None else stages["collate"].max_s)
        if _since(each) >= max(HANGS, TIMES * usual):
            return (
                sentence_of(each),
                ("" if each.row is None else "`slipring dump` with its number names the index; ")
                + "py-spy or gdb say where it is"
                + (FORKED if forked else "")
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
    return said + [sentence_of(each) for each in at_work(sight)[:NAMED] if _since(each) >= NAMED_S]


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
