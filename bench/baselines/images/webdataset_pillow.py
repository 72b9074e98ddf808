"""webdataset's WebLoader with a tar shard, decoded by Pillow; workers make the batches, as it recommends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines.images.torch_pillow import pick
from bench.decoders import with_pillow
from bench.workload import Workload

decoder = with_pillow
AHEAD = 100  # encoded samples in the shuffle buffer


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    import webdataset
    from torch.utils.data import default_collate

    decode = decoder()
    samples = (
        webdataset.WebDataset(str(dataset.shard), resampled=True)
        .shuffle(AHEAD)
        .to_tuple("jpg", "cls")
        .map_tuple(lambda data: decode(data, pick), int)
        .batched(workload.batch_size, collation_fn=default_collate)  # tensors go through shared memory
    )
    loader = webdataset.WebLoader(samples, batch_size=None, num_workers=workers)
    while True:
        yield from loader
