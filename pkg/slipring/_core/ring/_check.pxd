from libc.stdint cimport uint64_t

from slipring._core.ring._cring cimport sr_alloc_error


cdef int refused(int rc) except -1
cdef int refuse(int rc, sr_alloc_error *why, uint64_t slots) except -1


cdef inline int check(int rc) except -1:
    """Turn a negative return code of the ring into an exception; for -EINTR, run signal handlers."""
    return rc if rc >= 0 else refused(rc)
