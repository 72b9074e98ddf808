"""Asking user code for its state when it is needed, instead of with every batch."""

import contextlib
import copy
import os
import pickle
import threading


def copied(value):
    """Return a copy that does not change with the original; what cannot be copied, as it is."""
    for copy_of in (lambda: pickle.loads(pickle.dumps(value)), lambda: copy.deepcopy(value)):
        with contextlib.suppress(Exception):
            return copy_of()
    return value


class Making:
    """User code is at work, in one thread, whose state another thread may ask for, when it is at rest.

    Attributes
    ----------
    lock : RLock
        Held while `busy` is set.
    """

    def __init__(self):
        self.lock, self.busy, self.pid = threading.RLock(), False, os.getpid()

    @contextlib.contextmanager
    def at_rest(self):
        """Wait for another thread to have made what it makes.

        Raises
        ------
        RuntimeError
            This thread itself is at it: a signal's handler asks, or the dataset.
        """
        if self.pid != os.getpid():  # a forked child, in which no other thread will open the lock
            yield
            return
        with self.lock:
            if self.busy:
                raise RuntimeError(
                    "state_dict() was called while this thread makes a batch, by a signal's handler or by "
                    "the dataset or sampler itself: what is Stateful cannot say where it is in the middle of "
                    "a step. Have the handler set a flag, and ask between two batches"
                )
            yield
