/* The cost of a lost wake-up, whose sender was killed between the change and the call. These tests run
 * with the shipped interval, all others with an endless one. */
#include "fixture.h"

static sr_ring *ring;

/* Changes a word like a participant that dies before it wakes another one. */
static void *change_without_waking(void *word)
{
    sleep_ms(50);
    poke(ring, 0, (uint64_t)(uintptr_t)word);
    return NULL;
}

static pthread_t later(uint64_t word)
{
    pthread_t thread;
    CHECK_OK(pthread_create(&thread, NULL, change_without_waking, (void *)(uintptr_t)word));
    return thread;
}

TEST(a_sleeping_worker_finds_a_task_that_nobody_announced)
{
    uint32_t slot, range;
    uint64_t gen;
    ring = make_ring(1, 2, 0);
    gen = dispatch(ring, 0, 0, 1, 0);
    poke(ring, 0, sr_word(SR_FREE, 0, gen));
    pthread_t thread = later(sr_word(SR_TASK, 0, gen));
    CHECK_OK(sr_claim(ring, 1, SR_FOREVER, &slot, &range, &gen));
    pthread_join(thread, NULL);
    sr_destroy(ring);
}

TEST(a_sleeping_producer_finds_a_slot_that_nobody_announced)
{
    uint32_t slot;
    uint64_t gen;
    ring = make_ring(1, 2, SR_SEG_QUEUE);
    CHECK_OK(sr_claim_free(ring, 1, 0, &slot, &gen));
    pthread_t thread = later(sr_word(SR_FREE, 0, gen));
    CHECK_OK(sr_claim_free(ring, 1, SR_FOREVER, &slot, &gen));
    pthread_join(thread, NULL);
    sr_destroy(ring);
}

static void *serve_without_waking(void *unused)
{
    (void)unused;
    sleep_ms(50);
    sr_store_release(&ring->participants[1].status, SR_PARTICIPANT_SERVING);
    return NULL;
}

TEST(a_wait_for_a_worker_sees_it_serve_unannounced)
{
    pthread_t thread;
    ring = make_ring(1, 2, 0);
    CHECK_OK(pthread_create(&thread, NULL, serve_without_waking, NULL));
    CHECK_OK(sr_wait_serving(ring, 1, SR_FOREVER));
    pthread_join(thread, NULL);
    sr_destroy(ring);
}

static void *settle_without_waking(void *gen)
{
    sleep_ms(50);
    sr_store_release(&ring->slots[0].layout, sr_word(SR_LAYOUT_STAGED, 0, (uint64_t)(uintptr_t)gen));
    return NULL;
}

TEST(a_wait_for_a_layout_sees_it_settled_unannounced)
{
    pthread_t thread;
    uint32_t range;
    uint64_t gen;
    ring = make_ring(1, 3, 0);
    dispatch(ring, 0, 0, 0, 2);
    claim(ring, 1, &range, &gen);
    CHECK_EQ(sr_layout_propose(ring, 1, 0, gen, 0), 0);
    CHECK_OK(pthread_create(&thread, NULL, settle_without_waking, (void *)(uintptr_t)gen));
    CHECK_EQ(sr_layout_propose(ring, 2, 0, gen, SR_FOREVER), SR_LAYOUT_STAGED);
    pthread_join(thread, NULL);
    sr_destroy(ring);
}

RUN_TESTS(20)
