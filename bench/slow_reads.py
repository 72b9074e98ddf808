"""How much faster slow reads are beside one another: ``python -m bench.slow_reads --ms 50 --at-once 16``.

Question
    A dataset whose samples take 50 ms each, all of it waiting, in one worker. How many samples a second are read one
    after the other, by ``fetch_threads=16``, and as coroutines of which 16 are read at once, or a whole batch?
Data
    Samples of a few bytes, in batches of 64; for each row as many batches as last about the same time.
Machine, command, result
    Printed.
Bias
    The waiting is `time.sleep` and `asyncio.sleep`: no server, no decoding. What is measured is what slipring adds.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

import slipring
from bench.machine import describe

BATCH = 64


class Waits:
    """Numbers, each of which is waited for."""

    def __init__(self, length: int, seconds: float) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Any:
        time.sleep(self.seconds)
        return i


class Awaits(Waits):
    """The same as coroutines."""

    async def __getitem__(self, i: int) -> int:
        await asyncio.sleep(self.seconds)
        return i


def rate(kind: type[Waits], seconds: float, batches: int, fetch_threads: int | None) -> float:
    """Samples/s of one worker, its start and its first batch left out."""
    dataset = kind((batches + 1) * BATCH, seconds)
    with slipring.Loader(
        dataset, BATCH, num_workers=1, prefetch_factor=1, fetch_threads=fetch_threads
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        begun = time.perf_counter()
        rest = sum(len(batch) for batch in iterator)
        return rest / (time.perf_counter() - begun)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.slow_reads", description=__doc__)
    parser.add_argument("--ms", type=float, default=50.0, help="of a sample")
    parser.add_argument("--at-once", type=int, default=16, help="threads, and coroutines")
    parser.add_argument(
        "--batches", type=int, default=4, help="one sample after the other; the other rows read more"
    )
    args = parser.parse_args()
    for name, value in describe((), "bench.slow_reads").items():
        print(f"{name}: {value}")
    seconds, n = args.ms / 1e3, args.at_once
    one = rate(Waits, seconds, args.batches, None)
    rows = [
        ("one after the other", one),
        (f"fetch_threads={n}", rate(Waits, seconds, args.batches * n, n)),
        (f"async, fetch_threads={n}", rate(Awaits, seconds, args.batches * n, n)),
        ("async, a batch at once", rate(Awaits, seconds, args.batches * BATCH, None)),
    ]
    print(f"\n{'':28}samples/s  times")
    for name, value in rows:
        print(f"{name:28}{value:9.1f}{value / one:7.1f}")


if __name__ == "__main__":
    main()
