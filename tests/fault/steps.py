"""Deaths at every step: each stop point of the C ring (tests/steps), in every mode, in every way.

    python -m tests.fault.steps [--quick] [--only 'respawn map;parent chunks'] [--seed 1] [--jobs 2]

A job is a kind of death and a mode, in its own process. Kinds for a loader's processes: `respawn` (a worker dies at the
point and is replaced), `raise` (it dies, and WorkerDied says so), `stop` (it is stopped there and later continues) and
`parent` (the consumer dies there). For `queue`, one of the processes that share a `slipring.Queue` dies or is stopped;
for `share`, a reader of shared batches, or the consumer that shares them. The exit code is 1 if a batch was lost,
delivered twice, out of order or changed, if anything hung or was left behind, or if no participant passes a point in
any mode.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from bench import machine, record
from tests.fault import points
from tests.fault.kills import line, run_module

# Arguments of `rounds.Mode`.
MODES = {
    "map": {"init": True},
    "map, rng per worker": {"rng": "worker", "exact": False},
    "map, as completed": {"in_order": False},
    "map, ended early": {"early": True, "persistent_workers": False},
    "chunks": {"chunk_size": 2},
    "chunks, staged": {"chunk_size": 2, "collate": True},
    "chunks, mixed": {"chunk_size": 2, "data": "Mixed"},
    "chunks, ended early": {"chunk_size": 1, "early": True},
    "stream, by state": {"data": "Stateful"},
    "stream, replay": {"data": "Stream"},
    "arrays kept": {"data": "Kept"},
}
QUEUE_MODES = [f"{who} {what}" for what in ("dies", "stops") for who in ("producer", "consumer")]
SHARE_MODES = ["reader dies", "reader stops", "publisher dies"]
POOL_MODES = ["worker dies", "worker stops"]
ALL_JOBS = [
    *((kind, mode) for kind in ("respawn", "raise", "stop", "parent") for mode in MODES),
    *(("queue", mode) for mode in QUEUE_MODES),
    *(("share", mode) for mode in SHARE_MODES),
    *(("pool", mode) for mode in POOL_MODES),
]
QUICK_JOBS = [
    *(("respawn", mode) for mode in MODES),
    *(("raise", mode) for mode in ("map", "chunks, staged", "stream, by state")),
    *(("stop", mode) for mode in ("map", "chunks")),
    *(("parent", mode) for mode in ("map, ended early", "chunks", "stream, by state")),
    *(("queue", mode) for mode in QUEUE_MODES[:3]),
    *(("share", mode) for mode in SHARE_MODES),
    *(("pool", mode) for mode in POOL_MODES),
]
# Points where no process can be hit, or that these jobs do not reach.
ELSEWHERE = {
    "cache": "C alone: the model's caches, tests/c/test_cache_deaths.c, the cache modes of tests/fault/kills.py",
    "recover_step: before cas &s->state": "a queue's dead consumer had a pinned batch: tests/c/test_queue_mode.c",
    "recover_step: after cas &s->state": "the same",
    "announce: before wait": "two participants grow at once, with room for one: tests/c/test_memory.c",
    "announce: after wait": "the same",
    "sr_trim_free": "memory is short: the model's `pressure`, tests/fault/test_memory.py",
    "release_memory": "the same",
    "sr_wait_memory": "the same",
    "sr_end_wait_memory": "the same",
    "update_memory_pressure": "the same",
    "sr_copy_report": "batches of megabytes, once: tests/collate/test_copies.py",
    "sr_retire": "workers that come and go: the model's `retire`, tests/fault/test_resize.py",
    "sr_cancel_retirement": "the same",
    "sr_claim: before cas &me->retiring": "the same",
    "sr_claim: after cas &me->retiring": "the same",
    "sr_claim: before store &me->at_since": "the same",
    "sr_set_copy_time": "a device copies a batch: tests/preload",
    "sr_wait_serving": "only tests wait for a worker to begin: tests/c/test_participants.c",
    "sr_add_read": "a dataset reads remote files: tests/remote",
    "sr_set_registered": "a device reads from slots: tests/preload",
    "sr_wake_worker": "the process of a pool, whose death ends the pool: tests/pool/test_deaths.py",
    "sr_set_budget": "the same process: tests/pool/test_budget.py, tests/c/test_budget.c",
}
COLUMNS = (
    "points", "rounds", "interrupted", "missed", "raised", "batches",
    "lost", "doubled", "reordered", "changed", "wrong",
)  # fmt: skip
MUST_BE_ZERO = ("lost", "doubled", "reordered", "changed", "wrong")


def elsewhere(name):
    """Return whether no process is expected to pass a point."""
    return any(name == what or name.startswith((f"{what}:", f"{what} ", f"{what},")) for what in ELSEWHERE)


EVENTS = {
    "respawn": "a loader's worker dies and is replaced",
    "raise": 'a loader\'s worker dies with on_death="raise"',
    "stop": "a loader's worker is stopped",
    "parent": "the consumer of a loader dies",
    "queue": "a participant of a queue is stopped",
    "producer dies": "a producer of a queue dies",
    "consumer dies": "a consumer of a queue dies",
    "reader dies": "a reader of shared batches dies",
    "reader stops": "a reader of shared batches is stopped",
    "publisher dies": "the consumer that shares batches dies",
    "worker dies": "a worker that serves two segments dies",
    "worker stops": "a worker that serves two segments is stopped",
}


def table_of(events):
    """Return the counts of each event, in all modes together; of the points the least and the greatest number."""
    table = record.Table("event", "modes", "points", "rounds", "killed or stopped", "batches", quiet=True)
    for what, found in events.items():
        fewest, most = (f(counts["points"] for counts in found) for f in (min, max))
        total = [sum(counts[name] for counts in found) for name in ("rounds", "interrupted", "batches")]
        table.add(what, len(found), fewest if fewest == most else f"{fewest} – {most}", *total)
    return table


def run(kind, *args):
    """Return the counts of a job, with "failure" if it did not finish."""
    return run_module(
        {"queue": "step_queue", "share": "step_shared", "pool": "step_pool"}.get(kind, "step_rounds"), kind, *args
    )


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.fault.steps")
    parser.add_argument("--quick", action="store_true", help="each point in one of the ways, fewer modes")
    parser.add_argument("--only", help="jobs, separated by ;")
    parser.add_argument("--seed", default=str(int.from_bytes(os.urandom(4), "little")))
    parser.add_argument("--jobs", type=int, default=3, help="at once: most of the time they wait")
    parser.add_argument("--json", action="store_true", help="the counts, on one line at the end")
    record.option(parser)
    asked = parser.parse_args()
    jobs = QUICK_JOBS if asked.quick else ALL_JOBS
    if asked.only:
        jobs = [job for job in ALL_JOBS if " ".join(job) in asked.only.split(";")]
    path = points.build()
    print(f"seed {asked.seed}", flush=True)
    began = time.monotonic()
    width = max(len(" ".join(job)) for job in jobs)
    print(line("", {c: c for c in COLUMNS}, width, COLUMNS), flush=True)
    reached, failed, missed, total, names, events = set(), [], [], Counter(), [], {}
    with ThreadPoolExecutor(asked.jobs) as pool:
        pending = [(job, pool.submit(run, *job, path, int(asked.quick), asked.seed)) for job in jobs]
        for job, future in pending:
            counts, happened, job = future.result(), EVENTS.get(job[1]) or EVENTS[job[0]], " ".join(job)
            print(line(job, counts, width, COLUMNS), flush=True)
            if "failure" in counts:
                failed.append(f"{job} {counts['failure']}")
                continue
            failed += [f"{job}: {what}" for what in counts["details"]]
            missed += [f"{job}: {what}" for what in counts["missed_at"]]
            total.update({c: counts[c] for c in COLUMNS})
            events.setdefault(happened, []).append(counts)
            names = counts["names"]
            reached |= set(counts["reached"])
    print(line("all", total, width, COLUMNS))
    for what in missed:
        print(f"nobody came by again: {what}")
    for what in failed:
        print(what)
    unreached = [] if asked.only else [n for n in names if n not in reached and not elsewhere(n)]
    for name in unreached:
        print(f"in nobody's way: {name}")
    print(f"{len(names)} points, {len(reached)} of them in somebody's way in {len(jobs)} jobs")
    print(f"{time.monotonic() - began:.0f} s, seed {asked.seed}")
    if asked.json:
        wrong = [what for what in ELSEWHERE if not any(name.startswith(what) for name in names)]
        print(json.dumps({**total, "failed": failed, "unreached": unreached, "no such point": wrong}))
    if asked.record:
        record.finish(asked.record, machine.describe((), "torch"), {"steps": table_of(events)})
    return 1 if failed or unreached or any(total[c] for c in MUST_BE_ZERO) else 0


if __name__ == "__main__":
    sys.exit(main())
