"""torchdata's nodes, composed as its guide for users of torch's DataLoader does, with threads or with processes.

Each worker fetches and collates whole batches. torchdata leaves the collation to the user. The threads collate with
numpy. The processes collate with torch, as in the guide: only tensors reach the consumer in shared memory, and large
arrays would go through a pipe. The loader has no method that stops the workers: they stop when it is garbage collected.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.collate import collate
from bench.workload import Dataset, Workload

STOP_S = 2.0
"""How long the processes may take to stop before they are killed."""


@dataclass
class MapAndCollate:
    """The guide's class of this name, which makes a batch from indices."""

    dataset: Dataset
    collate: Callable[[Sequence[Any]], Any]

    def __call__(self, indices: Sequence[int]) -> Any:
        return self.collate([self.dataset[index] for index in indices])


def batches(
    workload: Workload, dataset: Dataset, workers: int, *, method: Literal["thread", "process"]
) -> Iterator[Any]:
    from torch.utils.data import SequentialSampler, default_collate
    from torchdata import nodes

    fetch = MapAndCollate(dataset, collate if method == "thread" else default_collate)
    node: Any = nodes.SamplerWrapper(SequentialSampler(dataset))
    node = nodes.Batcher(node, batch_size=workload.batch_size, drop_last=True)
    node = nodes.ParallelMapper(node, fetch, num_workers=workers, method=method)
    node = nodes.Prefetcher(node, prefetch_factor=2 * workers)
    loader = nodes.Loader(node)
    try:
        while True:
            yield from loader
    finally:
        # The loader and its iterator refer to each other, hence the garbage collection.
        del node, loader
        gc.collect()
        # A process stops only after it has made all requested batches.
        give_up = time.monotonic() + STOP_S
        for process in multiprocessing.active_children():
            process.join(max(0.0, give_up - time.monotonic()))
            process.kill()
            process.join()
