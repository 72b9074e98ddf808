"""torch's loader; each worker keeps every decoded image in its own dict, as users often write it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.baselines._torch import endless
from bench.baselines.images.torch_pillow import pick
from bench.decoders import SIDE, with_pillow
from bench.workload import Workload

decoder = with_pillow
_counts: list[Any] = []  # hits and misses per worker


class Kept:
    """A map dataset of (crop, label), by Pillow."""

    def __init__(self, files: list[tuple[str, int]], counts: Any) -> None:
        self.files = files
        self.counts = counts
        self.pictures: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image
        from torch.utils.data import get_worker_info

        path, label = self.files[index]
        picture = self.pictures.get(index)
        self.counts[2 * get_worker_info().id + (picture is None)] += 1
        if picture is None:
            with Path(path).open("rb") as file:
                picture = self.pictures[index] = Image.open(file).convert("RGB")
        (top, left, height, width), flip = pick(picture.height, picture.width)
        crop = picture.crop((left, top, left + width, top + height))
        crop = crop.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return np.array(crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else crop), label


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    _counts.append(multiprocessing.RawArray("Q", 2 * workers))
    kept = Kept(dataset.files, _counts[-1])
    return endless(
        DataLoader(kept, workload.batch_size, sampler=dataset.order, num_workers=workers, persistent_workers=True)
    )


def counts() -> tuple[int, int]:
    return sum(_counts[-1][::2]), sum(_counts[-1][1::2])
