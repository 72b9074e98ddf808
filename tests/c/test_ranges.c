/* Slots with ranges: ranges, the layout, finishing, stopping. */
#include "fixture.h"

static int done(sr_ring *ring, uint32_t participant, uint32_t range, uint64_t gen)
{
    return sr_range_done(ring, participant, 0, range, gen, NULL);
}

TEST(ranges_go_out_one_by_one_and_the_last_to_end_finishes)
{
    sr_ring *ring SCOPED = make_ring(1, 4, 0);
    uint32_t range;
    uint64_t gen, g = dispatch(ring, 0, 0, 0, 3);
    CHECK_EQ(state_of(ring, 0), SR_SHARED);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK_EQ(claim(ring, i + 1, &range, &gen), 0);
        CHECK_EQ(range, i);
        CHECK_EQ(gen, g);
    }
    nothing_to_claim(ring, 1);
    CHECK_EQ(publish(ring, 1, 0, gen, false), -ESTALE);
    CHECK_EQ(done(ring, 2, 1, gen), 0);
    CHECK_EQ(done(ring, 3, 2, gen), 0);
    CHECK_EQ(state_of(ring, 0), SR_SHARED);
    CHECK_EQ(done(ring, 1, 0, gen), 1);
    CHECK_EQ(state_of(ring, 0), SR_CLAIMED);
    CHECK_EQ(owner_of(ring, 0), 2);
    CHECK_OK(publish(ring, 1, 0, gen, false));
    CHECK_EQ(take(ring, 0), gen);
}

TEST(a_range_is_its_owners_alone)
{
    sr_ring *ring SCOPED = make_ring(1, 3, 0);
    uint32_t range;
    uint64_t gen;
    dispatch(ring, 0, 0, 0, 2);
    claim(ring, 1, &range, &gen);
    CHECK_EQ(done(ring, 2, 0, gen), -ESTALE);
    CHECK_EQ(done(ring, 1, 1, gen), -ESTALE); /* not claimed */
    CHECK_EQ(done(ring, 1, 0, gen + 1), -ESTALE);
    CHECK_EQ(done(ring, 1, 2, gen), -EINVAL); /* no such range */
    CHECK_EQ(sr_range_done(ring, 1, 1, 0, gen, NULL), -EINVAL);
    CHECK_EQ(done(ring, 1, 0, gen), 0);
    CHECK_EQ(done(ring, 1, 0, gen), -ESTALE); /* twice */
}

/* ---- layout ---- */

TEST(the_layout_is_proposed_once_and_settled_once)
{
    sr_ring *ring SCOPED = make_ring(1, 3, 0);
    uint32_t range;
    uint64_t gen;
    sr_result table = {.table_off = 640, .n_leaves = 2};
    dispatch(ring, 0, 0, 0, 2);
    claim(ring, 1, &range, &gen);
    claim(ring, 2, &range, &gen);
    CHECK_EQ(sr_layout_propose(ring, 1, 0, gen, 0), 0);
    CHECK_EQ(sr_layout_propose(ring, 1, 0, gen, 0), 0); /* it may still settle it itself */
    CHECK_EQ(sr_layout_propose(ring, 2, 0, gen, in_ms(10)), -ETIMEDOUT);
    CHECK_EQ(sr_layout_settle(ring, 2, 0, gen, SR_LAYOUT_DIRECT, &table), -ESTALE);
    CHECK_EQ(sr_layout_settle(ring, 1, 0, gen + 1, SR_LAYOUT_DIRECT, &table), -ESTALE);
    CHECK_EQ(sr_layout_settle(ring, 1, 0, gen, SR_LAYOUT_NONE, NULL), -EINVAL);
    CHECK_EQ(sr_layout_settle(ring, 1, 0, gen, SR_LAYOUT_PROPOSING, NULL), -EINVAL);
    CHECK_OK(sr_layout_settle(ring, 1, 0, gen, SR_LAYOUT_DIRECT, &table));
    CHECK_EQ(sr_layout_propose(ring, 2, 0, gen, 0), SR_LAYOUT_DIRECT);
    CHECK_EQ(sr_result_of(ring, 0, SR_WHOLE)->table_off, 640);
    CHECK_EQ(sr_layout_settle(ring, 1, 0, gen, SR_LAYOUT_STAGED, NULL), -ESTALE);
    CHECK_EQ(sr_layout_propose(ring, 1, 0, gen, 0), SR_LAYOUT_DIRECT);
    CHECK_EQ(sr_layout_propose(ring, 1, 1, gen, 0), -EINVAL);
}

/* ---- stopping ---- */

TEST(a_cancelled_cooperative_task_gives_out_no_range_and_is_not_published)
{
    sr_ring *ring SCOPED = make_ring(1, 3, 0);
    uint32_t range;
    uint64_t gen;
    dispatch(ring, 0, 0, 0, 4);
    claim(ring, 1, &range, &gen);
    claim(ring, 2, &range, &gen);
    CHECK_EQ(done(ring, 2, 1, gen), 0);
    CHECK_EQ(sr_cancel(ring, 0, gen), -EBUSY);
    nothing_to_claim(ring, 2);
    CHECK_EQ(done(ring, 1, 0, gen), 0); /* the last one, but nothing to finish */
    CHECK_EQ(state_of(ring, 0), SR_FREE);
}

RUN_TESTS(30)
