/* Waiting for memory: how long who is short waits, and which of them is refused. */
#define _GNU_SOURCE
#include "small.h"

static void who_is_short_waits_only_for_what_can_come_back(void)
{
    sr_ring *ring = small_ring(3);
    sr_shortage why = {0};
    uint64_t gen = bring_to(ring, 0, SR_CLAIMED, 1, false), waited = 0;
    CHECK_MOUNTED(sr_commit(ring, 1, 0, 5 * MIB, &why) == 0);
    CHECK_MOUNTED(sr_commit(ring, 2, 1, 4 * MIB, &why) == -ENOSPC);
    CHECK_MOUNTED(sr_wait_room(ring, 0, 1, &why, &waited) == -ENOSPC); /* the consumer waits for nobody */
    CHECK_MOUNTED(sr_wait_room(ring, 2, 1, &why, &waited) == -ENOSPC); /* as a party that nobody has joined, too */
    CHECK_MOUNTED(sr_join(ring, 2) == 0);
    CHECK_MOUNTED(sr_wait_room(ring, 2, 1, &why, &waited) == 0 && waited == 0);
    sr_store_relaxed(&ring->header->wanted, 2); /* the consumer sleeps until this batch comes */
    sr_store_relaxed(&ring->header->ready_waiters, 1);
    int looks = 0;
    while (sr_wait_room(ring, 2, 1, &why, &waited) == 0)
        looks++;
    CHECK_MOUNTED(looks > 0 && waited >= SR_PATIENCE_NS);
    bring_to(ring, 2, SR_TASK, 0, false);
    sr_store_relaxed(&ring->header->wanted, 3); /* for one that nobody works on: all wait for memory */
    sr_store_relaxed(&ring->parties[1].short_of, 1);
    waited = 0;
    CHECK_MOUNTED(sr_wait_room(ring, 2, 1, &why, &waited) == 0 && waited > 0);
    sr_store_relaxed(&ring->parties[1].short_of, 0); /* or somebody may, who perhaps has not even begun */
    CHECK_MOUNTED(sr_wait_room(ring, 2, 1, &why, &waited) == 0 && waited == 0);
    sr_store_relaxed(&ring->parties[1].short_of, 1);
    sr_store_relaxed(&ring->header->ready_waiters, 0); /* it is at something else, and will come */
    CHECK_MOUNTED(sr_wait_room(ring, 2, 1, &why, &waited) == 0 && waited == 0);
    CHECK_MOUNTED(sr_abort(ring, 1, 0, gen) == 0);
    CHECK_MOUNTED(sr_commit(ring, 2, 1, 60 * MIB, &why) == -ENOSPC);
    waited = 0;
    CHECK_MOUNTED(sr_wait_room(ring, 2, 1, &why, &waited) == -ENOSPC && waited == 0);
    sr_destroy(ring);
}

/* Looks for longer than anybody's patience: whether a party that waits for memory is refused. */
static bool is_refused(sr_ring *ring, uint32_t party, uint32_t slot, sr_shortage why)
{
    uint64_t waited = 0;
    int rc = 0;
    for (uint64_t looks = 0; rc == 0 && looks <= SR_PATIENCE_NS / SR_SHORT_LOOK_NS + 5; looks++)
        rc = sr_wait_room(ring, party, slot, &why, &waited);
    CHECK_MOUNTED(rc == 0 || rc == -ENOSPC);
    CHECK_MOUNTED(sr_is_short(ring, party));
    CHECK_MOUNTED(sr_end_wait_room(ring, party) == 0 && !sr_is_short(ring, party));
    return rc != 0;
}

static void who_is_short_waits_as_long_as_another_works(void)
{
    sr_ring *ring = small_ring(4);
    sr_shortage why = {0};
    bring_to(ring, 0, SR_CLAIMED, 1, false);
    bring_to(ring, 1, SR_CLAIMED, 2, false);
    CHECK_MOUNTED(sr_commit(ring, 1, 0, 5 * MIB, &why) == 0);
    CHECK_MOUNTED(sr_commit(ring, 2, 1, 4 * MIB, &why) == -ENOSPC);
    CHECK_MOUNTED(sr_join(ring, 2) == 0);
    sr_store_relaxed(&ring->header->ready_waiters, 1); /* the consumer sleeps until any batch comes */
    CHECK_MOUNTED(!is_refused(ring, 2, 1, why));       /* party 1 will bring one */
    sr_store_relaxed(&ring->header->wanted, 1);
    CHECK_MOUNTED(!is_refused(ring, 2, 1, why));
    dispatch(ring, 2, 7, 3, 0); /* a task for who has not begun yet: new processes take their time */
    sr_store_relaxed(&ring->header->wanted, 3);
    CHECK_MOUNTED(!is_refused(ring, 2, 1, why));
    sr_store_relaxed(&ring->parties[3].short_of, 4); /* all wait, and for one another */
    sr_store_relaxed(&ring->parties[1].short_of, 1);
    CHECK_MOUNTED(!is_refused(ring, 2, 1, why)); /* the first of them goes first */
    sr_store_relaxed(&ring->parties[1].short_of, 0);
    CHECK_MOUNTED(is_refused(ring, 2, 1, why));
    sr_store_relaxed(&ring->parties[1].short_of, 1);
    sr_store_relaxed(&ring->header->wanted, 2); /* or who keeps the consumer waiting */
    CHECK_MOUNTED(is_refused(ring, 2, 1, why));
    sr_store_relaxed(&ring->header->wanted, 1);
    CHECK_MOUNTED(!is_refused(ring, 2, 1, why));
    sr_destroy(ring);
}

static void who_dies_while_it_waits_for_memory_does_not_wait_any_more(void)
{
    sr_ring *ring = small_ring(3);
    CHECK_MOUNTED(sr_join(ring, 1) == 0);
    sr_store_relaxed(&ring->parties[1].short_of, 1);
    CHECK_MOUNTED(sr_recover(ring, 1) == 0 && !sr_is_short(ring, 1));
    sr_destroy(ring);
}

static const struct test tests[] = {
    T(who_is_short_waits_only_for_what_can_come_back),
    T(who_is_short_waits_as_long_as_another_works),
    T(who_dies_while_it_waits_for_memory_does_not_wait_any_more),
};
RUN_TESTS(tests, 20)
