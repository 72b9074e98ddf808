"""The adapter's link to MegEngine, if it is installed: tensors, ranks, seeds, worker info."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys

import numpy as np

from slipring import Loader
from slipring._core.codec.pytree import map_leaves
from slipring._core.ring.worker_info import process_worker_info
from slipring._core.workers import error_record
from slipring._core.workers.worker import Worker
from slipring.errors import WorkerError, shown

_DATALOADER = "megengine.data.dataloader"


def there(name):
    """Return whether a package can be imported."""
    return name in sys.modules or importlib.util.find_spec(name) is not None


def as_tensors(batch):
    """Return a batch whose arrays are MegEngine's tensors."""
    make = importlib.import_module("megengine").Tensor
    return map_leaves(batch, lambda leaf: make(leaf) if isinstance(leaf, np.ndarray) else leaf)


def seed():
    """Return a pass's seed: from MegEngine's generator if the program uses it, else from numpy's."""
    theirs = sys.modules.get("megengine.random.rng")
    if theirs is not None:
        return int(next(theirs._random_seed_generator()))
    return int(np.random.randint(0, sys.maxsize))


def rank_and_world_size():
    """Return this process's rank and the number of ranks, if the program runs MegEngine's processes."""
    theirs = sys.modules.get("megengine.distributed")
    if theirs is None or not theirs.is_distributed():
        return 0, 1
    return theirs.get_rank(), theirs.get_world_size()


# ---- workers


@dataclasses.dataclass(init=False)
class WorkerInfo:
    """The result of `get_worker_info`: this worker's number, the number of workers, and this worker's seed.

    Examples
    --------
    >>> from slipring.adapters.megengine import get_worker_info
    >>> print(get_worker_info())  # outside of workers
    None
    """

    idx: int
    worker: int
    seed: int

    def __init__(self, idx: int, worker: int, seed: int) -> None:
        self.__dict__.update(idx=idx, worker=worker, seed=seed)

    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError(f"{type(self).__name__} can only be read: {name} cannot become {shown(value)}")

    def __delattr__(self, name: str) -> None:
        raise RuntimeError(f"{type(self).__name__} can only be read: {name} cannot be deleted")


def get_worker_info() -> WorkerInfo | None:
    """Return the `WorkerInfo` of this worker process; None elsewhere."""
    info = process_worker_info()
    return None if info is None else WorkerInfo(info.id, info.num_workers, info.seed)


def prepare_workers():
    """Import MegEngine's loader, if installed, so that `StreamWorker` can introduce itself there."""
    if there("megengine"):
        importlib.import_module(_DATALOADER)


class StreamWorker(Worker):
    """A worker whose number MegEngine's own get_worker_info() returns too. (For maps, MegEngine returns None.)"""

    def begin(self, base_seed):
        if self.owns_process:
            prepare_workers()  # a spawned process has not inherited the import
        super().begin(base_seed)

    def _introduce(self, base_seed):
        super()._introduce(base_seed)
        theirs, info = sys.modules.get(_DATALOADER), get_worker_info()
        if info is not None and hasattr(theirs, "WorkerInfo"):
            theirs._worker_info = theirs.WorkerInfo(**vars(info))


def rebuild(described, original=None):
    """Return a RuntimeError in MegEngine's words, caused by a worker's exception."""
    cause = error_record.rebuild(described, original)
    known = cause if isinstance(cause, WorkerError) else cause.__cause__
    error = WorkerError(error_record.caught(described), **vars(known))
    error.__cause__ = cause
    return error


class MapCore(Loader):
    """The core loader of a map."""

    _rebuild = staticmethod(rebuild)


class StreamCore(MapCore):
    """The core loader of a stream."""

    _worker_class = StreamWorker
    _keeps_states = False
