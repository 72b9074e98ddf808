/* watch.h - looking on at a segment from any process, without taking part: read only, nobody waits, nothing is held.
 *
 * What is seen is a copy, whole or not at all. Every function returns 0 or -errno.
 */
#ifndef SLIPRING_WATCH_H
#define SLIPRING_WATCH_H

#include <stdbool.h>

#include "layout.h"

/* Where a record's times lie among its words; in the order of sr_times. */
enum sr_time {
    SR_T_DISPATCHED, SR_T_CLAIMED, SR_T_FETCHED, SR_T_PUBLISHED, SR_T_TAKEN, SR_T_FETCH, SR_T_COLLATE, SR_T_IDLE,
    SR_T_WAITED, SR_T_STEP, SR_T_COPY, SR_T_FIRST, SR_T_READ, SR_T_DECODE, SR_T_RESIZE, SR_T_LOOKUPS, SR_T_SLOWEST,
    SR_T_SLOWEST_INDEX
};

/* A copy of a record. */
typedef struct sr_seen {
    uint64_t number, run, ticket, epoch, bytes, freed_at, maker, place, times[SR_TIMES];
} sr_seen;
#define SR_SEEN (8u + SR_TIMES) /* words */

/* Copies a record; false if there is none, or it is just being written. */
bool sr_read_record(const sr_record *r, sr_seen *out);

typedef struct sr_watch sr_watch;

/* Maps header, parties, slot controls and records of the segment behind `fd`, which is not kept; `copy`: reads them once,
 * as is to be done with a file that anybody may cut short. *version: the protocol's that it speaks. -EPROTO: it is no
 * segment, or damaged; -EPROTONOSUPPORT: another version; -ENOLINK: there is a record file, which is to be opened. */
int sr_watch_open(int fd, bool copy, sr_watch **out, uint32_t *version);
void sr_watch_close(sr_watch *watch);

typedef struct sr_outline {
    uint64_t run, recorded, folded, loop_steps, loop_wait_ns, loop_ns, capacity, task_capacity, total, data_off, stride;
    uint64_t pid_namespace;
    uint32_t n_slots, n_parties, flags, closed, high_water, ready_waiters;
    char label[SR_LABEL];
} sr_outline;
void sr_watch_outline(const sr_watch *watch, sr_outline *out);

/* The records from number `from` on that can be had, at most `room`, into out; returns how many, the newest last. */
uint32_t sr_watch_records(const sr_watch *watch, uint64_t from, sr_seen *out, uint32_t room);
/* Those that took longest: at most SR_SLOWEST; returns how many. */
uint32_t sr_watch_slowest(const sr_watch *watch, bool samples, sr_seen *out);
/* The sums: 6 words (batches, bytes, rows, errors, folded, 0), 5 (read, decode, resize, hits, misses), and for each stage
 * sum, most and SR_BUCKETS counts. */
#define SR_SUMS (6u + 5u + SR_STAGES * (2u + SR_BUCKETS))
void sr_watch_totals(const sr_watch *watch, uint64_t *out);

typedef struct sr_slot_seen {
    uint64_t state; /* the word */
    uint64_t committed, task_bytes, skipped;
    uint32_t rows, kind, n_ranges, task_kind, ranges_done, pad;
    sr_seen seen; /* number 0 */
} sr_slot_seen;
/* What lies in a slot, or what it had last. -EAGAIN: it is changing, or in no use yet; -EPROTO: it has no known state. */
int sr_watch_slot(const sr_watch *watch, uint32_t slot, sr_slot_seen *out);

typedef struct sr_party_seen {
    uint64_t started, batches, bytes, fetch_ns, collate_ns, idle_ns, at_since, cpu_ns, queued_ns, told_ns;
    int32_t pid;
    uint32_t status, waiting, at_slot, at_row; /* SR_MAX_SLOTS: at none */
    uint32_t short_of, leaving, pad;
} sr_party_seen;
int sr_watch_party(const sr_watch *watch, uint32_t party, sr_party_seen *out);

#endif
