"""Where remote reads are counted: in the segment of the loader that they serve, or else in this process."""

import threading

from slipring._core._ring import Meter, current


class _Thread(threading.local):
    counts = None


_thread = _Thread()
_process = None  # the segment of a worker process
_others = Meter()  # reads that serve no loader, such as those of a dataset's constructor


def counts():
    """Return the object whose ``add_read`` counts the remote reads of the calling thread."""
    fill = current()
    if fill is not None:
        return fill.ring
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
