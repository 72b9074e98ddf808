from libc.stdint cimport uint32_t

from slipring._segment cimport Segment, sr_task


cdef class Ring(Segment):
    cdef int write_buffer(self, uint32_t slot, indices, sr_task *task) except -1
    cdef int write_ints(self, uint32_t slot, list indices, sr_task *task) except -1
    cdef int write_pickle(self, uint32_t slot, list indices, sr_task *task) except -1
