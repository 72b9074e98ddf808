"""(b2) and (c2) How fast are datasets that make a new array for each sample, as nearly all do?

Data
    64 images of random numbers, 3 x 224 x 224, uint8 or float32; a sample is a new copy of one, and its number.
Machine, command, result
    In the file that ``python -m bench b2 c2`` writes to ``bench/results/``.
Bias
    A copy is the cheapest way to make an array: a dataset that decodes or computes takes longer, and its loader
    matters less. Every baseline runs as a user would start it: no allocator is tuned.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from bench.workload import New, Target, Workload

POOL = 64
SHAPE = (3, 224, 224)


def make(dtype: str) -> list[tuple[Any, int]]:
    """Make the images that are copied; the same bytes each time."""
    images = np.random.default_rng(1).integers(0, 256, (POOL, *SHAPE), np.uint8).astype(dtype)
    return [(image, number) for number, image in enumerate(images)]


WORKLOADS = (
    Workload(
        key="b2",
        title="new uint8 arrays, 256 × 3 × 224 × 224, label",
        purpose="How fast are datasets that make a new array for each sample?",
        batch_size=256,
        dataset=lambda data: New(partial(make, "uint8")),
        targets=(Target("roofline", 0.90), Target("torch", 6), Target("drop_in", 5)),
    ),
    Workload(
        key="c2",
        title="new float32 arrays, 128 × 3 × 224 × 224, label",
        purpose="How fast are the same datasets with floats?",
        batch_size=128,
        dataset=lambda data: New(partial(make, "float32")),
        targets=(Target("roofline", 0.90), Target("torch", 6), Target("drop_in", 5)),
    ),
)
