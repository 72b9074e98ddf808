"""A plain multiprocessing.Queue: processes put batches, the consumer gets them. Batches come in any order."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

from bench.collate import Stream
from bench.workload import Dataset, Workload

AHEAD = 2  # batches per worker, as in torch


def _work(queue: Any, stream: Stream) -> None:
    for batch in stream:
        queue.put(batch)


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    queue: Any = multiprocessing.Queue(AHEAD * workers)
    processes = []
    for worker in range(workers):
        # No reuse: the queue pickles in its own thread, after put() has returned.
        stream = Stream(dataset, workload.batch_size, worker, workers, reuse=False)
        processes.append(multiprocessing.Process(target=_work, args=(queue, stream), daemon=True))
    try:
        for process in processes:
            process.start()
        while True:
            yield queue.get()
    finally:
        for process in processes:
            process.kill()
            process.join()
        queue.close()
