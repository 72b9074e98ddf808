from libc.stdint cimport uint32_t, uint64_t

from slipring.ring._segment cimport Segment, sr_task
from slipring.ring._slices cimport Slices


cdef class Ring(Segment):
    cpdef uint64_t dispatch(self, uint32_t slot, indices, uint64_t run, uint64_t epoch, uint64_t ticket,
                            uint64_t seed, uint64_t sequence, uint32_t addressee, uint32_t chunk,
                            bint single) except? 0
    cdef int write_slice(self, uint32_t slot, Slices indices, sr_task *task) except -1
    cdef int write_ints(self, uint32_t slot, list indices, sr_task *task) except -1
    cdef int write_pickle(self, uint32_t slot, list indices, sr_task *task) except -1
