"""Does num_workers="auto" find the best number of workers: ``python -m bench.auto [--rounds 3] [--only tiny]``.

Purpose
    How fast are batches with the number that "auto" finds, compared with the best of the fixed numbers 0, 1, 2, 4 ...
    the upper bound, once all are in their steady state? After how many batches has it settled?
Data
    Five map datasets. decode-bound: each sample inflates and sums 0.6 MB, the loop does nothing. I/O wait: each sample
    sleeps 4 ms, the loop computes 1 ms per batch. consumer-bound: the loop computes 6 ms per batch, its workers 0.6.
    tiny: 4 × (3 × 8 × 8 uint8, label) per batch. memory-bound: each batch copies 12 MB out of 400.
Machine, command, result
    Printed. Each round has every number once and "auto" once; the medians of the rounds are compared.
Bias
    Forked workers, and at least 200 batches before the clock starts. Other load of the machine is in every figure: only
    ratios within one run are meaningful.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

import slipring
from bench.machine import describe
from bench.record import Table, finish, option, rounded

MAX_WORKERS = 16
WARM = 200  # batches before the clock starts; more if "auto" takes longer
SECONDS = 0.8  # per measurement


def compute(seconds: float) -> None:
    """Use a processor for that much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Endless:
    """A dataset with so many samples that no epoch ends."""

    def __len__(self) -> int:
        return 1 << 30


class Inflated(Endless):
    """Samples that take processor time."""

    def __init__(self) -> None:
        self.packed = zlib.compress(np.random.default_rng(1).integers(0, 40, 600_000, np.uint8).tobytes(), 1)

    def __getitem__(self, i: int) -> int:
        return int(np.frombuffer(zlib.decompress(self.packed), np.uint8).sum())


class Slow(Endless):
    """Samples that take a while, asleep."""

    def __getitem__(self, i: int) -> int:
        time.sleep(0.004)
        return i


class Cheap(Endless):
    """Samples that take a tenth of the loop's time for them."""

    def __getitem__(self, i: int) -> int:
        compute(0.000075)
        return i


class Tiny(Endless):
    """Samples that take almost no time."""

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return np.zeros((3, 8, 8), np.uint8), i


class Large(Endless):
    """Batches that are only copied."""

    def __init__(self) -> None:
        self.all = np.random.default_rng(1).integers(0, 255, (400, 1_000_000), np.uint8)

    def __getitem__(self, i: int) -> np.ndarray:
        return self.all[i % 400]


def nothing() -> None:
    """A loop that only takes batches."""


WORKLOADS: dict[str, tuple[Callable[[], Any], int, Callable[[], None]]] = {
    "decode-bound": (Inflated, 4, nothing),
    "I/O wait": (Slow, 4, lambda: compute(0.001)),
    "consumer-bound": (Cheap, 8, lambda: compute(0.006)),
    "tiny": (Tiny, 4, nothing),
    "memory-bound": (Large, 12, nothing),
}


def measure(dataset: Any, size: int, step: Callable[[], None], workers: int | str) -> tuple[float, Any, int]:
    """Return (batches per second, tuning, batches until it was settled)."""
    count_of = (None, MAX_WORKERS) if workers == "auto" else workers
    how = slipring.Workers(start_method="fork")
    with slipring.Loader(dataset, size, num_workers=count_of, workers=how) as loader:
        batches = iter(loader)
        count = settled = 0
        begun = time.perf_counter()
        while count < WARM or (loader.tuning is not None and not loader.tuning.settled):
            next(batches)
            step()
            count += 1
            if not settled and loader.tuning is not None and loader.tuning.settled:
                settled = count
            if workers != "auto" and time.perf_counter() - begun > 2 * SECONDS and count > 8 * max(1, int(workers)):
                break  # slow, and warm for long enough
        taken, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < SECONDS:
            next(batches)
            step()
            taken += 1
        return taken / (time.perf_counter() - begun), loader.tuning, settled


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=WORKLOADS, nargs="+", default=list(WORKLOADS), help="these workloads")
    option(parser)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # 16 workers are many for this machine, which is intended
    about, numbers = describe(), [0, *(1 << k for k in range(MAX_WORKERS.bit_length()))]
    columns = ("best fixed number", "auto ÷ best fixed", "workers found, per round", "batches until settled, per round")
    table, speeds = Table("work", *columns), Table("batches/s", *map(str, numbers), "auto", quiet=True)
    for name, (dataset, size, step) in WORKLOADS.items():
        if name not in asked.only:
            continue
        made = dataset()
        rates: dict[int | str, list[float]] = {n: [] for n in [*numbers, "auto"]}
        until, tunings = [], []
        for _ in range(asked.rounds):
            for workers, found in rates.items():
                rate, tuning, settled = measure(made, size, step, workers)
                found.append(rate)
                if tuning is not None:
                    until.append(settled)
                    tunings.append(tuning)
        medians = {n: statistics.median(found) for n, found in rates.items()}
        best = max(numbers, key=lambda n: medians[n])
        workers_found = ", ".join(str(tuning.workers) for tuning in tunings)
        table.add(name, best, rounded(medians["auto"] / medians[best]), workers_found, ", ".join(map(str, until)))
        speeds.add(name, *(rounded(medians[n]) for n in rates))
        for tuning in tunings:
            tried = ", ".join(f"{n}: {rate:.4g} ({waits:.0%})" for n, rate, waits in tuning.history)
            print(f"  tried {tried}\n    {tuning.reason}", file=sys.stderr)
    finish(asked.record, about, {"auto": table, "rates": speeds})


if __name__ == "__main__":
    main()
