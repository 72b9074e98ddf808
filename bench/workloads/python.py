"""(i) How much does the loader matter if each sample takes 2 ms of Python?

Data
    Sequences of 512 numbers, computed one by one in Python: about 2 ms each on a processor of 2023.
Machine, command, result
    In the file that ``python -m bench i`` writes to ``bench/results/``.
Bias
    All of this holds the GIL: loaders with threads cannot be faster than one thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.workload import Dataset, Workload

LENGTH = 512
ROUNDS = 48  # per number


class Computed(Dataset):
    """Sequences of numbers that Python computes one by one, as (int64, label)."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        state = self.sources[index]
        numbers = []
        for _ in range(LENGTH):
            for _ in range(ROUNDS):
                state = (state * 1103515245 + 12345) & 0x7FFFFFFF
            numbers.append(state)
        return np.array(numbers, np.int64), index % 10


WORKLOAD = Workload(
    key="i",
    title="2 ms of Python per sample, 32 × 512 int64, label",
    purpose="How much does the loader matter where samples take Python's time?",
    batch_size=32,
    dataset=lambda data: Computed(range(1024)),
    decode_only=True,
    window_scale=2.0,
)
