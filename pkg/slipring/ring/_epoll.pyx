"""Epoll, of a number that the caller keeps: none of this takes a descriptor, of which there may be none left."""

import os

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EBADF, EINTR, EINVAL, ENOENT, EPERM, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from posix.unistd cimport close

from slipring.ring._segment cimport clock

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

cdef enum:
    AT_ONCE = 64  # the rest is still readable at the next look


cdef int fail() except -1:
    raise OSError(errno, os.strerror(errno))


def create(int lowest):
    """Return a new one's descriptor, of a number not below `lowest`."""
    cdef int fd = epoll_create1(EPOLL_CLOEXEC), moved
    if 0 <= fd < lowest:
        moved = fcntl(fd, F_DUPFD_CLOEXEC, lowest)
        close(fd)
        fd = moved
    return fail() if fd < 0 else fd


def add(int epoll, int fd):
    """Look at a descriptor from now on: whether it can be read."""
    cdef epoll_event event
    memset(&event, 0, sizeof(event))
    event.events, event.data.fd = EPOLLIN, fd
    if epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0:
        fail()


def remove(int epoll, int fd):
    """Look at it no longer; nothing if it is not looked at, or code of the program has closed either of the two."""
    cdef epoll_event event
    memset(&event, 0, sizeof(event))
    if epoll_ctl(epoll, EPOLL_CTL_DEL, fd, &event) != 0 and errno not in (ENOENT, EBADF, EINVAL, EPERM):
        fail()


def ready(int epoll, double seconds):
    """Wait for any of them; return the set of those numbers that are readable."""
    cdef epoll_event events[AT_ONCE]
    cdef uint64_t end = clock() + <uint64_t> (min(max(seconds, 0.0), 1e9) * 1e9), now
    cdef int n, left
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
