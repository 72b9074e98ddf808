"""How many workers: found out by trying."""

import os
import time

WORTH = 0.75  # of the time that fewer workers take: more of them must take less


def fastest(make):
    """Return the number of workers with which batches come fastest; more of them must be worth a quarter.

    Parameters
    ----------
    make : callable
        ``make(num_workers)`` returns a `Loader` of some batches to be timed. It is called for 0, 2, 4, 8 ...
        workers, up to the CPUs that this process may use.
    """
    best, least = 0, float("inf")
    workers, most = 0, len(os.sched_getaffinity(0))
    while workers <= most:
        cost = seconds_per_batch(make(workers))
        if cost >= WORTH * least:
            break
        best, least = workers, cost
        workers = workers * 2 or 2  # one does no more than none
    return best


def seconds_per_batch(loader):
    """Return what each batch of an iteration takes, but for the first, which waits for workers to begin.

    Closes the loader.
    """
    with loader:
        batches = iter(loader)
        next(batches, None)
        begun = time.perf_counter()
        count = sum(1 for _ in batches)
        return (time.perf_counter() - begun) / max(1, count)
