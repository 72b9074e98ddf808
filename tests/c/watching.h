/* watching.h - batches whose words all depend on their sequence number, so that a torn copy is noticed. */
#ifndef WATCHING_H
#define WATCHING_H

#include "fixture.h"
#include "watch_handle.h"

static inline sr_watch *watch_of(const sr_ring *ring)
{
    sr_watch *watch = NULL;
    uint32_t version;
    CHECK_OK(sr_watch_open(ring->record.fd < 0 ? sr_fd(ring) : sr_record_fd(ring), false, &watch, &version));
    CHECK_EQ(version, SR_VERSION);
    return watch;
}

static inline void close_watch(sr_watch **watch) { sr_watch_close(*watch); }
#define SCOPED_WATCH __attribute__((cleanup(close_watch)))

/* Small: these stamps are before any time of the clock. */
static inline uint64_t word_of(uint64_t seq, uint32_t which)
{
    return 1 + (seq * 31 + which * 7) % 100000;
}

/* For the owner of the lease: no other participant writes to the slot. */
static inline void mark_times(sr_ring *ring, uint32_t slot)
{
    uint64_t seq = sr_load_relaxed(&ring->slots[slot].seq);
    _Atomic uint64_t *times = sr_words_of(&ring->slots[slot].times);
    for (uint32_t i = 0; i < SR_TIMES; i++)
        sr_store_relaxed(&times[i], word_of(seq, i));
}

static inline bool whole(const sr_record_view *seen, bool queue_mode)
{
    bool same = seen->bytes == word_of(seen->seq, 50) && seen->freed_at > 100000;
    same &= seen->slot_kind >> 32 == SR_BATCH;
    for (uint32_t i = 0; i < SR_TIMES; i++)
        same &= seen->times[i] == word_of(seen->seq, i);
    uint64_t epoch = queue_mode ? 0 : word_of(seen->seq, 51), rows = queue_mode ? 0 : word_of(seen->seq, 52);
    return same && seen->epoch == epoch && seen->publisher >> 32 == rows;
}

/* Sends one batch of a loader segment through all steps, in this thread. */
static inline uint32_t deliver_one(sr_ring *ring, uint64_t seq)
{
    uint32_t slot, found, range;
    uint64_t gen;
    CHECK_OK(sr_pick_free(ring, &slot));
    sr_task task = {.seq = seq, .epoch = word_of(seq, 51), .kind = SR_TASK_NEXT,
                    .rows = (uint32_t)word_of(seq, 52)};
    CHECK_OK(sr_dispatch(ring, slot, &task, &gen));
    CHECK_OK(sr_claim(ring, 1, 0, &found, &range, &gen));
    CHECK_EQ(found, slot);
    sr_result result = {.kind = SR_BATCH, .bytes = word_of(seq, 50)}, out;
    CHECK_OK(sr_publish(ring, 1, slot, gen, &result, false));
    CHECK_OK(sr_take(ring, SR_CONSUMER, slot, &gen, &out));
    mark_times(ring, slot);
    CHECK_OK(sr_release(ring, slot, gen));
    return slot;
}

/* Puts one message, and takes the first one. */
static inline void put_one(sr_ring *ring, uint32_t participant)
{
    uint32_t slot;
    uint64_t gen;
    sr_result out;
    if (sr_claim_free(ring, participant, 0, &slot, &gen) == 0) {
        sr_result result = {.kind = SR_BATCH};
        CHECK_OK(sr_publish(ring, participant, slot, gen, &result, false));
    }
    if (sr_wait_ready(ring, SR_ANY, 0, &slot) != 0 || sr_take(ring, participant, slot, &gen, &out) != 0)
        return;
    /* The publish assigns the sequence number. */
    ring->slots[slot].result.bytes = word_of(sr_load_relaxed(&ring->slots[slot].seq), 50);
    mark_times(ring, slot);
    CHECK_OK(sr_release(ring, slot, gen));
}

#endif
