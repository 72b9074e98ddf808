/* The order of tasks and slots, addressees, and the remains of an old iteration. */
#include "fixture.h"

TEST(seqs_wrap)
{
    sr_ring *ring SCOPED = make_ring(4, 2, 0);
    uint64_t gen;
    uint32_t found;
    dispatch(ring, 0, 1, 0, 0);
    dispatch(ring, 1, UINT64_MAX - 1, 0, 0);
    dispatch(ring, 2, 0, 0, 0);
    dispatch(ring, 3, UINT64_MAX, 0, 0);
    static const uint32_t order[] = {1, 3, 2, 0};
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(claim(ring, 1, NULL, &gen), order[i]);
        CHECK_OK(publish(ring, 1, order[i], gen, false));
    }
    for (int i = 0; i < 4; i++) {
        CHECK_OK(sr_wait_ready(ring, SR_ANY, 0, &found));
        CHECK_EQ(found, order[i]);
        take(ring, found);
    }
}

TEST(the_slot_released_last_is_picked_first)
{
    sr_ring *ring SCOPED = make_ring(4, 2, 0);
    uint32_t slot;
    uint64_t gen[4];
    CHECK_OK(sr_pick_free(ring, &slot));
    CHECK_EQ(slot, 0); /* the first of the unused slots */
    for (uint32_t i = 0; i < 4; i++)
        gen[i] = bring_to(ring, i, SR_LEASED, 1, false);
    CHECK_EQ(sr_pick_free(ring, &slot), -EAGAIN);
    static const uint32_t order[] = {2, 0, 3, 1};
    for (int i = 0; i < 4; i++) {
        CHECK_OK(sr_release(ring, order[i], gen[order[i]]));
        CHECK_OK(sr_pick_free(ring, &slot));
        CHECK_EQ(slot, order[i]);
    }
    for (int i = 3; i >= 0; i--) {
        CHECK_OK(sr_pick_free(ring, &slot));
        CHECK_EQ(slot, order[i]);
        dispatch(ring, slot, 0, 0, 0);
    }
}

TEST(a_used_slot_comes_before_an_untouched_one)
{
    sr_ring *ring SCOPED = make_ring(8, 2, 0);
    uint32_t slot;
    CHECK_OK(sr_release(ring, 5, bring_to(ring, 5, SR_LEASED, 1, false)));
    CHECK_OK(sr_pick_free(ring, &slot));
    CHECK_EQ(slot, 5);
    CHECK_EQ(sr_load_relaxed(&ring->header->high_water), 6);
}

/* ---- iterations ---- */

TEST(a_ready_batch_of_an_old_iteration_is_discarded_on_sight)
{
    sr_ring *ring SCOPED = make_ring(2, 2, 0);
    uint32_t slot, found;
    CHECK_OK(sr_begin_iteration(ring, 1));
    bring_to(ring, 0, SR_READY, 1, false);
    bring_to(ring, 1, SR_LEASED, 1, false);
    CHECK_OK(sr_wait_ready(ring, SR_ANY, 0, &found));
    CHECK_EQ(sr_pick_free(ring, &slot), -EAGAIN);
    CHECK_OK(sr_begin_iteration(ring, 2));
    CHECK_EQ(sr_wait_ready(ring, SR_ANY, 0, &found), -ETIMEDOUT);
    CHECK_EQ(state_of(ring, 0), SR_READY);
    CHECK_OK(sr_pick_free(ring, &slot));
    CHECK_EQ(slot, 0);
    CHECK_EQ(state_of(ring, 1), SR_LEASED); /* a lease outlives its iteration */
}

TEST(a_worker_frees_stale_tasks_and_claims_the_next)
{
    sr_ring *ring SCOPED = make_ring(4, 2, 0);
    uint64_t gen;
    uint32_t range;
    dispatch(ring, 0, 0, 0, 0);
    dispatch(ring, 1, 1, 0, 3);
    dispatch(ring, 2, 2, 1, 0);
    CHECK_OK(sr_begin_iteration(ring, 9));
    dispatch(ring, 3, 50, 0, 0);
    CHECK_EQ(claim(ring, 1, &range, &gen), 3);
    CHECK_EQ(range, SR_WHOLE);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_EQ(state_of(ring, i), SR_FREE);
}

TEST(a_busy_slot_of_an_old_iteration_does_not_hide_a_task_with_its_seq)
{
    sr_ring *ring SCOPED = make_ring(3, 3, 0);
    uint64_t gen, old;
    uint32_t range;
    dispatch(ring, 0, 5, 0, 1);
    CHECK_EQ(claim(ring, 1, &range, &old), 0); /* its only range is in progress */
    CHECK_OK(sr_begin_iteration(ring, 1));
    dispatch(ring, 1, 5, 0, 0);
    dispatch(ring, 2, 4, 0, 0);
    CHECK_EQ(claim(ring, 2, &range, &gen), 2);
    CHECK_EQ(claim(ring, 2, &range, &gen), 1);
    CHECK_EQ(sr_range_done(ring, 1, 0, 0, old, NULL), 0); /* and no worker has to finish it */
    CHECK_EQ(state_of(ring, 0), SR_FREE);
}

RUN_TESTS(20)
