"""slipring.Loader with its own defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.question import Dataset, Question
from bench.rivals._torch import endless


def batches(question: Question, dataset: Dataset, workers: int) -> Iterator[Any]:
    from slipring import Loader

    with Loader(dataset, batch_size=question.batch_size, num_workers=workers) as loader:
        yield from endless(loader)
