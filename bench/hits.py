"""The cost of a cache hit: ``python -m bench.hits``; `bench.micro` measures it, too.

Purpose
    How long does a lookup take, with and without views of the entry? How many page faults and system calls
    does a warm hit need, alone and with a training crop of it?
Data
    The pixels of 64 photographs of (g) in a cache without a name; one thread.
Machine, command, result
    Printed. strace counts the system calls in a separate process, between two marks; without strace
    they are not counted.
Bias
    64 entries, looked up in turn: index and headers are in the processor's caches. The figures hold for warm
    caches, which they are meant to measure.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.record import Table, finish, option, rounded

ENTRIES = 64
LOOKUPS = 100 * ENTRIES
CROPS = 10 * ENTRIES
ROUNDS = 7


class Kept:
    """Cached images, and both ways to look them up."""

    def __init__(self) -> None:
        from bench.decoders import SIDE
        from bench.photos import ensure, image_files
        from slipring import Cache, images

        ensure()
        self.cache = Cache("256MiB")
        crop = images.RandomResizedCrop(SIDE)
        self.folder = images.Folder.of("", [], {}, image_files()[:ENTRIES], crop, cache=self.cache)
        self.batch = np.empty((ENTRIES, SIDE, SIDE, 3), np.uint8)
        self.crops(CROPS)
        for key in range(ENTRIES):
            self.cache.get(key)[0].max()  # touch each page
        self.views(LOOKUPS)

    def lookups(self, n: int) -> None:
        cache = self.cache
        for _ in range(n // ENTRIES):
            for key in range(ENTRIES):
                key in cache  # noqa: B015 (it is the lookup that counts)

    def views(self, n: int) -> None:
        get = self.cache.get
        for _ in range(n // ENTRIES):
            for key in range(ENTRIES):
                get(key)

    def crops(self, n: int) -> None:
        for _ in range(n // ENTRIES):
            self.folder.fetch_into(range(ENTRIES), lambda *_: self.batch)

    @property
    def ways(self) -> dict[str, tuple[Callable[[int], None], int]]:
        return {
            "looking an entry up": (self.lookups, LOOKUPS),
            "the same, and views on its pixels": (self.views, LOOKUPS),
            "a training crop of an entry": (self.crops, CROPS),
        }


def measure(kept: Kept) -> dict[str, tuple[float, float]]:
    """Return for each way its median time per hit in microseconds, and its page faults per hit."""
    found = {}
    for what, (ask, n) in kept.ways.items():
        times = []
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            ask(n)
            times.append((time.perf_counter() - begin) / n * 1e6)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        found[what] = median(times), faults / (ROUNDS * n)
    return found


def system_calls() -> dict[str, float] | None:
    """Return the system calls per hit of each way, in a process under strace; None without strace."""
    if not shutil.which("strace"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls"
        command = ["strace", "-f", "-o", str(log), sys.executable, "-m", "bench.hits", "--marked"]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
        if done.returncode != 0:
            return None  # strace may not trace here
        pid, *names = done.stdout.splitlines()
        lines = log.read_text(errors="replace").splitlines()
    marks = [number for number, line in enumerate(lines) if f"kill({pid}, 0)" in line]
    counts = [end - begin - 1 for begin, end in zip(marks[::2], marks[1::2])]
    asked = {"looking an entry up": LOOKUPS, "the same, and views on its pixels": LOOKUPS}
    return {name: count / asked.get(name, CROPS) for name, count in zip(names, counts)}


def marked() -> None:
    """Look up in each way, between two marks that strace sees."""
    ways, me = Kept().ways, os.getpid()
    for ask, n in ways.values():
        os.kill(me, 0)
        ask(n)
        os.kill(me, 0)
    print(me, *ways, sep="\n")


def table() -> Table:
    """Return the figures of each way."""
    calls: dict[str, Any] = system_calls() or {}
    made = Table("one hit", "µs", "page faults", "system calls")
    for what, (us, faults) in measure(Kept()).items():
        made.add(what, rounded(us), rounded(faults), calls.get(what))
    return made


def main() -> None:
    from bench.machine import describe

    parser = argparse.ArgumentParser(prog="python -m bench.hits")
    parser.add_argument("--marked", action="store_true", help=argparse.SUPPRESS)
    option(parser)
    options = parser.parse_args()
    if options.marked:
        marked()
    else:
        finish(options.record, describe(), {"hits": table()})


if __name__ == "__main__":
    main()
