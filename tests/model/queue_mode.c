/* queue_mode.c - the participants of a queue segment: producers, consumers, and participant 0, which recovers. */
#include "model.h"

enum { NOT_MADE, MADE, SEEN, LOST };

static bool produces(uint32_t p) { return p % 2 == 1; }
static uint32_t batch(uint32_t p, uint32_t seq) { return p / 2 * plan->seqs + seq; }

static void producer(uint32_t me)
{
    uint32_t slot;
    uint64_t gen;
    for (uint32_t seq = 0; seq < plan->seqs; seq++) {
        books.made[me] = (uint8_t)(seq + 1);
        MUST(sr_claim_free(ring, me, SR_FOREVER, &slot, &gen) == 0);
        MUST(books.fills[slot] == 0 && books.leased[slot] == 0);
        books.fills[slot] = (uint8_t)(me + 1);
        books.delivered[batch(me, seq)] = MADE;
        put(slot, WHOLE_OBJECT, 0, batch(me, seq) + 1);
        sr_result result = {.kind = SR_BATCH, .def_hash = me, .bytes = seq};
        books.fills[slot] = 0;
        MUST(sr_publish(ring, me, slot, gen, &result, false) == 0);
    }
}

static void consumer(uint32_t me)
{
    uint32_t slot;
    uint64_t gen;
    sr_result result;
    for (;;) {
        int rc = sr_wait_ready(ring, SR_ANY, SR_FOREVER, &slot);
        if (rc == -ESHUTDOWN)
            return;
        MUST(rc == 0);
        rc = sr_take(ring, me, slot, &gen, &result);
        if (rc == -EBUSY)
            continue;
        MUST(rc == 0 && books.leased[slot] == 0 && books.fills[slot] == 0);
        uint32_t from = (uint32_t)result.def_hash, seq = (uint32_t)result.bytes, which = batch(from, seq);
        MUST(books.delivered[which] == MADE);
        MUST(seq + 1 > books.last[me][from]); /* in the order of publication */
        books.last[me][from] = (uint8_t)(seq + 1);
        books.delivered[which] = SEEN;
        books.leased[slot] = (uint8_t)(me + 1);
        MUST(get(slot, WHOLE_OBJECT, 0) == which + 1);
        MUST(get(slot, WHOLE_OBJECT, 0) == which + 1);
        books.leased[slot] = 0;
        MUST(sr_release(ring, slot, gen) == 0);
    }
}

/* A participant that dies loses only the batch that it was writing or had just taken. */
void queue_death(uint32_t dead)
{
    for (uint32_t i = 0; i < plan->slots; i++) {
        sr_slot *s = &ring->slots[i];
        if (sr_owner_of(s->state) != dead + 1)
            continue;
        if (sr_state_of(s->state) == SR_CLAIMED && books.made[dead])
            books.delivered[batch(dead, books.made[dead] - 1u)] = LOST;
        if (sr_state_of(s->state) == SR_LEASED) {
            books.delivered[batch((uint32_t)s->result.def_hash, (uint32_t)s->result.bytes)] = LOST;
            books.leased[i] = 0;
        }
    }
}

static bool over(uint32_t me)
{
    bool under_way = false;
    (void)me;
    for (uint32_t p = 1; p <= plan->workers; p++) {
        if (books.unreaped[p])
            return true;
        under_way |= produces(p) && !has_gone(p);
    }
    for (uint32_t i = 0; i < plan->slots; i++)
        under_way |= sr_state_of(ring->slots[i].state) != SR_FREE;
    return !under_way;
}

static bool consumers_have_gone(uint32_t me)
{
    (void)me;
    for (uint32_t p = 1; p <= plan->workers; p++)
        if (!has_gone(p) && (plan->closes || books.life[p] != SLEEPS))
            return false;
    return true;
}

static bool reap_dead(void)
{
    bool any = false;
    for (uint32_t p = 1; p <= plan->workers; p++)
        if (books.unreaped[p]) {
            confirm_death(p);
            MUST(sr_recover(ring, p) >= 0);
            books.unreaped[p] = 0;
            any = true;
            if (!produces(p) && !books.ended)
                spawn(p);
        }
    return any;
}

void queue_mode(uint32_t me)
{
    if (me != SR_CONSUMER) {
        MUST(sr_join(ring, me) == 0);
        if (produces(me))
            producer(me);
        else
            consumer(me);
        return;
    }
    do
        wait_until(over);
    while (reap_dead());
    books.ended = 1;
    if (plan->closes)
        MUST(sr_close(ring) == 0);
    wait_until(consumers_have_gone);
    reap_dead();
    for (uint32_t p = 1; p <= plan->workers; p += 2)
        for (uint32_t seq = 0; seq < books.made[p]; seq++)
            MUST(books.delivered[batch(p, seq)] == SEEN || books.delivered[batch(p, seq)] == LOST ||
                 (books.delivered[batch(p, seq)] == NOT_MADE && books.life[p] == DEAD && seq + 1u == books.made[p]));
    for (uint32_t i = 0; i < plan->slots; i++)
        MUST(sr_state_of(ring->slots[i].state) == SR_FREE);
}
