"""Spawned workers' dataset, sent once or to each worker: ``python -m bench.once``.

Purpose
    If workers do not inherit their dataset (spawn, forkserver): how long does the first batch take, and how much
    memory do the workers take together, by the dataset's size and the number of workers?
Data
    One numpy array of so many MB, filled with random bytes, whose samples are rows of 64 KiB; batches of 16. Each
    worker reads all of it before its memory is counted (PSS of smaps_rollup: a shared page counts once).
Machine, command, result
    Printed. Baselines take turns in each round, each in its own process, which makes the array before the clock starts;
    the clock ends with the first batch.
Bias
    The program's own copy of the array is in no figure: it is the same for all. Datasets of many small objects are
    copied by slipring, too: then there is no difference. The memory of interpreters and libraries (torch: 0.2 GB in
    each worker) is part of the workers' memory; the next column subtracts it, as measured with 1 MB.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.machine import describe
from bench.record import Table, finish, option, spread

ROW = 1 << 16
BATCH = 16
METHODS = ("spawn", "forkserver")


class Rows:
    """Rows of one large array. A worker's first sample reads all of them."""

    def __init__(self, megabytes: int) -> None:
        shape = megabytes * 1_000_000 // ROW, ROW
        self.rows = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        self.read = False

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, i: int) -> np.ndarray:
        if i >= 1 << 19 and not self.read:
            self.read = self.rows.any()
        return self.rows[i % len(self.rows)]


class Order:
    """A sampler: first batches that read one row, then batches that make every worker read all rows."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __iter__(self) -> Any:
        return iter([*range(self.first), *range(1 << 19, (1 << 19) + self.first)])

    def __len__(self) -> int:
        return 2 * self.first


def torchs(dataset: Rows, workers: int, method: str) -> Any:
    """torch's loader."""
    from torch.utils.data import DataLoader

    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": method}
    return DataLoader(dataset, BATCH, sampler=Order(4 * workers * BATCH), persistent_workers=True, **options)


def ours_in_torchs_place(dataset: Rows, workers: int, method: str) -> Any:
    """slipring's drop-in."""
    from slipring.torch import DataLoader

    options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": method}
    return DataLoader(dataset, BATCH, sampler=Order(4 * workers * BATCH), persistent_workers=True, **options)


def ours(dataset: Rows, workers: int, method: str) -> Any:
    """slipring's own loader, without torch."""
    from slipring import Loader, Workers

    options: dict[str, Any] = {
        "num_workers": workers,
        "workers": Workers(start_method=method),  # type: ignore[arg-type]
        "rng": "worker",
    }
    return Loader(dataset, BATCH, sampler=Order(4 * workers * BATCH), **options)


BASELINES: dict[str, Callable[[Rows, int, str], Any]] = {
    "torch": torchs,
    "slipring.torch.DataLoader": ours_in_torchs_place,
    "slipring.Loader": ours,
}


def pss(pid: int) -> int:
    """Return the bytes of a process; shared pages count by their share."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("Pss:"))


def measure(baseline: str, megabytes: int, workers: int, method: str) -> dict[str, float]:
    """Measure once, in a new process."""
    asked = [baseline, str(megabytes), str(workers), method]
    command = [sys.executable, "-m", "bench.once", "--child", json.dumps(asked)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def child(baseline: str, megabytes: int, workers: int, method: str) -> None:
    """Print seconds to the first batch, the workers' bytes, seconds to close."""
    warnings.simplefilter("ignore")  # more workers than processors are intended
    dataset = Rows(megabytes)
    loader = BASELINES[baseline](dataset, workers, method)
    begun = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - begun
    count = 1
    for _ in batches:
        count += 1
    taken = sum(pss(each.pid) for each in multiprocessing.active_children() if each.pid)
    begun = time.perf_counter()
    del batches
    if hasattr(loader, "close"):
        loader.close()
    del loader
    print(json.dumps({"first": first, "taken": taken, "closed": time.perf_counter() - begun, "batches": count}))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.once", description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[250, 1000, 2000], metavar="MB")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4], metavar="N")
    parser.add_argument("--method", choices=METHODS, default="spawn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    option(parser)
    options = parser.parse_args()
    if options.child:
        baseline, megabytes, workers, method = json.loads(options.child)
        child(baseline, int(megabytes), int(workers), method)
        return 0
    about = describe((), "torch")
    columns = ("first batch, s", "÷ torch", "memory, MB", "of the dataset's", "close, s")
    table = Table("start method", "MB", "workers", "loader", *columns, labels=4)
    for workers in options.workers:
        empty = {baseline: measure(baseline, 1, workers, options.method)["taken"] for baseline in BASELINES}
        for megabytes in options.megabytes:
            found: dict[str, list[dict[str, float]]] = {baseline: [] for baseline in BASELINES}
            for _ in range(options.rounds):
                for baseline, results in found.items():
                    results.append(measure(baseline, megabytes, workers, options.method))
            for baseline, results in found.items():
                first = [each["first"] for each in results]
                ratios = [a["first"] / b["first"] for a, b in zip(results, found["torch"], strict=True)]
                taken = statistics.median(each["taken"] for each in results)
                copies = (taken - empty[baseline]) / megabytes / 1e6
                row = [spread(first), None if baseline == "torch" else spread(ratios), round(taken / 1e6)]
                row += [round(copies, 2), spread(each["closed"] for each in results)]
                table.add(options.method, megabytes, workers, baseline, *row)
    finish(options.record, about, {"once": table})
    return 0


if __name__ == "__main__":
    sys.exit(main())
