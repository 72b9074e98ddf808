"""How long the first batch and close() take with many workers: ``python -m bench.starts``.

Purpose
    By the number of workers: how long does the first batch of a new loader take, how long its end while all workers are
    idle, and how long its end right after the first batch, when most of them are still starting?
Data
    Samples of 4 KiB that are ready in memory, in batches of 16.
Machine, command, result
    Printed. Baselines take turns in each round, each in its own process; the clock starts after the import of its
    library. torch starts its workers in each epoch without ``persistent_workers``; here it starts them once.
    The second table shows how the medians grow with the number of workers, beyond one.
Bias
    With more workers than processors, the processors do this work in sequence: a machine with as many processors
    starts and ends workers concurrently. `slipring.Loader` needs no torch, so its workers are smaller.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np

from bench.machine import describe
from bench.record import Table, finish, option, rounded, spread
from slipring import Workers

BATCH = 16
AFTER = 4  # batches per worker in an epoch, after which all workers have started and are idle
SPANS = "first batch", "end, at rest", "end, begun"
BASELINES = "torch", "slipring.torch.DataLoader", "slipring.Loader"


class Ready:
    """Samples of 4 KiB."""

    def __init__(self, length: int) -> None:
        self.rows = np.zeros((64, 1024), np.float32)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> np.ndarray:
        return self.rows[i % len(self.rows)]


def maker(baseline: str) -> Any:
    """Import a baseline; return a function that makes its loader from (dataset, workers, method)."""
    if baseline == "slipring.Loader":
        from slipring import Loader

        return lambda dataset, n, method: Loader(dataset, BATCH, num_workers=n, workers=Workers(start_method=method))
    if baseline == "torch":
        from torch.utils.data import DataLoader
    else:
        from slipring.torch import DataLoader
    return lambda dataset, n, method: DataLoader(
        dataset, BATCH, num_workers=n, multiprocessing_context=method, persistent_workers=True
    )


def child(baseline: str, workers: int, method: str) -> None:
    """Print the seconds of each of `SPANS`."""
    warnings.simplefilter("ignore")  # more workers than processors are intended
    make, found = maker(baseline), []
    dataset = Ready(AFTER * workers * BATCH)
    for whole in (True, False):
        begun = time.perf_counter()
        loader = make(dataset, workers, method)
        batches = iter(loader)
        next(batches)
        first = time.perf_counter() - begun
        if whole:
            found.append(first)
            for _ in batches:
                pass
        begun = time.perf_counter()
        if hasattr(loader, "close"):
            loader.close()
        del batches, loader  # this ends torch's workers
        found.append(time.perf_counter() - begun)
    print(json.dumps(found))


def measure(baseline: str, workers: int, method: str) -> list[float]:
    """Measure once, in a new process."""
    command = [sys.executable, "-m", "bench.starts", "--child", json.dumps([baseline, workers, method])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [float(seconds) for seconds in json.loads(done.stdout.splitlines()[-1])]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.starts", description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 16, 32, 64, 128], metavar="N")
    parser.add_argument("--method", choices=("fork", "spawn", "forkserver"), default="fork")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    option(parser)
    options = parser.parse_args()
    if options.child:
        baseline, workers, method = json.loads(options.child)
        child(baseline, int(workers), method)
        return 0
    about = describe((), "torch")
    columns = [column for span in SPANS for column in (f"{span}, s", f"{span}, ÷ torch")]
    table = Table("workers", "loader", *columns, labels=2)
    medians: dict[tuple[int, str], list[float]] = {}
    for workers in options.workers:
        found: dict[str, list[list[float]]] = {baseline: [] for baseline in BASELINES}
        for _ in range(options.rounds):
            for baseline, results in found.items():
                results.append(measure(baseline, workers, options.method))
        for baseline, results in found.items():
            row: list[Any] = []
            for span in range(len(SPANS)):
                own, torchs = ([each[span] for each in some] for some in (results, found["torch"]))
                ratios = [a / b for a, b in zip(own, torchs, strict=True)]
                row += [spread(own), None if baseline == "torch" else spread(ratios)]
            medians[workers, baseline] = [statistics.median(own) for own in zip(*results, strict=True)]
            table.add(workers, baseline, *row)
    growth = Table("workers ×", "loader", *(f"{span}, ×" for span in SPANS), labels=2)
    least = min((n for n in options.workers if n > 1), default=1)
    for (workers, baseline), own in medians.items():
        if workers > least:
            spans = zip(own, medians[least, baseline], strict=True)
            growth.add(workers / least, baseline, *(rounded(now / then) for now, then in spans))
    finish(options.record, about, {"starts": table, "growth": growth})
    return 0


if __name__ == "__main__":
    sys.exit(main())
