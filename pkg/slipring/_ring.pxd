from libc.stdint cimport uint32_t, uint64_t

# Re-exported: other modules cimport these from here, only this one crosses into C.
from slipring._cring cimport (
    SR_BATCH, SR_END, SR_ERROR, SR_LEAF_ALIGN, SR_MAX_DIMS, sr_leaf, sr_result, sr_ring, sr_task,
)


cdef class Meter:
    cdef public uint64_t batches, bytes, copied_batches, copied_bytes, pickled_leaves, pickled_tasks
    cdef public uint64_t fetch_ns, collate_ns, idle_ns


cdef class Ring:
    cdef sr_ring *ptr
    cdef uint64_t fork_generation
    cdef readonly uint32_t n_slots, n_parties
    cdef readonly Meter meter
    cdef readonly bint poison
    cdef int usable(self) except -1
    cdef char *_task_room(self, uint32_t slot, uint64_t nbytes) except NULL
    cdef int _write_buffer(self, uint32_t slot, indices, sr_task *task) except -1
    cdef int _write_ints(self, uint32_t slot, list indices, sr_task *task) except -1
    cdef int _write_pickle(self, uint32_t slot, list indices, sr_task *task) except -1


cdef class Lease:
    cdef Ring ring
    cdef uint32_t slot
    cdef uint64_t gen, fork_generation, limit
    cdef bint active
    cdef sr_result result
    cdef char *payload
    cdef int release(self) except -1


cdef class Hold:
    cdef Ring ring
    cdef uint32_t party, slot
    cdef uint64_t gen, fork_generation
    cdef bint published


cdef class Fill:
    cdef readonly Ring ring
    cdef readonly uint32_t party, slot
    cdef uint32_t range
    cdef readonly uint64_t gen
    cdef const sr_task *task
    cdef char *payload
    cdef Hold hold
    cdef object rows
    cdef char *alloc(self, uint64_t nbytes, uint64_t align) except NULL
    cdef uint64_t offset_of(self, const void *data, uint64_t nbytes) noexcept
    cdef Hold holder(self)
    cdef void note(self, uint64_t begun, uint64_t fetched) noexcept
    cdef int publish(self, const sr_result *result) except -1
    cdef int range_done(self, const sr_result *result) except -1
    cdef int settle(self, int layout, const sr_result *result) except -1
    cdef const sr_result *result_of(self, uint32_t which) noexcept
    cdef uint64_t limit(self) noexcept


cdef Fill current_fill()
cdef Lease take(Ring ring, uint32_t slot)
cdef void copy_streaming(void *to, const void *source, uint64_t nbytes) noexcept nogil
