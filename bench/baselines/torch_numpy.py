"""torch.utils.data.DataLoader as most people use it: samples are numpy arrays, batches are tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._torch import torch_batches
from bench.workload import Dataset, Workload


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    return torch_batches(DataLoader, workload, dataset, workers)
