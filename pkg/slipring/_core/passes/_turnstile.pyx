"""The turn of one thread at a time in an iterator's next(), and a new pass while other threads wait.

The lock is a separate, reentrant one. A signal handler may acquire it again in the same thread, and without contention,
the usual case, it only writes one word.
"""

import queue

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident

from slipring.errors import reentered


@cython.final
@cython.auto_pickle(False)
cdef class ReentrantLock:
    """A lock for one thread at a time.

    Under the GIL, no other thread runs between a look at the holder and taking its place.
    """

    def __init__(self):
        self.queue = queue.SimpleQueue()  # written in C: no signal handler runs between its steps

    cdef unsigned long acquire(self) except? 1:
        """Wait until no other thread holds the lock; return the argument for `release`."""
        return self.acquire_as(PyThread_get_thread_ident())

    cdef unsigned long acquire_as(self, unsigned long me) except? 1:
        """Do the same for the calling thread, which is `me`."""
        cdef unsigned long before = self.holder
        if before != 0 and before != me:
            self.wait()
            before = 0
        self.holder = me
        return before

    cdef bint is_mine(self) noexcept:
        """Return whether the calling thread holds the lock."""
        return self.holder == PyThread_get_thread_ident()

    cdef int release(self, unsigned long before) except -1:
        """Let another thread have the lock."""
        self.holder = before
        if before == 0 and self.waiting > 0:
            self.queue.put(None)
        return 0

    cdef int wait(self) except -1:
        self.waiting += 1
        try:
            while self.holder != 0:
                self.queue.get()
        except BaseException:  # Ctrl-C may have consumed a wake-up that another thread needs
            self.queue.put(None)
            raise
        finally:
            self.waiting -= 1
        return 0


@cython.auto_pickle(False)
cdef class Turnstile:
    """Base class of iterators that several threads may use: each batch goes to one of them."""

    def __cinit__(self, *_, **__):
        self.lock, self.restarts = ReentrantLock(), ReentrantLock()

    @cython.final
    cdef unsigned long enter(self) except? 1:
        """Wait for this thread's turn; return the argument for ``lock.release``."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.lock.holder == me:
            raise reentered()
        return self.lock.acquire_as(me)

    @cython.final
    cdef int await_restart(self) except -1:
        """Wait until the other thread that is in `restart` has begun the next pass."""
        if self.restarts.is_mine():
            raise reentered()
        self.restarts.release(self.restarts.acquire())
        return 0

    def restart(self, begin):
        """Call `begin`, which begins another pass, while no thread is in next(); waiting threads use that pass."""
        cdef unsigned long before, turn
        if self.lock.is_mine():
            raise reentered()
        self.restarting += 1
        try:
            turn = self.restarts.acquire()
            try:
                self.interrupt()
                try:
                    before = self.lock.acquire()
                finally:
                    self.interrupt(False)
                try:
                    return begin()
                finally:
                    self.lock.release(before)
            finally:
                self.restarts.release(turn)
        finally:
            self.restarting -= 1

    def interrupt(self, on=True):
        """Make the current next() in another thread give up its turn; with `on` false, undo that."""
