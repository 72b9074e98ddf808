"""megengine.data.DataLoader with its own defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._torch import endless
from bench.workload import Dataset, Workload


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from megengine.data import DataLoader, SequentialSampler
    from megengine.data.dataset import Dataset as Base

    class Wrapped(Base):
        def __len__(self) -> int:
            return len(dataset)

        def __getitem__(self, index: int) -> Any:
            return dataset[index]

    sampler = SequentialSampler(dataset, batch_size=workload.batch_size, drop_last=True)
    return endless(DataLoader(Wrapped(), sampler, num_workers=workers))
