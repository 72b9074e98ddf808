"""torch's DataLoader; OpenCV decodes a picture, and scales the crop with its only antialiasing filter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.decoders import with_opencv
from bench.question import Question
from bench.rivals.images import torch_pillow

decoder = with_opencv


def batches(question: Question, dataset: Any, workers: int) -> Iterator[Any]:
    return torch_pillow.batches(question, dataset, workers, decoder())
