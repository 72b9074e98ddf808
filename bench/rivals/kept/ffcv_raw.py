"""FFCV, from its own file with decoded pictures, written when the question starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.decoders import with_area
from bench.question import Question
from bench.rivals.images import ffcv_beton

decoder = with_area  # the same calls of the same libraries


def batches(question: Question, dataset: Any, workers: int) -> Iterator[Any]:
    return ffcv_beton.batches(question, dataset, workers, write_mode="raw")
