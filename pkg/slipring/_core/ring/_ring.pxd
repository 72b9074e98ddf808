from libc.stdint cimport uint32_t, uint64_t

from slipring._core.ring._order cimport Slices
from slipring._core.ring._segment cimport Segment, sr_task


cdef extern from "<stdint.h>" nogil:
    # Returned in place of a generation: the caller must make the indices `Pickled` first.
    uint64_t NOT_INTS "(UINT64_MAX - 1)"


cdef class Pickled:
    cdef object indices
    cdef uint64_t rows
    cdef bytes data


cdef class Ring(Segment):
    cpdef uint64_t dispatch(self, uint32_t slot, indices, uint64_t iteration, uint64_t epoch, uint64_t seq,
                            uint64_t seed, uint64_t sequence, uint32_t addressee, uint32_t range_rows,
                            bint single) except? 0
    cdef int write_slice(self, uint32_t slot, Slices indices, sr_task *task) except -1
    cdef int write_ints(self, uint32_t slot, list indices, sr_task *task) except -1
    cdef int write_pickle(self, uint32_t slot, Pickled indices, sr_task *task) except -1
