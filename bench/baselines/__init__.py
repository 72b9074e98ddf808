"""The baselines: one file each, each with the same function; those of workload (f) are in
``images/``, those of (g) in ``kept/``, and those of ``bench.recipes``, which differ, in ``recipes/``.

``batches(workload, dataset, workers)``
    A generator of batches without end. Closing it stops the baseline's workers.

dataloader-rs is not among them because it requires Python 3.13. LitData is only in workload (g), because its loader
rejects map datasets and reads only files that LitData wrote.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.baselines.baseline import Baseline
from bench.baselines.images import IMAGES
from bench.baselines.kept import KEPT


@dataclass(frozen=True)
class Adapter:
    """One of slipring's adapters and the loader whose signature it has; `bench.adapters` compares the two.

    Parameters
    ----------
    key, label
        Its name; its description in the table.
    ours, theirs
        The two, as baselines.
    target
        The intended ratio of our rate to the other's, for ready image batches.
    """

    key: str
    label: str
    ours: Baseline
    theirs: Baseline
    target: float = 4.0


BASELINES: dict[str, Baseline] = {
    baseline.key: baseline
    for baseline in (
        Baseline("slipring", "slipring", "slipring_loader", ("slipring",), ("slipring",)),
        Baseline(
            "slipring_torch",
            "slipring.torch, numpy samples",
            "slipring_torch",
            ("slipring.torch",),
            ("slipring", "torch"),
        ),
        Baseline("roofline", "roofline (no hand-over)", "roofline"),
        Baseline("torch_numpy", "torch, numpy samples", "torch_numpy", ("torch.utils.data",), ("torch",)),
        Baseline("torch_tensor", "torch, tensor samples", "torch_tensor", ("torch.utils.data",), ("torch",)),
        Baseline(
            "stateful",
            "torchdata StatefulDataLoader",
            "stateful",
            ("torchdata.stateful_dataloader",),
            ("torchdata",),
        ),
        Baseline(
            "webdataset",
            "webdataset MultiLoader",
            "webdataset_multi",
            ("webdataset.multi",),
            ("webdataset", "pyzmq"),
        ),
        Baseline("spdl", "SPDL, shared-memory pools", "spdl_pool", ("spdl.pipeline",), ("spdl_core",)),
        Baseline("spdl_kept", "SPDL, the same arrays again", "spdl_kept", ("spdl.pipeline",), ("spdl_core",)),
        Baseline("spdl_threads", "SPDL, threads", "spdl_threads", ("spdl.pipeline",), ("spdl_core",)),
        Baseline(
            "nodes_processes",
            "torchdata nodes, processes",
            "torchdata_nodes",
            ("torchdata.nodes",),
            ("torchdata",),
            options={"method": "process"},
        ),
        Baseline(
            "nodes_threads",
            "torchdata nodes, threads",
            "torchdata_nodes",
            ("torchdata.nodes",),
            ("torchdata",),
            options={"method": "thread"},
        ),
        Baseline(
            "grain_processes",
            "Grain, processes",
            "grain_prefetch",
            ("grain",),
            ("grain",),
            options={"processes": True},
        ),
        Baseline(
            "grain_threads",
            "Grain, threads",
            "grain_prefetch",
            ("grain",),
            ("grain",),
            options={"processes": False},
        ),
        Baseline(
            "squirrel",
            "Squirrel, threads",
            "squirrel_async",
            ("squirrel.iterstream",),
            ("squirrel-core",),
            remedy="pip install -r bench/requirements-loaders.txt",
        ),
        Baseline("queue", "multiprocessing.Queue", "plain_queue"),
        Baseline(
            "respawn",
            "slipring, workers replaced",
            "slipring_respawn",
            ("slipring",),
            ("slipring",),
            by_name=True,
        ),
    )
}


def _ours(adapter: str, *needs: str) -> Baseline:
    module = f"slipring.adapters.{adapter}"
    return Baseline(f"adapter_{adapter}", module, f"adapter_{adapter}", (module, *needs), ("slipring",))


ADAPTERS: dict[str, Adapter] = {
    adapter.key: adapter
    for adapter in (
        Adapter(
            "paddle",
            "paddle.io.DataLoader",
            _ours("paddle", "paddle", "torch"),  # its tensors are read as torch's
            Baseline("paddle_io", "paddle.io.DataLoader", "paddle_io", ("paddle", "torch"), ("paddlepaddle",)),
        ),
        Adapter(
            "di_engine",
            "DI-engine AsyncDataLoader",
            _ours("di_engine", "torch"),
            Baseline(
                "di_engine",
                "DI-engine AsyncDataLoader",
                "di_engine",
                ("ding.utils.data.dataloader",),
                ("DI-engine",),
            ),
        ),
        Adapter(
            "megengine",
            "megengine.data.DataLoader",
            _ours("megengine"),
            Baseline("megengine", "megengine.data.DataLoader", "megengine", ("megengine.data",), ("megengine",)),
        ),
        Adapter("torchdata", "torchdata StatefulDataLoader", _ours("torchdata", "torch"), BASELINES["stateful"]),
        Adapter("webdataset", "webdataset MultiLoader", _ours("webdataset"), BASELINES["webdataset"]),
    )
}


def find(key: str) -> Baseline:
    """Return the baseline of that key, in the comparison of loaders or behind an adapter."""
    adapters = {baseline.key: baseline for adapter in ADAPTERS.values() for baseline in (adapter.ours, adapter.theirs)}
    return (BASELINES | IMAGES | KEPT | adapters)[key]
