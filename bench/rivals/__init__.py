"""The rivals: one file each, each with the same two functions.

``available()``
    None, or the reason why this rival cannot run here.
``batches(question, dataset, workers)``
    A generator of batches without end. Closing it stops the rival's workers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rival:
    """One rival: its name in reports, its module here, the distributions whose versions matter.

    What is `by_name` runs only if ``--rivals`` names it.
    """

    key: str
    label: str
    module: str
    packages: tuple[str, ...] = ()
    by_name: bool = False


RIVALS: dict[str, Rival] = {
    rival.key: rival
    for rival in (
        Rival("slipring", "slipring", "slipring_loader", ("slipring",)),
        Rival("slipring_torch", "slipring.torch, numpy samples", "slipring_torch", ("slipring", "torch")),
        Rival("roofline", "roofline (no hand-over)", "roofline"),
        Rival("torch_numpy", "torch, numpy samples", "torch_numpy", ("torch",)),
        Rival("torch_tensor", "torch, tensor samples", "torch_tensor", ("torch",)),
        Rival("stateful", "torchdata StatefulDataLoader", "stateful", ("torchdata",)),
        Rival("webdataset", "webdataset MultiLoader", "webdataset_multi", ("webdataset", "pyzmq")),
        Rival("spdl", "SPDL, shared-memory pools", "spdl_pool", ("spdl_core",)),
        Rival("spdl_kept", "SPDL, the same arrays again", "spdl_kept", ("spdl_core",)),
        Rival("queue", "multiprocessing.Queue", "plain_queue"),
        Rival("respawn", "slipring, workers replaced", "slipring_respawn", ("slipring",), by_name=True),
        Rival("face_torchdata", "slipring.compat.torchdata", "face_torchdata", by_name=True),
        Rival("face_webdataset", "slipring.compat.webdataset", "face_webdataset", by_name=True),
    )
}
