"""Whose turn it is, of the threads that ask one iterator.

No lock: the thread that asks in the midst of its own turn (a signal's handler does) goes on, and where nobody
else asks, which is nearly always, a turn costs two words.
"""

import queue

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident


@cython.final
@cython.auto_pickle(False)
cdef class ReentrantLock:
    """One thread at a time; under the GIL nobody comes between a look at the holder and taking its place."""

    def __init__(self):
        self.queue = queue.SimpleQueue()  # in C: nothing comes between its steps

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
            self.queue.put(None)
        return 0

    cdef int wait(self) except -1:
        self.waiting += 1
        try:
            while self.holder != 0:
                self.queue.get()
        except BaseException:  # Ctrl-C may have come with a turn that is another's now
            self.queue.put(None)
            raise
        finally:
            self.waiting -= 1
        return 0
