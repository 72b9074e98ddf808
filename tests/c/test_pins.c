/* Arrays that worker code keeps after the publish: the slot becomes FREE after both the release and the unpin. */
#include "fixture.h"

TEST(a_release_before_the_unpin_parks_the_slot)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    uint32_t slot;
    uint64_t gen = bring_to(ring, 0, SR_LEASED, 1, true);
    CHECK_OK(sr_release(ring, 0, gen));
    CHECK_EQ(state_of(ring, 0), SR_PARKED);
    CHECK_EQ(owner_of(ring, 0), 2); /* the worker */
    CHECK_EQ(sr_circulating(ring, 9), 0);
    CHECK_EQ(sr_pick_free(ring, &slot), -EAGAIN);
    CHECK_EQ(sr_release(ring, 0, gen), -ESTALE);
    CHECK_OK(sr_unpin(ring, 1, 0, gen));
    CHECK_EQ(state_of(ring, 0), SR_FREE);
    CHECK_EQ(sr_unpin(ring, 1, 0, gen), -ESTALE);
}

TEST(a_discarded_batch_that_is_pinned_is_parked)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    uint64_t gen = bring_to(ring, 0, SR_READY, 1, true);
    CHECK_OK(sr_discard(ring, 0));
    CHECK_EQ(state_of(ring, 0), SR_PARKED);
    CHECK_OK(sr_unpin(ring, 1, 0, gen));
    CHECK_EQ(state_of(ring, 0), SR_FREE);
}

TEST(a_dead_threads_pins_remain)
{
    sr_ring *ring SCOPED = make_ring(3, 2, 0);
    uint64_t leased = bring_to(ring, 0, SR_LEASED, 1, true);
    uint64_t parked = bring_to(ring, 1, SR_PARKED, 1, true);
    bring_to(ring, 2, SR_CLAIMED, 1, false);
    CHECK_EQ(sr_recover_thread(ring, 1), 1);
    CHECK_EQ(state_of(ring, 2), SR_TASK);
    CHECK_EQ(state_of(ring, 1), SR_PARKED);
    CHECK_OK(sr_release(ring, 0, leased));
    CHECK_EQ(state_of(ring, 0), SR_PARKED);
    CHECK_OK(sr_unpin(ring, 1, 0, leased));
    CHECK_OK(sr_unpin(ring, 1, 1, parked));
    CHECK_EQ(state_of(ring, 0), SR_FREE);
    CHECK_EQ(state_of(ring, 1), SR_FREE);
}

TEST(a_dead_workers_pins_are_released)
{
    sr_ring *ring SCOPED = make_ring(3, 3, 0);
    uint64_t leased = bring_to(ring, 0, SR_LEASED, 1, true);
    bring_to(ring, 1, SR_PARKED, 1, true);
    bring_to(ring, 2, SR_PARKED, 2, true); /* pinned by another worker */
    CHECK_EQ(sr_recover(ring, 1), 0);
    CHECK_EQ(state_of(ring, 0), SR_LEASED);
    CHECK_EQ(state_of(ring, 1), SR_FREE);
    CHECK_EQ(state_of(ring, 2), SR_PARKED);
    CHECK_OK(sr_release(ring, 0, leased));
    CHECK_EQ(state_of(ring, 0), SR_FREE);
}

RUN_TESTS(30)
