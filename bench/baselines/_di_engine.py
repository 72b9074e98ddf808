"""The common part of the two loaders with DI-engine's signature."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from bench.workload import Dataset, Workload

_datasets: list[Dataset] = []  # forked workers inherit them, so that calls need not contain a dataset


def sample(index: int) -> dict[str, Any]:
    """Return the sample as a dict, which AsyncDataLoader needs."""
    made = _datasets[-1][index]
    return made if isinstance(made, dict) else {str(i): leaf for i, leaf in enumerate(made)}


def di_engine_batches(loader: Any, workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    """Run `loader` with whole batches for each worker, its faster way."""
    _datasets.append(dataset)
    numbers = itertools.cycle(range(len(dataset) // workload.batch_size))

    def source(batch_size: int) -> list[Callable[[], Any]]:
        first = next(numbers) * batch_size
        return [functools.partial(sample, first + row) for row in range(batch_size)]

    size = workload.batch_size
    made = loader(source, size, "cpu", chunk_size=size, num_workers=workers)
    with closing(made):
        for batch in made:
            yield tuple(batch.values()) if "0" in batch else batch
            batch = None
