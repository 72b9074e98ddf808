from libc.stdint cimport int64_t, uint32_t, uint64_t

# Other modules cimport these from here: only this one, _check and _order cross into C.
from slipring._core.ring._cring cimport (
    SR_BATCH, SR_CONSUMER, SR_EMPTY, SR_END, SR_ERROR, SR_FINISH, SR_FOREVER, SR_LAYOUT_DIRECT, SR_LAYOUT_STAGED,
    SR_LEAF_ALIGN, SR_MAX_DIMS, SR_MAX_PARTICIPANTS, SR_MAX_RANGES, SR_MAX_SLOTS, SR_PARTICIPANT_JOINED,
    SR_PARTICIPANT_SERVING, SR_TASK_INDICES, SR_TASK_NEXT, SR_TASK_OBJECT, SR_WHOLE, sr_alloc_error, sr_index_order,
    sr_leaf, sr_parts, sr_reader_info, sr_result, sr_ring, sr_served, sr_shared, sr_task,
)


cdef extern from "<stdint.h>" nogil:
    # Returned in place of a generation: no task was put, because the slot's memory is being released.
    uint64_t NOT_FREE "UINT64_MAX"

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define FREE_THREADED 1
    #else
    #define FREE_THREADED 0
    #endif
    """
    bint FREE_THREADED  # this build of Python can run without a GIL

# sr_result.flags
cdef enum:
    HELD = 1       # worker code keeps an array of this slot
    SET_APART = 2  # therefore the batch has been copied within the slot
    WITH_STATE = 4  # the last leaf record is the worker's state, and belongs to no leaf of the tree

# sr_task.flags
cdef enum:
    SINGLE = 1  # one sample, not a list of them (batch_size=None)


cdef class Meter:
    cdef public uint64_t batches, bytes, copied_batches, copied_bytes, pickled_leaves, pickled_tasks
    cdef public uint64_t kept_batches, skipped_samples
    cdef public uint64_t fetch_ns, collate_ns, idle_ns, wait_ns
    cdef public uint64_t unpickle_ns  # of decoding batches with pickled leaves
    cdef public uint64_t spent_ns  # of passes over batches in no slot, or in those of another process
    cdef public uint64_t last_ready_ns  # how long the last batch had been ready when it was taken
    cdef uint64_t taken_at  # time of the last take, ns of `clock`; 0: none yet in this iteration
    cdef uint64_t remote[8]  # reads outside of any segment, as in `sr_header.reads`
    cdef uint64_t recorded_wait_ns  # the part of wait_ns that is recorded with taken batches


cdef class Segment:
    cdef sr_ring *ptr
    cdef uint64_t fork_generation, capacity
    cdef readonly uint32_t n_slots
    cdef readonly uint32_t n_participants  # without the readers, whose numbers follow
    cdef readonly uint32_t n_readers
    cdef readonly object node  # the NUMA node that memory is taken from; None: the kernel chooses
    cdef readonly Meter meter
    cdef readonly bint poison
    cdef str limited_by  # the limit that made the capacity smaller than requested, or None
    cdef bint over  # no more batches: returned slots release their memory
    # Called, if not None, when the segment's budget does not suffice: (bytes that the slot needs, bytes more, bytes
    # left). It returns when there may be more, or raises an exception.
    cdef public object ask_for_memory
    # Called, if not None, before each wait for memory: it may raise an exception, so that the batch is not made now.
    cdef public object before_wait
    cdef int own_number  # queue mode: this process's participant number, -1: none yet
    cdef int made(self) except -1
    cdef int usable(self) except -1
    cdef int refuse_use(self) except -1
    cpdef int pick_free(self) except -2
    cdef int in_circulation(self, int enough) noexcept
    cdef int fillable(self, int enough) noexcept
    cdef int await_ready(self, int slot, uint64_t deadline, int death_fd) except -2
    cdef int interrupt(self, bint on) except -1
    cdef int await_free(self, uint64_t deadline, int death_fd) except -2

    # Shared batches: the consumer's call, and those of a reader.
    cdef int share(self, uint32_t slot, uint64_t gen) except -1
    cdef int begin_reading(self, uint32_t participant) except -1
    cdef int end_reading(self, uint32_t participant) noexcept
    cdef int await_shared(self, uint32_t participant, uint64_t deadline, int death_fd) except -1
    cdef int spin_shared(self, uint32_t participant, uint64_t deadline) noexcept
    cdef int unkept(self, int enough) noexcept
    cdef int reader_info(self, uint32_t participant, sr_reader_info *info) except -1
    cdef bint has_ended(self, uint32_t participant) noexcept
    cdef int take_shared(self, uint32_t participant, sr_shared *batch) except -1
    cdef void release_shared(self, uint32_t participant, uint32_t slot, uint64_t gen) noexcept

    # The calls of the C ring that Ring, leases and slot writers (`_ring`, `_slot`) need.
    cdef char *task_memory(self, uint32_t slot, uint64_t nbytes) except NULL
    cdef uint64_t put_task(self, uint32_t slot, const sr_task *task) except? 0
    cdef const sr_task *task_of(self, uint32_t slot) noexcept
    cdef uint64_t claimed_at(self, uint32_t slot) noexcept
    cdef char *task_area(self, uint32_t slot) noexcept
    cdef char *payload(self, uint32_t slot) noexcept
    cdef uint64_t committed(self, uint32_t slot) noexcept
    cdef const sr_result *result_of(self, uint32_t slot, uint32_t range_no) noexcept
    cdef bint find_owned(self, uint32_t participant, uint32_t *slot) noexcept
    cdef int take(self, uint32_t participant, uint32_t slot, uint64_t *gen, sr_result *result) except -1
    cdef void release(self, uint32_t slot, uint64_t gen) noexcept
    cdef void ref(self, uint32_t slot) noexcept
    cdef bint unref(self, uint32_t slot) noexcept
    cdef bint pinned_after_fork(self, uint32_t slot) noexcept
    cdef void unpin(self, uint32_t participant, uint32_t slot, uint64_t gen) noexcept
    cdef int claim_task(self, uint32_t participant, double seconds, uint32_t *slot, uint32_t *range_no,
                        uint64_t *gen) except -1
    cdef int claim_slot(self, uint32_t participant, uint64_t deadline, uint32_t *slot, uint64_t *gen) except -1
    cdef int park(self, uint32_t participant, uint32_t slot, uint64_t gen) except -1
    cdef uint64_t alloc(self, uint32_t participant, uint32_t slot, uint64_t nbytes, uint64_t align) except? 1
    cdef int commit_later(self, uint32_t participant, uint32_t slot, uint64_t nbytes, sr_alloc_error *why) except 1
    cdef int rewind(self, uint32_t participant, uint32_t slot, uint64_t gen) except -1
    cdef void record_times(self, uint32_t slot, uint64_t begun, uint64_t fetched, uint64_t skipped) noexcept
    cdef void record_parts(self, uint32_t slot, const sr_parts *parts) noexcept
    cdef void record_row(self, uint32_t participant, uint32_t slot, uint32_t row, uint64_t since) noexcept
    cdef int publish(self, uint32_t participant, uint32_t slot, uint64_t gen, const sr_result *result,
                     bint held) except -1
    cdef int abort(self, uint32_t participant, uint32_t slot, uint64_t gen) except -1
    cdef int range_done(self, uint32_t participant, uint32_t slot, uint32_t range_no, uint64_t gen,
                        const sr_result *result) except -1
    cdef int propose(self, uint32_t participant, uint32_t slot, uint64_t gen) except -1
    cdef int settle(self, uint32_t participant, uint32_t slot, uint64_t gen, int layout,
                    const sr_result *result) except -1

    # Queue mode: processes come and go.
    cdef int number(self) except -1
    cdef int recover_dead(self) noexcept
    cdef void count(self, uint32_t *ready, uint32_t *free_slots) noexcept
    cdef bint polled(self, bint from_now_on=*) noexcept


cdef int claim_any(sr_served *served, uint32_t n, uint32_t participant, uint32_t seen, uint32_t *which,
                   uint32_t *slot, uint32_t *range, uint64_t *gen) except -1
cdef uint64_t forks() noexcept
cdef uint64_t clock() noexcept nogil
cdef uint64_t coarse_clock() noexcept
cdef void copy_large(char *to, const char **sources, uint64_t n, uint64_t nbytes) noexcept nogil
cdef void copy_by(uint32_t way, void *to, const void *source, uint64_t nbytes) noexcept nogil
cdef uint32_t copy_widest() noexcept nogil
