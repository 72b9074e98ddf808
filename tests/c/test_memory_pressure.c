/* Waiting for memory: how long a worker waits, and which of several waiting workers is refused. */
#define _GNU_SOURCE
#include "small.h"

TEST(a_worker_waits_only_for_memory_that_others_can_release)
{
    sr_ring *ring SCOPED = small_ring(3);
    sr_alloc_error why = {0};
    uint64_t gen = bring_to(ring, 0, SR_CLAIMED, 1, false), waited = 0;
    CHECK(sr_commit(ring, 1, 0, 5 * MIB, &why) == 0);
    CHECK(sr_commit(ring, 2, 1, 4 * MIB, &why) == -ENOSPC);
    CHECK(sr_wait_memory(ring, 0, 1, &why, &waited) == -ENOSPC); /* the consumer never waits */
    /* nor does a participant that no process has joined */
    CHECK(sr_wait_memory(ring, 2, 1, &why, &waited) == -ENOSPC);
    CHECK(sr_join(ring, 2) == 0);
    CHECK(sr_wait_memory(ring, 2, 1, &why, &waited) == 0 && waited == 0);
    sr_store_relaxed(&ring->header->wanted, 2); /* the consumer sleeps until this batch is published */
    sr_store_relaxed(&ring->header->ready_waiters, 1);
    int looks = 0;
    while (sr_wait_memory(ring, 2, 1, &why, &waited) == 0)
        looks++;
    CHECK(looks > 0 && waited >= SR_MEMORY_WAIT_NS);
    bring_to(ring, 2, SR_TASK, 0, false);
    sr_store_relaxed(&ring->header->wanted, 3); /* for an unclaimed task: all workers wait for memory */
    sr_store_relaxed(&ring->participants[1].needs_memory_for, 1);
    waited = 0;
    CHECK(sr_wait_memory(ring, 2, 1, &why, &waited) == 0 && waited > 0);
    sr_store_relaxed(&ring->participants[1].needs_memory_for, 0); /* another worker may claim it later */
    CHECK(sr_wait_memory(ring, 2, 1, &why, &waited) == 0 && waited == 0);
    sr_store_relaxed(&ring->participants[1].needs_memory_for, 1);
    sr_store_relaxed(&ring->header->ready_waiters, 0); /* the consumer is busy and does not sleep yet */
    CHECK(sr_wait_memory(ring, 2, 1, &why, &waited) == 0 && waited == 0);
    CHECK(sr_abort(ring, 1, 0, gen) == 0);
    CHECK(sr_commit(ring, 2, 1, 60 * MIB, &why) == -ENOSPC);
    waited = 0;
    CHECK(sr_wait_memory(ring, 2, 1, &why, &waited) == -ENOSPC && waited == 0);
}

/* Return whether a participant that waits for memory is refused. The checks last longer than any wait. */
static bool is_refused(sr_ring *ring, uint32_t participant, uint32_t slot, sr_alloc_error why)
{
    uint64_t waited = 0;
    int rc = 0;
    for (uint64_t looks = 0; rc == 0 && looks <= SR_MEMORY_WAIT_NS / SR_MEMORY_CHECK_NS + 5; looks++)
        rc = sr_wait_memory(ring, participant, slot, &why, &waited);
    CHECK(rc == 0 || rc == -ENOSPC);
    CHECK(sr_needs_memory(ring, participant));
    CHECK(sr_end_wait_memory(ring, participant) == 0 && !sr_needs_memory(ring, participant));
    return rc != 0;
}

TEST(a_worker_waits_for_memory_while_another_one_makes_progress)
{
    sr_ring *ring SCOPED = small_ring(4);
    sr_alloc_error why = {0};
    bring_to(ring, 0, SR_CLAIMED, 1, false);
    bring_to(ring, 1, SR_CLAIMED, 2, false);
    CHECK(sr_commit(ring, 1, 0, 5 * MIB, &why) == 0);
    CHECK(sr_commit(ring, 2, 1, 4 * MIB, &why) == -ENOSPC);
    CHECK(sr_join(ring, 2) == 0);
    sr_store_relaxed(&ring->header->ready_waiters, 1); /* the consumer sleeps until any batch is published */
    CHECK(!is_refused(ring, 2, 1, why));       /* participant 1 will publish one */
    sr_store_relaxed(&ring->header->wanted, 1);
    CHECK(!is_refused(ring, 2, 1, why));
    dispatch(ring, 2, 7, 3, 0); /* the task of a worker that has not started yet */
    sr_store_relaxed(&ring->header->wanted, 3);
    CHECK(!is_refused(ring, 2, 1, why));
    sr_store_relaxed(&ring->participants[3].needs_memory_for, 4); /* all workers wait for each other */
    sr_store_relaxed(&ring->participants[1].needs_memory_for, 1);
    CHECK(!is_refused(ring, 2, 1, why)); /* the lowest number is refused first */
    sr_store_relaxed(&ring->participants[1].needs_memory_for, 0);
    CHECK(is_refused(ring, 2, 1, why));
    sr_store_relaxed(&ring->participants[1].needs_memory_for, 1);
    sr_store_relaxed(&ring->header->wanted, 2); /* or the worker for which the consumer waits */
    CHECK(is_refused(ring, 2, 1, why));
    sr_store_relaxed(&ring->header->wanted, 1);
    CHECK(!is_refused(ring, 2, 1, why));
}

TEST(recovery_ends_the_wait_for_memory_of_a_dead_worker)
{
    sr_ring *ring SCOPED = small_ring(3);
    CHECK(sr_join(ring, 1) == 0);
    sr_store_relaxed(&ring->participants[1].needs_memory_for, 1);
    CHECK(sr_recover(ring, 1) == 0 && !sr_needs_memory(ring, 1));
}

RUN_TESTS(20)
