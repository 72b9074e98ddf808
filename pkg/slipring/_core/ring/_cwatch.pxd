# Declarations of csrc/watch.h.

from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef extern from "watch.h" nogil:
    enum:
        SR_LABEL
        SR_RECORD_WORDS
        SR_SLOWEST
        SR_STAGES
        SR_BUCKETS
        SR_SUMS
        SR_VERSION
        SR_RECORDS
        SR_SEG_QUEUE

    ctypedef struct sr_watch:
        pass

    ctypedef struct sr_record_view:
        uint64_t number

    ctypedef struct sr_slot_view:
        uint64_t state

    ctypedef struct sr_segment_info:
        uint64_t iteration
        uint64_t recorded
        uint64_t folded
        uint64_t loop_steps
        uint64_t loop_wait_ns
        uint64_t loop_ns
        uint64_t capacity
        uint64_t task_capacity
        uint64_t total
        uint64_t data_off
        uint64_t stride
        uint64_t pid_namespace
        uint64_t budget
        uint32_t n_slots
        uint32_t n_participants
        uint32_t flags
        uint32_t closed
        uint32_t high_water
        uint32_t ready_waiters
        uint32_t n_readers
        uint32_t share_waiters
        uint64_t shared
        uint64_t reads[8]
        char label[128]

    ctypedef struct sr_participant_view:
        uint64_t started
        uint64_t batches
        uint64_t bytes
        uint64_t fetch_ns
        uint64_t collate_ns
        uint64_t idle_ns
        uint64_t at_since
        uint64_t cpu_ns
        uint64_t queued_ns
        uint64_t reported_ns
        int32_t pid
        uint32_t status
        uint32_t waiting
        uint32_t at_slot
        uint32_t at_row
        uint32_t needs_memory_for
        uint32_t leaving
        uint32_t lag

    int sr_watch_open(int fd, bint copy, sr_watch **out, uint32_t *version)
    void sr_watch_close(sr_watch *watch)
    void sr_watch_segment(const sr_watch *watch, sr_segment_info *out)
    uint32_t sr_watch_records(const sr_watch *watch, uint64_t first, sr_record_view *out, uint32_t room)
    uint32_t sr_watch_slowest(const sr_watch *watch, bint samples, sr_record_view *out)
    void sr_watch_totals(const sr_watch *watch, uint64_t *out)
    int sr_watch_slot(const sr_watch *watch, uint32_t slot, sr_slot_view *out)
    int sr_watch_participant(const sr_watch *watch, uint32_t participant, sr_participant_view *out)
