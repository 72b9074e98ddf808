from libc.stdint cimport uint32_t, uint64_t

from slipring._core.ring._ring cimport Ring
from slipring._core.ring._slot cimport Lease


cdef class SharedBatch:
    cdef Lease lease
    cdef readonly uint64_t number, iteration, epoch, seq, sequence
    cdef readonly int kind
    cdef readonly bint is_end, single
    cdef readonly uint32_t rows
    cdef readonly int worker


cdef class SharedReader:
    cdef readonly Ring ring
    cdef readonly uint32_t participant
    cdef uint64_t generation
    cdef readonly bint left
    cpdef bint wait(self, double seconds, int death_fd=*) except -1
    cpdef SharedBatch take(self)
