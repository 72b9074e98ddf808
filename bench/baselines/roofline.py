"""The roofline: the same work by as many processes, written to shared memory, but not delivered.

Each process writes to its own slots, whose pages are touched before the clock starts, and counts. If samples are
new arrays, each is copied to its row as soon as it is made. For a
workload of decoding, samples are made and dropped instead. The consumer sleeps: its costs are left
out, too.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np

from bench.collate import numbered, numbered_by_rows
from bench.measure import CHECKED, Progress
from bench.workload import Dataset, New, Workload

SLOTS = 2  # per process, as many batches as torch has in flight
PERIOD = 0.02  # seconds between two reads of the counters


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    made = multiprocessing.RawArray("Q", workers)  # samples, per process
    first, go = multiprocessing.Semaphore(0), multiprocessing.Event()
    template = numbered(dataset, workload.batch_size, 0)
    slots = [[_slot(template) for _ in range(SLOTS)] for _ in range(workers)]
    processes = []
    for worker in range(workers):
        arguments = (workload, dataset, worker, slots[worker], made, first, go)
        processes.append(multiprocessing.Process(target=_work, args=arguments, daemon=True))
    try:
        for process in processes:
            process.start()
        for _ in processes:
            first.acquire()
        for number in range(CHECKED):
            yield _views(template, slots[number % workers][0])
        go.set()
        seen = sum(made)
        while True:
            time.sleep(PERIOD)
            now = sum(made)
            yield Progress((now - seen) / workload.batch_size)
            seen = now
    finally:
        for process in processes:
            process.kill()
            process.join()


def _slot(batch: Any) -> Any:
    """Allocate shared memory of the batch's form; RawArray touches it by writing zeros."""
    if isinstance(batch, tuple):
        return tuple(_slot(item) for item in batch)
    if isinstance(batch, dict):
        return {key: _slot(item) for key, item in batch.items()}
    return multiprocessing.RawArray("B", batch.nbytes)


def _views(batch: Any, slot: Any) -> Any:
    """Return a slot as arrays of the batch's form."""
    if isinstance(batch, tuple):
        return tuple(map(_views, batch, slot))
    if isinstance(batch, dict):
        return {key: _views(item, slot[key]) for key, item in batch.items()}
    return np.frombuffer(slot, batch.dtype).reshape(batch.shape)


def _work(workload: Workload, dataset: Dataset, worker: int, slots: list[Any], made: Any, first: Any, go: Any) -> None:
    batch_size = workload.batch_size
    template = numbered(dataset, batch_size, 0)
    spaces = [_views(template, slot) for slot in slots]
    numbered(dataset, batch_size, worker, spaces[0])
    first.release()
    go.wait()
    workers, number = len(made), worker
    if workload.decode_only:
        for index in cycle(range(worker, len(dataset), workers)):
            dataset[index]
            made[worker] += 1
    make = numbered_by_rows if isinstance(dataset, New) else numbered
    for space in cycle(spaces):
        make(dataset, batch_size, number, space)
        number += workers
        made[worker] += batch_size
