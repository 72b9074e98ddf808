"""The cost of random numbers for each sample: ``python -m bench.seeds``.

Purpose
    What does ``rng="sample"``, which seeds all generators before each sample, cost compared with ``rng="batch"``?
Data
    The numbers 0 to 19,999 in batches of 100, without workers; each row in its own process.
Machine, command, result
    Printed. Milliseconds for an epoch: the least of the rounds, because other programs only add to it.
Bias
    A sample takes no time, so the seeds are all that is measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from bench.machine import describe
from bench.record import Table, finish, option, rounded

SAMPLES, BATCH = 20_000, 100
ROWS = {"without torch": False, "with torch, whose generator is seeded too": True}


def epoch_ms(rng: str, torch: bool) -> float:
    """Return the time of an epoch in this process."""
    if torch:
        import torch as _
    from slipring import Loader

    loader = Loader(range(SAMPLES), BATCH, rng=rng, seed=1)  # type: ignore[call-overload]
    begin = time.perf_counter()
    for _ in loader:
        pass
    return (time.perf_counter() - begin) * 1e3


def measure(rng: str, torch: bool, rounds: int) -> float:
    """Return the least time of some processes."""
    command = [sys.executable, "-m", "bench.seeds", "--one", json.dumps([rng, torch])]
    times = (subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout for _ in range(rounds))
    return min(map(float, times))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.seeds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    option(parser)
    options = parser.parse_args()
    if options.one:
        print(epoch_ms(*json.loads(options.one)))
        return
    about = describe((), "torch")
    table = Table(f"{SAMPLES:,} samples", 'rng="sample", ms', 'rng="batch", ms', "difference, µs per sample")
    for title, torch in ROWS.items():
        each, whole = (measure(rng, torch, options.rounds) for rng in ("sample", "batch"))
        table.add(title, rounded(each), rounded(whole), rounded((each - whole) / SAMPLES * 1e3))
    finish(options.record, about, {"seeds": table})


if __name__ == "__main__":
    main()
