"""slipring.Loader that replaces dead workers: the cost of this option without deaths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.question import Dataset, Question
from bench.rivals._torch import endless
from slipring import Workers


def batches(question: Question, dataset: Dataset, workers: int) -> Iterator[Any]:
    from slipring import Loader

    options = {"batch_size": question.batch_size, "num_workers": workers}
    with Loader(dataset, workers=Workers(on_death="respawn"), **options) as loader:
        yield from endless(loader)
