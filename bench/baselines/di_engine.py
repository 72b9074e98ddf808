"""DI-engine's AsyncDataLoader: a source that returns callables, whole batches per worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._di_engine import di_engine_batches
from bench.workload import Dataset, Workload


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from ding.utils.data.dataloader import AsyncDataLoader

    return di_engine_batches(AsyncDataLoader, workload, dataset, workers)
