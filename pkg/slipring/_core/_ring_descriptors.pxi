# Part of _ring.pyx: slipring's file descriptors. They never take the number of a closed standard stream, where C code
# would print. They also notice if other code (os.closerange) closed one and another file now has its number.

import contextlib
import os

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EBADF, EINTR, EINVAL, ENOENT, EPERM, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close, read


from slipring._core.text import event_closed

cdef extern from "<fcntl.h>" nogil:
    enum:
        F_DUPFD_CLOEXEC
    int fcntl(int fd, int verb, int argument)

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
    STANDARD = 3  # numbers below it are the standard streams'
    AT_ONCE = 64  # what an epoll gives at once; the rest is still readable at the next look
cdef long TICK = 500_000_000  # ns


cdef int fail() except -1:
    raise OSError(errno, os.strerror(errno))


cdef int moved_up(int fd) except -1:
    """Return a descriptor of the same file whose number is not a standard stream's."""
    cdef int moved = fcntl(fd, F_DUPFD_CLOEXEC, STANDARD)
    return fail() if moved < 0 else moved


def beyond_standard(fd):
    """Move a new descriptor away from the standard streams' numbers; return it."""
    if fd >= STANDARD:
        return fd
    try:
        return moved_up(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def standard_taken():
    """Open closed standard streams as /dev/null until the end of the block.

    Otherwise pipes of multiprocessing get their numbers, and a worker that prints writes into them. If /dev/null is
    missing, they still do.
    """
    taken = []
    try:
        if None in map(identity, range(STANDARD)) and os.path.exists(os.devnull):
            while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) < STANDARD:
                os.set_inheritable(fd, True)
                taken.append(fd)
            os.close(fd)
        yield
    finally:
        for fd in taken:
            os.close(fd)


def identity(fd):
    """Return what distinguishes an open file from every other one; None if the descriptor is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    found = [status.st_dev, status.st_ino]
    # All eventfds, epolls and (before Linux 6.9) pidfds have one inode.
    with contextlib.suppress(OSError):
        found.append(os.readlink(f"/proc/self/fd/{fd}"))
        with open(f"/proc/self/fdinfo/{fd}") as file:
            found += [line for line in file if line.startswith(("eventfd-id:", "Pid:", "clockid:"))]
    return found


class Descriptor:
    """A descriptor that `close` alone closes, and only if it still is what it was.

    `fd` must have just been opened; it may be moved to another number.
    """

    fd, identity = -1, None

    def __init__(self, fd):
        self.fd = beyond_standard(fd)
        self.identity = identity(self.fd)

    def intact(self):
        """Return whether no other code has closed it."""
        return self.fd >= 0 and _same(identity(self.fd), self.identity)

    def seems_intact(self):
        """Return the same at the cost of one system call; another descriptor of its kind may pass for it."""
        try:
            status = os.fstat(self.fd)
        except OSError:
            return False
        return self.identity is None or [status.st_dev, status.st_ino] == self.identity[:2]

    def close(self):
        """Close it. A second call does nothing."""
        if self.intact():
            fd, self.fd = self.fd, -1
            os.close(fd)
        self.fd = -1


def _same(now, then):
    # The pidfd of a process that has been waited for names nobody any more. Where nothing could be asked, trust it.
    if now is None or then is None:
        return now is not None
    return all(a == b or a == "Pid:\t-1\n" for a, b in zip(now, then, strict=False))


# ---- epoll


class Poll(Descriptor):
    """An epoll that waits until descriptors are readable.

    It is not `select.epoll`, which closes its number in any case. Only its constructor opens a descriptor: later there
    may be none left.
    """

    def __init__(self):
        cdef int fd = epoll_create1(EPOLL_CLOEXEC), first = fd
        if 0 <= first < STANDARD:
            fd = fcntl(first, F_DUPFD_CLOEXEC, STANDARD)
            close(first)
        if fd < 0:
            fail()
        self.fd = fd  # in compiled code no handler comes between the descriptor and its place
        self.identity = identity(fd)

    def __del__(self):
        # By nothing of Python's modules, which may have gone by then.
        cdef struct_stat now
        cdef int fd = self.fd
        self.fd = -1
        if fd < 0 or fstat(fd, &now) != 0:
            return
        # (None: a handler has raised while it was made.)
        if self.identity is None or [now.st_dev, now.st_ino] == self.identity[:2]:
            close(fd)

    def add(self, int fd):
        """Watch a descriptor from now on for data to read."""
        cdef epoll_event event
        memset(&event, 0, sizeof(event))
        event.events, event.data.fd = EPOLLIN, fd
        if epoll_ctl(self.fd, EPOLL_CTL_ADD, fd, &event) != 0:
            fail()

    def remove(self, int fd):
        """Stop watching a descriptor; do nothing if it is not watched, or if other code has closed it or the epoll."""
        cdef epoll_event event
        memset(&event, 0, sizeof(event))
        if epoll_ctl(self.fd, EPOLL_CTL_DEL, fd, &event) != 0 and errno not in (ENOENT, EBADF, EINVAL, EPERM):
            fail()

    def ready(self, double seconds=0):
        """Wait until one of the descriptors is readable; return the set of readable numbers."""
        cdef epoll_event events[AT_ONCE]
        cdef uint64_t end = clock() + <uint64_t> (min(max(seconds, 0.0), 1e9) * 1e9), now
        cdef int n, left, epoll = self.fd
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


# ---- a queue's event: a descriptor that is readable while something may be got, for those who poll


cdef int ticking() except -1:
    """Return a descriptor that becomes readable after a tick, and again a tick after each read."""
    cdef itimerspec when
    cdef int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
    when.it_interval.tv_sec = when.it_value.tv_sec = 0
    when.it_interval.tv_nsec = when.it_value.tv_nsec = TICK
    if fd < 0:
        raise OSError(errno, os.strerror(errno))
    timerfd_settime(fd, 0, &when, NULL)  # it fails for wrong arguments alone
    return beyond_standard(fd)


cdef class Event:
    """An eventfd that all processes share, and the descriptor that this process polls: the eventfd and a tick.

    The tick is for a put whose process was killed before it could signal, and for dead processes that hold something. A
    process that polls therefore looks again twice a second, as a waiting one does.
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

    def to_send(self):
        """Return the event's descriptor, for another process."""
        if not self.ours(self.fd):
            raise event_closed()
        return self.fd

    def signal(self):
        """Signal that something may be got. If the event has been closed, pollers see it at the next tick."""
        if self.ours(self.fd):
            os.eventfd_write(self.fd, 1)

    def calm(self):
        """Take the signal back; return False if there was none."""
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
        """Return the descriptor to poll in this process."""
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
        """Close the epoll and the timer; the next `fileno` makes others.

        A forked child calls it, because it shares an epoll's state with its parent.
        """
        poller, self.poller = self.poller, None
        if poller is not None:
            poller.close()
            if self.ours(self.timer):
                close(self.timer)
            self.timer = -1
