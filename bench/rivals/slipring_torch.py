"""slipring.torch.DataLoader instead of torch's: the same arguments, the same samples, one changed import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.question import Dataset, Question
from bench.rivals._torch import torch_batches


def batches(question: Question, dataset: Dataset, workers: int) -> Iterator[Any]:
    from slipring.torch import DataLoader

    return torch_batches(DataLoader, question, dataset, workers)
