"""The soak: one process that uses loader after loader for any time, and must not grow.

    python -m tests.soak [--minutes 20] [--seed 1] [--quick] [--plant descriptor array] [--json]

A turn is one short-lived loader (`lives.py`: any adapter, start method, dataset and end; in some, the workers are
killed) and two epochs of each loader that lives as long as the run. All batches are compared. After each turn, the
process and the residents' workers are measured (`watch.py`), and at the end judged (`judge.py`). The exit code is 1 if
anything grew, was lost, repeated, reordered, changed or left behind.
"""

import argparse
import faulthandler
import json
import os
import random
import sys
import time
from array import array
from collections import Counter
from importlib.util import find_spec

import numpy as np

from bench import machine
from bench.record import Table, finish, option
from tests.fault.rounds import Killer, expect_deaths
from tests.soak.judge import LEAST, judge, table
from tests.soak.lives import Lives, residents
from tests.soak.watch import QUANTITIES, quantities
from tests.support.leaks import Snapshot

TURN_S = 1200  # a turn that takes longer hangs
EPOCHS = 2  # per resident and turn
WRONG = ("lost", "doubled", "reordered", "changed")
# Leaks on purpose, one per turn, which must be noticed.
PLANTS = {"descriptor": lambda: os.memfd_create("planted"), "array": lambda: np.ones(1 << 17)}


def run(minutes, seed, quick, plants):
    """Run turn after turn; return (the seconds and quantities of each turn, counts, leaks)."""
    planted = {plant: [] for plant in plants}
    series, counts = array("d"), Counter(dict.fromkeys((*WRONG, "batches", "respawns"), 0))
    before = Snapshot.take()
    torch = not quick and find_spec("torch") is not None
    killer = Killer(random.Random(f"{seed} kills"))
    lives, settled = Lives(random.Random(seed), torch, quick, killer), residents(seed, torch, quick)
    began = told = time.monotonic()
    turns = 0
    while time.monotonic() < began + 60 * minutes or turns < 4 * LEAST:
        faulthandler.dump_traceback_later(TURN_S, exit=True)
        what, live = lives.next()
        previous = Counter(counts)
        try:
            live(counts)
        except BaseException:
            print(f"turn {turns}, seed {seed}: {what}", file=sys.stderr)
            raise
        for resident in settled * EPOCHS:
            resident.epoch(counts)
        for plant, kept in planted.items():
            kept.append(PLANTS[plant]())
        turns += 1
        if wrong := {name: counts[name] for name in WRONG if counts[name] != previous[name]}:
            print(f"turn {turns}, seed {seed}: {wrong} after {what}", file=sys.stderr)
        found = quantities(settled)
        series.extend([time.monotonic() - began, *(found[q.name] for q in QUANTITIES)])
        if time.monotonic() > told + 60:
            told = time.monotonic()
            own = ", ".join(f"{name} {found[name]:.4g}" for name in ("descriptors", "python blocks", "heap in use"))
            print(f"{told - began:.0f} s, {turns} turns: {own}", file=sys.stderr, flush=True)
    counts["respawns"] += sum(resident.loader.stats().respawns for resident in settled)
    for resident in settled:
        resident.loader.close()
    killer.end()
    for fd in planted.get("descriptor", ()):
        os.close(fd)
    del resident, settled, lives, live
    left = before.leaks(wait_s=10)
    faulthandler.cancel_dump_traceback_later()
    rows = np.array(series).reshape(-1, 1 + len(QUANTITIES))
    return rows, {**counts, "turns": turns, "kills": killer.kills, "seconds": time.monotonic() - began}, left


def marked():
    """Exec again with a mark that identifies orphans (see `tests.support.leaks`), unless there is one."""
    if "SLIPRING_TEST_RUN" not in os.environ:
        os.environ["SLIPRING_TEST_RUN"] = f"soak {os.getpid()}"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", default=str(int.from_bytes(os.urandom(4), "little")))
    parser.add_argument("--quick", action="store_true", help="without torch, spawn and forkserver")
    parser.add_argument("--plant", choices=PLANTS, nargs="+", default=[], help="leak on purpose")
    parser.add_argument("--json", action="store_true", help="the figures, on one line at the end")
    option(parser)
    asked = parser.parse_args()
    marked()
    expect_deaths()
    about = machine.describe((), "torch")
    print(f"seed {asked.seed}", flush=True)
    rows, counts, left = run(asked.minutes, asked.seed, asked.quick, asked.plant)
    verdicts = {q.name: judge(q, rows[:, 0], series) for q, series in zip(QUANTITIES, rows[:, 1:].T, strict=True)}
    print("\n".join(table(QUANTITIES, verdicts)))
    print(", ".join(f"{name} {count:,.0f}" for name, count in counts.items()))
    print(f"{about['cpu']}, {about['cores']} cores, {about['ram_gib']} GiB, {about['kernel']}, "
          f"Python {about['python']}, {about['date'][:10]}")  # fmt: skip
    grew = [q for q in QUANTITIES if verdicts[q.name].grew]
    for q in grew:
        v = verdicts[q.name]
        print(f"grew: {q.name}, from {v.early:.6g} to {v.late:.6g} {q.unit}: {v.per_hour:+.4g} per hour")
    for one in left:
        print(f"left behind: {one}")
    if asked.json:
        print(json.dumps({"counts": counts, "left": left, "grew": [q.name for q in grew]}))
    if asked.record:
        summary = Table("minutes", "turns", "batches", "kills", "counts that grew", quiet=True)
        summary.add(asked.minutes, *(counts[name] for name in ("turns", "batches", "kills")), len(grew))
        finish(asked.record, about, {"soak": summary})
    return 1 if grew or left or any(counts[name] for name in WRONG) else 0


if __name__ == "__main__":
    sys.exit(main())
