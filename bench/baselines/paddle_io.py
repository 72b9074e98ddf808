"""paddle.io.DataLoader with its own defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._paddle import paddle_batches
from bench.workload import Dataset, Workload


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from paddle.io import DataLoader

    return paddle_batches(DataLoader, workload, dataset, workers)
