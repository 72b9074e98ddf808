"""`get_worker_info`: which worker runs the calling code."""

import dataclasses
import sys
import threading
from typing import Any


@dataclasses.dataclass(frozen=True)
class WorkerInfo:
    """The number, seed and dataset of a worker, as `get_worker_info` returns them.

    Attributes
    ----------
    id : int
        Number of this worker, from 0.
    num_workers : int
    seed : int
        The iteration's base seed plus `id`.
    dataset
        This worker's copy of the dataset (with thread workers: the dataset itself).

    Examples
    --------
    >>> import slipring
    >>> class Numbers:
    ...     def __iter__(self):
    ...         info = slipring.get_worker_info()
    ...         return iter(range(info.id, 6, info.num_workers))
    >>> with slipring.Loader(Numbers(), batch_size=None, num_workers=2) as loader:
    ...     sorted(loader)
    [0, 1, 2, 3, 4, 5]
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


class _Thread(threading.local):
    info: WorkerInfo | None = None


_thread = _Thread()
_process: WorkerInfo | None = None
_torchs_info: WorkerInfo | None = None
_OF_TORCH = "torch.utils.data._utils.worker"


def get_worker_info() -> WorkerInfo | None:
    """Return the `WorkerInfo` of the calling worker; None outside of workers.

    A source that `slipring.stream` reads with ``num_workers=0`` is in worker 0 of 1.
    """
    return _thread.info or _process


def process_worker_info() -> WorkerInfo | None:
    """Return the `slipring.WorkerInfo` of this worker process; None in others, even in thread workers."""
    return _process


def runs_in_thread() -> bool:
    """Return whether the calling thread is a worker that shares its process with others."""
    return _thread.info is not None


def set_worker_info(info: WorkerInfo | None, *, whole_process: bool) -> None:
    """Make `info` the result of `get_worker_info`, in the whole process or in the calling thread alone."""
    global _process
    if whole_process:
        _process = info
    else:
        _thread.info = info


def inform_torch() -> None:
    """Make ``torch.utils.data.get_worker_info()`` describe this worker process, once the program has imported torch.

    Libraries call it, and ``torch.initial_seed()``, in order to draw other numbers in each worker. torch has one info
    per process, so threads and ``num_workers=0`` have none.
    """
    global _torchs_info
    if _torchs_info is _process or _process is None:
        return
    theirs: Any = sys.modules.get(_OF_TORCH)
    if hasattr(theirs, "WorkerInfo"):  # else it is being imported, or the program has no torch
        theirs._worker_info = theirs.WorkerInfo(**vars(_process))
        _torchs_info = _process


def swap_thread_info(info: WorkerInfo | None) -> WorkerInfo | None:
    """Replace the calling thread's `info`; return the old one. For threads that read samples of another's batch."""
    before, _thread.info = _thread.info, info
    return before
