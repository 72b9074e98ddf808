"""slipring.Loader with its own defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._torch import endless
from bench.workload import Dataset, Workload


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from slipring import Loader

    with Loader(dataset, batch_size=workload.batch_size, num_workers=workers) as loader:
        yield from endless(loader)
