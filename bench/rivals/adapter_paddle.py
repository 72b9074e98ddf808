"""slipring.adapters.paddle.DataLoader instead of Paddle's: the same arguments, one changed import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.question import Dataset, Question
from bench.rivals._paddle import paddle_batches


def batches(question: Question, dataset: Dataset, workers: int) -> Iterator[Any]:
    from slipring.adapters.paddle import DataLoader

    return paddle_batches(DataLoader, question, dataset, workers)
