from libc.stdint cimport int64_t, uint32_t, uint64_t

from slipring.ring._segment cimport Segment, sr_task


cdef class Slices:
    cdef uint64_t size, end
    cdef object order
    cdef const int64_t *data  # of `order`; NULL: each index is its place
    cdef uint64_t first, n    # the present slice
    cpdef bint advance(self) noexcept
    cdef void write(self, int64_t *out) noexcept


cdef extern from "<stdint.h>" nogil:
    # In place of a generation: the indices are to be made `Pickled` first.
    uint64_t NOT_INTS "(UINT64_MAX - 1)"


cdef class Pickled:
    cdef uint64_t rows
    cdef bytes data


cdef class Ring(Segment):
    cpdef uint64_t dispatch(self, uint32_t slot, indices, uint64_t run, uint64_t epoch, uint64_t seq,
                            uint64_t seed, uint64_t sequence, uint32_t addressee, uint32_t chunk,
                            bint single) except? 0
    cdef int write_slice(self, uint32_t slot, Slices indices, sr_task *task) except -1
    cdef int write_ints(self, uint32_t slot, list indices, sr_task *task) except -1
    cdef int write_pickle(self, uint32_t slot, Pickled indices, sr_task *task) except -1
