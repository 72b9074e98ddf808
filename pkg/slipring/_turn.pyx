"""Whose turn it is, of the threads that ask one iterator.

No lock: the thread that asks in the midst of its own turn (a signal's handler does) goes on, and where nobody
else asks, which is nearly always, a turn costs two words.
"""

import threading

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident


@cython.final
@cython.auto_pickle(False)
cdef class Turn:
    """One thread at a time; under the GIL nobody comes between a look at the holder and taking its place."""

    def __init__(self):
        self.queue = threading.Semaphore(0)

    cdef unsigned long take(self) except? 1:
        """Wait until no other thread has the turn; returns what `give` is to be called with."""
        cdef unsigned long before = self.holder, me = PyThread_get_thread_ident()
        if before != 0 and before != me:
            self.wait()
            before = 0
        self.holder = me
        return before

    cdef int give(self, unsigned long before) except -1:
        """Let another have it."""
        self.holder = before
        if before == 0 and self.waiting > 0:
            self.queue.release()
        return 0

    cdef int wait(self) except -1:
        self.waiting += 1
        try:
            while self.holder != 0:
                self.queue.acquire()
        except BaseException:  # Ctrl-C may have come with a turn that is another's now
            self.queue.release()
            raise
        finally:
            self.waiting -= 1
        return 0
