"""The common part of the two loaders with Paddle's signature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.workload import Dataset, Workload


def paddle_batches(loader: type, workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    """Run `loader` with Paddle's own defaults, but with persistent workers."""
    made = loader(dataset, batch_size=workload.batch_size, num_workers=workers, persistent_workers=True)
    while True:
        for batch in made:
            yield seen(batch)
            batch = None


def seen(batch: Any) -> Any:
    """Return the batch as torch tensors over the same memory: Paddle's own ``numpy()`` copies."""
    from paddle.utils.dlpack import to_dlpack
    from torch.utils.dlpack import from_dlpack

    if isinstance(batch, dict):
        return {key: from_dlpack(to_dlpack(leaf)) for key, leaf in batch.items()}
    return [from_dlpack(to_dlpack(leaf)) for leaf in batch]
