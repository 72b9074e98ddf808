# Whoever is above cimports from here.
from libc.stdint cimport uint32_t

from slipring._segment cimport (
    SR_BATCH, SR_END, SR_ERROR, SR_LAYOUT_DIRECT, SR_LAYOUT_STAGED, SR_LEAF_ALIGN, SR_MAX_DIMS, SR_WHOLE,
    Meter, Segment, copy_streaming, sr_leaf, sr_result, sr_task,
)
from slipring._slot cimport Fill, Hold, Lease, current_fill, take


cdef class Ring(Segment):
    cdef int write_buffer(self, uint32_t slot, indices, sr_task *task) except -1
    cdef int write_ints(self, uint32_t slot, list indices, sr_task *task) except -1
    cdef int write_pickle(self, uint32_t slot, list indices, sr_task *task) except -1
