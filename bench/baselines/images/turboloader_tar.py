"""TurboLoader with a tar shard: its fused path for antialiased random crops, in its own threads; float32, no labels.

Its pool has as many threads as the machine has cores, whatever the number of workers.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from bench.decoders import SIDE, Decoder, Pick
from bench.workload import Workload


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    loader = _loader(dataset.shard, workload.batch_size, workers, shuffle=True, train_aug=True)
    with closing(loader):
        for epoch in count():
            loader.set_epoch(epoch)
            for pictures, _ in loader:
                yield (pictures,)


def _loader(shard: Any, batch_size: int, workers: int, **options: Any) -> Any:
    import turboloader

    return turboloader.DataLoader(
        str(shard),
        batch_size=batch_size,
        num_workers=workers,
        image_size=SIDE,
        output_format="numpy",
        antialias=True,
        drop_last=True,
        **options,
    )


def decoder() -> Decoder:
    """Return its decoder for whole images: it accepts no box."""

    def decode(data: bytes, pick: Pick) -> Any:
        with NamedTemporaryFile(suffix=".tar") as file:
            with tarfile.open(fileobj=file, mode="w") as tar:
                member = tarfile.TarInfo("0.jpg")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
            file.flush()
            with closing(_loader(file.name, 1, 1)) as loader:
                ((pictures, _),) = loader
        return np.rint(pictures[0] * 255).astype(np.uint8)

    return decode
