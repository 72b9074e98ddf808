"""Worker threads in place of worker processes: ``python -m bench.threads``.

Purpose
    How many samples per second do two worker threads make, compared with two processes and with one worker? On a
    free-threaded Python, do threads keep two processors busy with Python code?
Data
    *python*: samples of 200 steps of arithmetic in Python. *objects*: of a line in memory, one of 300,000, each sample
    makes a dict of a hundred new tuples and lists, as a parser does. *pillow*: a JPEG image of 500 × 375, decoded and
    resized by Pillow. *c*: the same by ``slipring.images``, which needs no GIL. Batches of 16.
Machine, command, result
    Printed. All kinds of workers take turns in each round, each in its own process. A rate is measured after the first
    20 batches, and the memory of all processes at the end. Ratios are medians of the rounds' ratios. With
    ``PYTHON_GIL=0`` in the environment, no package can make a free-threaded Python enable the GIL.
Bias
    The loop does nothing with its batches, so both processors belong to the workers.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from typing import Any

import numpy as np

from bench import memory
from bench.apart import answer
from bench.cpu import of_job
from bench.machine import describe
from bench.record import Table, finish, option, spread

BATCH, FIRST = 16, 20
WAYS = {"1 thread": (1, "thread"), "2 threads": (2, "thread"), "1 process": (1, "fork"), "2 processes": (2, "fork")}


class Endless:
    """Samples without end, to the loader."""

    def __len__(self) -> int:
        return 1 << 24


class Arithmetic(Endless):
    """Numbers that take bytecode alone."""

    def __getitem__(self, i: int) -> int:
        for step in range(200):
            i = (i * 31 + step) % 65_521
        return i


class Objects(Endless):
    """Lines of a text in memory, each of them taken apart into new objects."""

    def __init__(self) -> None:
        ends = [" ".join(str(number) for number in range(first, first + 100)) for first in range(97)]
        self.lines = [f"{i} {ends[i % 97]}" for i in range(300_000)]

    def __getitem__(self, i: int) -> int:
        line = self.lines[i * 7919 % len(self.lines)]  # as in a random order
        fields = {word: (number, [word]) for number, word in enumerate(line.split())}
        return len(fields)


def jpeg() -> bytes:
    """Return one image as a JPEG file."""
    from PIL import Image

    file, small = io.BytesIO(), np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    Image.fromarray(small).resize((500, 375)).save(file, "JPEG", quality=90)
    return file.getvalue()


class Pillow(Endless):
    """An image by Pillow."""

    def __init__(self) -> None:
        self.file = jpeg()

    def __getitem__(self, i: int) -> Any:
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(self.file)).resize((224, 224)))


def of_images() -> Any:
    """The same images by slipring."""
    from slipring import images

    return images.Bytes([(jpeg(), 0)] * 4096, images.Resize((224, 224)))


DATASETS: dict[str, Any] = {"python": Arithmetic, "objects": Objects, "pillow": Pillow, "c": of_images}


def measure(workload: str, workers: int, method: str, seconds: float) -> dict[str, float | bool]:
    """Return samples/s, processor µs per sample, memory in bytes and whether there is a GIL, of a loader here."""
    from slipring import Loader, Workers

    made, epoch = 0, 0.0
    options = Workers(start_method=method)  # type: ignore[arg-type]
    with Loader(DATASETS[workload](), BATCH, num_workers=workers, workers=options) as loader:
        batches = (batch for _ in iter(int, 1) for batch in loader)
        for _ in range(FIRST):
            next(batches)
        begun, used = time.perf_counter(), of_job(os.getpid())
        while (epoch := time.perf_counter() - begun) < seconds:
            next(batches)
            made += BATCH
        used, held = of_job(os.getpid()) - used, memory.of_job(os.getpid())
        batches.close()
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return {"rate": made / epoch, "cpu": used * 1e6 / made, "memory": held, "gil": gil}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.threads")
    parser.add_argument("--only", action="append", choices=DATASETS, help="this workload")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    option(parser)
    args = parser.parse_args()
    if args.measure:
        workload, workers, method = args.measure
        print(json.dumps(measure(workload, int(workers), method, args.seconds)))
        return
    about = describe((), "pillow")
    table = Table("samples", *(f"{way}: samples/s" for way in WAYS), "2 threads ÷ 2 processes", "2 threads ÷ 1 thread")
    costs = Table("samples", *(f"{way}: CPU µs per sample" for way in WAYS), quiet=True)
    sizes = Table("samples", *(f"{way}: memory, MB" for way in WAYS), "2 threads ÷ 2 processes")
    for workload in args.only or DATASETS:
        rounds = []
        for number in range(args.rounds):
            ways = list(WAYS.items())
            figures = {}
            for way, (workers, method) in ways if number % 2 == 0 else ways[::-1]:
                command = [sys.executable, "-W", "ignore", "-m", "bench.threads", "--seconds", str(args.seconds)]
                figures[way] = answer([*command, "--measure", workload, str(workers), method])
            rounds.append(figures)
        missing = [found["missing"] for figures in rounds for found in figures.values() if "missing" in found]
        if missing:
            sys.exit(f"{workload}: {missing[0]}")
        table.add(
            workload,
            *(spread(figures[way]["rate"] for figures in rounds) for way in WAYS),
            spread(figures["2 threads"]["rate"] / figures["2 processes"]["rate"] for figures in rounds),
            spread(figures["2 threads"]["rate"] / figures["1 thread"]["rate"] for figures in rounds),
        )
        costs.add(workload, *(spread(figures[way]["cpu"] for figures in rounds) for way in WAYS))
        sizes.add(
            workload,
            *(spread(figures[way]["memory"] / 1e6 for figures in rounds) for way in WAYS),
            spread(figures["2 threads"]["memory"] / figures["2 processes"]["memory"] for figures in rounds),
        )
        about["gil"] = bool(rounds[0]["2 threads"]["gil"])
    finish(args.record, about, {"rates": table, "costs": costs, "sizes": sizes})


if __name__ == "__main__":
    main()
