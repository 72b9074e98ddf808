"""slipring.adapters.megengine.DataLoader instead of MegEngine's: the same arguments, one changed import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._torch import endless
from bench.workload import Dataset, Workload


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from slipring.adapters.megengine import DataLoader, SequentialSampler

    sampler = SequentialSampler(dataset, batch_size=workload.batch_size, drop_last=True)
    return endless(DataLoader(dataset, sampler, num_workers=workers))
