"""Ranks that share a cache by its name: ``python -m bench.cached_ranks``.

Purpose
    Two ranks train on the same folder at the same time, with one named cache. Is each image made once, and how much
    more memory does the cache take than for one rank?
Data
    The photographs of workload (g). Each rank is a separate process that opens the cache by its name, and reads
    all images twice in its own order, with its own loader; the ranks start together. First one
    rank, then two.
Machine, command, result
    Printed. "made" counts the lookups that found nothing and made the image; "waits" counts those that waited
    for the other rank to make it. The cache's memory is the kernel's allocation for its file, counted once;
    "all memory" adds the other memory of ranks and workers (PSS): interpreters, and slots of batches.
Bias
    Both ranks read all images, as two trainings would; ranks of one training divide them, and so meet less
    often.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

from bench.decoders import SIDE
from bench.machine import describe
from bench.memory import of_files, of_job
from bench.record import Table, finish, option
from bench.workloads.epochs import Pictures, dataset

EPOCHS = 2


class Orders:
    """A sampler: all indices, in orders that depend on a seed."""

    def __init__(self, n: int, seed: int) -> None:
        self.n = n
        self.draw = random.Random(seed)

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw.sample(range(self.n), self.n))


def rank(number: int, name: str, data: str | None, workers: int, together: Any, counted: Any) -> None:
    """Read the images, and stay until all ranks have been measured."""
    from slipring import Cache, Loader, images

    pictures = dataset(data)
    with Cache(pictures.decoded_bytes, name=name) as cache:
        crop = images.RandomResizedCrop(SIDE, flip=0.5)
        folder = images.Folder.of("", [], {}, pictures.files, crop, cache=cache)
        order = Orders(pictures.distinct, number)
        with Loader(folder, 64, sampler=order, num_workers=workers, drop_last=False) as loader:
            together.wait()
            for _ in range(EPOCHS):
                for _ in loader:
                    pass
            together.wait()  # all ranks have finished: now they are measured
            counted.wait()


def run(ranks: int, pictures: Pictures, data: str | None, workers: int) -> dict[str, float]:
    """Start so many ranks; return the figures of the ranks and their cache."""
    from slipring import Cache

    context = multiprocessing.get_context("spawn")
    together, counted = context.Barrier(ranks + 1), context.Barrier(ranks + 1)
    name = f"bench-{os.getpid()}-{ranks}"
    processes = [
        context.Process(target=rank, args=(number, name, data, workers, together, counted)) for number in range(ranks)
    ]
    for process in processes:
        process.start()
    together.wait()
    together.wait()
    with Cache(pictures.decoded_bytes, name=name) as cache:
        stats, file = cache.stats(), of_files([cache._fd])
    jobs = [of_job(process.pid) for process in processes if process.pid]
    counted.wait()
    for process in processes:
        process.join()
    return {
        "entries": stats.entries,
        "made": stats.misses,
        "waits": stats.waits,
        "cache's memory, MB": file / 1e6,
        "all memory, MB": (sum(jobs) - (ranks - 1) * file) / 1e6,
    }


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.cached_ranks", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", metavar="DIR", help="class folders of your own JPEGs")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes per rank (1)")
    option(parser)
    options = parser.parse_args()
    if options.data is None:
        from bench.photos import ensure

        ensure()
    about = describe()
    pictures = dataset(options.data)
    one, two = (run(ranks, pictures, options.data, options.workers) for ranks in (1, 2))
    table = Table(f"{pictures.distinct} images, {EPOCHS} epochs", "one rank", "two ranks", "ratio")
    for what in one:
        table.add(what, round(one[what]), round(two[what]), round(two[what] / one[what], 3) if one[what] else None)
    finish(options.record, about, {"ranks": table})
    once = two["made"] <= 1.01 * two["entries"] and two["entries"] == pictures.distinct
    small = two["cache's memory, MB"] <= 1.1 * one["cache's memory, MB"]
    print(f"each made once, at most 1 % more: {'yes' if once else 'no'}")
    print(f"the cache's memory at most 1.1 times that of one rank: {'yes' if small else 'no'}")
    return 0 if once and small else 1


if __name__ == "__main__":
    sys.exit(main())
