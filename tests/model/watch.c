/* watch.c - the flight recorder, and who looks on: records that are written over again and again, and a slot.
 *
 * Here memory is sequentially consistent, so that the orders of the recorder's words are looked at by themselves: who
 * reads a record must acquire each word, and it must have been released. See shim.c.
 */
#include "model.h"
#include "watch_handle.h"

enum { LOOKS = 2 };

static bool others_have_gone(uint32_t me)
{
    for (uint32_t p = 1; p <= plan->workers; p++)
        if (p != me && books.life[p] != ENDED && books.life[p] != DEAD)
            return false;
    return true;
}

/* ---- records ---- */

static void writer(uint32_t me)
{
    sr_slot *s = &ring->slots[me - 1];
    _Atomic uint64_t *times = sr_words_of(&s->times);
    s->state = sr_word(SR_CLAIMED, me + 1, 1);
    for (uint32_t seq = 0; seq < plan->tickets; seq++) {
        uint64_t value = me * 16 + seq + 1;
        s->run = s->ticket = s->freed_at = s->holder = (uint32_t)value;
        s->task.epoch = s->task.rows = (uint32_t)value;
        s->result = (sr_result){.kind = SR_BATCH, .bytes = value};
        for (uint32_t i = 0; i < SR_TIMES; i++)
            times[i] = value;
        sr_keep_record(ring, me - 1);
    }
}

static void reader(void)
{
    sr_seen seen;
    uint64_t last = 0;
    for (uint32_t look = 0; look < LOOKS; look++) {
        books.reading[self] = 1;
        bool passed = sr_read_record(&ring->records[0], &seen);
        books.reading[self] = 0;
        if (!passed)
            continue;
        uint64_t value = seen.ticket;
        MUST(seen.number >= last && seen.number <= ring->header->recorded);
        last = seen.number;
        MUST(value && seen.run == value && seen.epoch == value && seen.bytes == value);
        MUST(seen.freed_at == value);
        MUST(seen.maker == (value | value << 32));
        MUST(seen.place == ((value / 16 - 1) | (uint64_t)SR_BATCH << 32));
        for (uint32_t i = 0; i < SR_TIMES; i++)
            MUST(seen.times[i] == value);
    }
}

/* The last party reads, the others write; with one record all of them meet in it. */
void recorder(uint32_t me);
void recorder(uint32_t me)
{
    if (me == plan->workers) {
        reader();
    } else if (me) {
        writer(me);
    } else {
        wait_until(others_have_gone);
        bool all_alive = true;
        for (uint32_t p = 1; p < plan->workers; p++) {
            all_alive &= books.life[p] == ENDED;
            ring->slots[p - 1].state = sr_word(SR_FREE, 0, 1);
        }
        uint64_t number = ring->records[0].number;
        MUST(!all_alive || !(number & SR_RECORD_TORN)); /* only a death leaves it so */
        MUST((number & ~SR_RECORD_TORN) <= ring->header->recorded);
        MUST(plan->workers > 2 || !all_alive || number == plan->tickets);
    }
}

/* ---- a slot: one look, at any time ---- */

static void onlooker(void)
{
    struct sr_watch watch = {.header = ring->header, .slots = ring->slots, .n_slots = plan->slots};
    sr_slot_seen seen;
    int rc = sr_watch_slot(&watch, 0, &seen);
    MUST(rc == 0 || rc == -EAGAIN);
    if (rc != 0)
        return;
    unsigned state = sr_state_of(seen.state);
    uint64_t value = seen.seen.ticket + 1;
    bool done = state == SR_FREE || state == SR_READY || state == SR_LEASED;
    MUST(seen.rows == value && seen.seen.epoch == value);
    MUST(seen.kind == (done ? SR_BATCH : 0) && seen.seen.bytes == (done ? value : 0));
    MUST(seen.seen.times[SR_T_FETCH] == (done ? value : 0) || state == SR_CLAIMED);
    MUST((seen.seen.times[SR_T_CLAIMED] != 0) == (state != SR_TASK) || state == SR_CLAIMED);
    MUST((seen.seen.times[SR_T_PUBLISHED] != 0) == done);
}

static void maker(uint32_t me)
{
    for (uint32_t n = 0; n < plan->tickets; n++) {
        uint32_t slot, range;
        uint64_t gen;
        MUST(sr_claim(ring, me, SR_FOREVER, &slot, &range, &gen) == 0);
        uint64_t value = ring->slots[slot].ticket + 1;
        ring->slots[slot].times.fetch_ns = value;
        sr_result result = {.kind = SR_BATCH, .bytes = value};
        MUST(sr_publish(ring, me, slot, gen, &result, false) == 0);
    }
}

static void taker(void)
{
    for (uint32_t ticket = 0; ticket < plan->tickets; ticket++) {
        sr_task task = {.ticket = ticket, .epoch = ticket + 1, .rows = ticket + 1, .kind = SR_TASK_NEXT};
        uint32_t slot;
        uint64_t gen;
        sr_result result;
        MUST(sr_dispatch(ring, 0, &task, &gen) == 0);
        MUST(sr_wait_ready(ring, 0, SR_FOREVER, &slot) == 0);
        MUST(sr_take(ring, SR_CONSUMER, 0, &gen, &result) == 0);
        MUST(sr_release(ring, 0, gen) == 0);
    }
}

void watched(uint32_t me);
void watched(uint32_t me)
{
    if (me == 0)
        taker();
    else if (me == 1)
        maker(me);
    else
        onlooker();
}
