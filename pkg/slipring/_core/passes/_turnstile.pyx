"""The turn of one thread at a time in an iterator's next(), and a new pass while other threads wait.

The lock is a separate, reentrant one. A signal handler may acquire it again in the same thread, and without contention,
the usual case, it only writes one word.
"""

import queue

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident

from slipring.errors import reentered

# Sequentially consistent: a waiting thread takes the free lock, or the thread that releases it counts the waiting one.
cdef extern from *:
    int ORDER "__ATOMIC_SEQ_CST"
    bint swap "__atomic_compare_exchange_n"(unsigned long *word, unsigned long *expected, unsigned long new, bint weak,
                                            int order, int order_if_not) noexcept
    unsigned long load "__atomic_load_n"(unsigned long *word, int order) noexcept
    void store "__atomic_store_n"(unsigned long *word, unsigned long new, int order) noexcept
    int add "__atomic_add_fetch"(int *word, int more, int order) noexcept


@cython.final
@cython.auto_pickle(False)
cdef class ReentrantLock:
    """A lock for one thread at a time."""

    def __init__(self):
        self.queue = queue.SimpleQueue()  # written in C: no signal handler runs between its steps

    cdef unsigned long acquire(self) except? 1:
        """Wait until no other thread holds the lock; return the argument for `release`."""
        return self.acquire_as(PyThread_get_thread_ident())

    cdef unsigned long acquire_as(self, unsigned long me) except? 1:
        """Do the same for the calling thread, which is `me`."""
        if self.is_held_by(me):
            return me
        if not self.take(me):
            self.wait(me)
        return 0

    cdef bint take(self, unsigned long me) noexcept:
        """Take the lock if no thread holds it; return whether that succeeded."""
        cdef unsigned long nobody = 0
        return swap(&self.holder, &nobody, me, False, ORDER, ORDER)

    cdef bint is_held_by(self, unsigned long thread) noexcept:
        """Return whether a thread holds the lock; thread 0: whether none does."""
        return load(&self.holder, ORDER) == thread

    cdef bint is_mine(self) noexcept:
        """Return whether the calling thread holds the lock."""
        return self.is_held_by(PyThread_get_thread_ident())

    cdef int release(self, unsigned long before) except -1:
        """Let another thread have the lock."""
        store(&self.holder, before, ORDER)
        if before == 0 and add(&self.waiting, 0, ORDER) > 0:
            self.queue.put(None)
        return 0

    cdef int wait(self, unsigned long me) except -1:
        add(&self.waiting, 1, ORDER)
        try:
            while not self.take(me):
                self.queue.get()
        except BaseException:  # Ctrl-C may have consumed a wake-up that another thread needs
            self.queue.put(None)
            raise
        finally:
            add(&self.waiting, -1, ORDER)
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
        if self.lock.is_held_by(me):
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
        add(&self.restarting, 1, ORDER)
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
            add(&self.restarting, -1, ORDER)

    def interrupt(self, on=True):
        """Make the current next() in another thread give up its turn; with `on` false, undo that."""
