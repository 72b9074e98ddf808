"""(e) How fast are batches with many leaves?

Data
    512 dicts of 40 vectors of 8 float32, ready in memory; a batch is 16 of them: 40 leaves of 512 bytes.
Machine, command, result
    In the file that ``python -m bench e`` writes to ``bench/results/``.
Bias
    As in (d): all overhead. The measuring loop reads one element of each of 40 leaves, which costs a few
    microseconds for arrays and some tens for torch's tensors. This is included.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.workload import Ready, Target, Workload

LEAVES = 40


def make() -> list[dict[str, Any]]:
    """Make the dicts; the same each time."""
    rows = np.random.default_rng(4).random((512, LEAVES, 8), np.float32)
    names = [f"field{number:02}" for number in range(LEAVES)]
    return [dict(zip(names, row)) for row in rows]


def dataset(data: str | None) -> Ready:
    return Ready(make)


WORKLOAD = Workload(
    key="e",
    title="dicts of 40 leaves, 16 × 8 float32 each",
    purpose="What do many leaves cost?",
    batch_size=16,
    dataset=dataset,
    targets=(Target("torch", 30),),
)
