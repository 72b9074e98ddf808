/* loader_mode.c - the participants of a loader segment: a consumer that delivers in order, and workers; deaths, early
 * ends and pinned slots. */
#include "model.h"

static uint64_t content(uint64_t seq, uint32_t part) { return (seq + 1) * 16 + part; }
static bool staged(void) { return plan->staged; }

/* Allocate the payload of a batch: one line per range, or one line. */
static uint64_t room(uint32_t participant, uint32_t slot, uint32_t lines)
{
    uint64_t offset;
    MUST(sr_alloc(ring, participant, slot, lines * SR_LEAF_ALIGN, SR_LEAF_ALIGN, &offset, NULL) == 0);
    return offset;
}

/* ---- worker ---- */

static void own(uint32_t slot, uint32_t me)
{
    MUST(books.fills[slot] == 0 && books.leased[slot] == 0);
    books.fills[slot] = (uint8_t)(me + 1);
}

static void publish(uint32_t me, uint32_t slot, uint64_t gen, uint64_t at)
{
    uint64_t seq = sr_task_of(ring, slot)->seq;
    sr_result result = {.kind = SR_BATCH, .table_off = at, .def_hash = seq, .bytes = gen};
    bool held = plan->holds && choose(2);
    MUST(books.fills[slot] == me + 1);
    books.fills[slot] = 0;
    MUST(sr_publish(ring, me, slot, gen, &result, held) == 0);
    if (held) { /* the pinned bytes are unchanged, wherever the consumer is */
        MUST(get(slot, WHOLE_OBJECT, at) == content(seq, 0));
        MUST(sr_unpin(ring, me, slot, gen) == 0);
    }
}

static bool all_are_begun(uint32_t me)
{
    (void)me;
    for (uint32_t i = 0; i < plan->seqs; i++)
        if (!books.begun[i])
            return false;
    return true;
}

static void fill_whole(uint32_t me, uint32_t slot, uint64_t gen)
{
    uint64_t seq = sr_task_of(ring, slot)->seq;
    own(slot, me);
    if (plan->together) { /* the datasets wait for each other: no worker may sleep while a task is left */
        books.begun[seq] = 1;
        wait_until(all_are_begun);
    }
    if (plan->trims)
        (void)sr_trim_free(ring, me); /* it may find another FREE slot, or none */
    uint64_t at = room(me, slot, 1);
    put(slot, WHOLE_OBJECT, at, content(seq, 0));
    publish(me, slot, gen, at);
}

static void finish(uint32_t me, uint32_t slot, uint64_t gen)
{
    uint64_t rows[MAX_RANGES], at;
    own(slot, me);
    for (uint32_t r = 0; r < plan->ranges; r++)
        MUST(books.fills_range[slot][r] == 0);
    int layout = sr_layout_propose(ring, me, slot, gen, 0);
    if (layout == SR_LAYOUT_DIRECT) {
        at = sr_result_of(ring, slot, SR_WHOLE)->table_off;
    } else {
        MUST(layout == SR_LAYOUT_STAGED);
        for (uint32_t r = 0; r < plan->ranges; r++)
            rows[r] = get(slot, r, sr_result_of(ring, slot, r)->table_off);
        MUST(sr_rewind(ring, me, slot, gen) == 0);
        at = room(me, slot, plan->ranges);
        for (uint32_t r = 0; r < plan->ranges; r++)
            put(slot, r, at + r * SR_LEAF_ALIGN, rows[r]);
    }
    publish(me, slot, gen, at);
}

static void fill_range(uint32_t me, uint32_t slot, uint32_t range, uint64_t gen)
{
    uint64_t seq = sr_task_of(ring, slot)->seq, at;
    sr_result table = {.kind = SR_BATCH};
    MUST(books.fills_range[slot][range] == 0 && books.fills[slot] == 0 && !books.leased[slot]);
    books.fills_range[slot][range] = (uint8_t)(me + 1);
    int layout = sr_layout_propose(ring, me, slot, gen, SR_FOREVER);
    if (layout == 0) {
        layout = staged() ? SR_LAYOUT_STAGED : SR_LAYOUT_DIRECT;
        if (layout == SR_LAYOUT_DIRECT)
            table.table_off = room(me, slot, plan->ranges);
        MUST(sr_layout_settle(ring, me, slot, gen, layout, layout == SR_LAYOUT_DIRECT ? &table : NULL) == 0);
    }
    MUST(layout == SR_LAYOUT_DIRECT || layout == SR_LAYOUT_STAGED);
    at = layout == SR_LAYOUT_DIRECT ? sr_result_of(ring, slot, SR_WHOLE)->table_off + range * SR_LEAF_ALIGN
                                    : room(me, slot, 1);
    put(slot, range, at, content(seq, range));
    table.table_off = at;
    books.fills_range[slot][range] = 0;
    int rc = sr_range_done(ring, me, slot, range, gen, &table);
    MUST(rc == 0 || rc == 1);
    if (rc == 1)
        finish(me, slot, gen);
}

static bool the_end_has_come(uint32_t me)
{
    (void)me;
    return books.ended;
}

static void worker(uint32_t me)
{
    uint32_t slot, range;
    uint64_t gen;
    MUST(sr_join(ring, me) == 0);
    books.turn[me] = 0;
    for (;;) {
        int rc = sr_claim(ring, me, SR_FOREVER, &slot, &range, &gen);
        if (rc == -ESHUTDOWN)
            return;
        if (rc == -EINTR) { /* its handler never returns: the wake-up that it received must not be lost */
            wait_until(the_end_has_come);
            continue;
        }
        MUST(rc == 0);
        const sr_task *task = sr_task_of(ring, slot);
        MUST(*(uint64_t *)sr_task_area(ring, slot) == task->seq + 1);
        if (plan->addressed) { /* addressed tasks are claimed in order */
            MUST(task->addressee == me + 1 && task->seq >= books.turn[me]);
            books.turn[me] = (uint8_t)(task->seq + 1);
        }
        if (range == SR_WHOLE)
            fill_whole(me, slot, gen);
        else if (range == SR_FINISH)
            finish(me, slot, gen);
        else
            fill_range(me, slot, range, gen);
    }
}

/* ---- consumer ---- */

static void reap_dead(void)
{
    for (uint32_t p = 1; p <= plan->workers; p++)
        if (books.unreaped[p]) {
            confirm_death(p);
            MUST(sr_recover(ring, p) >= 0);
            books.unreaped[p] = 0;
            if (!books.ended)
                spawn(p);
        }
}

static void dispatch_ahead(uint64_t run, uint32_t last)
{
    uint32_t slot;
    while (books.next < last && sr_pick_free(ring, &slot) == 0) {
        uint32_t t = books.next;
        sr_task task = {.iteration = run, .seq = t, .kind = SR_TASK_NEXT, .rows = plan->ranges, .range_rows = 1,
                        .n_ranges = plan->ranges, .addressee = plan->addressed ? 2 + t % plan->workers : 0};
        *(uint64_t *)sr_task_area(ring, slot) = t + 1;
        books.out_slot[t] = (uint8_t)slot;
        int rc = sr_dispatch(ring, slot, &task, &books.out_gen[t]);
        MUST(rc == 0 || (rc == -EAGAIN && plan->trims));
        books.next += rc == 0;
    }
}

static void look_at(uint32_t slot, uint32_t seq, uint64_t at)
{
    for (uint32_t r = 0; r < (plan->ranges ? plan->ranges : 1); r++)
        MUST(get(slot, plan->ranges ? r : WHOLE_OBJECT, at + r * SR_LEAF_ALIGN) == content(seq, r));
}

/* Take a batch, and check its bytes again before the release. */
static void deliver(uint32_t slot)
{
    uint64_t gen;
    sr_result result;
    uint32_t t = 0;
    MUST(sr_take(ring, SR_CONSUMER, slot, &gen, &result) == 0);
    while (t < books.next && (books.out_slot[t] != slot || books.out_gen[t] != gen))
        t++;
    MUST(t < books.next && books.delivered[t] == 0 && result.def_hash == t && result.bytes == gen);
    MUST(books.fills[slot] == 0 && books.leased[slot] == 0);
    books.delivered[t] = 1;
    books.n_delivered++;
    books.leased[slot] = 1;
    look_at(slot, t, result.table_off);
    if (plan->leases)
        dispatch_ahead(1, plan->seqs); /* with one slot fewer */
    look_at(slot, t, result.table_off);
    if (plan->releases_all) { /* like a loader that is closed while user code still has a batch */
        books.ended = 1;
        MUST(sr_close(ring) == 0 && sr_release_free(ring, SR_CONSUMER) == 0);
        look_at(slot, t, result.table_off);
        MUST(ring->slots[slot].committed != 0);
    }
    books.leased[slot] = 0;
    MUST(sr_release(ring, slot, gen) == 0);
}

/* Begin the next iteration while tasks are in any state, like a loop that ends with break. */
static void end_early(uint64_t run)
{
    bool first = choose(2);
    if (first)
        MUST(sr_begin_iteration(ring, run + 1) == 0);
    for (uint32_t t = 0; t < books.next; t++)
        if (!books.delivered[t]) {
            int rc = sr_cancel(ring, books.out_slot[t], books.out_gen[t]);
            MUST(rc == 0 || rc == -EBUSY || rc == -ESTALE);
            books.delivered[t] = 2; /* it must not be delivered any more */
            books.n_delivered++;
        }
    if (!first)
        MUST(sr_begin_iteration(ring, run + 1) == 0);
}

static bool workers_have_gone(uint32_t me)
{
    (void)me;
    for (uint32_t p = 1; p <= plan->workers; p++)
        if (!has_gone(p) &&
            (plan->closes || (plan->retires && p == 1 && ring->participants[p].retiring) || books.life[p] != SLEEPS))
            return false;
    return true;
}

static bool room_again(uint32_t me)
{
    (void)me;
    for (uint32_t i = 0; i < plan->slots; i++) {
        unsigned state = sr_state_of(ring->slots[i].state);
        if (state == SR_FREE || state == SR_READY)
            return true;
    }
    for (uint32_t p = 1; p <= plan->workers; p++)
        if (books.unreaped[p])
            return true;
    return false;
}

static void consumer(void)
{
    uint64_t run = 1;
    uint32_t found, slot;
    MUST(sr_begin_iteration(ring, run) == 0);
    if (plan->early_end) {
        dispatch_ahead(run, 1);
        end_early(run++);
    }
    while (books.n_delivered < plan->seqs && !books.ended) {
        if (!plan->in_rounds || books.n_delivered == books.next)
            dispatch_ahead(run, plan->seqs);
        for (uint32_t p = 1; p <= plan->workers; p++)
            if (books.life[p] == NOBODY)
                spawn(p);
        if (plan->retires && books.next == 1) /* the first task is in progress; the other workers must claim the rest */
            MUST(sr_retire(ring, 1) == 0 && (!choose(2) || sr_cancel_retirement(ring, 1) != -EINVAL));
        uint32_t t = 0;
        while (t < books.next && books.delivered[t])
            t++;
        if (t == books.next) { /* workers own all slots, or the slots belong to the old iteration */
            wait_until(room_again);
            reap_dead();
            continue;
        }
        int rc = sr_wait_ready(ring, plan->by_completion ? SR_ANY : books.out_slot[t], BOUNDED_NS, &found);
        if (rc == -ETIMEDOUT) {
            reap_dead();
            continue;
        }
        MUST(rc == 0);
        deliver(found);
    }
    books.ended = 1;
    if (plan->closes)
        MUST(sr_close(ring) == 0);
    wait_until(workers_have_gone);
    reap_dead();
    if (plan->releases_all)
        MUST(sr_release_free(ring, SR_CONSUMER) == 0);
    (void)sr_pick_free(ring, &slot); /* discards the batches of old iterations */
    for (uint32_t i = 0; i < plan->slots; i++)
        MUST(sr_state_of(ring->slots[i].state) == SR_FREE && (!plan->releases_all || ring->slots[i].committed == 0) &&
             (!books.orphans[i] || ring->slots[i].committed > SR_PAYLOAD_COMMIT)); /* else nobody counts the pages */
}

void loader_mode(uint32_t me)
{
    if (me == SR_CONSUMER)
        consumer();
    else
        worker(me);
}
