"""torch.utils.data.DataLoader with samples that are tensors already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.question import Dataset, Question
from bench.rivals._torch import Tensors, torch_batches


def batches(question: Question, dataset: Dataset, workers: int) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    return torch_batches(DataLoader, question, Tensors(dataset), workers)
