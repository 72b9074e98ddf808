"""slipring.images in slipring.Loader with thread workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.question import Question
from bench.rivals.images import slipring_images

decoder = slipring_images.decoder


def batches(question: Question, dataset: Any, workers: int) -> Iterator[Any]:
    from slipring import Workers

    return slipring_images.batches(question, dataset, workers, workers=Workers(start_method="thread"))
