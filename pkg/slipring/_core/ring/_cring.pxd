# Declarations of csrc/ring.h, csrc/layout.h and csrc/index_order.h. None of the functions needs the GIL.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "layout.h" nogil:
    enum:
        SR_LEAF_ALIGN
        SR_MAX_RANGES
        SR_MAX_DIMS
        SR_MAX_PARTICIPANTS
        SR_MAX_SLOTS
        SR_BATCH
        SR_ERROR
        SR_END
        SR_EMPTY
        SR_TASK_INDICES
        SR_TASK_OBJECT
        SR_TASK_NEXT
        SR_PARTICIPANT_JOINED
        SR_PARTICIPANT_SERVING
        SR_SEG_QUEUE
        SR_LAYOUT_DIRECT
        SR_LAYOUT_STAGED

    ctypedef struct sr_result:
        uint64_t table_off
        uint64_t def_off
        uint64_t def_hash
        uint64_t bytes
        uint32_t n_leaves
        uint32_t def_bytes
        uint16_t kind
        uint16_t flags
        uint32_t pickled

    ctypedef struct sr_leaf:
        uint8_t kind
        uint8_t dtype
        uint8_t ndim
        uint8_t flags
        uint32_t itemsize
        uint64_t offset
        uint64_t nbytes
        int64_t shape[12]
        uint64_t extra

    ctypedef struct sr_served:
        sr_ring *ring

    ctypedef struct sr_task:
        uint64_t iteration
        uint64_t epoch
        uint64_t seq
        uint64_t seed
        uint64_t sequence
        uint64_t bytes
        uint32_t kind
        uint32_t rows
        uint32_t n_ranges
        uint32_t range_rows
        uint32_t addressee
        uint32_t flags

cdef extern from "ring.h" nogil:
    ctypedef struct sr_ring:
        pass

    const uint64_t SR_FOREVER
    const uint32_t SR_ANY
    const uint32_t SR_CONSUMER
    const uint64_t SR_TASK_DEFAULT
    const uint32_t SR_WHOLE
    const uint32_t SR_FINISH

    enum:
        SR_BACKING_AUTO
        SR_BACKING_SHM
        SR_BACKING_MEMFD
        SR_BACKING_DIR
        SR_LIMIT_NONE
        SR_LIMIT_FILESYSTEM
        SR_LIMIT_CGROUP
        SR_LIMIT_MEMORY
        SR_LIMIT_FILESIZE
        SR_LIMIT_CAPACITY
        SR_LIMIT_ADDRESS
        SR_LIMIT_MAPPED
        SR_LIMIT_MAPPINGS
        SR_LIMIT_LOCKED
        SR_LIMIT_BUDGET
        SR_READS
        SR_READ_BYTES
        SR_READ_NS
        SR_READ_LOST_NS
        SR_READ_COUNTS

    ctypedef struct sr_options:
        uint32_t n_slots
        uint32_t n_participants
        uint32_t flags
        uint32_t n_readers
        int backing
        const char *dir
        uint64_t capacity
        uint64_t task_capacity
        const char *label
        const char *record
        uint32_t node

    ctypedef struct sr_info:
        uint32_t n_slots
        uint32_t n_participants
        uint32_t flags
        uint32_t n_readers
        int backing
        const char *reason
        uint64_t capacity
        uint64_t wanted
        const char *limited_by
        uint64_t total
        uint32_t copies
        uint64_t reads[8]
        int record
        int node
        uint32_t record_number

    ctypedef struct sr_alloc_error:
        int limit
        uint64_t needed
        uint64_t free

    ctypedef struct sr_memory_info:
        uint64_t free
        uint64_t size
        int limit
        char file[1024]

    ctypedef struct sr_stamps:
        uint64_t dispatched_at
        uint64_t claimed_at
        uint64_t fetched_at
        uint64_t published_at
        uint64_t taken_at
        uint64_t fetch_ns
        uint64_t collate_ns
        uint64_t idle_ns
        uint64_t skipped

    ctypedef struct sr_shared:
        uint64_t number
        uint64_t gen
        uint64_t iteration
        uint64_t seq
        sr_result result
        uint32_t slot
        bint is_end

    ctypedef struct sr_reader_info:
        uint64_t incarnation
        uint64_t lag
        uint32_t leases
        bint takes_part
        bint serving

    ctypedef struct sr_parts:
        uint64_t read_ns
        uint64_t decode_ns
        uint64_t resize_ns
        uint64_t augment_ns
        uint64_t user_ns
        uint64_t slowest_ns
        int64_t slowest_index
        uint32_t hits
        uint32_t misses

    int sr_create(const sr_options *options, sr_ring **out, sr_alloc_error *why)
    int sr_attach(int fd, int record, sr_ring **out)
    int sr_after_fork(sr_ring *ring)
    int sr_destroy(sr_ring *ring)
    int sr_fd(const sr_ring *ring)
    int sr_record_fd(const sr_ring *ring)
    int sr_describe(const sr_ring *ring, sr_info *info)
    const sr_task *sr_task_of(const sr_ring *ring, uint32_t slot)
    const sr_result *sr_result_of(const sr_ring *ring, uint32_t slot, uint32_t range)
    uint64_t sr_slot_committed(const sr_ring *ring, uint32_t slot)
    char *sr_task_area(const sr_ring *ring, uint32_t slot)
    char *sr_payload(const sr_ring *ring, uint32_t slot)
    uint64_t sr_committed(const sr_ring *ring)
    ctypedef struct sr_usage:
        uint64_t used
        uint64_t fixed
        uint64_t largest
    void sr_usage_of(const sr_ring *ring, sr_usage *out)
    uint64_t sr_budget(const sr_ring *ring)
    void sr_set_budget(sr_ring *ring, uint32_t participant, uint64_t bytes, sr_usage *out)
    int sr_fillable(const sr_ring *ring, int enough)
    int sr_slot_node(const sr_ring *ring, uint32_t slot)
    int sr_process_memory_available(const char *root, sr_memory_info *out)
    int sr_commit(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t bytes, sr_alloc_error *why)
    int sr_commit_task(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t bytes, sr_alloc_error *why)
    int sr_alloc(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t bytes, uint64_t align,
                 uint64_t *offset, sr_alloc_error *why)
    int sr_wait_memory(sr_ring *ring, uint32_t participant, uint32_t slot, const sr_alloc_error *why,
                       uint64_t *waited) nogil
    int sr_end_wait_memory(sr_ring *ring, uint32_t participant)
    bint sr_needs_memory(const sr_ring *ring, uint32_t participant)
    int sr_release_free(sr_ring *ring, uint32_t participant)
    int sr_set_registered(sr_ring *ring, uint32_t slot)
    int sr_rewind(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen)
    int sr_populate(sr_ring *ring, uint32_t slot, uint64_t bytes)
    uint64_t sr_now() nogil
    uint64_t sr_now_coarse()
    int sr_join(sr_ring *ring, uint32_t participant)
    int sr_serve(sr_ring *ring, uint32_t participant)
    int sr_participant_info(const sr_ring *ring, uint32_t participant, int *pid, uint32_t *status)
    int sr_wait_serving(sr_ring *ring, uint32_t participant, uint64_t deadline)
    int sr_close(sr_ring *ring)
    int sr_reopen(sr_ring *ring)
    int sr_retire(sr_ring *ring, uint32_t participant)
    int sr_cancel_retirement(sr_ring *ring, uint32_t participant)
    int sr_find_owned(const sr_ring *ring, uint32_t participant, uint32_t *slot)
    bint sr_closed(const sr_ring *ring)
    int sr_wake_all(sr_ring *ring)
    int sr_watch_consumer(const sr_ring *ring)
    uint64_t sr_fork_generation()
    void sr_ref(sr_ring *ring, uint32_t slot)
    bint sr_unref(sr_ring *ring, uint32_t slot)
    bint sr_pinned_after_fork(const sr_ring *ring, uint32_t slot)
    void sr_fork_of_worker(bint on)
    int sr_begin_iteration(sr_ring *ring, uint64_t iteration)
    int sr_pick_free(sr_ring *ring, uint32_t *slot)
    int sr_dispatch(sr_ring *ring, uint32_t slot, const sr_task *task, uint64_t *gen)
    int sr_cancel(sr_ring *ring, uint32_t slot, uint64_t gen)
    int sr_wait_ready(sr_ring *ring, uint32_t slot, uint64_t deadline, uint32_t *found)
    int sr_wait_ready_or_death(sr_ring *ring, uint32_t slot, uint64_t deadline, int death_fd, uint32_t *found)
    int sr_take(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t *gen, sr_result *result)
    int sr_add_times(sr_ring *ring, uint32_t slot, uint64_t fetch_ns, uint64_t collate_ns, uint64_t skipped)
    int sr_add_parts(sr_ring *ring, uint32_t slot, const sr_parts *parts)
    uint64_t sr_add_read(sr_ring *ring, int outcome, uint64_t bytes, uint64_t ns)
    void sr_set_row(sr_ring *ring, uint32_t participant, uint32_t slot, uint32_t row, uint64_t since)
    void sr_record_take(sr_ring *ring, uint32_t slot, uint64_t waited_ns, uint64_t before, sr_stamps *out)
    void sr_set_copy_time(sr_ring *ring, uint32_t slot, uint64_t copy_ns)
    void sr_add_loop_step(sr_ring *ring, uint64_t wait_ns, uint64_t step_ns)
    int sr_stamps_of(const sr_ring *ring, uint32_t slot, sr_stamps *out)
    int sr_circulating(const sr_ring *ring, int enough)
    int sr_release(sr_ring *ring, uint32_t slot, uint64_t gen)
    int sr_interrupt(sr_ring *ring, bint on)
    int sr_discard(sr_ring *ring, uint32_t slot)
    int sr_claim(sr_ring *ring, uint32_t participant, uint64_t deadline, uint32_t *slot, uint32_t *range,
                 uint64_t *gen)
    int sr_use_wake_file(sr_ring *ring, int fd)
    uint32_t sr_wake_count(const sr_ring *ring, uint32_t participant)
    int sr_wake_worker(sr_ring *ring, uint32_t participant)
    bint sr_is_starving(const sr_ring *ring)
    int sr_claim_any(sr_served *served, uint32_t n, uint32_t participant, uint32_t seen, uint32_t *which,
                     uint32_t *slot, uint32_t *range, uint64_t *gen)
    int sr_publish(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen, const sr_result *result,
                   bint pinned)
    int sr_abort(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen)
    int sr_park(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen)
    int sr_unpin(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen)
    int sr_range_done(sr_ring *ring, uint32_t participant, uint32_t slot, uint32_t range, uint64_t gen,
                      const sr_result *result)
    int sr_layout_propose(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen, uint64_t deadline)
    int sr_layout_settle(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen, int layout,
                         const sr_result *result)
    int sr_claim_free(sr_ring *ring, uint32_t participant, uint64_t deadline, uint32_t *slot, uint64_t *gen)
    int sr_wait_free(sr_ring *ring, uint64_t deadline, int death_fd, uint32_t *slot)
    int sr_share(sr_ring *ring, uint32_t slot, uint64_t gen)
    int sr_share_end(sr_ring *ring, uint32_t slot, uint64_t iteration, uint64_t seq)
    int sr_lent(const sr_ring *ring)
    int sr_unkept(const sr_ring *ring, int enough)
    int sr_reader_info_of(const sr_ring *ring, uint32_t participant, sr_reader_info *out)
    int sr_participant_ended(const sr_ring *ring, uint32_t participant)
    int sr_begin_reading(sr_ring *ring, uint32_t participant)
    int sr_end_reading(sr_ring *ring, uint32_t participant)
    int sr_wait_shared(sr_ring *ring, uint32_t participant, uint64_t deadline, int death_fd)
    int sr_take_shared(sr_ring *ring, uint32_t participant, sr_shared *out)
    int sr_release_shared(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen)
    int sr_recover(sr_ring *ring, uint32_t participant)
    int sr_recover_thread(sr_ring *ring, uint32_t participant)
    int sr_enter(sr_ring *ring, uint32_t *participant)
    int sr_leave(sr_ring *ring, uint32_t participant)
    int sr_recover_dead(sr_ring *ring, bint all)
    int sr_count(const sr_ring *ring, uint32_t *ready, uint32_t *free_slots)
    int sr_set_polled(sr_ring *ring)
    bint sr_polled(const sr_ring *ring)
    const uint32_t SR_COPY_WAYS
    uint32_t sr_copy_widest()
    void sr_copy_by(uint32_t way, void *to, const void *source, uint64_t bytes)
    void sr_copy_rows(char *to, const char *const *source, uint64_t n, uint64_t each)
    void sr_copy_choose(uint32_t way)

cdef extern from "index_order.h" nogil:
    enum:
        SR_ORDER_ASCENDING
        SR_ORDER_STORED
        SR_ORDER_SHUFFLED
        SR_ORDER_DRAWN

    ctypedef struct sr_index_order:
        int kind
        uint64_t n
        uint64_t length
        const int64_t *stored
        const double *bounds

    void sr_order_key(sr_index_order *order, uint64_t key)
    void sr_order_write(const sr_index_order *order, uint64_t first, uint64_t step, uint64_t count, int64_t *out)
