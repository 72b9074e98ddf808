/* pool.c - two segments that the same workers serve. Participant 0 consumes the first one, and is the pool's process
 * too: it recovers dead workers in both segments, and starts others. The second one is consumed by participant 2, or,
 * if its task and that of the first segment need each other, by participant 0. */
#include "model.h"

enum { OTHER_CONSUMER = 2, NUMBERS = 3 };

static struct sr_ring rings[2];
static uint32_t workers(void) { return plan->together ? 2 : 1; }

static sr_wake_line *lines(void) { return (sr_wake_line *)(segment + SR_PAGE + SR_PAGE / 2); }

uint32_t pool_regions(struct region *out)
{
    out[0] = (struct region){&rings[1].header->iteration, sizeof(sr_header) - offsetof(sr_header, iteration)};
    out[1] = (struct region){rings[1].participants, (uint32_t)sizeof(sr_participant) * NUMBERS};
    out[2] = (struct region){lines(), (uint32_t)sizeof(sr_wake_line) * NUMBERS};
    return 3;
}

void pool_begin(void)
{
    for (uint32_t i = 0; i < 2; i++) {
        rings[i] = *ring;
        rings[i].n_slots = 1;
        rings[i].n_participants = workers() + 1;
        rings[i].wake_lines = lines();
    }
    ring->header->iteration = 1;
    rings[1].header = (sr_header *)(segment + SR_PAGE / 2);
    rings[1].participants = (sr_participant *)(segment + SR_PAGE + SR_PAGE / 4);
    rings[1].slots = ring->slots + 1;
    rings[1].populated = ring->populated + 1;
    rings[1].data_off += ring->stride;
    rings[1].header->iteration = 1;
}

/* Return the address in the first segment of what `address` is in the second one. */
const volatile void *pool_first(const volatile void *address, bool *second)
{
    const char *at = (const char *)address, *slots = (const char *)rings[1].slots;
    size_t header = (size_t)(at - (const char *)rings[1].header);
    size_t participant = (size_t)(at - (const char *)rings[1].participants);
    *second = true;
    if (header < sizeof(sr_header))
        return (const char *)ring->header + header;
    if (participant < sizeof(sr_participant) * NUMBERS)
        return (const char *)ring->participants + participant;
    *second = at >= slots && at < slots + sizeof(sr_slot);
    return address;
}

bool pool_is_wake_word(const volatile void *address)
{
    return address >= (const volatile void *)lines() && address < (const volatile void *)(lines() + NUMBERS);
}

_Atomic uint32_t *pool_wake_word(uint32_t participant) { return &lines()[participant].wake; }

static uint64_t content(uint32_t which, uint64_t seq) { return 16 * which + seq + 1; }

static bool both_are_begun(uint32_t me)
{
    (void)me;
    return books.begun[0] && books.begun[1];
}

/* The first segment gets memory for its batch when the second one's is delivered, as their consumers wait together. */
static bool has_memory(void) { return books.delivered[1] || sr_closed(&rings[1]); }

static bool memory_or_starving(uint32_t me)
{
    (void)me;
    return has_memory() || sr_is_starving(&rings[1]);
}

/* Wait for memory; return whether the task was given up, because the other segment's consumer waits for this worker. */
static bool gives_way(uint32_t me)
{
    while (!has_memory()) {
        if (sr_is_starving(&rings[1])) {
            books.fills[0] = 0;
            MUST(sr_recover_thread(&rings[0], me) >= 0 && sr_serve(&rings[0], me) == 0);
            return true;
        }
        wait_until(memory_or_starving);
    }
    return false;
}

static void worker(uint32_t me)
{
    sr_served served[] = {{.ring = &rings[0]}, {.ring = &rings[1]}};
    uint32_t which = 0, slot, range;
    uint64_t gen, at;
    MUST(sr_join(&rings[0], me) == 0 && sr_join(&rings[1], me) == 0);
    for (;;) {
        uint32_t seen = sr_wake_count(&rings[0], me);
        int rc = sr_claim_any(served, 2, me, seen, &which, &slot, &range, &gen);
        books.looks[me] = 0;
        if (rc == -EAGAIN)
            continue;
        MUST(rc == 0 && slot == 0 && range == SR_WHOLE && books.fills[which] == 0);
        books.fills[which] = (uint8_t)(me + 1);
        books.begun[which] = 1;
        if (plan->together) /* the datasets wait for each other: no worker may sleep while a task is left */
            wait_until(both_are_begun);
        if (plan->gives_way && which == 0 && gives_way(me))
            continue;
        uint64_t seq = sr_task_of(&rings[which], slot)->seq;
        MUST(sr_alloc(&rings[which], me, slot, SR_LEAF_ALIGN, SR_LEAF_ALIGN, &at, NULL) == 0);
        put(which, WHOLE_OBJECT, at, content(which, seq));
        sr_result result = {.kind = SR_BATCH, .table_off = at, .def_hash = seq};
        books.fills[which] = 0;
        MUST(sr_publish(&rings[which], me, slot, gen, &result, false) == 0);
    }
}

/* ---- consumers, and the pool's process ---- */

static bool no_worker_is_dead(uint32_t me)
{
    (void)me;
    return !books.unreaped[1] && !(plan->together && books.unreaped[2]);
}

static void reap_dead(void)
{
    for (uint32_t p = 1; p <= workers(); p++)
        if (books.unreaped[p]) {
            confirm_death(p);
            MUST(sr_recover(&rings[0], p) >= 0 && sr_recover(&rings[1], p) >= 0);
            books.unreaped[p] = 0;
            spawn(p);
        }
    if (!plan->together && books.unreaped[OTHER_CONSUMER]) {
        MUST(sr_close(&rings[1]) == 0);
        books.unreaped[OTHER_CONSUMER] = 0;
    }
}

static void dispatch(uint32_t which, uint32_t seq)
{
    sr_task task = {.iteration = 1, .seq = seq, .kind = SR_TASK_NEXT};
    MUST(sr_dispatch(&rings[which], 0, &task, &books.out_gen[which]) == 0);
}

static void deliver(uint32_t which, uint32_t seq)
{
    uint32_t found;
    uint64_t gen;
    sr_ring *mine = &rings[which];
    sr_result result;
    for (int rc; (rc = sr_wait_ready(mine, 0, BOUNDED_NS, &found)) != 0;) {
        MUST(rc == -ETIMEDOUT);
        if (self == SR_CONSUMER)
            reap_dead();
        else
            wait_until(no_worker_is_dead);
    }
    MUST(sr_take(mine, SR_CONSUMER, 0, &gen, &result) == 0 && gen == books.out_gen[which] && result.def_hash == seq);
    MUST(books.fills[which] == 0 && get(which, WHOLE_OBJECT, result.table_off) == content(which, seq));
    MUST(sr_release(mine, 0, gen) == 0);
    books.delivered[which] = 1;
}

static void consume(uint32_t which)
{
    for (uint32_t seq = 0; seq < plan->seqs; seq++) {
        dispatch(which, seq);
        if (plan->together)
            dispatch(1, seq);
        deliver(which, seq);
        if (plan->together)
            deliver(1, seq);
    }
}

/* All tasks are done: the other consumer has gone, and the workers sleep, or one has died. */
static bool idle_or_dead(uint32_t me)
{
    bool others = plan->together || has_gone(OTHER_CONSUMER);
    bool sleep = books.life[1] == SLEEPS && (!plan->together || books.life[2] == SLEEPS);
    return !no_worker_is_dead(me) || (!plan->together && books.unreaped[OTHER_CONSUMER]) || (others && sleep);
}

static bool all_live(uint32_t me)
{
    return no_worker_is_dead(me) && (plan->together || !books.unreaped[OTHER_CONSUMER]);
}

void pool(uint32_t me)
{
    if (me != SR_CONSUMER && me <= workers())
        worker(me);
    consume(me != SR_CONSUMER);
    if (me != SR_CONSUMER)
        return;
    wait_until(idle_or_dead);
    while (!all_live(me)) {
        reap_dead();
        wait_until(idle_or_dead);
    }
    books.ended = 1;
    MUST(sr_state_of(rings[0].slots->state) == SR_FREE);
    MUST(sr_state_of(rings[1].slots->state) == SR_FREE || sr_closed(&rings[1]));
}
