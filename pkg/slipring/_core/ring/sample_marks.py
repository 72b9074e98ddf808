"""Marks of single samples: which one failed, which ones a dataset skips, and where remote reads are counted."""

import threading

from slipring._core.ring._segment import Meter
from slipring._core.ring._slot import current, skip

_NAME = "_slipring_position"


def failed_at(position, error):
    """Record that the sample at this position, among those that were requested, raised `error`."""
    BaseException.__setattr__(error, _NAME, position)  # its class may have a __setattr__ of its own


def failed_among(positions, error):
    """Translate the position recorded by an inner call, which read only the samples at these `positions`."""
    position = take_position(error)
    if position is not None and position < len(positions):
        failed_at(positions[position], error)


def take_position(error):
    """Return the recorded position and remove it, or return None if there is none."""
    return getattr(error, "__dict__", {}).pop(_NAME, None)


class _Apart(threading.local):
    skipped = 0  # by this thread, outside of batches in slots


apart = _Apart()


def skipped():
    """Count a sample that the dataset skips; the batch that this thread makes reports it."""
    if not skip():
        apart.skipped += 1


class _Thread(threading.local):
    counts = None


_thread = _Thread()
_process = None  # the segment of a worker process
_others = Meter()  # reads that serve no loader, such as those of a dataset's constructor


def counts():
    """Return the object whose ``add_read`` counts the remote reads of the calling thread."""
    writer = current()
    if writer is not None:
        return writer.ring
    if _thread.counts is not None:
        return _thread.counts
    return _others if _process is None else _process


def counted_in():
    """Return the object that `count_in` has set for the calling thread."""
    return _thread.counts


def count_in(new):
    """Count the remote reads of the calling thread in `new`, while it makes no batch; None: where the process does."""
    _thread.counts = new


def count_process_in(new):
    """Count the remote reads of this worker process in its segment, whichever thread makes them."""
    global _process
    _process = new
