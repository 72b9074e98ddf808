"""slipring.torch.DataLoader instead of torch's: the same arguments, the same samples, one changed import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._torch import torch_batches
from bench.workload import Dataset, Workload


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from slipring.torch import DataLoader

    return torch_batches(DataLoader, workload, dataset, workers)
