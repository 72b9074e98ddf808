"""torch.utils.data.DataLoader with Pillow, as in torchvision's ImageFolder without torchvision's own decoder."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.baselines._torch import endless
from bench.decoders import Decoder, crop_box, with_pillow
from bench.workload import Workload

decoder = with_pillow


class Augmented:
    """A map dataset of (crop, label): a usual class around a decoder."""

    def __init__(self, sources: list[tuple[str, int]], decode: Decoder) -> None:
        self.sources = sources
        self.decode = decode

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.sources[index]
        return self.decode(Path(path).read_bytes(), pick), label


def pick(height: int, width: int) -> tuple[tuple[int, int, int, int], bool]:
    """Draw a box and a flip from the numbers that torch seeds in each worker."""
    return crop_box(random, height, width), random.random() < 0.5


def batches(workload: Workload, dataset: Any, workers: int, decode: Decoder | None = None) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    augmented = Augmented(dataset.sources, decode or decoder())
    return endless(
        DataLoader(augmented, workload.batch_size, shuffle=True, num_workers=workers, persistent_workers=True)
    )
