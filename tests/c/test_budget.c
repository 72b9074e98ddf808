/* A segment's part of a budget: what it refuses, and how memory returns when it is lowered. */
#define _GNU_SOURCE
#include "fixture.h"
#include "needs.h"

#define UNIT (128 * KIB) /* a multiple of the steps in which payloads grow */

/* Let the segment take `more` bytes than it does now. */
static void allow(sr_ring *ring, uint64_t more)
{
    sr_usage usage;
    sr_set_budget(ring, 1, sr_committed(ring) + more, &usage);
    CHECK_EQ(usage.used, sr_committed(ring));
}

TEST(a_payload_beyond_the_budget_is_refused)
{
    sr_ring *ring SCOPED = make_ring(4, 3, 0);
    sr_alloc_error why = {0};
    CHECK_EQ(sr_budget(ring), 0);
    allow(ring, 2 * UNIT);
    bring_to(ring, 0, SR_CLAIMED, 1, false);
    CHECK(sr_commit(ring, 1, 0, UNIT, &why) == 0);
    CHECK(sr_commit(ring, 1, 0, 4 * UNIT, &why) == -ENOSPC);
    CHECK_EQ(why.limit, SR_LIMIT_BUDGET);
    CHECK_EQ(why.needed, 3 * UNIT);
    CHECK_EQ(why.free, UNIT + SR_PAYLOAD_COMMIT); /* the payload's first bytes were there before */
    CHECK(sr_load_relaxed(&ring->participants[1].growing) >> 32 == 1 &&
          sr_pages_of(sr_load_relaxed(&ring->participants[1].growing)) == 0); /* the second one was not announced */
    CHECK(sr_commit(ring, 1, 0, 2 * UNIT, &why) == 0);
    CHECK(sr_commit_task(ring, SR_CONSUMER, 1, 64 * KIB, &why) == 0); /* task areas count, but are never refused */
    sr_usage usage;
    sr_usage_of(ring, &usage);
    CHECK_EQ(usage.used, sr_committed(ring));
    CHECK_EQ(usage.largest, 2 * UNIT);
    CHECK_EQ(usage.fixed, sr_committed(ring) - 2 * UNIT + SR_PAYLOAD_COMMIT);
}

TEST(growth_that_others_have_announced_counts_against_the_budget)
{
    sr_ring *ring SCOPED = make_ring(4, 3, 0);
    sr_alloc_error why = {0};
    sr_usage usage;
    allow(ring, 2 * UNIT);
    bring_to(ring, 0, SR_CLAIMED, 1, false);
    sr_store_relaxed(&ring->participants[2].growing, (UINT64_C(1) << 32) | 2 * UNIT / SR_PAGE);
    sr_usage_of(ring, &usage);
    CHECK_EQ(usage.used, sr_committed(ring) + 2 * UNIT);
    CHECK(sr_commit(ring, 1, 0, UNIT, &why) == -ENOSPC); /* after a wait for the other one */
    sr_end_growing(ring, 2, sr_load_relaxed(&ring->participants[2].growing));
    CHECK(sr_commit(ring, 1, 0, UNIT, &why) == 0);
}

TEST(a_lower_budget_takes_the_memory_of_free_slots_only)
{
    needs_holes();
    sr_ring *ring SCOPED = make_ring(4, 3, 0);
    sr_usage usage;
    uint64_t gens[3];
    for (uint32_t i = 0; i < 3; i++) {
        gens[i] = bring_to(ring, i, SR_CLAIMED, 1, false);
        CHECK(sr_commit(ring, 1, i, 2 * UNIT, NULL) == 0);
    }
    CHECK(sr_abort(ring, 1, 0, gens[0]) == 0);
    CHECK(sr_abort(ring, 1, 1, gens[1]) == 0);
    uint64_t before = sr_committed(ring);
    sr_set_budget(ring, 1, before - UNIT, &usage);
    CHECK_EQ(usage.used, before - 2 * UNIT + SR_PAYLOAD_COMMIT); /* one free slot's memory suffices */
    CHECK_EQ(sr_slot_committed(ring, 0), SR_PAYLOAD_COMMIT);
    sr_set_budget(ring, 1, UNIT, &usage);
    CHECK_EQ(sr_slot_committed(ring, 1), SR_PAYLOAD_COMMIT);
    CHECK_EQ(sr_slot_committed(ring, 2), 2 * UNIT); /* in use */
    CHECK(usage.used > UNIT);
    CHECK(sr_commit(ring, 1, 2, 3 * UNIT, NULL) == -ENOSPC); /* it cannot grow until it has less */
}

TEST(a_budget_bounds_how_many_slots_can_be_filled)
{
    sr_ring *ring SCOPED = make_ring(4, 3, 0);
    sr_usage usage;
    CHECK(sr_fillable(ring, 4) == 4);
    sr_set_budget(ring, 1, sr_committed(ring), &usage);
    CHECK(sr_fillable(ring, 4) == 4); /* the size of a batch is not known */
    bring_to(ring, 0, SR_READY, 1, false);
    sr_set_budget(ring, 1, usage.fixed + 3 * UNIT, &usage);
    bring_to(ring, 1, SR_CLAIMED, 1, false);
    CHECK(sr_commit(ring, 1, 1, UNIT, NULL) == 0);
    CHECK(sr_fillable(ring, 4) == 3);
    (void)take(ring, 0); /* leased, it counts as filled */
    CHECK(sr_fillable(ring, 4) == 2);
    sr_set_budget(ring, 1, 1, &usage);
    CHECK(sr_fillable(ring, 4) == 0);
}

RUN_TESTS(20)
