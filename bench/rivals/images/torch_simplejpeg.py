"""torch's DataLoader; simplejpeg decodes a picture, OpenCV scales the crop with its only antialiasing filter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.decoders import with_simplejpeg
from bench.question import Question
from bench.rivals.images import torch_pillow

decoder = with_simplejpeg


def batches(question: Question, dataset: Any, workers: int) -> Iterator[Any]:
    return torch_pillow.batches(question, dataset, workers, decoder())
