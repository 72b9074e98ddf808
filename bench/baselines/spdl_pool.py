"""SPDL's ``iterate_in_subprocess``: one subprocess and one SharedMemorySegmentPool per worker, used in turn.

As its documentation recommends, the pool holds the batches in the queue, one being written and one being
read, and views are handed out without a copy. The source yields new arrays for each batch, as `np.stack`
makes them; `spdl_kept` is the same with a source that keeps its arrays.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.collate import Stream, leaves, nbytes, numbered
from bench.workload import Dataset, Workload

BUFFER = 3  # its default
ALIGNMENT = 64


@dataclass
class _Source:
    """A stream that ends on demand: a worker that is interrupted in the middle takes seconds to end."""

    stream: Stream
    stop: Any

    def __call__(self) -> _Source:
        return self

    def __iter__(self) -> Iterator[Any]:
        for batch in self.stream:
            if self.stop.value:
                return
            yield batch


def batches(workload: Workload, dataset: Dataset, workers: int, *, reuse: bool = False) -> Iterator[Any]:
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    batch = numbered(dataset, workload.batch_size, 0)
    size = nbytes(batch) + ALIGNMENT * len(leaves(batch))
    del batch
    stop = multiprocessing.RawValue("b")
    sources = [
        iterate_in_subprocess(
            _Source(Stream(dataset, workload.batch_size, worker, workers, reuse=reuse), stop),
            buffer_size=BUFFER,
            arena=SharedMemorySegmentPool(segment_size=size, count=BUFFER + 3),
        )
        for worker in range(workers)
    ]
    iterators = [iter(source) for source in sources]
    try:
        while True:
            for iterator in iterators:
                yield next(iterator)
    finally:
        stop.value = 1
        for iterator in iterators:
            for _ in iterator:
                pass
