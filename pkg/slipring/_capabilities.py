"""Threads that a worker lends to the dataset whose batch it makes."""

import contextlib
import itertools
import threading


class _Work(threading.local):
    concurrency = None


_work = _Work()  # of the worker whose batch the calling thread makes


@contextlib.contextmanager
def lend_threads(concurrency):
    """Lend a worker's threads to a dataset that makes a whole batch."""
    before, _work.concurrency = _work.concurrency, concurrency
    try:
        yield
    finally:
        _work.concurrency = before


def threads():
    """Return how many threads are lent; 1: none but the calling one."""
    concurrency = _work.concurrency
    return concurrency.most if concurrency is not None and concurrency.has_threads else 1


def read_ahead(read, asked):
    """Return the results of `read` for all of `asked`, read by the worker's threads; None for each failed read.

    This is for a dataset that makes a whole batch in one call; it reads the failed ones again itself. Return None if
    the worker has no threads.
    """
    if len(asked) < 2 or threads() < 2:
        return None
    return _work.concurrency.tried(read, asked)


def read_in_order(read, asked):
    """Yield the same results in order; at most as many reads are in flight as there are threads."""
    if len(asked) < 2 or threads() < 2:
        return itertools.repeat(None)
    return _work.concurrency.in_order(read, asked)
