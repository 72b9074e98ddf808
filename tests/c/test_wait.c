/* Sleeping and waking: deadlines, signals and close. No wake-up is lost or reaches the wrong participant. */
#include "fixture.h"

static sr_ring *ring;

static void sleeps_until(int (*wait)(uint64_t deadline))
{
    uint64_t deadline = in_ms(60);
    CHECK_EQ(wait(deadline), -ETIMEDOUT);
    CHECK_OP(sr_now(), >=, deadline);
    CHECK_EQ(wait(1), -ETIMEDOUT); /* a deadline in the past */
}

static int wait_ready_any(uint64_t deadline)
{
    uint32_t found;
    return sr_wait_ready(ring, SR_ANY, deadline, &found);
}

static int wait_ready_one(uint64_t deadline)
{
    uint32_t found;
    return sr_wait_ready(ring, 1, deadline, &found);
}

static int wait_claim(uint64_t deadline)
{
    uint32_t slot, range;
    uint64_t gen;
    return sr_claim(ring, 1, deadline, &slot, &range, &gen);
}

static int wait_serving(uint64_t deadline) { return sr_wait_serving(ring, 1, deadline); }

static int wait_free(uint64_t deadline)
{
    uint32_t slot;
    uint64_t gen;
    return sr_claim_free(ring, 1, deadline, &slot, &gen);
}

static uint64_t layout_gen;

static int wait_layout(uint64_t deadline) { return sr_layout_propose(ring, 2, 0, layout_gen, deadline); }

/* All waits, in a ring where no event ends them. */
static int (*const waits[])(uint64_t) = {wait_ready_any, wait_ready_one, wait_claim, wait_serving, wait_free,
                                         wait_layout};
#define N_WAITS (sizeof waits / sizeof *waits)

static void prepare(int (*wait)(uint64_t))
{
    uint32_t slot, range;
    uint64_t gen;
    ring = make_ring(2, 3, wait == wait_free ? SR_SEG_QUEUE : 0);
    if (wait == wait_free) {
        CHECK_OK(sr_claim_free(ring, 2, 0, &slot, &gen));
        CHECK_OK(sr_claim_free(ring, 2, 0, &slot, &gen));
    }
    if (wait == wait_layout) {
        layout_gen = dispatch(ring, 0, 0, 0, 2);
        claim(ring, 1, &range, &gen);
        CHECK_OK(sr_layout_propose(ring, 1, 0, layout_gen, 0));
    }
}

TEST(no_wait_ends_before_its_deadline)
{
    for (size_t i = 0; i < N_WAITS; i++) {
        prepare(waits[i]);
        sleeps_until(waits[i]);
        CHECK_EQ(sr_load_acquire(&ring->header->ready_waiters), 0); /* each announcement is withdrawn */
        CHECK_EQ(sr_load_acquire(&ring->header->free_waiters), 0);
        CHECK_EQ(sr_load_acquire(&ring->participants[1].waiting), 0);
        sr_destroy(ring);
    }
}

static void *interrupt_main(void *thread)
{
    for (int i = 0; i < 3; i++) {
        sleep_ms(30);
        pthread_kill(*(pthread_t *)thread, SIGUSR1);
    }
    return NULL;
}

TEST(a_signal_ends_every_wait_with_and_without_sa_restart)
{
    for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
        for (size_t i = 0; i < N_WAITS; i++) {
            struct sigaction action = {.sa_handler = interrupt, .sa_flags = flags};
            pthread_t self = pthread_self(), other;
            prepare(waits[i]);
            sigaction(SIGUSR1, &action, NULL);
            CHECK_OK(pthread_create(&other, NULL, interrupt_main, &self));
            CHECK_EQ(waits[i](SR_FOREVER), -EINTR);
            pthread_join(other, NULL);
            sr_destroy(ring);
        }
    }
}

static void *close_later(void *unused)
{
    (void)unused;
    sleep_ms(40);
    CHECK_OK(sr_close(ring));
    return NULL;
}

TEST(a_close_ends_every_wait_for_good)
{
    for (size_t i = 0; i < N_WAITS; i++) {
        pthread_t other;
        prepare(waits[i]);
        CHECK(!sr_closed(ring));
        CHECK_OK(pthread_create(&other, NULL, close_later, NULL));
        CHECK_EQ(waits[i](SR_FOREVER), -ESHUTDOWN);
        pthread_join(other, NULL);
        CHECK(sr_closed(ring));
        CHECK_EQ(waits[i](SR_FOREVER), -ESHUTDOWN);
        sr_destroy(ring);
    }
}

static void *interrupt_later(void *unused)
{
    (void)unused;
    sleep_ms(40);
    CHECK_OK(sr_interrupt(ring, true));
    return NULL;
}

TEST(an_interrupt_ends_waits_for_batches_until_it_is_withdrawn)
{
    int (*const waits_ready[])(uint64_t) = {wait_ready_any, wait_ready_one};
    for (size_t i = 0; i < 2; i++) {
        pthread_t other;
        prepare(waits_ready[i]);
        CHECK_OK(pthread_create(&other, NULL, interrupt_later, NULL));
        CHECK_EQ(waits_ready[i](SR_FOREVER), -ECANCELED);
        pthread_join(other, NULL);
        CHECK_EQ(waits_ready[i](SR_FOREVER), -ECANCELED);
        CHECK_EQ(wait_claim(in_ms(20)), -ETIMEDOUT); /* other waits continue */
        bring_to(ring, 1, SR_READY, 1, false);
        CHECK_OK(waits_ready[i](SR_FOREVER)); /* a READY batch is found */
        CHECK_OK(sr_release(ring, 1, take(ring, 1)));
        CHECK_OK(sr_interrupt(ring, false));
        CHECK_EQ(waits_ready[i](in_ms(20)), -ETIMEDOUT);
        sr_destroy(ring);
    }
}

TEST(a_reopened_segment_works_again)
{
    ring = make_ring(2, 3, 0);
    CHECK_OK(sr_close(ring));
    CHECK_EQ(wait_claim(1), -ESHUTDOWN);
    CHECK_OK(sr_reopen(ring));
    CHECK(!sr_closed(ring));
    bring_to(ring, 0, SR_READY, 1, false);
    CHECK_OK(wait_ready_any(SR_FOREVER));
    sr_destroy(ring);
}

TEST(a_waiting_task_is_claimed_even_after_the_deadline)
{
    ring = make_ring(1, 2, 0);
    dispatch(ring, 0, 0, 0, 0);
    CHECK_OK(wait_claim(1));
    sr_destroy(ring);
}

/* ---- wake-ups ---- */

struct claimer {
    pthread_t thread;
    uint32_t participant;
    int rc;
    uint32_t slot;
    uint64_t gen;
};

static void *claim_once(void *argument)
{
    struct claimer *c = argument;
    uint32_t range;
    c->rc = sr_claim(ring, c->participant, SR_FOREVER, &c->slot, &range, &c->gen);
    return NULL;
}

static bool announced(uint32_t participant) { return sr_load_acquire(&ring->participants[participant].waiting) == 1; }

static void start(struct claimer *c, uint32_t participant)
{
    *c = (struct claimer){.participant = participant};
    CHECK_OK(pthread_create(&c->thread, NULL, claim_once, c));
    while (!announced(participant))
        sleep_ms(1);
    sleep_ms(10); /* now it probably sleeps; nothing depends on that */
}

TEST(a_task_wakes_one_worker_or_its_addressee)
{
    struct claimer c[2];
    ring = make_ring(2, 3, 0);
    start(&c[0], 1);
    start(&c[1], 2);
    dispatch(ring, 0, 0, 0, 0);
    while (state_of(ring, 0) != SR_CLAIMED)
        sleep_ms(1);
    CHECK(announced(1) != announced(2)); /* the other one still sleeps */
    dispatch(ring, 1, 1, announced(1) ? 1 : 2, 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(c[i].thread, NULL);
        CHECK_OK(c[i].rc);
    }
    sr_destroy(ring);
}

TEST(a_worker_that_a_signal_interrupts_passes_its_wake_up_on)
{
    struct sigaction action = {.sa_handler = interrupt};
    struct claimer a, b;
    sigaction(SIGUSR1, &action, NULL);
    ring = make_ring(1, 3, 0);
    start(&a, 1);
    start(&b, 2);
    /* The state after a dispatcher has chosen worker 1 and before its system call: no other worker can be chosen. */
    sr_store_ordered(&ring->participants[1].waiting, 0);
    sr_store_ordered(&ring->participants[2].waiting, 0);
    dispatch(ring, 0, 0, 0, 0);
    sr_store_ordered(&ring->participants[2].waiting, 1);
    pthread_kill(a.thread, SIGUSR1);
    pthread_join(a.thread, NULL);
    CHECK_EQ(a.rc, -EINTR);
    pthread_join(b.thread, NULL);
    CHECK_EQ(b.slot, 0);
    sr_destroy(ring);
}

static void *publish_two(void *gens)
{
    uint64_t *gen = gens;
    sleep_ms(30);
    CHECK_OK(publish(ring, 1, 0, gen[0], false));
    sleep_ms(30);
    CHECK_OK(publish(ring, 1, 1, gen[1], false));
    return NULL;
}

TEST(a_consumer_is_woken_only_by_the_slot_that_it_waits_for)
{
    pthread_t thread;
    ring = make_ring(2, 2, 0);
    uint64_t gens[2] = {bring_to(ring, 0, SR_CLAIMED, 1, false), bring_to(ring, 1, SR_CLAIMED, 1, false)};
    uint32_t before = sr_load_acquire(&ring->header->ready);
    CHECK_OK(pthread_create(&thread, NULL, publish_two, gens));
    CHECK_OK(wait_ready_one(SR_FOREVER));
    CHECK_EQ(state_of(ring, 0), SR_READY);
    pthread_join(thread, NULL);
    CHECK_OP(sr_load_acquire(&ring->header->ready) - before, <=, 1);
    sr_destroy(ring);
}

TEST(a_retired_worker_claims_nothing_more)
{
    struct claimer c;
    uint64_t gen;
    ring = make_ring(2, 3, 0);
    CHECK_EQ(sr_retire(ring, 0), -EINVAL);
    CHECK_EQ(sr_retire(ring, 3), -EINVAL);
    dispatch(ring, 0, 0, 0, 0);
    CHECK_EQ(claim(ring, 1, NULL, &gen), 0);
    CHECK_OK(sr_retire(ring, 1)); /* during a batch, which the worker still ends */
    CHECK_OK(publish(ring, 1, 0, gen, false));
    dispatch(ring, 1, 1, 0, 0);
    CHECK_OK(sr_cancel_retirement(ring, 1));
    CHECK_EQ(claim(ring, 1, NULL, &gen), 1);
    CHECK_OK(sr_abort(ring, 1, 1, gen));
    dispatch(ring, 1, 1, 0, 0);
    CHECK_OK(sr_retire(ring, 1));
    CHECK_EQ(wait_claim(0), -ESHUTDOWN);
    CHECK_OK(sr_retire(ring, 1));
    CHECK_EQ(sr_cancel_retirement(ring, 1), -ESTALE); /* it has ended */
    CHECK_EQ(claim(ring, 2, NULL, &gen), 1);
    CHECK_OK(publish(ring, 2, 1, gen, false));
    CHECK_OK(sr_recover(ring, 1)); /* its replacement is not retired */
    CHECK_EQ(wait_claim(0), -ETIMEDOUT);
    start(&c, 1);
    CHECK_EQ(sr_cancel_retirement(ring, 1), -ESTALE);
    CHECK_OK(sr_retire(ring, 1)); /* asleep */
    pthread_join(c.thread, NULL);
    CHECK_EQ(c.rc, -ESHUTDOWN);
    sr_destroy(ring);
}

RUN_TESTS(30)
