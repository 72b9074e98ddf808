"""torchdata's StatefulDataLoader, with torch's samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.question import Dataset, Question
from bench.rivals._torch import torch_batches


def batches(question: Question, dataset: Dataset, workers: int) -> Iterator[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return torch_batches(StatefulDataLoader, question, dataset, workers)
