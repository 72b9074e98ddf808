/* fixture.h - small segments, and the common steps of tests. */
#ifndef SLIPRING_FIXTURE_H
#define SLIPRING_FIXTURE_H

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "check.h"
#include "internal.h" /* tests read and write the words themselves */

#define MS UINT64_C(1000000)
#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1) << 20)
#define LAST_GEN (UINT64_MAX >> SR_GEN_SHIFT)

static inline uint64_t in_ms(uint64_t ms) { return sr_now() + ms * MS; }

static inline void sleep_ms(unsigned ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static inline sr_ring *make_ring_for(uint32_t slots, uint32_t participants, uint32_t flags, uint32_t readers)
{
    sr_ring *ring = NULL;
    sr_options o = {.n_slots = slots, .n_participants = participants, .flags = flags, .n_readers = readers,
                    .backing = SR_BACKING_MEMFD, .capacity = MIB, .task_capacity = 64 * KIB};
    CHECK_OK(sr_create(&o, &ring, NULL));
    return ring;
}

static inline sr_ring *make_ring(uint32_t slots, uint32_t participants, uint32_t flags)
{
    return make_ring_for(slots, participants, flags, 0);
}

static inline void destroy_ring(sr_ring **ring) { sr_destroy(*ring); }
/* Of a variable: its ring is destroyed when the function returns. */
#define SCOPED __attribute__((cleanup(destroy_ring)))

static inline unsigned state_of(const sr_ring *ring, uint32_t slot)
{
    return sr_state_of(sr_load_acquire(&ring->slots[slot].state));
}

static inline uint64_t owner_of(const sr_ring *ring, uint32_t slot)
{
    return sr_owner_of(sr_load_acquire(&ring->slots[slot].state));
}

static inline void poke(sr_ring *ring, uint32_t slot, uint64_t word)
{
    sr_store_release(&ring->slots[slot].state, word);
}

/* Puts a task of iteration 0 into `slot`; returns the generation. `addressee`: participant; 0: any. */
static inline uint64_t dispatch(sr_ring *ring, uint32_t slot, uint64_t seq, uint32_t addressee, uint32_t ranges)
{
    uint64_t gen = 0;
    sr_task task = {.iteration = sr_load_relaxed(&ring->header->iteration), .seq = seq, .n_ranges = ranges,
                    .addressee = addressee ? addressee + 1 : 0, .kind = SR_TASK_NEXT, .rows = ranges, .range_rows = 1};
    CHECK_OK(sr_dispatch(ring, slot, &task, &gen));
    return gen;
}

/* Claims a dispatched task without waiting; returns its slot. */
static inline uint32_t claim(sr_ring *ring, uint32_t participant, uint32_t *range, uint64_t *gen)
{
    uint32_t slot = UINT32_MAX, r;
    CHECK_OK(sr_claim(ring, participant, 0, &slot, range ? range : &r, gen));
    return slot;
}

static inline void nothing_to_claim(sr_ring *ring, uint32_t participant)
{
    uint32_t slot, range;
    uint64_t gen;
    CHECK_EQ(sr_claim(ring, participant, 0, &slot, &range, &gen), -ETIMEDOUT);
}

static inline int publish(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen, bool held)
{
    sr_result result = {.kind = SR_BATCH, .bytes = gen};
    return sr_publish(ring, participant, slot, gen, &result, held);
}

static inline uint64_t take(sr_ring *ring, uint32_t slot)
{
    uint64_t gen;
    sr_result result;
    CHECK_OK(sr_take(ring, SR_CONSUMER, slot, &gen, &result));
    return gen;
}

/* Brings a fresh slot to `state`, without ranges, by `participant`; returns its generation. */
static inline uint64_t bring_to(sr_ring *ring, uint32_t slot, unsigned state, uint32_t participant, bool held)
{
    if (state == SR_FREE)
        return sr_gen_of(sr_load_acquire(&ring->slots[slot].state));
    uint64_t gen = dispatch(ring, slot, slot, participant, 0);
    if (state == SR_TASK)
        return gen;
    CHECK_EQ(claim(ring, participant, NULL, &gen), slot);
    if (state == SR_CLAIMED)
        return gen;
    CHECK_OK(publish(ring, participant, slot, gen, held || state == SR_PARKED));
    if (state == SR_READY)
        return gen;
    CHECK_EQ(take(ring, slot), gen);
    if (state == SR_PARKED)
        CHECK_OK(sr_release(ring, slot, gen));
    if (state == SR_BROADCAST)
        CHECK_EQ(sr_share(ring, slot, gen), 0);
    return gen;
}

/* Runs `body` in a child that then exits with 0. */
static inline pid_t in_child(void (*body)(sr_ring *, void *), sr_ring *ring, void *with)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        sr_after_fork(ring);
        body(ring, with);
        _exit(0);
    }
    return pid;
}

static inline int wait_for(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        CHECK_EQ(errno, EINTR);
    return status;
}

/* A signal handler that only interrupts. */
static inline void interrupt(int number) { (void)number; }

#endif
