"""slipring.adapters.di_engine.AsyncDataLoader instead of DI-engine's, with the same source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._di_engine import di_engine_batches
from bench.workload import Dataset, Workload


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from slipring.adapters.di_engine import AsyncDataLoader

    return di_engine_batches(AsyncDataLoader, workload, dataset, workers)
