"""(c) How fast do big batches of ready float32 images move?

Data
    256 images of random numbers, 3 x 224 x 224, ready in memory; a sample is a view of one and its number.
Machine, command, result
    In the file that ``python -m bench c`` writes to ``bench/results/``.
Bias
    As in (b): nothing is decoded. Batches are twice as large in bytes, and no cache holds the pool (154 MB).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.workload import Ready, Target, Workload

POOL = 256
SHAPE = (3, 224, 224)


def make() -> list[tuple[Any, int]]:
    """Make the pool; the same bytes each time."""
    images = np.random.default_rng(2).random((POOL, *SHAPE), np.float32)
    return [(image, number % 1000) for number, image in enumerate(images)]


def dataset(data: str | None) -> Ready:
    return Ready(make)


WORKLOAD = Workload(
    key="c",
    title="ready float32 images, 128 × 3 × 224 × 224, label",
    purpose="How fast do big batches of floats move?",
    batch_size=128,
    dataset=dataset,
    targets=(Target("roofline", 0.90), Target("torch", 4), Target("drop_in", 4), Target("cpu", 20)),
)
