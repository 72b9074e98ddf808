"""The emulation of FFCV's raw mode, the same dataset, in slipring.Loader: what of the difference is the loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.question import Question
from bench.rivals._torch import endless
from bench.rivals.kept.memmap_torch import Mapped, decoder

__all__ = ["batches", "decoder"]


def batches(question: Question, dataset: Any, workers: int) -> Iterator[Any]:
    from slipring import Loader

    mapped = Mapped(dataset.files)
    with Loader(mapped, question.batch_size, sampler=dataset.order, num_workers=workers) as loader:
        yield from endless(loader)
