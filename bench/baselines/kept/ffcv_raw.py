"""FFCV, from its own file with decoded images, written when the workload starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines.images import ffcv_beton
from bench.decoders import with_area
from bench.workload import Workload

decoder = with_area  # the same calls of the same libraries


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    return ffcv_beton.batches(workload, dataset, workers, write_mode="raw")
