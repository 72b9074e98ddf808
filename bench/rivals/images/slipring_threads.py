"""The same with threads for workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.question import Question
from bench.rivals.images import slipring_images

decoder = slipring_images.decoder


def batches(question: Question, dataset: Any, workers: int) -> Iterator[Any]:
    return slipring_images.batches(question, dataset, workers, start_method="thread")
