"""(d) How fast are tiny batches?

Data
    1024 vectors of 32 float32, ready in memory; a batch is 64 of them, 8 KiB.
Machine, command, result
    In the file that ``python -m bench d`` writes to ``bench/results/``.
Bias
    All overhead, no data: the rate shows the loader's bookkeeping, in a loop that does nothing else. The
    roofline here collates in numpy, so a loader that collates in C can beat it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.workload import Ready, Target, Workload


def make() -> list[Any]:
    """Make the vectors; the same each time."""
    return list(np.random.default_rng(3).random((1024, 32), np.float32))


def dataset(data: str | None) -> Ready:
    return Ready(make)


WORKLOAD = Workload(
    key="d",
    title="tiny batches, 64 × 32 float32",
    purpose="What does a tiny batch cost?",
    batch_size=64,
    dataset=dataset,
    targets=(Target("torch", 30), Target("drop_in", 30), Target("spdl", 3)),
)
