"""The common part of the baselines with torch's interface."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.workload import Dataset, New, Ready, Workload


def endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of endless epochs; the loader's workers end with its last reference."""
    while True:
        yield from loader


def torch_batches(loader: type, workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    """Run `loader` with torch's own defaults, but with persistent workers."""
    return endless(loader(dataset, batch_size=workload.batch_size, num_workers=workers, persistent_workers=True))


class Tensors:
    """Return the same dataset with tensors instead of arrays. Ready samples are converted beforehand."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.distinct = dataset.distinct
        self.samples = None
        if isinstance(dataset, Ready) and not isinstance(dataset, New):
            self.samples = [_tensors(dataset[index]) for index in range(self.distinct)]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if self.samples is None:
            return _tensors(self.dataset[index])
        return self.samples[index % self.distinct]


def _tensors(sample: Any) -> Any:
    import torch

    if isinstance(sample, tuple):
        return tuple(_tensors(item) for item in sample)
    if isinstance(sample, dict):
        return {key: _tensors(item) for key, item in sample.items()}
    return sample if isinstance(sample, int) else torch.from_numpy(sample)
