"""slipring.Loader that replaces dead workers: the cost of this option without deaths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.baselines._torch import endless
from bench.workload import Dataset, Workload
from slipring import Workers


def batches(workload: Workload, dataset: Dataset, workers: int) -> Iterator[Any]:
    from slipring import Loader

    options = {"batch_size": workload.batch_size, "num_workers": workers}
    with Loader(dataset, workers=Workers(on_death="respawn"), **options) as loader:
        yield from endless(loader)
