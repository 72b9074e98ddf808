/* watch.h - observe a segment from any process that is not a participant: read-only, without waiting and without locks.
 *
 * An observer gets a consistent copy or none. Every function returns 0 or -errno, unless its comment says otherwise.
 */
#ifndef SLIPRING_WATCH_H
#define SLIPRING_WATCH_H

#include <stdbool.h>

#include "layout.h"

/* The index of each time among a record's times, in the order of sr_times. */
enum sr_time {
    SR_T_DISPATCHED, SR_T_CLAIMED, SR_T_FETCHED, SR_T_PUBLISHED, SR_T_TAKEN, SR_T_FETCH, SR_T_COLLATE, SR_T_IDLE,
    SR_T_WAITED, SR_T_STEP, SR_T_COPY, SR_T_FIRST, SR_T_READ, SR_T_DECODE, SR_T_RESIZE, SR_T_AUGMENT, SR_T_USER,
    SR_T_LOOKUPS, SR_T_SLOWEST, SR_T_SLOWEST_INDEX
};

/* A copy of a record. */
typedef struct sr_record_view {
    uint64_t number, iteration, seq, epoch, bytes, freed_at, publisher, slot_kind, times[SR_TIMES];
} sr_record_view;
#define SR_RECORD_WORDS (8u + SR_TIMES) /* words */

/* Copy a record; false if there is none, or if it is being written. */
bool sr_read_record(const sr_record *r, sr_record_view *out);

typedef struct sr_watch sr_watch;

/* Map the header, participants, slot controls and records of the segment of `fd`, which is not kept. `copy`: read them
 * once instead, which is necessary for a file that any process may truncate. *version receives the segment's protocol
 * version. -EPROTO: not a segment, or damaged; -EPROTONOSUPPORT: another version; -ENOLINK: the segment has a record
 * file; open that instead. */
int sr_watch_open(int fd, bool copy, sr_watch **out, uint32_t *version);
void sr_watch_close(sr_watch *watch);

typedef struct sr_segment_info {
    uint64_t iteration, recorded, folded, loop_steps, loop_wait_ns, loop_ns, capacity, task_capacity;
    uint64_t total, data_off, stride;
    uint64_t pid_namespace, budget;
    uint32_t n_slots, n_participants, flags, closed, high_water, ready_waiters;
    uint32_t n_readers, share_waiters;
    uint64_t shared; /* how many batches were shared */
    uint64_t reads[SR_READ_COUNTS];
    char label[SR_LABEL];
} sr_segment_info;
void sr_watch_segment(const sr_watch *watch, sr_segment_info *out);

/* Copy the records that are still there, from number `from` on, at most `room`, to out. Return how many; the newest is
 * last. */
uint32_t sr_watch_records(const sr_watch *watch, uint64_t from, sr_record_view *out, uint32_t room);
/* Copy the slowest batches or samples, at most SR_SLOWEST; return how many. */
uint32_t sr_watch_slowest(const sr_watch *watch, bool samples, sr_record_view *out);
/* Copy the totals: 6 words (batches, bytes, rows, errors, folded, 0), 7 (read, decode, resize, augment, user, hits,
 * misses), and for each stage the sum, the maximum and SR_BUCKETS counts. */
#define SR_SUMS (6u + 7u + SR_STAGES * (2u + SR_BUCKETS))
void sr_watch_totals(const sr_watch *watch, uint64_t *out);

typedef struct sr_slot_view {
    uint64_t state;      /* the state word */
    uint64_t committed, task_bytes, skipped;
    uint32_t rows, kind, n_ranges, task_kind, ranges_done;
    uint32_t readers; /* BROADCAST: how many participants have not released it */
    sr_record_view seen; /* its number is 0 */
} sr_slot_view;
/* Copy a slot's current or last batch. -EAGAIN: the slot is changing, or was not used yet; -EPROTO: unknown state. */
int sr_watch_slot(const sr_watch *watch, uint32_t slot, sr_slot_view *out);

typedef struct sr_participant_view {
    uint64_t started, batches, bytes, fetch_ns, collate_ns, idle_ns, at_since, cpu_ns, queued_ns, reported_ns;
    int32_t pid;
    uint32_t status, waiting, at_slot, at_row; /* at_slot is SR_MAX_SLOTS if it reads no row */
    uint32_t needs_memory_for, retiring;
    uint32_t lag; /* of a reader that takes part: how many shared batches it has not taken */
} sr_participant_view;
int sr_watch_participant(const sr_watch *watch, uint32_t participant, sr_participant_view *out);

#endif
