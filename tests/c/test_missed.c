/* A change while a sleeper scans, before or after its announcement, is never missed. A scan takes long here, because
 * there are many slots, and the change comes after the scan has passed: in the first slot, at a random moment. No
 * participant rescans (see the Makefile), so a missed change is a hang. */
#include "fixture.h"

enum { MANY = 1000 };

static sr_ring *ring;
static _Atomic uint64_t go, came; /* rounds */
static uint64_t gens[MANY];

static void make_long_ring(uint32_t flags)
{
    sr_options o = {.n_slots = MANY, .n_participants = 3, .backing = SR_BACKING_MEMFD, .capacity = 8192,
                    .task_capacity = 8192, .flags = flags};
    CHECK_OK(sr_create(&o, &ring, NULL));
    sr_raise_high_water(ring, MANY - 1);
}

static void *repeat(void *look)
{
    for (uint64_t round = 1; await_round(&go, round) == round; round++) {
        ((void (*)(void))look)();
        sr_store_release(&came, round);
    }
    return NULL;
}

/* Runs `look` in a thread, `change` concurrently, and `back` after the change was seen. */
static void race(void (*look)(void), void (*change)(void), void (*back)(void))
{
    pthread_t thread;
    uint64_t end = in_ms(RACE_MS);
    CHECK_OK(pthread_create(&thread, NULL, repeat, (void *)look));
    for (uint64_t round = 1; sr_now() < end; round++) {
        sr_store_release(&go, round);
        for (uint64_t until = sr_now() + round * 7919 % 20000; sr_now() < until;)
            ;
        change();
        await_round(&came, round);
        back();
    }
    sr_store_release(&go, OVER);
    pthread_join(thread, NULL);
    sr_destroy(ring);
}

static void claim_it(void)
{
    uint32_t slot, range;
    CHECK_OK(sr_claim(ring, 1, SR_FOREVER, &slot, &range, &gens[0]));
    CHECK_EQ(slot, 0);
}
static void dispatch_it(void) { dispatch(ring, 0, 0, 0, 0); }
static void abort_it(void) { CHECK_OK(sr_abort(ring, 1, 0, gens[0])); }

TEST(no_task_is_missed)
{
    make_long_ring(0);
    race(claim_it, dispatch_it, abort_it);
}

static void find_any(void)
{
    uint32_t found;
    CHECK_OK(sr_wait_ready(ring, SR_ANY, SR_FOREVER, &found));
    CHECK_EQ(found, 0);
}
static void publish_it(void) { CHECK_OK(publish(ring, 1, 0, gens[0], false)); }
static void discard_and_claim(void)
{
    CHECK_OK(sr_discard(ring, 0));
    gens[0] = bring_to(ring, 0, SR_CLAIMED, 1, false);
}

TEST(no_batch_is_missed)
{
    make_long_ring(0);
    gens[0] = bring_to(ring, 0, SR_CLAIMED, 1, false);
    race(find_any, publish_it, discard_and_claim);
}

static void claim_free(void)
{
    uint32_t slot;
    CHECK_OK(sr_claim_free(ring, 1, SR_FOREVER, &slot, &gens[0]));
    CHECK_EQ(slot, 0);
}
static void nothing(void) {}

TEST(no_free_slot_is_missed)
{
    make_long_ring(SR_SEG_QUEUE);
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t slot;
        CHECK_OK(sr_claim_free(ring, 1, 0, &slot, &gens[i]));
        CHECK_EQ(slot, i);
    }
    race(claim_free, abort_it, nothing);
}

RUN_TESTS(30)
