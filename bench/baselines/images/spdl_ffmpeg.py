"""SPDL: a pipeline of threads in which FFmpeg decodes, crops and scales, as in its documentation for images."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np

from bench.baselines.images.torch_pillow import pick
from bench.decoders import spdl_frames, with_spdl
from bench.workload import Workload

decoder = with_spdl


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    def load(source: tuple[str, int]) -> tuple[Any, int]:
        path, label = source
        return spdl_frames(path, pick), label

    def together(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
        frames, labels = zip(*samples)
        return spdl.io.to_numpy(spdl.io.convert_frames(list(frames))), np.array(labels)

    sources = random.sample(dataset.sources, len(dataset.sources))
    pipeline = (
        PipelineBuilder()
        .add_source(cycle(sources))
        .pipe(load, concurrency=workers)
        .aggregate(workload.batch_size)
        .pipe(together)
        .add_sink(2)
        .build(num_threads=workers)
    )
    with pipeline.auto_stop():
        yield from pipeline
