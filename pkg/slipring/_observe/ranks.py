"""Which ranks of a distributed job hold up the others, and the figures about each that the ranks gather themselves.

`peers` has the same figures as another process sees them. Collective operations make all ranks equally slow: a rank
waits within its step for the slowest one. So shares of waiting hardly show which rank is slow. Ranks are compared by
the rates that their workers can supply, and by their steps without the time that they wait in collective operations for
other ranks. torch.distributed remembers when a process entered its newest collective operations.
"""

import dataclasses
import json
import math
import os
import statistics
import sys
import time

from slipring._core.ring import process
from slipring._core.ring._segment import now
from slipring._core.ring.text import digits, megabytes, seconds
from slipring._observe.causes import BOUND
from slipring._observe.rates import Figures

CLEARLY = 1.25  # times as long as the fastest rank's: clearly slower
ALIKE = 0.8  # of the slowest rank's time: as slow as that one
AT_PACE = 0.6  # of the time from batch to batch: workers that take so long per batch set the pace
STANDING = ("stopped", "hung", "starting")  # causes of a rank that delivers nothing now
FEW_OPERATIONS = 8  # collective operations; fewer allow no conclusion
NEWEST = 512  # collective operations that a rank reports
# The flight recorders of torch.distributed, by backend. They have no public name.
RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")


def gather(verdict, snapshot):
    """Return the verdicts and times of all ranks as dicts with their rank, the one that waits longest first.

    Empty if torch.distributed is not in use. This is a collective call: every rank must make it.

    Besides the verdict's fields, each dict has "batch_s", the time from batch to batch, "supply_s", the time in which
    the rank's workers make one, and "own_s", the time of a step without waiting for other ranks; None if unknown. It
    also has the fields of `memory_of`.
    """
    known = process.global_rank()
    if known is None:
        return []
    rank, ranks = known
    distributed = sys.modules["torch"].distributed
    figures = Figures(snapshot)
    mine = {"rank": rank, **dataclasses.asdict(verdict), **times_of(figures), "own_s": None, **memory_of(snapshot)}
    found, clocks = [None] * ranks, [None] * ranks
    distributed.all_gather_object(found, (mine, os.uname().nodename, _entered(figures)))
    distributed.all_gather_object(clocks, time.time_ns())  # all leave the first operation at about the same time
    apart = (max(clocks) - min(clocks)) / 1e9 if len({node for _, node, _ in found}) > 1 else 0.0
    shares = collective_waits([entered for *_, entered in found])
    rows = [each for each, *_ in found]
    if shares and all(each["batch_s"] for each in rows):
        for each, share in zip(rows, shares, strict=True):
            each["own_s"] = max(0.0, each["batch_s"] * (1 - each["wait_share"] - share))
        own = [each["own_s"] for each in rows]
        if max(own) - min(own) < apart:  # a difference between clocks looks the same
            for each in rows:
                each["own_s"] = None
    return sorted(rows, key=lambda each: -each["wait_share"])


def memory_of(snapshot):
    """Return the bytes of the batches in a rank's slots, and the bytes that its pool allows its segment, or None.

    "waits_for_memory" is True while a worker has no memory for the rank's next batch.
    """
    return {
        "memory_bytes": int(snapshot.slots["committed"].sum()),
        "budget_bytes": snapshot.segment_info.get("budget") or None,
        "waits_for_memory": bool(snapshot.workers["needs_memory_for"].any()),
    }


def times_of(f):
    """Return the seconds from batch to batch, and those in which the workers make a batch; None if unknown."""
    steady, info, stages = ~f.first, f.snapshot.segment_info, f.snapshot.stages
    batch = supply = None
    if f.has_loop:
        batch = info["loop_ns"] / info["loop_steps"] / 1e9
    elif steady.any():
        batch = float((f.waited + f.step)[steady].mean()) / 1e9
    if steady.any():
        made = float(f.made_in[steady].mean()) / f.n_workers
        supply = max(made, f.sampling_share * float(f.waited[steady].mean())) / 1e9
    elif stages["fetch"].count:  # batches that lie in no slot
        supply = (stages["fetch"].total_s + stages["collate"].total_s) / stages["fetch"].count
    return {"batch_s": batch, "supply_s": supply}


def _entered(f):
    """Return when this process entered its newest collective operations, since the first batch that is remembered.

    These are (recorder, group, sequence number) -> ns of the wall clock.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    since = time.time_ns() - (now() - int(f.table["taken_at"][0])) if len(f.table) else 0
    found = []
    for recorder, name in enumerate(RECORDERS):
        dump = getattr(c10d, name, None)
        for entry in json.loads(dump()).get("entries", ()) if dump is not None else ():
            at = entry["time_created_ns"]
            if at >= since and not entry["is_p2p"]:
                found.append((at, (recorder, entry["process_group"][0], entry["collective_seq_id"])))
    return {key: at for at, key in sorted(found)[-NEWEST:]}


def collective_waits(entered):
    """Return each rank's share of the time in which it waits in a collective operation for a rank that comes later.

    `entered` has, for each rank, operation -> ns. Empty if the ranks have too few operations in common.
    """
    common = set.intersection(*map(set, entered))
    if len(common) < FEW_OPERATIONS:
        return []
    last = {key: max(each[key] for each in entered) for key in common}
    shares = []
    for each in entered:
        waits = sorted((each[key], last[key]) for key in common)
        begun = end = waits[0][0]
        waited = 0
        for at, upto in waits:  # operations overlap if the rank does not wait for each of them
            waited += max(0, upto - max(at, end))
            end = max(end, upto)
        shares.append(waited / max(1, end - begun))
    return shares


# ---- the judgement


def judged(ranks, size=None):
    """Return (cause, sentence, advice) on the ranks of a job; None if each rank's own verdict says enough.

    `ranks` has a dict for each rank, as `gather` and `peers.verdicts` return them, and `size` is the number of ranks
    if some may be missing. A rank with a "pid" is named with it. "own_s" is None if it is unknown.
    """
    if len(ranks) < 2:
        return None
    n = len(ranks)
    others = f"all {n}" if n == (size or n) else f"the {n} ranks on this machine"
    ranks = sorted(ranks, key=lambda each: -each["wait_share"])
    longest = ranks[0]
    still = sorted((each for each in ranks if each["cause"] in STANDING), key=lambda each: each["rank"])
    if still:
        return _blamed(still, others, "", still[0])
    if any(each.get("waits_for_memory") for each in ranks):
        return _limited_by_memory(ranks)
    if any(each["cause"] == "unknown" for each in ranks):
        return None
    if all(each["supply_s"] for each in ranks):
        slow = _slowest(ranks, "supply_s")
        worst = next((each for each in ranks if each in slow and _sets_the_pace(each)), None)
        if worst is not None:
            return _blamed(slow, others, _supplied(slow, ranks), worst)
        if _sets_the_pace(longest):
            text = f"All {n} ranks are about equally slow: each waits for its data, or for another rank that does. "
            text += f"The one that waits longest says: {longest['sentence']}"
            return longest["cause"], text, longest["advice"]
    if all(each["own_s"] is not None and each["batch_s"] for each in ranks):
        slow = _slowest(ranks, "own_s")
        longer = max(each["own_s"] for each in ranks) - min(each["own_s"] for each in ranks)
        if slow and longer >= BOUND * max(each["batch_s"] for each in ranks):
            return _slow_steps(slow, ranks, others)
    usual = statistics.median_high(each["wait_share"] for each in ranks[1:])
    if longest["data_bound"] and longest["wait_share"] >= 2 * usual:
        why = f" it waits {longest['wait_share']:.0%} of its time for data, the others {usual:.0%}."
        return _blamed([longest], others, why, longest)
    return None


def _blamed(slow, others, why, worst):
    return "rank", f"{_hold_up(slow, others)}:{why} On rank {worst['rank']}: {worst['sentence']}", worst["advice"]


def _limited_by_memory(ranks):
    """Return the judgement on ranks whose batches lack memory, because other ranks have more than their parts."""
    short = sorted((each for each in ranks if each["waits_for_memory"]), key=lambda each: each["rank"])
    over = [each for each in ranks if each["budget_bytes"] and each["memory_bytes"] > each["budget_bytes"]]
    waits = "waits" if len(short) == 1 else "wait"
    text = f"{_named(short)} {waits} for memory for the next batch."
    more = "`workers=slipring.Workers(pool='node', memory='64GiB')`"
    advice = f"Give the pool more, such as {more}, or keep fewer batches."
    if over:
        worst = max(over, key=lambda each: each["memory_bytes"] - each["budget_bytes"])
        has, allowed = megabytes(worst["memory_bytes"]), megabytes(worst["budget_bytes"])
        text += f" {_named([worst])} holds the others back: its batches have {has}, and its part of the pool's memory "
        text += f"is {allowed} now. It gives the rest back when its loop releases batches."
    return "rank", text, advice


def _slow_steps(slow, ranks, others):
    own = _listed([seconds(each["own_s"]) for each in slow])
    most = seconds(max(each["own_s"] for each in ranks if each not in slow))
    its, steps, who = ("its", "step", "this rank does") if len(slow) == 1 else ("their", "steps", "these ranks do")
    return (
        "rank",
        f"{_hold_up(slow, others)} by {its} {steps}, not by {its} data: without waiting for other ranks, {its} step "
        f"takes {own}, the others' {most} or less.",
        f"Look at what only {who}: logging, checkpoints, validation, more work, or a slower or busier CPU. "
        "`torch.profiler.profile()` records it.",
    )


def _sets_the_pace(rank):
    """Return whether a rank waits for its workers, because they make as many batches as it takes."""
    return rank["data_bound"] and rank["supply_s"] >= AT_PACE * (rank["batch_s"] or math.inf)


def _slowest(ranks, key):
    """Return the ranks whose time is clearly longer than the shortest, and about as long as the longest; by rank."""
    times = [each[key] for each in ranks]
    least = max(CLEARLY * min(times), ALIKE * max(times))
    return sorted((each for each in ranks if each[key] >= least), key=lambda each: each["rank"])


def _hold_up(slow, others):
    """Return the beginning of a sentence on slow ranks."""
    return f"{_named(slow)} {'holds' if len(slow) == 1 else 'hold'} up {others}"


def _named(ranks):
    """Return ranks with their numbers, and their pids if these are known."""
    named = [f"{each['rank']} (pid {each['pid']})" if "pid" in each else str(each["rank"]) for each in ranks]
    return f"Rank{'' if len(ranks) == 1 else 's'} {_listed(named)}"


def _supplied(slow, ranks):
    """Return a sentence's part that compares what the workers of slow ranks can supply with the others'."""
    rates = _listed([digits(1 / each["supply_s"]) for each in slow])
    least = min(1 / each["supply_s"] for each in ranks if each not in slow)
    whose = "its" if len(slow) == 1 else "their"
    return f" {whose} workers can supply {rates} batches/s, the others' {digits(least)} or more."


def _listed(texts):
    """Return texts as one: "1", "1 and 2", "1, 2 and 3"."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
