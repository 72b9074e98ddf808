"""torchvision: its own decoder and its v2 transforms on tensors, in torch's loader, as its documentation advises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._torch import endless
from bench.decoders import SIDE, with_torchvision
from bench.workload import Workload

decoder = with_torchvision


class Decoded:
    """A map dataset of (crop, label), by torchvision."""

    def __init__(self, sources: list[tuple[str, int]]) -> None:
        from torchvision.transforms import v2

        self.sources = sources
        self.transform = v2.Compose([v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()])

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from torchvision.io import ImageReadMode, decode_jpeg, read_file

        path, label = self.sources[index]
        return self.transform(decode_jpeg(read_file(path), ImageReadMode.RGB)), label


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    return endless(
        DataLoader(
            Decoded(dataset.sources),
            workload.batch_size,
            shuffle=True,
            num_workers=workers,
            persistent_workers=True,
        )
    )
