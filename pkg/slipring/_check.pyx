"""What the C ring answers, as exceptions."""

import os

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EFBIG, EINTR, ENOMEM, ENOSPC, ESHUTDOWN, ESTALE, EXDEV
from libc.stdint cimport uint64_t

from slipring cimport _cring as c
from slipring.errors import Closed, SlotsExhausted, segment_full

BACKINGS = {"auto": c.SR_BACKING_AUTO, "shm": c.SR_BACKING_SHM, "memfd": c.SR_BACKING_MEMFD}
BACKING_NAMES = {
    c.SR_BACKING_AUTO: "attached",
    c.SR_BACKING_SHM: "shm",
    c.SR_BACKING_MEMFD: "memfd",
    c.SR_BACKING_DIR: "dir",
}
LIMITS = {
    c.SR_LIMIT_FILESYSTEM: "the file system that holds the segment",
    c.SR_LIMIT_CGROUP: "the memory cgroup (the container's limit)",
    c.SR_LIMIT_MEMORY: "the machine's available memory",
    c.SR_LIMIT_ADDRESS: "the limit on address space (RLIMIT_AS, ulimit -v)",
    c.SR_LIMIT_FILESIZE: "the limit on file size (RLIMIT_FSIZE, ulimit -f)",
}


# What a signal's handler has raised last, as an address: it must not be kept alive.
cdef void *_raised = NULL


cdef int check(int rc) except -1:
    """Turn a return code of the ring into an exception; -EINTR into a look at the signals."""
    global _raised
    if rc >= 0:
        return rc
    if rc == -EINTR:
        try:
            PyErr_CheckSignals()
        except BaseException as error:
            _raised = <void *> error
            raise
        return 0
    if rc == -ESHUTDOWN:
        raise Closed("the segment has been closed; make a new loader, or a new iterator of it")
    if rc == -ESTALE:
        raise SlotsExhausted("the slot has gone on to another batch: it was taken from a worker thought dead")
    if rc == -EXDEV:
        raise OSError(EXDEV, "made in another PID namespace, where nobody can tell from here who lives: run "
                      "all its processes in one container")
    raise OSError(-rc, os.strerror(-rc))


cdef int refuse(int rc, c.sr_shortage *why, uint64_t slots) except -1:
    """Turn a refusal of memory into SegmentFull, with the numbers and the remedy."""
    if rc == -ENOSPC or rc == -EFBIG or rc == -ENOMEM:
        raise segment_full(why.needed, why.free, LIMITS.get(why.limit, "the system"), slots)
    return check(rc)


cdef void forget_handlers() noexcept:
    """Nothing that is raised from now on is what a signal's handler has raised so far."""
    global _raised
    _raised = NULL


cdef bint raised_by_a_handler(error) noexcept:
    """Whether an exception came out of `check` because a signal's handler has raised it."""
    return <void *> error == _raised
