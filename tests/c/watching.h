/* watching.h - batches whose every word follows from their ticket, so that a torn copy of one shows. */
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

/* Small: stamps are before any of the clock's. */
static inline uint64_t word_of(uint64_t ticket, uint32_t which)
{
    return 1 + (ticket * 31 + which * 7) % 100000;
}

/* The lessee's: nobody else writes to the slot. */
static inline void mark_times(sr_ring *ring, uint32_t slot)
{
    uint64_t ticket = sr_load_relaxed(&ring->slots[slot].ticket);
    _Atomic uint64_t *times = sr_words_of(&ring->slots[slot].times);
    for (uint32_t i = 0; i < SR_TIMES; i++)
        sr_store_relaxed(&times[i], word_of(ticket, i));
}

static inline bool whole(const sr_seen *seen, bool push)
{
    bool same = seen->bytes == word_of(seen->ticket, 50) && seen->freed_at > 100000;
    same &= seen->place >> 32 == SR_BATCH;
    for (uint32_t i = 0; i < SR_TIMES; i++)
        same &= seen->times[i] == word_of(seen->ticket, i);
    uint64_t epoch = push ? 0 : word_of(seen->ticket, 51), rows = push ? 0 : word_of(seen->ticket, 52);
    return same && seen->epoch == epoch && seen->maker >> 32 == rows;
}

/* One batch of a pull segment through all hands, which are this thread's. */
static inline uint32_t pull_one(sr_ring *ring, uint64_t ticket)
{
    uint32_t slot, found, range;
    uint64_t gen;
    CHECK_OK(sr_pick_free(ring, &slot));
    sr_task task = {.ticket = ticket, .epoch = word_of(ticket, 51), .kind = SR_TASK_NEXT,
                    .rows = (uint32_t)word_of(ticket, 52)};
    CHECK_OK(sr_dispatch(ring, slot, &task, &gen));
    CHECK_OK(sr_claim(ring, 1, 0, &found, &range, &gen));
    CHECK_EQ(found, slot);
    sr_result result = {.kind = SR_BATCH, .bytes = word_of(ticket, 50)}, out;
    CHECK_OK(sr_publish(ring, 1, slot, gen, &result, false));
    CHECK_OK(sr_take(ring, SR_CONSUMER, slot, &gen, &out));
    mark_times(ring, slot);
    CHECK_OK(sr_release(ring, slot, gen));
    return slot;
}

/* One message, and whatever lies there first. */
static inline void push_one(sr_ring *ring, uint32_t party)
{
    uint32_t slot;
    uint64_t gen;
    sr_result out;
    if (sr_claim_free(ring, party, 0, &slot, &gen) == 0) {
        sr_result result = {.kind = SR_BATCH};
        CHECK_OK(sr_publish(ring, party, slot, gen, &result, false));
    }
    if (sr_wait_ready(ring, SR_ANY, 0, &slot) != 0 || sr_take(ring, party, slot, &gen, &out) != 0)
        return;
    /* The ticket is drawn by the publish. */
    ring->slots[slot].result.bytes = word_of(sr_load_relaxed(&ring->slots[slot].ticket), 50);
    mark_times(ring, slot);
    CHECK_OK(sr_release(ring, slot, gen));
}

#endif
