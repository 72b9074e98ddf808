"""slipring.images in slipring.Loader, with its own defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._torch import endless
from bench.decoders import SIDE, with_slipring
from bench.workload import Workload

decoder = with_slipring


def folder(dataset: Any) -> Any:
    from slipring import images

    crop = images.RandomResizedCrop(SIDE, flip=0.5)
    return images.Folder.of("", [], {}, dataset.sources, crop)


def batches(workload: Workload, dataset: Any, num_workers: int, **options: Any) -> Iterator[Any]:
    from slipring import Loader

    with Loader(folder(dataset), workload.batch_size, shuffle=True, num_workers=num_workers, **options) as loader:
        yield from endless(loader)
