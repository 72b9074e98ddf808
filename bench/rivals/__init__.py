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


@dataclass(frozen=True)
class Face:
    """A face of slipring's and the loader whose signature it has; `bench.faces` compares the two.

    Parameters
    ----------
    key, label
        Its name; a word on it for the table.
    ours, theirs
        The two, as rivals.
    target
        How many times the other's rate ours wants to be, on ready image batches.
    """

    key: str
    label: str
    ours: Rival
    theirs: Rival
    target: float = 4.0


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
    )
}

FACES: dict[str, Face] = {
    face.key: face
    for face in (
        Face(
            "paddle",
            "paddle.io.DataLoader",
            Rival("face_paddle", "slipring.compat.paddle", "face_paddle", ("slipring",)),
            Rival("paddle_io", "paddle.io.DataLoader", "paddle_io", ("paddlepaddle",)),
        ),
        Face(
            "di_engine",
            "DI-engine AsyncDataLoader",
            Rival("face_di_engine", "slipring.compat.di_engine", "face_di_engine", ("slipring",)),
            Rival("di_engine", "DI-engine AsyncDataLoader", "di_engine", ("DI-engine",)),
        ),
        Face(
            "megengine",
            "megengine.data.DataLoader",
            Rival("face_megengine", "slipring.compat.megengine", "face_megengine", ("slipring",)),
            Rival("megengine", "megengine.data.DataLoader", "megengine", ("megengine",)),
        ),
        Face(
            "torchdata",
            "torchdata StatefulDataLoader",
            Rival("face_torchdata", "slipring.compat.torchdata", "face_torchdata", ("slipring", "torch")),
            RIVALS["stateful"],
        ),
        Face(
            "webdataset",
            "webdataset MultiLoader",
            Rival("face_webdataset", "slipring.compat.webdataset", "face_webdataset", ("slipring",)),
            RIVALS["webdataset"],
        ),
    )
}


def find(key: str) -> Rival:
    """Return the rival of that key, in the comparison of loaders or behind a face."""
    faces = {rival.key: rival for face in FACES.values() for rival in (face.ours, face.theirs)}
    return (RIVALS | faces)[key]
