/* The cost of a lost wake-up, whose sender was killed between the change and the call. These tests run
 * with the shipped interval, all others with an endless one. */
#include "fixture.h"

static sr_ring *ring;
static uint64_t gen;
static uint32_t slot, range;

static void *after_a_while(void *change)
{
    sleep_ms(50);
    ((void (*)(void))change)();
    return NULL;
}

/* Changes a word like a participant that dies before it wakes another one. */
static pthread_t later(void (*change)(void))
{
    pthread_t thread;
    CHECK_OK(pthread_create(&thread, NULL, after_a_while, (void *)change));
    return thread;
}

static void appear(void) { poke(ring, 0, sr_word(SR_TASK, 0, gen)); }

TEST(a_sleeping_worker_finds_a_task_that_nobody_announced)
{
    ring = make_ring(1, 2, 0);
    gen = dispatch(ring, 0, 0, 1, 0);
    poke(ring, 0, sr_word(SR_FREE, 0, gen));
    pthread_t thread = later(appear);
    CHECK_OK(sr_claim(ring, 1, SR_FOREVER, &slot, &range, &gen));
    pthread_join(thread, NULL);
}

static void become_free(void) { poke(ring, 0, sr_word(SR_FREE, 0, gen)); }

TEST(a_sleeping_producer_finds_a_slot_that_nobody_announced)
{
    uint64_t next;
    ring = make_ring(1, 2, SR_SEG_QUEUE);
    CHECK_OK(sr_claim_free(ring, 1, 0, &slot, &gen));
    pthread_t thread = later(become_free);
    CHECK_OK(sr_claim_free(ring, 1, SR_FOREVER, &slot, &next));
    pthread_join(thread, NULL);
}

static void serve(void) { sr_store_release(&ring->participants[1].status, SR_PARTICIPANT_SERVING); }

TEST(a_wait_for_a_worker_sees_it_serve_unannounced)
{
    ring = make_ring(1, 2, 0);
    pthread_t thread = later(serve);
    CHECK_OK(sr_wait_serving(ring, 1, SR_FOREVER));
    pthread_join(thread, NULL);
}

static void settle(void) { sr_store_release(&ring->slots[0].layout, sr_word(SR_LAYOUT_STAGED, 0, gen)); }

TEST(a_wait_for_a_layout_sees_it_settled_unannounced)
{
    ring = make_ring(1, 3, 0);
    dispatch(ring, 0, 0, 0, 2);
    claim(ring, 1, &range, &gen);
    CHECK_EQ(sr_layout_propose(ring, 1, 0, gen, 0), 0);
    pthread_t thread = later(settle);
    CHECK_EQ(sr_layout_propose(ring, 2, 0, gen, SR_FOREVER), SR_LAYOUT_STAGED);
    pthread_join(thread, NULL);
}

RUN_TESTS(20)
