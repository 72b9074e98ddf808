"""torch's DataLoader; simplejpeg decodes an image, OpenCV scales the crop with its only antialiasing filter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines.images import torch_pillow
from bench.decoders import with_simplejpeg
from bench.workload import Workload

decoder = with_simplejpeg


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    return torch_pillow.batches(workload, dataset, workers, decoder())
