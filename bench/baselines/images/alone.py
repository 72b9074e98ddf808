"""The roofline of (f): as many processes make crops, each into its own array, without delivery."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from bench.baselines.images import slipring_images
from bench.baselines.roofline import PERIOD
from bench.measure import CHECKED, Progress
from bench.workload import Workload

decoder = slipring_images.decoder
CHUNK = 8  # images between two counts


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    folder = slipring_images.folder(dataset)
    for _ in range(CHECKED):
        yield folder.fetch_into(range(workload.batch_size), np.empty)
    made = multiprocessing.RawArray("Q", workers)  # images, per process
    processes = [
        multiprocessing.Process(target=_work, args=(folder, made, worker), daemon=True) for worker in range(workers)
    ]
    try:
        for process in processes:
            process.start()
        seen = 0
        while True:
            time.sleep(PERIOD)
            now = sum(made)
            yield Progress((now - seen) / workload.batch_size)
            seen = now
    finally:
        for process in processes:
            process.kill()
            process.join()


def _work(folder: Any, made: Any, worker: int) -> None:
    rows: dict[tuple[int, ...], Any] = {}

    def same(shape: tuple[int, ...], dtype: Any) -> Any:
        """Return the same array each time: its pages are touched once."""
        return rows.setdefault(shape, np.empty(shape, dtype))

    for start in count(worker * CHUNK, len(made) * CHUNK):
        folder.fetch_into([index % len(folder) for index in range(start, start + CHUNK)], same)
        made[worker] += CHUNK
