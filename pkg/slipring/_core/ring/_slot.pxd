from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from slipring._core.ring._segment cimport Segment, sr_parts, sr_result, sr_shared, sr_task


cdef class Lease:
    cdef readonly Segment ring
    cdef uint32_t slot
    cdef uint64_t gen, fork_generation, limit
    cdef bint active
    cdef bint shared          # others read the slot too
    cdef uint32_t reader      # the participant that has the lease; 0: the consumer
    cdef sr_result result
    cdef char *payload
    cdef void release(self) noexcept


cdef class SlotPin:
    cdef Segment ring
    cdef uint32_t participant, slot
    cdef uint64_t gen, fork_generation
    cdef bint published


cdef class WriteTarget:
    cdef char *payload
    cdef char *alloc(self, uint64_t nbytes, uint64_t align) except NULL
    cdef uint64_t offset_of(self, const void *data, uint64_t nbytes) noexcept


cdef class SlotWriter(WriteTarget):
    cdef readonly Segment ring
    cdef readonly uint32_t participant, slot
    cdef uint32_t range
    cdef readonly uint64_t gen
    cdef uint64_t fork_generation, end, skipped
    cdef const sr_task *task
    cdef SlotPin pin
    cdef readonly bint done  # this worker is done with the slot
    cdef SlotWriter outer
    cdef object rows
    cdef sr_parts parts      # of the fetching time
    cdef uint64_t row_since  # when reading of the current sample began; 0: none is being read
    cdef int64_t row_index
    cdef int overflow
    cdef bint by_rows        # each sample is copied to its row as it is read
    cdef bint whole(self) noexcept
    cdef int check(self) except -1
    cdef void begin_row(self, uint32_t row, object index) noexcept
    cdef uint32_t of_batch(self, uint32_t row) noexcept
    cdef int64_t shown_index(self, uint32_t row, object index) noexcept
    cdef void end_row(self, uint64_t now) noexcept
    cdef void end_rows(self) noexcept
    cdef bint is_kept(self) noexcept
    cdef uint64_t limit(self) noexcept
    cdef SlotPin slot_pin(self)
    cdef void record_times(self, uint64_t begun, uint64_t fetched) noexcept
    cdef int publish(self, sr_result *result) except -1
    cdef int release(self) except -1
    cdef int range_done(self, const sr_result *result) except -1
    cdef int settle(self, int layout, const sr_result *result) except -1
    cdef const sr_result *result_of(self, uint32_t range_no) except NULL


cdef class Reading:
    cdef sr_parts parts
    cdef uint64_t begun, ended, skipped


cdef Lease take(Segment ring, uint32_t participant, uint32_t slot)
cdef int share(Lease lease) except -1
cdef Lease take_shared(Segment ring, uint32_t participant, sr_shared *batch)
cdef SlotWriter make_writer(Segment ring, uint32_t participant, uint32_t slot, uint32_t range_no, uint64_t gen)
cdef SlotWriter current_writer()
cdef bint has_slow_samples() noexcept
cdef int looked_up(bint hit) noexcept
cdef object refuse_to_make(type kind, PyObject *arguments, PyObject *named)
cdef int augmented(uint64_t ns) noexcept
