"""What a worker knows about itself."""

import dataclasses
import threading


@dataclasses.dataclass(frozen=True)
class WorkerInfo:
    """What `get_worker_info` returns.

    Attributes
    ----------
    id : int
        Number of this worker, from 0.
    num_workers : int
    seed : int
        The iteration's base seed plus `id`.
    dataset
        This worker's copy of the dataset (with thread workers: the dataset itself).
    """

    id: int
    num_workers: int
    seed: int
    dataset: object


class _Place(threading.local):
    info = None


_thread = _Place()
_process = None


def get_worker_info():
    """Return the `WorkerInfo` of the calling worker; None outside of workers."""
    return _thread.info or _process


def process_worker_info():
    """Return the `WorkerInfo` of this worker process; None in others, whether or not a thread is a worker."""
    return _process


def set_worker_info(info, *, whole_process):
    """Make `info` the answer, in the whole process or in the calling thread alone."""
    global _process
    if whole_process:
        _process = info
    else:
        _thread.info = info
