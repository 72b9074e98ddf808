"""State queries to user code when the state is needed, instead of with every batch."""

import contextlib
import copy
import os
import pickle
import threading


def copied(value):
    """Return a copy that does not change with the original, or `value` itself if it cannot be copied."""
    for copy_of in (lambda: pickle.loads(pickle.dumps(value)), lambda: copy.deepcopy(value)):
        with contextlib.suppress(Exception):
            return copy_of()
    return value


class Making:
    """A lock between the thread in which user code makes a batch and a thread that queries the code's state.

    `lock` is held while `busy` is set.
    """

    def __init__(self):
        self.lock, self.busy, self.pid = threading.RLock(), False, os.getpid()

    @contextlib.contextmanager
    def at_rest(self):
        """Wait until no other thread makes a batch.

        Raise RuntimeError if this thread makes one: then a signal handler, the dataset or the sampler asks for the
        state.
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
