"""(b) How fast do big batches of ready uint8 images move?

Data
    512 images of random bytes, 3 x 224 x 224, ready in memory; a sample is a view of one and its number.
Machine, command, result
    In the file that ``python -m bench b`` writes to ``bench/results/``.
Bias
    Nothing is decoded, so only the loader takes time: no real training pipeline gains this much. The pool
    (77 MB) may be partly in a large last-level cache, for every baseline.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.workload import Ready, Target, Workload

POOL = 512
SHAPE = (3, 224, 224)


def make() -> list[tuple[Any, int]]:
    """Make the pool; the same bytes each time."""
    images = np.random.default_rng(1).integers(0, 256, (POOL, *SHAPE), np.uint8)
    return [(image, number % 1000) for number, image in enumerate(images)]


def dataset(data: str | None) -> Ready:
    return Ready(make)


WORKLOAD = Workload(
    key="b",
    title="ready uint8 images, 256 × 3 × 224 × 224, label",
    purpose="How fast do big batches of bytes move?",
    batch_size=256,
    dataset=dataset,
    targets=(
        Target("roofline", 0.90),
        Target("torch", 4),
        Target("drop_in", 4),
        Target("spdl", 3),
        Target("cpu", 20),
    ),
)
