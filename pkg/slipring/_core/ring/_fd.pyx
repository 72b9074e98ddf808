"""slipring's file descriptors.

If other code (os.closerange) has closed one, its next use raises DescriptorClosed. Another file that has the number by
then is neither used nor closed.
"""

import os

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, ENOENT, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close as close_fd, read

from slipring._core.ring._segment cimport clock

from slipring._core.ring.text import descriptor_closed

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLIN
        EPOLL_CLOEXEC
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int verb, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int most, int milliseconds)

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

cdef enum:
    AT_ONCE = 64  # events of one epoll_wait at most; the next one returns the rest
cdef long TICK = 500_000_000  # ns


cdef int fail() except -1:
    raise OSError(errno, os.strerror(errno))


def identity(int fd):
    """Return the device and the inode of an open file; None if the descriptor is closed."""
    cdef struct_stat status
    return (status.st_dev, status.st_ino) if fstat(fd, &status) == 0 else None


cdef class Descriptor:
    """A file descriptor that belongs to this object, which closes it when it is freed.

    `fd` has just been opened. `what` names its file in errors.
    """

    cdef readonly int fd
    cdef str what
    cdef struct_stat made

    def __cinit__(self):
        self.fd = -1  # 0 would be stdin

    def __init__(self, int fd, str what):
        self.take(fd, what)

    def __dealloc__(self):
        self.close()

    cdef int take(self, int fd, str what) except -1:
        if fd < 0 or fstat(fd, &self.made) != 0:
            fail()
        self.fd, self.what = fd, what
        return 0

    cpdef bint intact(self) noexcept:
        """Return whether no other code has closed it, judging by device and inode."""
        cdef struct_stat now
        return (self.fd >= 0 and fstat(self.fd, &now) == 0 and now.st_dev == self.made.st_dev
                and now.st_ino == self.made.st_ino)

    cpdef int number(self) except? -1:
        """Return its number; raise DescriptorClosed if other code has closed it. Return -1 after `close`."""
        if self.fd >= 0 and not self.intact():
            raise descriptor_closed(self.what)
        return self.fd

    cpdef void close(self) noexcept:
        """Close it, unless another file has its number by now. A second call does nothing."""
        if self.intact():
            close_fd(self.fd)
        self.fd = -1


# ---- epoll


cdef class Poll(Descriptor):
    """An epoll that waits until descriptors are readable.

    Only its constructor opens a descriptor: later there may be none left.
    """

    def __init__(self, str what):
        self.take(epoll_create1(EPOLL_CLOEXEC), what)

    def add(self, int fd):
        """Watch a descriptor from now on for data to read."""
        cdef epoll_event event
        memset(&event, 0, sizeof(event))
        event.events, event.data.fd = EPOLLIN, fd
        if epoll_ctl(self.number(), EPOLL_CTL_ADD, fd, &event) != 0:
            fail()

    def remove(self, int fd):
        """Stop watching a descriptor; do nothing if it is not watched."""
        cdef epoll_event event
        memset(&event, 0, sizeof(event))
        if epoll_ctl(self.number(), EPOLL_CTL_DEL, fd, &event) != 0 and errno != ENOENT:
            fail()

    def ready(self, double seconds=0):
        """Wait until one of the descriptors is readable; return the set of readable numbers."""
        cdef epoll_event events[AT_ONCE]
        cdef uint64_t end = clock() + <uint64_t> (min(max(seconds, 0.0), 1e9) * 1e9), now
        cdef int n, left, epoll = self.number()
        while True:
            now = clock()
            left = <int> min((end - now + 999_999) // 1_000_000, <uint64_t> 3_600_000) if now < end else 0
            with nogil:
                n = epoll_wait(epoll, events, AT_ONCE, left)
            if n > 0 or (n == 0 and clock() >= end):
                return {events[i].data.fd for i in range(n)}
            if n < 0 and errno != EINTR:
                fail()
            PyErr_CheckSignals()


# ---- a queue's event: a descriptor for polling, readable while there may be a message


cdef int ticking() except -1:
    """Return a descriptor that becomes readable after a tick, and again a tick after each read."""
    cdef itimerspec when
    cdef int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
    when.it_interval.tv_sec = when.it_value.tv_sec = 0
    when.it_interval.tv_nsec = when.it_value.tv_nsec = TICK
    if fd < 0:
        fail()
    timerfd_settime(fd, 0, &when, NULL)  # it fails only for wrong arguments
    return fd


cdef class Event(Descriptor):
    """An eventfd that all processes share, and the descriptor that this process polls: the eventfd and a tick.

    The tick is for a put whose process was killed before it could signal, and for dead processes that have slots. A
    process that polls therefore looks again twice a second, as a waiting one does.
    """

    cdef Descriptor timer
    cdef Poll poller

    def __init__(self, int fd=-1):
        self.take(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) if fd < 0 else fd, "a queue's event")

    def signal(self):
        """Signal that there may be a message."""
        os.eventfd_write(self.number(), 1)

    @cython.critical_section
    def calm(self):
        """Take the signal back; return False if there was none."""
        cdef uint64_t ticks
        if self.timer is not None:
            read(self.timer.number(), &ticks, sizeof(ticks))  # an unread tick would stay readable
        try:
            os.eventfd_read(self.number())
        except BlockingIOError:
            return False
        return True

    @cython.critical_section
    def fileno(self):
        """Return the descriptor to poll in this process."""
        cdef Descriptor timer
        cdef Poll poller
        if self.poller is None:
            timer, poller = Descriptor(ticking(), "a queue's timer"), Poll("a queue's epoll")
            poller.add(self.number())
            poller.add(timer.fd)
            if self.poller is None:  # otherwise another thread was faster
                self.timer, self.poller = timer, poller
        self.number()
        self.timer.number()
        return self.poller.number()

    @cython.critical_section
    def forget(self):
        """Close the epoll and the timer; the next `fileno` makes others.

        A forked child calls it, because it shares an epoll's state with its parent.
        """
        self.poller = self.timer = None
