"""slipring.adapters.webdataset.MultiLoader: the same stream of batches in each worker as webdataset's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines.webdataset_multi import Shard
from bench.workload import Dataset, Workload


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from slipring.adapters.webdataset import MultiLoader

    # A batch is copied into its slot before the next one is requested, so its arrays can be reused.
    loader = MultiLoader(Shard(dataset, workload.batch_size, 0, workers, reuse=True), workers=workers)
    try:
        yield from loader
    finally:
        loader.kill()
