from libc.stdint cimport uint64_t

from slipring.ring._cring cimport sr_alloc_error


cdef int refused(int rc) except -1
cdef int refuse(int rc, sr_alloc_error *why, uint64_t slots) except -1
cdef void forget_handlers() noexcept
cdef bint raised_by_a_handler(error) except -1


cdef inline int check(int rc) except -1:
    """Turn a return code of the ring into an exception; -EINTR into a look at the signals."""
    return rc if rc >= 0 else refused(rc)
