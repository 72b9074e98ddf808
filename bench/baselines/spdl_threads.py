"""SPDL's pipeline with threads, its default. Each thread fetches and collates whole batches.

Batches arrive in the order of completion, as by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

from bench.collate import numbered
from bench.workload import Dataset, Workload


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from spdl.pipeline import PipelineBuilder

    pipeline = (
        PipelineBuilder()
        .add_source(count())
        .pipe(partial(numbered, dataset, workload.batch_size), concurrency=workers)
        .add_sink()
        .build(num_threads=workers)
    )
    with pipeline.auto_stop():
        yield from pipeline
