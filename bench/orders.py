"""The cost of a shuffled order by its length: ``python -m bench.orders``.

Purpose
    How long does a shuffled loader of n samples take to its first batch, how much memory does its process need, and
    how long does an index take?
Data
    A range: sample i is i, in batches of 256. One worker; it has started before the clock does, as in
    a second epoch.
Machine, command, result
    Printed. Baselines take turns in each round, each in its own process. "first batch": from ``iter()`` of the second
    epoch. "memory": the peak of the process, less its memory before the loader was made. "an
    index": an order of `BatchSampler`, evaluated and made a Python int.
Bias
    torch draws its permutation when the first batch is requested, as `slipring.torch.DataLoader` has to.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

from bench.machine import describe
from bench.record import Table, finish, option, spread

BATCH, INDICES = 256, 1 << 20
SAMPLERS = "BatchSampler", "BatchSampler(weights=)"
# Baseline -> the largest number of samples: its memory per sample must fit.
MOST = {
    "slipring.Loader": 10**18,
    "BatchSampler": 10**18,
    "BatchSampler(weights=)": 10**7,
    "slipring.torch.DataLoader": 10**8,
    "torch": 10**8,
}


def loader_of(baseline: str, n: int) -> Any:
    """Return a baseline's loader of n samples."""
    if baseline == "slipring.Loader":
        from slipring import Loader

        return Loader(range(n), BATCH, shuffle=True, num_workers=1, persistent_workers=True)
    if baseline in SAMPLERS:
        import numpy as np

        from slipring import BatchSampler, Loader

        kind = {"weights": np.arange(n, dtype=np.float64)} if "weights" in baseline else {"shuffle": True}
        sampler = BatchSampler(n, BATCH, **kind)
        return Loader(range(n), batch_sampler=sampler, num_workers=1, persistent_workers=True)
    if baseline == "torch":
        from torch.utils.data import DataLoader
    else:
        from slipring.torch import DataLoader
    return DataLoader(range(n), BATCH, shuffle=True, num_workers=1, persistent_workers=True)


def child(baseline: str, n: int) -> None:
    """Print seconds to the first batch, bytes, and seconds per index."""
    with_few = iter(loader_of(baseline, 1000))  # imports
    next(with_few)
    del with_few
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loader = loader_of(baseline, n)
    next(iter(loader))
    begun = time.perf_counter()
    next(iter(loader))
    first = time.perf_counter() - begun
    memory = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    index = None
    if baseline in SAMPLERS:
        order = loader.options.batch_sampler.order(0)
        begun = time.perf_counter()
        for at in range(0, min(INDICES, len(order)), BATCH):
            order.part(at, BATCH)
        index = (time.perf_counter() - begun) / min(INDICES, len(order))
    print(json.dumps([first, memory, index]))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.orders", description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, nargs="+", default=[10**5, 10**7, 10**8, 10**9], metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    option(parser)
    options = parser.parse_args()
    if options.child:
        child(*json.loads(options.child))
        return 0
    about = describe((), "torch")
    table = Table("samples", "loader", "first batch, ms", "memory, MB", "an index, ns", labels=2)
    for n in options.samples:
        baselines = [baseline for baseline, most in MOST.items() if n <= most]
        found: dict[str, list[list[float]]] = {baseline: [] for baseline in baselines}
        for _ in range(options.rounds):
            for baseline in baselines:
                command = [sys.executable, "-m", "bench.orders", "--child", json.dumps([baseline, n])]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found[baseline].append(json.loads(done.stdout.splitlines()[-1]))
        for baseline, results in found.items():
            first, memory, index = zip(*results, strict=True)
            each = None if None in index else spread(index, 1e9)
            table.add(n, baseline, spread(first, 1e3), spread(memory, 1e-6), each)
    finish(options.record, about, {"orders": table})
    return 0


if __name__ == "__main__":
    sys.exit(main())
