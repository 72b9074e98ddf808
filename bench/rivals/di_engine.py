"""DI-engine's AsyncDataLoader: a source that returns callables, whole batches per worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.question import Dataset, Question
from bench.rivals._di_engine import di_engine_batches


def batches(question: Question, dataset: Dataset, workers: int) -> Iterator[Any]:
    from ding.utils.data.dataloader import AsyncDataLoader

    return di_engine_batches(AsyncDataLoader, question, dataset, workers)
