from libc.stdint cimport uint32_t, uint64_t

# Re-exported: other modules cimport these from here; only this one crosses into C.
from slipring.ring._cring cimport (
    SR_BATCH, SR_CONSUMER, SR_END, SR_ERROR, SR_FINISH, SR_FOREVER, SR_LAYOUT_DIRECT, SR_LAYOUT_STAGED,
    SR_LEAF_ALIGN, SR_MAX_DIMS, SR_MAX_PARTICIPANTS, SR_MAX_RANGES, SR_MAX_SLOTS, SR_PARTICIPANT_JOINED,
    SR_PARTICIPANT_SERVING, SR_TASK_INDICES, SR_TASK_NEXT, SR_TASK_OBJECT, SR_WHOLE, sr_leaf, sr_parts, sr_result,
    sr_ring, sr_alloc_error, sr_task,
)


cdef extern from "<stdint.h>" nogil:
    # In place of a generation: no task could be put, because the slot's memory is being given back.
    uint64_t NOT_FREE "UINT64_MAX"

# sr_result.flags
cdef enum:
    HELD = 1       # worker code keeps an array of this slot
    SET_APART = 2  # which is why what lay in the slot has been copied within it

# sr_task.flags
cdef enum:
    SINGLE = 1  # one sample, not a list of them (batch_size=None)


cdef class Meter:
    cdef public uint64_t batches, bytes, copied_batches, copied_bytes, pickled_leaves, pickled_tasks
    cdef public uint64_t kept_batches, skipped_samples
    cdef public uint64_t fetch_ns, collate_ns, idle_ns, wait_ns
    cdef public uint64_t unpickle_ns  # of decoding batches with pickled leaves
    cdef public uint64_t spent_ns  # of passes over batches in no slot
    cdef public uint64_t last_ready_ns  # how long the batch taken last had lain ready
    cdef uint64_t taken_at  # when; ns of `clock`; 0: nothing yet in this run
    cdef uint64_t told_wait_ns  # as much of wait_ns as batches that were taken have been told


cdef class Segment:
    cdef sr_ring *ptr
    cdef uint64_t fork_generation, capacity
    cdef readonly uint32_t n_slots, n_participants
    cdef readonly Meter meter
    cdef readonly bint poison
    cdef str limited_by  # what made the capacity smaller than asked for, or None
    cdef bint over  # nothing will be made or taken any more: what comes back gives its memory back
    cdef int own_number  # queue mode: this process's participant number, -1: none yet
    cdef int made(self) except -1
    cdef int usable(self) except -1
    cdef int refuse_use(self) except -1
    cpdef int pick_free(self) except -2
    cdef int in_circulation(self) noexcept
    cdef int await_ready(self, int slot, uint64_t deadline, int watched) except -2
    cdef int interrupt(self, bint on) except -1

    # What Ring (_ring), leases and fills (_slot) ask of the C ring.
    cdef char *task_room(self, uint32_t slot, uint64_t nbytes) except NULL
    cdef uint64_t put_task(self, uint32_t slot, const sr_task *task) except? 0
    cdef const sr_task *task_of(self, uint32_t slot) noexcept
    cdef uint64_t claimed_at(self, uint32_t slot) noexcept
    cdef char *task_area(self, uint32_t slot) noexcept
    cdef char *payload(self, uint32_t slot) noexcept
    cdef uint64_t committed(self, uint32_t slot) noexcept
    cdef const sr_result *result_of(self, uint32_t slot, uint32_t which) noexcept
    cdef bint find_owned(self, uint32_t participant, uint32_t *slot) noexcept
    cdef int take(self, uint32_t participant, uint32_t slot, uint64_t *gen, sr_result *result) except -1
    cdef void release(self, uint32_t slot, uint64_t gen) noexcept
    cdef void use(self, uint32_t slot) noexcept
    cdef bint unuse(self, uint32_t slot) noexcept
    cdef bint stays(self, uint32_t slot) noexcept
    cdef void unhold(self, uint32_t participant, uint32_t slot, uint64_t gen) noexcept
    cdef int claim_task(self, uint32_t participant, double seconds, uint32_t *slot, uint32_t *which,
                        uint64_t *gen) except -1
    cdef int claim_slot(self, uint32_t participant, uint64_t deadline, uint32_t *slot, uint64_t *gen) except -1
    cdef int park(self, uint32_t participant, uint32_t slot, uint64_t gen) except -1
    cdef uint64_t alloc(self, uint32_t participant, uint32_t slot, uint64_t nbytes, uint64_t align) except? 1
    cdef int commit_later(self, uint32_t participant, uint32_t slot, uint64_t nbytes, sr_alloc_error *why) except 1
    cdef int rewind(self, uint32_t participant, uint32_t slot, uint64_t gen) except -1
    cdef void note(self, uint32_t slot, uint64_t begun, uint64_t fetched, uint64_t skipped) noexcept
    cdef void note_parts(self, uint32_t slot, const sr_parts *parts) noexcept
    cdef void note_row(self, uint32_t participant, uint32_t slot, uint32_t row, uint64_t since) noexcept
    cdef int publish(self, uint32_t participant, uint32_t slot, uint64_t gen, const sr_result *result,
                     bint held) except -1
    cdef int abort(self, uint32_t participant, uint32_t slot, uint64_t gen) except -1
    cdef int range_done(self, uint32_t participant, uint32_t slot, uint32_t which, uint64_t gen,
                        const sr_result *result) except -1
    cdef int propose(self, uint32_t participant, uint32_t slot, uint64_t gen) except -1
    cdef int settle(self, uint32_t participant, uint32_t slot, uint64_t gen, int layout,
                    const sr_result *result) except -1

    # Queue mode: processes come and go.
    cdef int number(self) except -1
    cdef int recover_dead(self) noexcept
    cdef void count(self, uint32_t *ready, uint32_t *free_slots) noexcept
    cdef bint polled(self, bint from_now_on=*) noexcept


cdef uint64_t forks() noexcept
cdef uint64_t clock() noexcept
cdef uint64_t coarse_clock() noexcept
cdef void copy_large(char *to, const char **sources, uint64_t n, uint64_t nbytes) noexcept nogil
cdef void copy_by(uint32_t way, void *to, const void *source, uint64_t nbytes) noexcept nogil
cdef uint32_t copy_widest() noexcept nogil
