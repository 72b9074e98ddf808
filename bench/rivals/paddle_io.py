"""paddle.io.DataLoader with its own defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.question import Dataset, Question
from bench.rivals._paddle import paddle_batches


def batches(question: Question, dataset: Dataset, workers: int) -> Iterator[Any]:
    from paddle.io import DataLoader

    return paddle_batches(DataLoader, question, dataset, workers)
