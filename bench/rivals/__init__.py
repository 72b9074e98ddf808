"""The rivals: one file each, each with the same function; those of question (f) are in
``images/``, those of (g) in ``kept/``, and those of ``bench.recipes``, which differ, in ``recipes/``.

``batches(question, dataset, workers)``
    A generator of batches without end. Closing it stops the rival's workers.

dataloader-rs is not among them because it requires Python 3.13. LitData is only in question (g), because its loader
rejects map datasets and reads only files that LitData wrote.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.rivals.images import IMAGES
from bench.rivals.kept import KEPT
from bench.rivals.rival import Rival


@dataclass(frozen=True)
class Adapter:
    """One of slipring's adapters and the loader whose signature it has; `bench.adapters` compares the two.

    Parameters
    ----------
    key, label
        Its name; its description in the table.
    ours, theirs
        The two, as rivals.
    target
        The intended ratio of our rate to the other's, for ready image batches.
    """

    key: str
    label: str
    ours: Rival
    theirs: Rival
    target: float = 4.0


RIVALS: dict[str, Rival] = {
    rival.key: rival
    for rival in (
        Rival("slipring", "slipring", "slipring_loader", ("slipring",), ("slipring",)),
        Rival(
            "slipring_torch",
            "slipring.torch, numpy samples",
            "slipring_torch",
            ("slipring.torch",),
            ("slipring", "torch"),
        ),
        Rival("roofline", "roofline (no hand-over)", "roofline"),
        Rival("torch_numpy", "torch, numpy samples", "torch_numpy", ("torch.utils.data",), ("torch",)),
        Rival("torch_tensor", "torch, tensor samples", "torch_tensor", ("torch.utils.data",), ("torch",)),
        Rival(
            "stateful",
            "torchdata StatefulDataLoader",
            "stateful",
            ("torchdata.stateful_dataloader",),
            ("torchdata",),
        ),
        Rival(
            "webdataset",
            "webdataset MultiLoader",
            "webdataset_multi",
            ("webdataset.multi",),
            ("webdataset", "pyzmq"),
        ),
        Rival("spdl", "SPDL, shared-memory pools", "spdl_pool", ("spdl.pipeline",), ("spdl_core",)),
        Rival("spdl_kept", "SPDL, the same arrays again", "spdl_kept", ("spdl.pipeline",), ("spdl_core",)),
        Rival("spdl_threads", "SPDL, threads", "spdl_threads", ("spdl.pipeline",), ("spdl_core",)),
        Rival(
            "nodes_processes",
            "torchdata nodes, processes",
            "torchdata_nodes",
            ("torchdata.nodes",),
            ("torchdata",),
            options={"method": "process"},
        ),
        Rival(
            "nodes_threads",
            "torchdata nodes, threads",
            "torchdata_nodes",
            ("torchdata.nodes",),
            ("torchdata",),
            options={"method": "thread"},
        ),
        Rival(
            "grain_processes",
            "Grain, processes",
            "grain_prefetch",
            ("grain",),
            ("grain",),
            options={"processes": True},
        ),
        Rival(
            "grain_threads",
            "Grain, threads",
            "grain_prefetch",
            ("grain",),
            ("grain",),
            options={"processes": False},
        ),
        Rival(
            "squirrel",
            "Squirrel, threads",
            "squirrel_async",
            ("squirrel.iterstream",),
            ("squirrel-core",),
            remedy="pip install -r bench/requirements-loaders.txt",
        ),
        Rival("queue", "multiprocessing.Queue", "plain_queue"),
        Rival(
            "respawn",
            "slipring, workers replaced",
            "slipring_respawn",
            ("slipring",),
            ("slipring",),
            by_name=True,
        ),
    )
}


def _ours(adapter: str, *needs: str) -> Rival:
    module = f"slipring.adapters.{adapter}"
    return Rival(f"adapter_{adapter}", module, f"adapter_{adapter}", (module, *needs), ("slipring",))


ADAPTERS: dict[str, Adapter] = {
    adapter.key: adapter
    for adapter in (
        Adapter(
            "paddle",
            "paddle.io.DataLoader",
            _ours("paddle", "paddle", "torch"),  # its tensors are read as torch's
            Rival("paddle_io", "paddle.io.DataLoader", "paddle_io", ("paddle", "torch"), ("paddlepaddle",)),
        ),
        Adapter(
            "di_engine",
            "DI-engine AsyncDataLoader",
            _ours("di_engine", "torch"),
            Rival(
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
            Rival("megengine", "megengine.data.DataLoader", "megengine", ("megengine.data",), ("megengine",)),
        ),
        Adapter("torchdata", "torchdata StatefulDataLoader", _ours("torchdata", "torch"), RIVALS["stateful"]),
        Adapter("webdataset", "webdataset MultiLoader", _ours("webdataset"), RIVALS["webdataset"]),
    )
}


def find(key: str) -> Rival:
    """Return the rival of that key, in the comparison of loaders or behind an adapter."""
    adapters = {rival.key: rival for adapter in ADAPTERS.values() for rival in (adapter.ours, adapter.theirs)}
    return (RIVALS | IMAGES | KEPT | adapters)[key]
