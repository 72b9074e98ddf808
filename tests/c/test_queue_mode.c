/* Queue segments: producers claim FREE slots, consumers take the batch that was published first. */
#include "fixture.h"

static uint64_t produce(sr_ring *ring, uint32_t participant, uint32_t *slot)
{
    uint64_t gen;
    CHECK_OK(sr_claim_free(ring, participant, 0, slot, &gen));
    CHECK_OK(publish(ring, participant, *slot, gen, false));
    return gen;
}

TEST(a_consumer_takes_a_producers_batch)
{
    sr_ring *ring SCOPED = make_ring(2, 3, SR_SEG_QUEUE);
    uint32_t slot, found;
    uint64_t gen, taken, at;
    sr_result result = {.kind = SR_BATCH, .bytes = 11}, out;
    CHECK_OK(sr_claim_free(ring, 1, 0, &slot, &gen));
    CHECK_EQ(state_of(ring, slot), SR_CLAIMED);
    CHECK_EQ(owner_of(ring, slot), 2);
    CHECK_OK(sr_alloc(ring, 1, slot, 100, 64, &at, NULL));
    CHECK_EQ(at, 0);
    CHECK_OK(sr_publish(ring, 1, slot, gen, &result, false));
    CHECK_OK(sr_wait_ready(ring, SR_ANY, 0, &found));
    CHECK_EQ(found, slot);
    CHECK_OK(sr_take(ring, 2, found, &taken, &out));
    CHECK_EQ(taken, gen);
    CHECK_EQ(out.bytes, 11);
    CHECK_EQ(owner_of(ring, slot), 3); /* the consumer with the lease */
    CHECK_EQ(sr_take(ring, 0, found, &taken, &out), -EBUSY);
    CHECK_OK(sr_release(ring, slot, gen));
}

TEST(batches_are_taken_in_the_order_of_publication)
{
    sr_ring *ring SCOPED = make_ring(4, 3, SR_SEG_QUEUE);
    uint32_t slots[4], found;
    uint64_t gens[4];
    sr_store_relaxed(&ring->header->order, UINT64_MAX - 1); /* it wraps */
    for (int i = 0; i < 4; i++)
        CHECK_OK(sr_claim_free(ring, 1 + (uint32_t)i % 2, 0, &slots[i], &gens[i]));
    static const int order[] = {2, 0, 3, 1};
    for (int i = 0; i < 4; i++)
        CHECK_OK(publish(ring, 1 + (uint32_t)order[i] % 2, slots[order[i]], gens[order[i]], false));
    for (int i = 0; i < 4; i++) {
        CHECK_OK(sr_wait_ready(ring, SR_ANY, 0, &found));
        CHECK_EQ(found, slots[order[i]]);
        take(ring, found);
    }
}

TEST(only_the_first_batch_can_be_taken)
{
    /* A faster consumer may take the batch that a slow one saw first; then the slot may contain a later batch. */
    sr_ring *ring SCOPED = make_ring(2, 4, SR_SEG_QUEUE);
    uint32_t first, second, slot, found;
    uint64_t gen;
    sr_result result;
    produce(ring, 1, &first);
    CHECK_OK(sr_wait_ready(ring, SR_ANY, 0, &found)); /* the slow consumer */
    CHECK_OK(sr_take(ring, 2, first, &gen, &result));
    produce(ring, 1, &second);
    CHECK_OK(sr_release(ring, first, gen));
    produce(ring, 1, &slot);
    CHECK_EQ(slot, first);
    CHECK_EQ(sr_take(ring, 3, found, &gen, &result), -EBUSY);
    CHECK_OK(sr_wait_ready(ring, SR_ANY, 0, &found));
    CHECK_EQ(found, second);
    CHECK_OK(sr_take(ring, 3, found, &gen, &result));
}

TEST(a_queue_segment_accepts_no_tasks)
{
    sr_ring *ring SCOPED = make_ring(1, 2, SR_SEG_QUEUE);
    sr_task task = {0};
    uint64_t gen;
    CHECK_EQ(sr_dispatch(ring, 0, &task, &gen), -EINVAL);
    nothing_to_claim(ring, 1);
}

/* ---- deaths ---- */

TEST(a_dead_consumers_lease_becomes_free)
{
    sr_ring *ring SCOPED = make_ring(2, 4, SR_SEG_QUEUE);
    uint32_t slot;
    uint64_t gen, other;
    sr_result result;
    produce(ring, 1, &slot);
    CHECK_OK(sr_take(ring, 2, slot, &gen, &result));
    produce(ring, 1, &slot);
    CHECK_OK(sr_take(ring, 3, slot, &other, &result));
    CHECK_EQ(sr_recover(ring, 2), 0);
    CHECK_EQ(state_of(ring, slot), SR_LEASED); /* by the other consumer */
    CHECK_EQ(state_of(ring, 1 - slot), SR_FREE);
    CHECK_EQ(sr_release(ring, 1 - slot, gen), -ESTALE);
}

TEST(a_dead_consumers_lease_of_a_pinned_batch_is_parked)
{
    sr_ring *ring SCOPED = make_ring(1, 3, SR_SEG_QUEUE);
    uint32_t slot;
    uint64_t gen;
    sr_result result;
    CHECK_OK(sr_claim_free(ring, 1, 0, &slot, &gen));
    CHECK_OK(publish(ring, 1, slot, gen, true));
    CHECK_OK(sr_take(ring, 2, slot, &gen, &result));
    CHECK_EQ(sr_recover(ring, 2), 0);
    CHECK_EQ(state_of(ring, slot), SR_PARKED);
    CHECK_OK(sr_unpin(ring, 1, slot, gen));
    CHECK_EQ(state_of(ring, slot), SR_FREE);
}

RUN_TESTS(30)
