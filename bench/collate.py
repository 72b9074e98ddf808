"""Numpy collation and a worker's stream of batches, for baselines without their own collation.

The baselines get the fastest collation that plain numpy offers (``np.concatenate`` into a given array), and keep
their buffers if that is safe, so that none is slow for a reason outside of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bench.workload import Dataset


def collate(samples: Sequence[Any], into: Any = None) -> Any:
    """Stack samples (arrays, ints, tuples or dicts of them) to a batch; write it to `into` if given."""
    first = samples[0]
    if isinstance(first, np.ndarray):
        if into is None:
            into = np.empty((len(samples), *first.shape), first.dtype)
        # Several times as fast as np.stack for small samples: it makes no view of each of them.
        np.concatenate(samples, out=into.reshape(-1, *first.shape[1:]))
        return into
    if isinstance(first, tuple):
        spaces = into or [None] * len(first)
        return tuple(collate(column, space) for column, space in zip(zip(*samples), spaces))
    if isinstance(first, dict):
        return {key: collate([sample[key] for sample in samples], into[key] if into else None) for key in first}
    if into is None:
        return np.array(samples, np.int64)
    into[:] = samples
    return into


def leaves(batch: Any) -> Sequence[Any]:
    """List the arrays or tensors of a batch."""
    if isinstance(batch, (tuple, list)):
        return batch
    if isinstance(batch, dict):
        return list(batch.values())
    return (batch,)


def as_array(leaf: Any) -> np.ndarray:
    """Return an array, or a tensor's array."""
    return leaf if isinstance(leaf, np.ndarray) else leaf.numpy()


def nbytes(batch: Any) -> int:
    """Count the bytes of a batch."""
    return sum(as_array(leaf).nbytes for leaf in leaves(batch))


def digest(batch: Any) -> int:
    """Sum up types, shapes, names and bytes of a batch in one number."""
    names = ",".join(batch) if isinstance(batch, dict) else ""
    total = zlib.crc32(names.encode())
    for leaf in leaves(batch):
        array = as_array(leaf)
        total = zlib.crc32(f"{array.dtype.str}{array.shape}".encode(), total)
        total = zlib.crc32(np.ascontiguousarray(array).data, total)
    return total


def numbered(dataset: Dataset, batch_size: int, number: int, into: Any = None) -> Any:
    """Make batch `number` of endless epochs."""
    start = number * batch_size % (len(dataset) - len(dataset) % batch_size)
    return collate([dataset[index] for index in range(start, start + batch_size)], into)


def numbered_by_rows(dataset: Dataset, batch_size: int, number: int, into: tuple[Any, ...]) -> None:
    """Make the same batch from tuples, and copy each sample to its row as soon as it is made."""
    start = number * batch_size % (len(dataset) - len(dataset) % batch_size)
    for row in range(batch_size):
        for space, part in zip(into, dataset[start + row]):
            space[row] = part


class Stream:
    """The batches of one worker of several, without end: worker, worker + workers, worker + 2 workers, ...

    Parameters
    ----------
    dataset, batch_size
        The dataset and the size of a batch.
    worker, workers
        The number of this worker, and the number of workers.
    reuse
        Write every batch to the same arrays: for baselines that copy a batch before they request the next.
    """

    def __init__(self, dataset: Dataset, batch_size: int, worker: int, workers: int, *, reuse: bool) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.worker = worker
        self.workers = workers
        self.reuse = reuse

    def __iter__(self) -> Iterator[Any]:
        number, batch = self.worker, None
        while True:
            batch = numbered(self.dataset, self.batch_size, number, batch if self.reuse else None)
            yield batch
            number += self.workers
