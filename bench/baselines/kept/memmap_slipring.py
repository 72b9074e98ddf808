"""The emulation of FFCV's raw mode in slipring.Loader, with the same dataset: it shows the loader's effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._torch import endless
from bench.baselines.kept.memmap_torch import Mapped, decoder
from bench.workload import Workload

__all__ = ["batches", "decoder"]


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    from slipring import Loader

    mapped = Mapped(dataset.files)
    with Loader(mapped, workload.batch_size, sampler=dataset.order, num_workers=workers) as loader:
        yield from endless(loader)
