/* A participant dies in each state; its slots return to the live ones. */
#include "fixture.h"

static void joined(sr_ring *ring, uint32_t participant)
{
    CHECK_OK(sr_join(ring, participant));
    CHECK_OK(sr_serve(ring, participant));
}

TEST(a_task_that_a_dead_worker_overwrote_is_restored)
{
    sr_ring *ring SCOPED = make_ring(2, 3, 0);
    uint64_t gen, again, at;
    CHECK_OK(sr_begin_iteration(ring, 7));
    dispatch(ring, 0, 5, 1, 0);
    claim(ring, 1, NULL, &gen);
    sr_task before = ring->slots[0].task;
    memset(&ring->slots[0].task, 0xff, sizeof before);
    sr_store_relaxed(&ring->slots[0].seq, UINT64_MAX);
    sr_store_relaxed(&ring->slots[0].iteration, 0);
    sr_store_relaxed(&ring->slots[0].n_ranges, SR_MAX_RANGES);
    sr_store_relaxed(&ring->slots[0].committed, UINT64_MAX);
    uint32_t slot = 0;
    CHECK_OK(sr_find_owned(ring, 1, &slot)); /* the error that names the lost work may read it */
    CHECK_EQ(memcmp(&before, sr_task_of(ring, 0), sizeof before), 0);
    memset(&ring->slots[0].task, 0xff, sizeof before);
    CHECK_EQ(sr_recover(ring, 1), 1);
    CHECK_EQ(state_of(ring, 0), SR_TASK);
    CHECK_EQ(owner_of(ring, 0), 2); /* its addressee, whose number the replacement has */
    CHECK_EQ(sr_recover(ring, 1), 0);
    CHECK_EQ(sr_slot_committed(ring, 0), SR_PAYLOAD_COMMIT);
    nothing_to_claim(ring, 2);
    joined(ring, 1);
    CHECK_EQ(claim(ring, 1, NULL, &again), 0);
    CHECK_EQ(again, gen);
    CHECK_EQ(memcmp(&before, sr_task_of(ring, 0), sizeof before), 0);
    CHECK_OK(sr_alloc(ring, 1, 0, 100 * KIB, 64, &at, NULL));
    CHECK_OP(sr_slot_committed(ring, 0), >=, 100 * KIB);
    CHECK_OK(publish(ring, 1, 0, again, false));
}

TEST(no_more_of_a_slot_is_touched_than_its_batch_needs)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    sr_store_relaxed(&ring->slots[0].committed, UINT64_MAX / 2); /* a worker wrote to a wrong place */
    CHECK_OK(sr_populate(ring, 0, 100));
    CHECK_OP(sr_load_relaxed(&ring->populated[0]), <=, 64 * KIB);
}

TEST(the_dead_participants_own_words_are_cleared)
{
    sr_ring *ring SCOPED = make_ring(1, 3, 0);
    int pid;
    uint32_t status;
    joined(ring, 1);
    sr_store_relaxed(&ring->participants[1].growing, 12345);
    sr_store_relaxed(&ring->participants[1].waiting, 1);
    CHECK_OK(sr_recover(ring, 1));
    CHECK_OK(sr_participant_info(ring, 1, &pid, &status));
    CHECK_EQ(status, SR_PARTICIPANT_NONE);
    CHECK_EQ(sr_pages_of(sr_load_relaxed(&ring->participants[1].growing)), 0);
    CHECK_EQ(sr_load_relaxed(&ring->participants[1].waiting), 0);
}

/* ---- SHARED slots ---- */

TEST(only_the_dead_participants_unfinished_ranges_are_done_again)
{
    sr_ring *ring SCOPED = make_ring(1, 4, 0);
    uint32_t range;
    uint64_t gen;
    dispatch(ring, 0, 0, 0, 4);
    claim(ring, 1, &range, &gen); /* 0: done by the participant that dies */
    CHECK_EQ(sr_range_done(ring, 1, 0, 0, gen, NULL), 0);
    claim(ring, 1, &range, &gen); /* 1: it dies here */
    claim(ring, 2, &range, &gen); /* 2: another participant makes it */
    CHECK_EQ(sr_recover(ring, 1), 1);
    CHECK_EQ(claim(ring, 3, &range, &gen), 0);
    CHECK_EQ(range, 1);
    CHECK_EQ(claim(ring, 3, &range, &gen), 0);
    CHECK_EQ(range, 3);
    nothing_to_claim(ring, 3);
    CHECK_EQ(sr_range_done(ring, 3, 0, 1, gen, NULL), 0);
    CHECK_EQ(sr_range_done(ring, 3, 0, 3, gen, NULL), 0);
    CHECK_EQ(sr_range_done(ring, 2, 0, 2, gen, NULL), 1);
}

TEST(ranges_that_a_dead_finisher_overwrote_are_done_again)
{
    sr_ring *ring SCOPED = make_ring(1, 3, 0);
    uint32_t range;
    uint64_t gen, at;
    dispatch(ring, 0, 0, 0, 2);
    claim(ring, 1, &range, &gen);
    CHECK_EQ(sr_layout_propose(ring, 1, 0, gen, 0), 0);
    CHECK_OK(sr_layout_settle(ring, 1, 0, gen, SR_LAYOUT_STAGED, NULL));
    CHECK_OK(sr_alloc(ring, 1, 0, 1000, 64, &at, NULL));
    CHECK_EQ(sr_range_done(ring, 1, 0, 0, gen, NULL), 0);
    claim(ring, 1, &range, &gen);
    CHECK_EQ(sr_range_done(ring, 1, 0, 1, gen, NULL), 1);
    CHECK_OK(sr_rewind(ring, 1, 0, gen));
    CHECK_OK(sr_alloc(ring, 1, 0, 10, 64, &at, NULL));
    CHECK_EQ(at, 0);
    CHECK_EQ(sr_recover(ring, 1), 1);
    CHECK_EQ(state_of(ring, 0), SR_SHARED);
    /* A participant that saw the ranges end earlier must not swap this word any more: it names the next round. */
    CHECK_EQ(owner_of(ring, 0), 1);
    CHECK_EQ(sr_load_relaxed(&ring->slots[0].cursor), 0);
    for (uint32_t i = 0; i < 2; i++) { /* as if no participant had started */
        CHECK_EQ(claim(ring, 2, &range, &gen), 0);
        CHECK_EQ(range, i);
        CHECK_EQ(sr_layout_propose(ring, 2, 0, gen, 0), i == 0 ? 0 : SR_LAYOUT_STAGED);
        if (i == 0)
            CHECK_OK(sr_layout_settle(ring, 2, 0, gen, SR_LAYOUT_STAGED, NULL));
        CHECK_EQ(sr_range_done(ring, 2, 0, i, gen, NULL), (int)i);
    }
    CHECK_EQ(sr_recover(ring, 2), 1); /* this one had not started */
    CHECK_EQ(owner_of(ring, 0), 1);
    CHECK_EQ(claim(ring, 1, &range, &gen), 0);
    CHECK_EQ(range, SR_FINISH);
    CHECK_OK(publish(ring, 1, 0, gen, false));
}

TEST(a_dead_participants_ranges_of_a_cancelled_task_are_not_done_again)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    uint32_t range;
    uint64_t gen;
    dispatch(ring, 0, 0, 0, 3);
    claim(ring, 1, &range, &gen);
    CHECK_EQ(sr_cancel(ring, 0, gen), -EBUSY);
    CHECK_EQ(sr_recover(ring, 1), 0);
    CHECK_EQ(state_of(ring, 0), SR_FREE);
}

TEST(the_unfinished_work_of_a_dead_worker_can_be_named)
{
    sr_ring *ring SCOPED = make_ring(6, 3, 0);
    uint32_t range, slot = 0;
    uint64_t gen;
    bring_to(ring, 1, SR_CLAIMED, 1, false);
    bring_to(ring, 2, SR_TASK, 1, false);
    dispatch(ring, 4, 0, 0, 2);
    claim(ring, 2, &range, &gen);
    CHECK_EQ(sr_find_owned(ring, 2, &slot), 0);
    CHECK_EQ(slot, 4);
    slot = 0;
    CHECK_EQ(sr_find_owned(ring, 1, &slot), 0);
    CHECK_EQ(slot++, 1);
    CHECK_EQ(sr_find_owned(ring, 1, &slot), 0);
    CHECK_EQ(slot++, 2);
    CHECK_EQ(sr_find_owned(ring, 1, &slot), -ENOENT);
}

RUN_TESTS(20)
