"""How much of a list of strings forked workers copy: ``python -m bench.copy_on_write``.

Purpose
    How much private memory does a worker get by reading a dataset's strings from a list and from a
    `slipring.StringList`, and how long does one read take? What does it cost to measure this from
    outside, as ``stats().worker_private_bytes`` does, and as the kernel does for each page?
Data
    Two million file names of 46 characters, read in random order by one forked worker.
Machine, command, result
    Printed.
Bias
    Nothing else is done with a string: this measures only the leak.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np

from bench.machine import describe
from bench.record import Table, finish, option, rounded, spread
from slipring import Workers


class Names:
    """Reads `chunk` names for each sample, and reports the process's own memory."""

    def __init__(self, names: Sequence[str], chunk: int) -> None:
        self.names, self.chunk = names, chunk
        self.order = np.random.default_rng(0).permutation(len(names))

    def __len__(self) -> int:
        return len(self.names) // self.chunk

    def __getitem__(self, index: int) -> tuple[int, int]:
        first = index * self.chunk
        for position in self.order[first : first + self.chunk].tolist():
            self.names[position]
        return own_mib(), index


def own_mib(pid: int | str = "self") -> int:
    """Return the MiB that a process alone has written, by the kernel's record of each page."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("Private_Dirty"))


def measure(kind: str, names: Sequence[str], chunk: int, meters: Table) -> list[int]:
    """Return a worker's private MiB at the beginning and after each tenth of an epoch."""
    from slipring import Loader

    dataset = Names(names, chunk)
    with Loader(dataset, 1, num_workers=1, workers=Workers(start_method="fork")) as loader:
        seen = [int(batch[0][0]) for batch in loader]
        compare_meters(kind, loader._engines.engine.pool.pids()[0][1], meters)
    return seen[:: max(1, len(seen) // 10)]


def compare_meters(kind: str, pid: int, meters: Table) -> None:
    """Add a worker's private memory by `stats()` and by smaps_rollup, and the time of each."""
    from slipring._core.workers import memory as growth

    for title, meter in (
        ("stats()", lambda: (growth.private_bytes(pid) or 0) >> 20),
        ("smaps_rollup", lambda: own_mib(pid)),
    ):
        taken = []
        for _ in range(9):
            begin = time.perf_counter()
            found = meter()
            taken.append(time.perf_counter() - begin)
        meters.add(kind, title, found, spread(taken, 1e3))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.copy_on_write")
    parser.add_argument("--strings", type=int, default=2_000_000)
    option(parser)
    options = parser.parse_args()
    from slipring import StringList

    about = describe()
    table = Table("strings in", "private memory of the worker, MiB", "after a tenth, MiB", "read one, µs", quiet=True)
    meters = Table("strings in", "measured by", "private memory, MiB", "ms", labels=2)
    names = [f"/data/train/n{i % 1000:08d}/n{i % 1000:08d}_{i:09d}.JPEG" for i in range(options.strings)]
    chunk = max(1, options.strings // 100)
    for title, kept in (("a list", names), ("a StringList", StringList(names))):
        begin = time.perf_counter()
        for position in range(0, options.strings, 20):
            kept[position]
        each = (time.perf_counter() - begin) / (options.strings / 20) * 1e6
        seen = measure(title, kept, chunk, meters)
        table.add(title, seen[-1], seen[1], rounded(each))
    finish(options.record, about, {"strings": table, "meters": meters})


if __name__ == "__main__":
    main()
