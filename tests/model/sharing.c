/* sharing.c - a consumer that shares its batches, and readers that begin, leave, come back and die.
 *
 * The consumer makes the batches itself. Without `closes` it waits for all readers, and an end mark ends them. With it,
 * readers begin at any time, and the consumer closes the segment after its last batch.
 */
#include "model.h"

enum { LEAD = SR_CONSUMER };

struct lease {
    bool any;
    sr_shared got;
};

static void look_at(const struct lease *l)
{
    if (l->any && !l->got.is_end)
        MUST(get(l->got.slot, WHOLE_OBJECT, 0) == l->got.seq + 1);
}

static void release(uint32_t me, struct lease *l)
{
    look_at(l);
    if (l->any)
        MUST(sr_release_shared(ring, me, l->got.slot, l->got.gen) == 0);
    l->any = false;
}

/* Wait like a process that also polls the consumer's pidfd. */
static int wait_for_batch(uint32_t me)
{
    int rc = -ETIMEDOUT;
    while (rc == -ETIMEDOUT && books.life[LEAD] != DEAD)
        rc = sr_wait_shared(ring, me, plan->consumer_dies ? BOUNDED_NS : SR_FOREVER, -1);
    return rc == -ETIMEDOUT ? sr_wait_shared(ring, me, 0, -1) : rc;
}

/* Read from the begin of a membership to its end; return whether the reader comes back. */
static bool read_some(uint32_t me)
{
    struct lease last = {0}, next = {0};
    MUST(sr_begin_reading(ring, me) == 0);
    uint64_t expected = books.shares; /* every batch that the consumer begins to share from now on */
    bool first = true;
    for (;;) {
        int rc = wait_for_batch(me);
        if (rc == -ESHUTDOWN)
            MUST(expected == books.shares); /* it has missed nothing */
        if (rc == -ESHUTDOWN || (rc == -ETIMEDOUT && books.life[LEAD] == DEAD))
            break;
        MUST(rc == 0 && sr_take_shared(ring, me, &next.got) == 0);
        next.any = true;
        MUST(first ? next.got.number <= expected : next.got.number == expected);
        MUST(next.got.is_end ? next.got.seq == plan->seqs : next.got.seq == next.got.number);
        expected = next.got.number + 1;
        first = false;
        look_at(&next);
        release(me, &last);
        last = next;
        if (books.absences && choose(2)) {
            books.absences--;
            MUST(sr_end_reading(ring, me) == 0);
            release(me, &last); /* the lease has outlived the membership */
            return true;
        }
        if (next.got.is_end)
            break;
        if (!plan->leases)
            release(me, &last);
    }
    if (!plan->closes && books.life[LEAD] != DEAD)
        MUST(last.any && last.got.is_end); /* it has missed nothing */
    release(me, &last);
    MUST(sr_end_reading(ring, me) == 0);
    return false;
}

static void reader(uint32_t me)
{
    if (plan->closes)
        ring->participants[me].incarnation = 0; /* a replacement is another process */
    while (read_some(me)) {
    }
}

static void reap_dead(void)
{
    for (uint32_t p = 1; p <= plan->workers; p++)
        if (books.unreaped[p]) {
            confirm_death(p);
            MUST(sr_recover(ring, p) == 0);
            books.unreaped[p] = 0;
            if (plan->closes && !books.ended)
                spawn(p);
        }
}

static uint32_t free_slot(void)
{
    uint32_t slot;
    int rc;
    while ((rc = sr_wait_free(ring, BOUNDED_NS, -1, &slot)) != 0) {
        MUST(rc == -ETIMEDOUT);
        reap_dead();
    }
    return slot;
}

/* Make a batch, share it and release it. */
static void share_one(uint64_t seq)
{
    uint32_t slot = free_slot(), range;
    uint64_t gen;
    sr_task task = {.seq = seq, .kind = SR_TASK_NEXT};
    sr_result result = {.kind = SR_BATCH};
    MUST(sr_dispatch(ring, slot, &task, &gen) == 0);
    MUST(sr_claim(ring, LEAD, 0, &slot, &range, &gen) == 0);
    put(slot, WHOLE_OBJECT, 0, seq + 1);
    MUST(sr_publish(ring, LEAD, slot, gen, &result, false) == 0);
    MUST(sr_take(ring, LEAD, slot, &gen, &result) == 0);
    books.shares++;
    MUST(sr_share(ring, slot, gen) >= 0);
    MUST(get(slot, WHOLE_OBJECT, 0) == seq + 1);
    MUST(sr_release(ring, slot, gen) == 0);
}

static bool readers_have_begun(uint32_t me)
{
    (void)me;
    for (uint32_t p = 1; p <= plan->workers; p++)
        if (!has_gone(p) && !(ring->participants[p].membership & 1))
            return false;
    return true;
}

static bool readers_have_gone(uint32_t me)
{
    (void)me;
    for (uint32_t p = 1; p <= plan->workers; p++)
        if (!has_gone(p))
            return false;
    return true;
}

static void lead(void)
{
    if (!plan->closes)
        wait_until(readers_have_begun);
    for (uint64_t seq = 0; seq < plan->seqs; seq++)
        share_one(seq);
    if (!plan->closes) {
        uint32_t slot = free_slot();
        books.shares++;
        MUST(sr_share_end(ring, slot, 0, plan->seqs) == 0);
    }
    books.ended = 1;
    if (plan->closes)
        MUST(sr_close(ring) == 0);
    wait_until(readers_have_gone);
    reap_dead();
    for (uint32_t i = 0; i < plan->slots; i++)
        MUST(sr_state_of(ring->slots[i].state) == SR_FREE && !(ring->slots[i].readers & SR_READERS_MASK));
}

void sharing(uint32_t me)
{
    if (me == LEAD)
        lead();
    else
        reader(me);
}
