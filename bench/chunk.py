"""How soon does the first batch come if workers share it? ``python -m bench.chunk``.

Purpose
    Time from the beginning of an epoch to its first batch, if decoding takes most of the time: one worker
    for each batch, and with ``chunk_size`` several workers for each.
Data
    The photographs of workload (a), 64 a batch; or your own (``--data``).
Machine, command, result
    Printed. Both ways take turns in each round; ratios are formed within a round.
Bias
    The loaders' workers start before the clock. With as many workers as cores, the consumer and other
    programs slow both down.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from bench import photos
from bench.machine import describe
from bench.record import Table, finish, option, spread
from bench.workloads import WORKLOADS

BATCH = 64


def of_loader(make: Callable[..., Any], dataset: Any, workers: int, chunk: int | None) -> float:
    """Return the seconds to the first batch of a loader's second epoch: its workers have started."""
    from slipring import Workers

    loader = make(
        dataset,
        BATCH,
        sampler=range(BATCH * workers),  # an epoch is one batch per worker: no worker is idle, and no batch is left
        num_workers=workers,
        workers=Workers(chunk_size=chunk),
        persistent_workers=True,
    )
    for _ in loader:
        pass
    begin = time.perf_counter()
    batches = iter(loader)
    next(batches)
    seconds = time.perf_counter() - begin
    loader.close()
    return seconds


def of_async(dataset: Any, workers: int, chunk: int | None) -> float:
    """Return the seconds from AsyncDataLoader's first real task to its batch; an earlier batch warms up the workers."""
    from slipring.adapters.di_engine import AsyncDataLoader

    numbers, go = itertools.count(), threading.Event()

    def source(batch_size: int) -> list[Callable[[], Any]]:
        number = next(numbers)
        if number == 0:
            return [functools.partial(read, dataset.sources[0])] * batch_size
        go.wait()
        first = (number - 1) * batch_size
        return [functools.partial(read, dataset.sources[first + row]) for row in range(batch_size)]

    read(dataset.sources[0])  # decoding imports modules, which forked workers inherit
    loader = AsyncDataLoader(source, BATCH, "cpu", chunk or BATCH, num_workers=workers)
    next(loader)
    begin = time.perf_counter()
    go.set()
    next(loader)
    seconds = time.perf_counter() - begin
    loader.close()
    return seconds


def read(source: tuple[str, int]) -> dict[str, Any]:
    """Decode one photograph."""
    from bench.workloads.photos import decode

    return {"image": decode(source[0]), "label": source[1]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.chunk")
    parser.add_argument("--data", metavar="DIR", help="class folders of your own JPEGs")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    option(parser)
    options = parser.parse_args()
    import slipring
    import slipring.torch

    about = describe((), "torch", "pillow")
    if not options.data:
        photos.ensure()
    dataset = WORKLOADS["a"].dataset(options.data)
    ways = {
        "slipring.Loader": functools.partial(of_loader, slipring.Loader, dataset),
        "slipring.torch.DataLoader": functools.partial(of_loader, slipring.torch.DataLoader, dataset),
        "slipring.adapters.di_engine.AsyncDataLoader": functools.partial(of_async, dataset),
    }
    table = Table("loader", "one worker makes a batch, ms", "they share it, ms", "ratio")
    for title, first in ways.items():
        rounds = [
            (first(options.workers, None), first(options.workers, BATCH // (4 * options.workers)))
            for _ in range(options.rounds)
        ]
        whole, shared = zip(*rounds)
        table.add(title, spread(whole, 1e3), spread(shared, 1e3), spread(b / a for a, b in rounds))
    finish(options.record, about, {"first batch": table})


if __name__ == "__main__":
    main()
