from libc.stdint cimport int64_t, uint64_t

from slipring._core.ring._cring cimport sr_index_order


cdef class IndexOrder:
    cdef sr_index_order order
    cdef uint64_t key
    cdef object array  # the array that `order` points to


cdef class Slices:
    cdef uint64_t size, end
    cdef IndexOrder indices
    cdef uint64_t first, n    # the current slice
    cpdef bint advance(self) noexcept
    cdef void write(self, int64_t *out) noexcept
