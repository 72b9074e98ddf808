"""Grain's MapDataset, batched and then prefetched by threads or by processes, as its tutorials do.

By default, Grain prefetches 500 elements. That suits samples, but 500 batches would fill the memory. The threads are
therefore limited to two batches per worker, as torch's workers are. The processes read without threads, as Grain
recommends for data in memory, and stack samples directly into shared memory. `mp_prefetch` enables that by itself if
batching is the last step, but then a batch consists of every n-th sample instead of consecutive ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.workload import Dataset, Workload


def batches(workload: Workload, dataset: Dataset, workers: int, *, processes: bool) -> Iterator[Any]:
    import grain

    batched = grain.MapDataset.source(dataset).batch(workload.batch_size, drop_remainder=True)
    if processes:
        batched.enable_shared_memory_output()
        options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        loader = batched.repeat().to_iter_dataset(options)
        loader = loader.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    else:
        options = grain.ReadOptions(num_threads=workers, prefetch_buffer_size=2 * workers)
        loader = batched.repeat().to_iter_dataset(options)
    iterator = iter(loader)
    try:
        yield from iterator
    finally:
        iterator.close()
