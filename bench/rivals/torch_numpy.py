"""torch.utils.data.DataLoader as most people use it: samples are numpy arrays, batches are tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.question import Dataset, Question
from bench.rivals._torch import torch_batches


def batches(question: Question, dataset: Dataset, workers: int) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    return torch_batches(DataLoader, question, dataset, workers)
