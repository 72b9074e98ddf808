"""slipring.images in slipring.Loader with thread workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines.images import slipring_images
from bench.workload import Workload

decoder = slipring_images.decoder


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    from slipring import Workers

    return slipring_images.batches(workload, dataset, workers, workers=Workers(start_method="thread"))
