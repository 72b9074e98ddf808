"""Squirrel's stream: `async_map` reads single samples in a pool of threads, and the consumer collates them.

The buffer holds 100 samples, which is the default.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

from bench.collate import collate
from bench.workload import Dataset, Workload


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from squirrel.iterstream import IterableSource

    size = workload.batch_size
    epoch = range(len(dataset) - len(dataset) % size)
    # Squirrel's own `loop()` would copy the dataset.
    indices = IterableSource(chain.from_iterable(repeat(epoch)))
    yield from indices.async_map(dataset.__getitem__, max_workers=workers).batched(size, collate)
