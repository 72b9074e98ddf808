/* Release of memory: of FREE slots, of unused parts, of a segment that has ended, of dead participants. */
#define _GNU_SOURCE
#include <sys/stat.h>

#include "needs.h"
#include "small.h"

static uint64_t file_bytes(const sr_ring *ring)
{
    struct stat file;
    CHECK(fstat(ring->file.fd, &file) == 0);
    return (uint64_t)file.st_blocks * 512;
}

TEST(a_free_slots_memory_is_released_for_a_worker_without_memory)
{
    needs_holes();
    sr_ring *ring SCOPED = small_ring(3);
    sr_alloc_error why = {0};
    uint64_t gen = bring_to(ring, 0, SR_CLAIMED, 1, false);
    CHECK(sr_commit(ring, 1, 0, 5 * MIB, &why) == 0);
    memset(sr_payload(ring, 0), 1, 5 * MIB);
    CHECK(sr_commit(ring, 2, 1, 4 * MIB, &why) == -ENOSPC); /* it is in use */
    CHECK(sr_abort(ring, 1, 0, gen) == 0);
    CHECK(sr_commit(ring, 2, 1, 60 * MIB, &why) == -ENOSPC); /* impossible: nothing is released for it */
    CHECK(sr_slot_committed(ring, 0) == 5 * MIB);
    CHECK(sr_commit(ring, 2, 1, 4 * MIB, &why) == 0);
    CHECK(sr_slot_committed(ring, 0) == SR_PAYLOAD_COMMIT);
    CHECK(file_bytes(ring) == sr_committed(ring));
    memset(sr_payload(ring, 1), 2, 4 * MIB);
    uint64_t w = sr_load_relaxed(&ring->slots[0].state);
    CHECK(sr_state_of(w) == SR_FREE && sr_gen_of(w) != gen);
    CHECK(sr_commit(ring, 1, 0, 2 * MIB, &why) == 0); /* it can be filled again */
    memset(sr_payload(ring, 0), 3, 2 * MIB);
}

TEST(a_pinned_slot_releases_no_memory)
{
    sr_ring *ring SCOPED = small_ring(3);
    uint64_t gen = bring_to(ring, 0, SR_CLAIMED, 1, false);
    CHECK(sr_commit(ring, 1, 0, 5 * MIB, NULL) == 0);
    CHECK(sr_set_registered(ring, 0) == 0);
    CHECK(sr_abort(ring, 1, 0, gen) == 0);
    CHECK(sr_commit(ring, 2, 1, 4 * MIB, NULL) == -ENOSPC);
    CHECK(!sr_trim_free(ring, 2));
    CHECK(sr_slot_committed(ring, 0) == 5 * MIB);
}

TEST(memory_beyond_a_batch_is_released_if_memory_is_short)
{
    needs_holes();
    sr_ring *ring SCOPED = small_ring(3);
    sr_result result = {.kind = SR_BATCH, .bytes = 100};
    uint64_t gen, at;
    for (int lap = 0; lap < 2; lap++) {
        gen = bring_to(ring, 0, SR_CLAIMED, 1, false);
        CHECK(sr_alloc(ring, 1, 0, lap ? 100 : 5 * MIB, 64, &at, NULL) == 0);
        memset(sr_payload(ring, 0), 1, 100);
        result.bytes = lap ? 100 : 5 * MIB;
        CHECK(sr_publish(ring, 1, 0, gen, &result, false) == 0);
        CHECK(sr_slot_committed(ring, 0) == (lap ? 64 * KIB : 5 * MIB));
        CHECK(sr_payload(ring, 0)[99] == 1);
        CHECK(sr_discard(ring, 0) == 0);
    }
    CHECK(file_bytes(ring) == sr_committed(ring));
}

TEST(memory_of_a_pinned_slot_is_not_released)
{
    sr_ring *ring SCOPED = small_ring(3);
    sr_result result = {.kind = SR_BATCH, .bytes = 100};
    uint64_t at, gen = bring_to(ring, 0, SR_CLAIMED, 1, false);
    CHECK(sr_alloc(ring, 1, 0, 5 * MIB, 64, &at, NULL) == 0);
    memset(sr_payload(ring, 0), 1, 5 * MIB);
    CHECK(sr_rewind(ring, 1, 0, gen) == 0);
    CHECK(sr_load_relaxed(&ring->header->memory_pressure) == 1);
    CHECK(sr_publish(ring, 1, 0, gen, &result, true) == 0);
    CHECK(sr_slot_committed(ring, 0) == 5 * MIB && sr_payload(ring, 0)[5 * MIB - 1] == 1);
}

TEST(released_memory_cannot_be_mapped)
{
    needs_holes();
    sr_ring *ring SCOPED = small_ring(3);
    uint64_t gen = bring_to(ring, 0, SR_CLAIMED, 1, false);
    CHECK(sr_commit(ring, 1, 0, 5 * MIB, NULL) == 0);
    CHECK(sr_populate(ring, 0, 5 * MIB) == 0);
    CHECK(sr_abort(ring, 1, 0, gen) == 0);
    CHECK(sr_trim_free(ring, 2));
    CHECK(sr_populate(ring, 0, 5 * MIB) == -EINVAL);
    CHECK(sr_populate(ring, 0, SR_PAYLOAD_COMMIT) == 0);
}

TEST(a_segment_that_has_ended_keeps_leased_memory_only)
{
    needs_holes();
    sr_ring *ring SCOPED = small_ring(3);
    uint64_t gens[3];
    for (uint32_t i = 0; i < 3; i++) {
        gens[i] = bring_to(ring, i, SR_CLAIMED, 1, false);
        CHECK(sr_commit(ring, 1, i, MIB, NULL) == 0);
        memset(sr_payload(ring, i), (int)i + 1, MIB);
        CHECK(publish(ring, 1, i, gens[i], i == 2) == 0);
    }
    gens[0] = take(ring, 0);
    dispatch(ring, 3, 9, 0, 2);
    CHECK(sr_close(ring) == 0 && sr_release_free(ring, SR_CONSUMER) == 0);
    CHECK(state_of(ring, 0) == SR_LEASED && state_of(ring, 1) == SR_FREE && state_of(ring, 2) == SR_PARKED);
    CHECK(state_of(ring, 3) == SR_FREE && sr_slot_committed(ring, 1) == 0);
    CHECK(sr_payload(ring, 0)[MIB - 1] == 1 && sr_payload(ring, 2)[MIB - 1] == 3);
    CHECK(file_bytes(ring) == sr_committed(ring));
    CHECK(sr_release(ring, 0, gens[0]) == 0 && sr_unpin(ring, 1, 2, gens[2]) == 0);
    CHECK(sr_release_free(ring, SR_CONSUMER) == 0);
    CHECK(file_bytes(ring) == ring->data_off && sr_committed(ring) == ring->data_off);
}

TEST(the_last_participant_of_a_queue_releases_its_memory)
{
    sr_ring *ring SCOPED = make_ring(2, 3, SR_SEG_QUEUE);
    uint32_t other, slot;
    uint64_t gen;
    CHECK_OK(sr_enter(ring, &other));
    CHECK_OK(sr_claim_free(ring, other, 0, &slot, &gen));
    CHECK_OK(sr_commit(ring, other, slot, MIB, NULL));
    CHECK_OK(publish(ring, other, slot, gen, false));
    CHECK_OK(sr_release_free(ring, 0));
    CHECK_EQ(sr_slot_committed(ring, !slot), SR_PAYLOAD_COMMIT);
    CHECK_OK(sr_leave(ring, other));
    CHECK_OK(sr_release_free(ring, 0));
    CHECK_EQ(sr_slot_committed(ring, !slot), 0);
    CHECK_EQ(sr_slot_committed(ring, slot), MIB);
    CHECK_EQ(state_of(ring, slot), SR_READY);
    CHECK_OK(sr_claim_free(ring, 0, 0, &other, &gen)); /* it works as before */
    CHECK_OK(sr_commit(ring, 0, other, MIB, NULL));
    memset(sr_payload(ring, other), 1, MIB);
}

TEST(recovery_releases_the_memory_beyond_a_mark)
{
    needs_holes();
    sr_ring *ring SCOPED = small_ring(3);
    uint64_t marks[] = {SR_PAYLOAD_COMMIT, 7 * MIB};
    for (int i = 0; i < 2; i++) { /* it died between a mark and its pages, or wrote any mark */
        bring_to(ring, 0, SR_CLAIMED, 1, false);
        CHECK(sr_commit(ring, 1, 0, 5 * MIB, NULL) == 0);
        atomic_store(&ring->populated[0], 0);
        sr_store_relaxed(&ring->slots[0].committed, marks[i]);
        CHECK(sr_recover(ring, 1) == 1);
        CHECK(sr_slot_committed(ring, 0) == SR_PAYLOAD_COMMIT && file_bytes(ring) == sr_committed(ring));
        CHECK(sr_cancel(ring, 0, sr_gen_of(sr_load_relaxed(&ring->slots[0].state))) == 0);
        CHECK(sr_commit(ring, 1, 0, 5 * MIB, NULL) == 0);
        sr_store_relaxed(&ring->slots[0].state, sr_word(SR_TRIMMED, 3, 7 + (uint64_t)i));
        sr_store_relaxed(&ring->slots[0].committed, SR_PAYLOAD_COMMIT);
        CHECK(sr_recover(ring, 2) == 0);
        CHECK(state_of(ring, 0) == SR_FREE && file_bytes(ring) == sr_committed(ring));
    }
}

TEST(pages_of_a_queues_dead_go_to_a_worker_without_memory)
{
    needs_holes();
    mount_small("8m");
    sr_ring *ring = NULL;
    sr_options o = {.n_slots = 4, .n_participants = 3, .backing = SR_BACKING_DIR, .dir = mounted, .flags = SR_SEG_QUEUE,
                    .capacity = 64 * MIB, .task_capacity = 64 * KIB};
    CHECK(sr_create(&o, &ring, NULL) == 0);
    for (unsigned state = SR_CLAIMED; state <= SR_TRIMMED; state += SR_TRIMMED - SR_CLAIMED) {
        uint32_t slot;
        uint64_t gen;
        CHECK(sr_claim_free(ring, 1, 0, &slot, &gen) == 0);
        CHECK(sr_commit(ring, 1, slot, 5 * MIB, NULL) == 0);
        sr_store_relaxed(&ring->slots[slot].state, sr_word(state, 2, gen));
        sr_store_relaxed(&ring->slots[slot].committed, SR_PAYLOAD_COMMIT);
        CHECK(sr_recover(ring, 1) == 0 && state_of(ring, slot) == SR_FREE);
        uint32_t other = slot + 1;
        sr_raise_high_water(ring, other);
        CHECK(sr_commit(ring, 0, other, 5 * MIB, NULL) == 0);
        CHECK(file_bytes(ring) == sr_committed(ring));
        CHECK(sr_trim_free(ring, 0));
    }
    sr_destroy(ring);
}

RUN_TESTS(20)
