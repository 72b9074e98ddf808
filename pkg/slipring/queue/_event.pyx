"""A queue's event: a descriptor that is readable while something may be got, for those who poll."""

import os

from libc.errno cimport errno
from libc.stdint cimport uint64_t
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close, read

from slipring.ring.descriptors import Poll, beyond_standard

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    enum:
        CLOCK_MONOTONIC
    struct timespec:
        time_t tv_sec
        long tv_nsec

cdef extern from "<sys/timerfd.h>" nogil:  # os has it from Python 3.13 on
    enum:
        TFD_CLOEXEC
        TFD_NONBLOCK
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec *new, itimerspec *old)

cdef long TICK = 500_000_000  # ns


cdef int ticking() except -1:
    """A descriptor that becomes readable in a tick, and in another one after it has been read."""
    cdef itimerspec when
    cdef int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
    when.it_interval.tv_sec = when.it_value.tv_sec = 0
    when.it_interval.tv_nsec = when.it_value.tv_nsec = TICK
    if fd < 0:
        raise OSError(errno, os.strerror(errno))
    timerfd_settime(fd, 0, &when, NULL)  # it fails for wrong arguments alone
    return beyond_standard(fd)


cdef class Event:
    """An eventfd that all processes share, and what this one polls: that, and a tick.

    The tick is for a put whose process was killed before it could signal, and for the dead that hold
    something: who polls looks again twice a second, as who waits does.
    """

    cdef readonly int fd
    cdef int timer
    cdef object poller
    cdef struct_stat kind  # of both: their numbers may be those of other files by now

    def __cinit__(self, int fd=-1):
        self.fd = self.timer = -1  # what is not made is not closed: 0 would be stdin
        self.fd = beyond_standard(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if fd < 0 else fd)
        fstat(self.fd, &self.kind)

    def __dealloc__(self):
        # Not by os: the interpreter may be taking itself down.
        if self.ours(self.fd):
            close(self.fd)
        if self.ours(self.timer):
            close(self.timer)

    cdef bint ours(self, int fd) noexcept:
        cdef struct_stat now
        return (fd >= 0 and fstat(fd, &now) == 0 and now.st_dev == self.kind.st_dev
                and now.st_ino == self.kind.st_ino)

    def signal(self):
        """Something may be got. Where the event has been closed, who polls sees it at the next tick."""
        if self.ours(self.fd):
            os.eventfd_write(self.fd, 1)

    def calm(self):
        """Take the signal back; False if there was none."""
        cdef uint64_t ticks
        if self.ours(self.timer):
            read(self.timer, &ticks, sizeof(ticks))  # it has been seen; unread there would be no next one
        if not self.ours(self.fd):
            return False
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return False
        return True

    def fileno(self):
        """The descriptor to poll in this process."""
        cdef int timer
        if self.poller is not None and not (self.poller.seems_intact() and self.ours(self.timer)):
            self.forget()
        if self.poller is None:
            timer = ticking()
            try:
                poller = Poll()
                if self.ours(self.fd):
                    poller.add(self.fd)
                poller.add(timer)
            except BaseException:
                close(timer)
                raise
            if self.poller is None:
                self.timer, self.poller = timer, poller
            else:  # another thread was faster
                close(timer)
        return self.poller.fd

    def forget(self):
        """Drop what a forked child has from its parent: an epoll's state is shared with it."""
        poller, self.poller = self.poller, None
        if poller is not None:
            poller.close()
            if self.ours(self.timer):
                close(self.timer)
            self.timer = -1
