/* watch.c - the flight recorder and the observer: records that are overwritten again and again, and a slot.
 *
 * The model's memory is sequentially consistent, so shim.c checks the memory orders of the recorder's words separately:
 * a reader must acquire each word of a record, and the writer must have released it.
 */
#include "model.h"
#include "watch_handle.h"

enum { LOOKS = 2 };

static bool others_have_gone(uint32_t me)
{
    for (uint32_t p = 1; p <= plan->workers; p++)
        if (p != me && !has_gone(p))
            return false;
    return true;
}

/* ---- records ---- */

static void writer(uint32_t me)
{
    sr_slot *s = &ring->slots[me - 1];
    _Atomic uint64_t *times = sr_words_of(&s->times);
    s->state = sr_word(SR_CLAIMED, me + 1, 1);
    for (uint32_t seq = 0; seq < plan->seqs; seq++) {
        uint64_t value = me * 16 + seq + 1;
        s->iteration = s->seq = s->freed_at = s->pinned_by = (uint32_t)value;
        s->task.epoch = s->task.rows = (uint32_t)value;
        s->result = (sr_result){.kind = SR_BATCH, .bytes = value};
        for (uint32_t i = 0; i < SR_TIMES; i++)
            times[i] = value;
        sr_save_record(ring, me - 1);
    }
}

static void reader(void)
{
    sr_record_view seen;
    uint64_t last = 0;
    for (uint32_t look = 0; look < LOOKS; look++) {
        books.reading[self] = 1;
        bool passed = sr_read_record(&ring->records[0], &seen);
        books.reading[self] = 0;
        if (!passed)
            continue;
        uint64_t value = seen.seq;
        MUST(seen.number >= last && seen.number <= ring->header->recorded);
        last = seen.number;
        MUST(value && seen.iteration == value && seen.epoch == value && seen.bytes == value);
        MUST(seen.freed_at == value);
        MUST(seen.publisher == (value | value << 32));
        MUST(seen.slot_kind == ((value / 16 - 1) | (uint64_t)SR_BATCH << 32));
        for (uint32_t i = 0; i < SR_TIMES; i++)
            MUST(seen.times[i] == value);
    }
}

/* The last participant reads, the others write. All of them use the same record. */
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
        MUST(!all_alive || !(number & SR_RECORD_TORN)); /* only a death leaves a record unfinished */
        MUST((number & ~SR_RECORD_TORN) <= ring->header->recorded);
        MUST(plan->workers > 2 || !all_alive || number == plan->seqs);
    }
}

/* ---- a slot, observed once at any time ---- */

static void onlooker(void)
{
    struct sr_watch watch = {.header = ring->header, .slots = ring->slots, .n_slots = plan->slots};
    sr_slot_view seen;
    int rc = sr_watch_slot(&watch, 0, &seen);
    MUST(rc == 0 || rc == -EAGAIN);
    if (rc != 0)
        return;
    unsigned state = sr_state_of(seen.state);
    uint64_t value = seen.seen.seq + 1;
    bool done = state == SR_FREE || state == SR_READY || state == SR_LEASED;
    MUST(seen.rows == value && seen.seen.epoch == value);
    MUST(seen.kind == (done ? SR_BATCH : 0) && seen.seen.bytes == (done ? value : 0));
    MUST(seen.seen.times[SR_T_FETCH] == (done ? value : 0) || state == SR_CLAIMED);
    MUST((seen.seen.times[SR_T_CLAIMED] != 0) == (state != SR_TASK) || state == SR_CLAIMED);
    MUST((seen.seen.times[SR_T_PUBLISHED] != 0) == done);
}

static void publisher(uint32_t me)
{
    for (uint32_t n = 0; n < plan->seqs; n++) {
        uint32_t slot, range;
        uint64_t gen;
        MUST(sr_claim(ring, me, SR_FOREVER, &slot, &range, &gen) == 0);
        uint64_t value = ring->slots[slot].seq + 1;
        ring->slots[slot].times.fetch_ns = value;
        sr_result result = {.kind = SR_BATCH, .bytes = value};
        MUST(sr_publish(ring, me, slot, gen, &result, false) == 0);
    }
}

static void taker(void)
{
    for (uint32_t seq = 0; seq < plan->seqs; seq++) {
        sr_task task = {.seq = seq, .epoch = seq + 1, .rows = seq + 1, .kind = SR_TASK_NEXT};
        uint32_t slot;
        uint64_t gen;
        sr_result result;
        MUST(sr_dispatch(ring, 0, &task, &gen) == 0);
        MUST(sr_wait_ready(ring, 0, SR_FOREVER, &slot) == 0);
        MUST(sr_take(ring, SR_CONSUMER, 0, &gen, &result) == 0);
        MUST(sr_release(ring, 0, gen) == 0);
    }
}

void watched(uint32_t me)
{
    if (me == 0)
        taker();
    else if (me == 1)
        publisher(me);
    else
        onlooker();
}
