"""slipring.adapters.megengine.DataLoader instead of MegEngine's: the same arguments, one changed import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.question import Dataset, Question
from bench.rivals._torch import endless


def batches(question: Question, dataset: Dataset, workers: int) -> Iterator[Any]:
    from slipring.adapters.megengine import DataLoader, SequentialSampler

    sampler = SequentialSampler(dataset, batch_size=question.batch_size, drop_last=True)
    return endless(DataLoader(dataset, sampler, num_workers=workers))
