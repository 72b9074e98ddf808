"""slipring.images with a cache whose budget is a share of all decoded images, or without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._torch import endless
from bench.decoders import SIDE, with_slipring
from bench.workload import Workload

_caches: list[Any] = []  # the cache of this measurement, if any


def decoder(*, side: int | None = None, **options: Any) -> Any:
    """Return the decoder; with `side` its boxes are those of a smaller image, and cannot be compared."""
    return with_slipring() if side is None else None


def batches(workload: Workload, dataset: Any, workers: int, share: float, **options: Any) -> Iterator[Any]:
    from slipring import Cache, Loader, images

    if share:
        _caches.append(Cache(round(share * dataset.decoded_bytes)))
        options["cache"] = _caches[-1]
    crop = images.RandomResizedCrop(SIDE, flip=0.5)
    folder = images.Folder.of("", [], {}, dataset.files, crop, **options)
    with Loader(folder, workload.batch_size, sampler=dataset.order, num_workers=workers) as loader:
        yield from endless(loader)


def counts() -> tuple[int, int] | None:
    if not _caches:
        return None
    stats = _caches[-1].stats()
    return stats.hits, stats.misses
