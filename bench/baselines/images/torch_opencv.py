"""torch's DataLoader; OpenCV decodes an image, and scales the crop with its only antialiasing filter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines.images import torch_pillow
from bench.decoders import with_opencv
from bench.workload import Workload

decoder = with_opencv


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    return torch_pillow.batches(workload, dataset, workers, decoder())
