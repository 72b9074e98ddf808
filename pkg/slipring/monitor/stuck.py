"""Workers that have been busy with one thing for too long or do not start, and processes that are stopped."""

from slipring._core.text import FORKED
from slipring.monitor import processes, records
from slipring.monitor.doing import doing
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


def _is_here(sight):
    """Return whether the processes of a snapshot are in this PID namespace."""
    return sight.segment_info.get("pid_namespace") in (0, processes.namespace())


def _living(sight):
    """Return the `Doing` of each living participant; none if all workers have left."""
    if not len(sight.participants) or not (sight.inline or sight.there.any()):
        return []
    here = _is_here(sight)
    return [each for each in doing(sight) if not here or processes.lives(each.state)]


def at_work(sight):
    """Return the `Doing` of each worker that has begun something and not finished it, the longest first."""
    return sorted((each for each in _living(sight) if each.what in WORK), key=_since, reverse=True)


def _since(each):
    return each.since_s or 0.0


def sentence_of(each, when=""):
    """Return a sentence about what `at_work` has found: which worker has been busy with what, and for how long."""
    who = f"{each.name.capitalize()} (pid {each.pid})" if each.name.startswith("worker") else "The loop itself"
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


def starting(sight, forked=False):
    """Return (seconds, text, advice) for workers that have not started: they take no tasks yet.

    None if all have started, or if nothing waits for a worker. The seconds are those of the worker that began first.
    """
    if sight.segment_info["push"] or sight.inline:
        return None
    shows = f"shows where it is{FORKED if forked else ''}."
    late = [each for each in _living(sight) if each.what == "not begun"]
    if late:
        since = max(map(_since, late))
        named = [f"{each.name} (pid {each.pid})" for each in late[:NAMED]]
        if len(late) > NAMED:
            named.append(f"{len(late) - NAMED} more")
        text = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
        has, it_is = ("has", "it is") if len(late) == 1 else ("have", "they are")
        text = f"{text[0].upper()}{text[1:]} {has} not started after {seconds(since)}: {it_is} in worker_init_fn, "
        return since, text + "or about to call it.", f"`py-spy dump --pid {late[0].pid}` {shows}"
    tasks = sight.slots[sight.slots["batch"]["run"] == sight.segment_info["run"]]
    tasks = tasks["batch"]["dispatched_at"]
    if sight.there.any() or not sight.segment_info["ready_waiters"] or not len(tasks):
        return None
    since = max(0.0, (sight.at_ns - int(tasks.min())) / 1e9)
    text = f"No worker has started after {seconds(since)}: worker processes first import modules and unpickle the "
    return since, text + "dataset.", f"`py-spy dump --pid PID` of a worker process {shows}"


def not_starting(sight, forked=False):
    """Return (text, advice) if the loop waits, and workers have not started for long; else None."""
    found = starting(sight, forked)
    if found is None or found[0] < HANGS or not sight.segment_info["ready_waiters"]:
        return None
    # While other workers deliver batches, one that starts slowly stops nobody.
    if sight.at_ns - int(sight.table["taken_at"].max(initial=0)) < HANGS * 1e9:
        return None
    return found[1:]


def under_way(sight):
    """Return sentences about workers that have not started, or that have been busy with one thing for a while."""
    found = starting(sight)
    said = [] if found is None or found[0] < NAMED_S else [found[1]]
    return said + [sentence_of(each) for each in at_work(sight)[:NAMED] if _since(each) >= NAMED_S]


def stopped(sight):
    """Return (text, advice) if processes of the job are stopped, by a signal or a debugger; else None."""
    if not len(sight.participants) or not _is_here(sight):
        return None
    still = {}  # pid -> its name; thread workers have the pid of the loop's process
    for each in doing(sight):
        if each.state in ("T", "t"):
            still.setdefault(each.pid, "the loop's process" if each.name == "consumer" else each.name)
    if not still:
        return None
    named = ", ".join(f"{who} (pid {pid})" for pid, who in list(still.items())[:4])
    more = f", and {len(still) - 4} more" if len(still) > 4 else ""
    return (
        f"Stopped, by a signal or a debugger: {named}{more}.",
        f"`kill -CONT {' '.join(map(str, still))}` has them go on.",
    )
