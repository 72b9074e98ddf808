"""An emulation of FFCV's raw mode in torch's loader: one mapped file of decoded images, OpenCV's area filter.

FFCV itself reads its own file in threads, with code that numba compiles. Decoding happens beforehand and
does not count; there are no hits and no misses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._torch import endless
from bench.baselines.images.torch_pillow import pick
from bench.decoded import decoded
from bench.decoders import area, with_area
from bench.workload import Workload

decoder = with_area


class Mapped:
    """A map dataset of (crop, label) of decoded images."""

    def __init__(self, files: list[tuple[str, int]]) -> None:
        import cv2

        cv2.setNumThreads(1)
        self.pixels, self.extents = decoded(files)
        self.labels = [label for _, label in files]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        at, height, width = self.extents[index]
        picture = self.pixels[at : at + 3 * height * width].reshape(height, width, 3)
        return area(picture, pick), self.labels[index]


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    mapped = Mapped(dataset.files)
    return endless(
        DataLoader(mapped, workload.batch_size, sampler=dataset.order, num_workers=workers, persistent_workers=True)
    )
