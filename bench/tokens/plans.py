"""How full are packs, how much do they cost to plan, and how alike are the costs of ranks?

Purpose
    Waste (room of packs without tokens) and CPU time per document by budget; the largest over the mean cost among 8
    ranks; CPU time to the first batch and to that of a resume, and memory, with very many memory-mapped lengths.
Data
    Lognormal lengths (6, 1.2), at most the budget. Costs are tokens + the sum of squared lengths / 30,000.
Baseline
    Best fit decreasing over the whole set, as TRL's ``pack_dataset(strategy="bfd")`` packs it, by the loop that plans
    parts; documents in the order of the dataset, as many per rank and step, without packing. TRL and Grain where they
    are installed: Grain's best fit with 64 open packs, of the first 20,000 documents.
Bias
    Grain and TRL copy the tokens into packs while they plan; slipring's time is without the collation. CPU time of one
    process, in which nothing else runs. The file of lengths is in the page cache. A resume is in the
    middle of the epoch. The last step of 8 ranks, which is divided, counts as waste and in the balance.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.record import Table, spread
from slipring.tokens import PackedSampler
from slipring.tokens._pack import best_fit

BUDGETS = 2048, 4096, 8192, 16384, 65536
RANKS, COST = 8, (1.0, 1 / 30_000)


def lengths_of(n: int, budget: int, seed: int = 0) -> np.ndarray:
    """Return n lengths."""
    return np.random.default_rng(seed).lognormal(6, 1.2, n).astype(np.int32).clip(1, budget)


def whole_set(lengths: np.ndarray, budget: int) -> tuple[float, float]:
    """Return the waste in percent, and ns per document, of best fit decreasing over all documents."""
    began = time.process_time()
    descending = np.sort(lengths)[::-1].astype(np.int64)[None].copy()
    _, room = best_fit(descending, np.array([budget]), len(lengths))
    return 100 * float(room.sum()) / (len(room) * budget), (time.process_time() - began) / len(lengths) * 1e9


def trl(lengths: np.ndarray, budget: int) -> tuple[float, float] | None:
    """Return the same of TRL; None if it is not installed."""
    try:
        from datasets import Dataset
        from trl import pack_dataset
    except ImportError:
        return None
    data = Dataset.from_dict({"input_ids": [[0] * size for size in lengths.tolist()]})
    began = time.process_time()
    packs = len(pack_dataset(data, budget, "bfd"))
    return 100 - 100 * lengths.sum() / (packs * budget), (time.process_time() - began) / len(lengths) * 1e9


class Zeros:
    """Documents of these lengths, for Grain."""

    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"input_ids": np.zeros(self.lengths[index], np.int32)}


def grain(lengths: np.ndarray, budget: int) -> tuple[float, float] | None:
    """Return the same of Grain; None if it is not installed."""
    if importlib.util.find_spec("grain") is None:
        return None
    from grain import MapDataset, ReadOptions
    from grain.experimental import BestFitPackIterDataset

    data = MapDataset.source(Zeros(lengths)).to_iter_dataset(ReadOptions(num_threads=0))
    began = time.process_time()
    packed = BestFitPackIterDataset(data, length_struct={"input_ids": budget}, num_packing_bins=64)
    packs = sum(1 for _ in packed)
    return 100 - 100 * lengths.sum() / (packs * budget), (time.process_time() - began) / len(lengths) * 1e9


def of_ranks(costs: np.ndarray, dearest: np.ndarray) -> tuple[float, float]:
    """Return the largest cost of a step over max(mean, dearest document): its mean and its 99th percentile."""
    ratio = costs.max(1) / np.maximum(costs.mean(1), dearest)
    return float(ratio.mean()), float(np.percentile(ratio, 99))


def cost_of(lengths: np.ndarray) -> np.ndarray:
    """Return the cost of each document."""
    return COST[0] * lengths + COST[1] * lengths.astype(float) ** 2


def peak() -> int:
    """Return the bytes that this process had in memory at most, with the pages of its files."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def child(path: str) -> None:
    """Print CPU seconds to the first batch and to that of a resume, and bytes."""
    lengths = np.load(path, mmap_mode="r")
    list(PackedSampler(lengths[:1000], 65536, seed=0))
    before = peak()
    found = []
    began = time.process_time()
    batches = iter(PackedSampler(lengths, BUDGETS[-1], seed=0, rank=0, world_size=RANKS, cost=COST))
    next(batches)
    found.append(time.process_time() - began)
    state = batches.state_dict()
    # The state of the middle: as that of the first window, of other parts.
    first = RANKS * 10**6
    state |= {"position": first, "windows": [[len(lengths) >> 19, 0, [RANKS, 1, first]]]}
    sampler = PackedSampler(lengths, BUDGETS[-1], seed=0, rank=3, world_size=6, cost=COST)
    began = time.process_time()
    sampler.load_state_dict(state)
    next(iter(sampler))
    found.append(time.process_time() - began)
    print(json.dumps([*found, peak() - before]))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--documents", type=int, default=10**6, metavar="N", help="of the plans (1,000,000)")
    parser.add_argument("--mapped", type=int, nargs="*", default=[10**6, 10**8], metavar="N", help="mapped documents")


def tables(options: argparse.Namespace) -> dict[str, Table]:
    """Measure, and return the tables."""
    packs = Table(
        "budget", "waste, %", "ns", "waste of the whole set, %", "ns of it", "TRL's waste, %", "TRL's ns",
        "Grain's waste, %", "Grain's ns",
    )  # fmt: skip
    balance = Table("budget", "mean", "p99", "mean, unpacked", "p99, unpacked")
    for budget in BUDGETS:
        lengths = lengths_of(options.documents, budget)
        times = []
        for _ in range(options.rounds):
            sampler = PackedSampler(lengths, budget, seed=0)
            began = time.process_time()
            len(sampler)
            times.append((time.process_time() - began) / len(lengths))
        theirs = trl(lengths, budget) or (None, None)
        theirs += grain(lengths[:20_000], budget) or (None, None)
        packs.add(budget, 100 - 100 * sampler.report().fill, spread(times, 1e9), *whole_set(lengths, budget), *theirs)
    for budget in BUDGETS:
        lengths = lengths_of(options.documents, budget)
        costs = cost_of(lengths)
        plan = PackedSampler(lengths, budget, seed=0, world_size=RANKS, cost=COST).plan()
        steps, dearest = (f.reduceat(costs[plan.members], plan.bounds[:-1]) for f in (np.add, np.maximum))
        each = len(lengths) // (len(plan.bounds) // RANKS) // RANKS  # documents of a rank and step
        unpacked = costs[: len(costs) // (each * RANKS) * each * RANKS].reshape(-1, RANKS, each)
        balance.add(
            budget,
            *of_ranks(steps.reshape(-1, RANKS), dearest.reshape(-1, RANKS).max(1)),
            *of_ranks(unpacked.sum(2), unpacked.max((1, 2))),
        )
    starts = Table("documents", "first batch, CPU ms", "resume with 6 ranks, CPU ms", "memory with mapped pages, MB")
    with tempfile.TemporaryDirectory() as folder:
        for n in options.mapped:
            path = f"{folder}/{n}.npy"
            _write(path, n)
            results: list[Any] = []
            for _ in range(options.rounds):
                command = [sys.executable, "-m", "bench.tokens.plans", path]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                results.append(json.loads(done.stdout.splitlines()[-1]))
            first, resumed, used = zip(*results, strict=True)
            starts.add(n, spread(first, 1e3), spread(resumed, 1e3), spread(used, 1e-6))
    return {"packs": packs, "balance": balance, "starts": starts}


def _write(path: str, n: int) -> None:
    """Write n lengths, part by part."""
    out = np.lib.format.open_memmap(path, "w+", np.int32, (n,))
    for at in range(0, n, 10**6):
        part = out[at : at + 10**6]
        part[:] = lengths_of(len(part), BUDGETS[-1], at)
    out.flush()


if __name__ == "__main__":
    child(sys.argv[1])
