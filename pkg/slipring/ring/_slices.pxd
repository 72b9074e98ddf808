from libc.stdint cimport int64_t, uint64_t


cdef class Slices:
    cdef uint64_t size, end
    cdef object order
    cdef const int64_t *data  # of `order`; NULL: each index is its place
    cdef uint64_t first, n    # the present slice
    cpdef bint advance(self) noexcept
    cdef void write(self, int64_t *out) noexcept
