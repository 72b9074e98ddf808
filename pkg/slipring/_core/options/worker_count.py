"""Defaults for the number of workers and for how they start."""

import os
import warnings
from typing import Any, Literal, get_args

from slipring._core.options.arguments import integer
from slipring._core.ring import process
from slipring._core.ring.ring_limits import MAX_WORKERS
from slipring.errors import shown

StartMethod = Literal["fork", "forkserver", "spawn", "thread"]
START_METHODS = get_args(StartMethod)
# Workers at the beginning of "auto"; or as many as processors, if those are fewer.
BEGIN_WITH = 4
MOST_UNASKED = 64  # upper bound of "auto", if none is given and there are not more processors
WORKERS_PER_CPU = 4  # more may wait for disks and networks, but hardly for processors


def default_start_method() -> str:
    """Return multiprocessing's start method, or the platform's default if a library installed its own (loky)."""
    import multiprocessing

    method = multiprocessing.get_start_method()
    return method if method in START_METHODS else multiprocessing.get_all_start_methods()[0]


def warn_of_many_workers(num_workers: int) -> None:
    """Warn if a loader will have far more workers than there are processors for it."""
    cpus = len(os.sched_getaffinity(0))
    if num_workers > WORKERS_PER_CPU * cpus:
        warnings.warn(
            f"num_workers={num_workers} for {cpus} processors, which this process may use: more than "
            f"{WORKERS_PER_CPU} workers for each seldom make a loader faster, and each costs memory. Use "
            f"about {cpus}",
            stacklevel=4,
        )


def worker_count(name: str, value: Any) -> Any:
    """Check a number of workers: an int from 0, 'auto', or (least, most), each an int from 1 or None."""
    if isinstance(value, str) and value == "auto":
        return value
    if not isinstance(value, (tuple, list)):
        try:
            return integer(name, value, 0, MAX_WORKERS, hint="; 0 loads in this process")
        except TypeError:
            raise TypeError(f"{name} must be an int, 'auto' or (least, most), not {shown(value)}") from None
    if len(value) != 2:
        raise ValueError(f"{name} must be (least, most), not {shown(value)}")
    least, most = (
        integer(f"{name}={shown(value)}: the {what} bound", bound, 1, MAX_WORKERS, optional=True)
        for what, bound in zip(("lower", "upper"), value, strict=True)
    )
    if least is not None and most is not None and most < least:
        raise ValueError(f"{name}={shown(value)}: the upper bound must be at least the lower bound")
    return least, most


def bounds(num_workers: Any, slots: int | None = None) -> tuple[int, int, int]:
    """Return (workers to begin with, the fewest, the most) for a loader that finds the best number.

    It begins with no more than its slots serve, of which the consumer has one.

    Parameters
    ----------
    num_workers : {'auto'} or (int or None, int or None)
    slots : int, optional
    """
    least, most = (None, None) if num_workers == "auto" else num_workers
    cpus = process.cpus()
    least = min(1 if least is None else least, MAX_WORKERS if most is None else most)
    if most is None:
        most = min(MAX_WORKERS, max(least, cpus, min(MOST_UNASKED, max(16, WORKERS_PER_CPU * cpus))))
    begin = min(cpus, BEGIN_WITH) if slots is None else min(cpus, BEGIN_WITH, slots - 1)
    return min(most, max(least, begin)), least, most
