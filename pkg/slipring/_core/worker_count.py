"""How many workers there are and how they start, where a program does not say."""

import os
import warnings
from typing import Any

from slipring import _machine
from slipring._core._ring import MAX_SLOTS, MAX_WORKERS
from slipring._core.arguments import integer
from slipring.errors import shown

START_METHODS = ("fork", "forkserver", "spawn", "thread")
# Workers, where "auto" finds out how many are best; or as many as processors, if those are fewer.
BEGIN_WITH = 4
MOST_UNASKED = 64  # of such workers, if nobody says and there are not more processors
WORKERS_PER_CPU = 4  # more may wait for disks and networks, but hardly for processors


def default_start_method() -> str:
    """Return multiprocessing's start method, or the platform's default if a library installed its own (loky)."""
    import multiprocessing

    method = multiprocessing.get_start_method()
    return method if method in START_METHODS else multiprocessing.get_all_start_methods()[0]


def warn_of_many_workers(num_workers: int) -> None:
    """Warn where a loader will have far more workers than there are processors for it."""
    cpus = len(os.sched_getaffinity(0))
    if num_workers > WORKERS_PER_CPU * cpus:
        warnings.warn(
            f"num_workers={num_workers} for {cpus} processors, which this process may use: more than "
            f"{WORKERS_PER_CPU} workers for each seldom make a loader faster, and each costs memory. Use "
            f"about {cpus}",
            stacklevel=4,
        )


def bounds(
    num_workers: Any, least: int | None, most: int | None, slots: int | None = None
) -> tuple[int, int, int]:
    """Return (workers to begin with, the fewest, the most) of a loader that finds out how many are best.

    It begins with no more than its slots serve, of which the consumer has one.

    Raises
    ------
    TypeError, ValueError
        Naming `num_workers`, `min_workers`, `max_workers` or `slots`, its value and the rule.
    """
    if num_workers != "auto":
        raise TypeError(f"num_workers must be an int or 'auto', not {shown(num_workers)}")
    for name, value in (("min_workers", least), ("max_workers", most)):
        integer(name, value, 1, MAX_WORKERS, optional=True)
    if least is not None and most is not None and most < least:
        raise ValueError(f"max_workers must be at least min_workers={least}, not {most}")
    integer("slots", slots, 2, MAX_SLOTS, optional=True)
    cpus = _machine.cpus()
    least = 1 if least is None else least
    if most is None:
        most = min(MAX_WORKERS, max(least, cpus, min(MOST_UNASKED, max(16, WORKERS_PER_CPU * cpus))))
    begin = min(cpus, BEGIN_WITH) if slots is None else min(cpus, BEGIN_WITH, slots - 1)
    return min(most, max(least, begin)), least, most


def check_bounds(num_workers: Any, **given: int | None) -> None:
    """Refuse `min_workers` and `max_workers` where the number of workers is fixed."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name}={shown(value)} bounds num_workers='auto'; num_workers={shown(num_workers)} is fixed"
            )
