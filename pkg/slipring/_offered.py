"""Threads of a worker, offered to the dataset whose batch it makes."""

import contextlib
import itertools
import threading


class _Work(threading.local):
    concurrency = None


_work = _Work()  # of the calling thread: whose batch it makes


@contextlib.contextmanager
def offered(concurrency):
    """Have a dataset that makes a whole batch find a worker's threads."""
    before, _work.concurrency = _work.concurrency, concurrency
    try:
        yield
    finally:
        _work.concurrency = before


def threads():
    """Return how many threads are offered; 1: none but the calling one."""
    concurrency = _work.concurrency
    return concurrency.most if concurrency is not None and concurrency.has_threads else 1


def read_ahead(read, asked):
    """Return what `read` returns of each, read by the worker's threads; None in place of what has failed.

    For a dataset that makes a whole batch in one call, and reads again, in its turn, what is missing. None: the
    worker has no such threads.
    """
    if len(asked) < 2 or threads() < 2:
        return None
    return _work.concurrency.tried(read, asked)


def read_in_turn(read, asked):
    """Yield the same one after the other: no more are read, or wait to be taken, than there are threads."""
    if len(asked) < 2 or threads() < 2:
        return itertools.repeat(None)
    return _work.concurrency.in_turn(read, asked)
