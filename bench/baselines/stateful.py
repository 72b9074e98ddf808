"""torchdata's StatefulDataLoader, with torch's samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._torch import torch_batches
from bench.workload import Dataset, Workload


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return torch_batches(StatefulDataLoader, workload, dataset, workers)
