/* ring.c - the consumer's side of a slot's life: dispatch, cancel, take, release. */
#include <limits.h>
#include <string.h>

#include "handle.h"

static bool set_free_at(sr_ring *ring, sr_slot *s, uint64_t word, uint64_t at)
{
    sr_store_relaxed(&s->freed_at, at);
    if (!sr_cas(&s->state, word, sr_word(SR_FREE, 0, sr_gen_of(word)))) /* [E1] partners: [D1], [K3], [F3] */
        return false;
    sr_wake_free(ring);
    return true;
}

bool sr_set_free(sr_ring *ring, sr_slot *s, uint64_t word) { return set_free_at(ring, s, word, sr_now()); }

bool sr_set_free_cold(sr_ring *ring, sr_slot *s, uint64_t word) { return set_free_at(ring, s, word, 0); }

/* Whether another slot that is free has more memory than this one. */
static bool another_has_more(const sr_ring *ring, const sr_slot *s)
{
    uint64_t mine = sr_load_relaxed(&s->committed);
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++)
        if (sr_state_of(sr_load_acquire(&ring->slots[i].state)) == SR_FREE &&
            sr_load_relaxed(&ring->slots[i].committed) > mine)
            return true;
    return false;
}

/* Ends the consumer's interest in a slot: FREE, or PARKED as long as worker code holds an array in it. */
static int let_go(sr_ring *ring, sr_slot *s, unsigned state, uint64_t gen, bool any_gen)
{
    for (;;) {
        uint64_t w = sr_load_acquire(&s->state);
        if (sr_state_of(w) != state)
            return any_gen ? -EBUSY : -ESTALE;
        if (!any_gen && sr_gen_of(w) != gen)
            return -ESTALE;
        if (!(w & SR_HELD)) {
            /* What found no memory must not be the next again while others have it. */
            bool last = state == SR_LEASED && s->result.kind == SR_ERROR && another_has_more(ring, s);
            if (set_free_at(ring, s, w, last ? 0 : sr_now()))
                return 0;
            continue;
        }
        uint64_t holder = (uint64_t)sr_load_relaxed(&s->holder) + 1;
        if (sr_cas(&s->state, w, sr_word(SR_PARKED, holder, sr_gen_of(w)) | SR_HELD)) /* [E2] partner: [U1] */
            return 0;
    }
}

void sr_raise_high_water(sr_ring *ring, uint32_t slot)
{
    _Atomic uint32_t *mark = &ring->header->high_water;
    uint32_t seen = sr_load_relaxed(mark);
    while (seen < slot + 1 && !sr_cas32(mark, seen, slot + 1))
        seen = sr_load_relaxed(mark);
}

void sr_reset_slot(sr_slot *s, const sr_task *task)
{
    static const sr_result none;
    sr_times *t = &s->times;
    /* First of all, and then nothing but releases: who sees one of them sees this one as well. [J7] partner: the second
     * look in sr_watch_slot. What else there is of times is written before it is read. */
    sr_store_relaxed(&t->claimed_at, 0);
    sr_copy_after(&s->task, task, sizeof s->task);
    sr_copy_after(&s->result, &none, sizeof s->result);
    sr_store_release(&s->ticket, task->ticket);
    sr_store_release(&s->run, task->run);
    sr_store_relaxed(&s->n_ranges, task->n_ranges);
    sr_store_relaxed(&s->cursor, 0);
    sr_store_release(&t->fetched_at, 0);
    sr_store_release(&t->published_at, 0);
    sr_store_release(&t->taken_at, 0);
    sr_store_release(&t->fetch_ns, 0);
    sr_store_release(&t->collate_ns, 0);
    sr_store_release(&t->idle_ns, 0);
    sr_store_release(&t->copy_ns, 0);
    sr_store_release(&t->read_ns, 0);
    sr_store_release(&t->decode_ns, 0);
    sr_store_release(&t->resize_ns, 0);
    sr_store_release(&t->lookups, 0);
    sr_store_release(&t->slowest_ns, 0);
    sr_store_release(&s->skipped, 0);
}

/* ---- consumer ------------------------------------------------------------------------------------------- */

int sr_begin_run(sr_ring *ring, uint64_t run)
{
    sr_store_release(&ring->header->run, run);
    return 0;
}

int sr_pick_free(sr_ring *ring, uint32_t *slot)
{
    uint64_t best = 0;
    bool found = false;
    uint32_t end = sr_scan_end(ring);
    /* Behind the mark all are FREE, and cold: the first of them stands for all. Who takes it raises the mark first. */
    for (uint32_t i = 0; i < ring->n_slots && (i <= end || (!found && i <= sr_scan_end(ring))); i++) {
        sr_slot *s = &ring->slots[i];
        unsigned state = sr_state_of(sr_load_ordered(&s->state)); /* [F3] partner: the CAS in sr_set_free */
        /* What was published for an old run is discarded on sight. */
        if (state == SR_READY && sr_is_stale(ring, s) && let_go(ring, s, SR_READY, 0, true) == 0)
            state = sr_state_of(sr_load_acquire(&s->state));
        if (state != SR_FREE)
            continue;
        uint64_t at = sr_load_relaxed(&s->freed_at);
        if (!found || at > best) {
            found = true;
            best = at;
            *slot = i;
        }
    }
    return found ? 0 : -EAGAIN;
}

int sr_dispatch(sr_ring *ring, uint32_t slot, const sr_task *task, uint64_t *gen)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s || (ring->flags & SR_SEG_PUSH) || task->n_ranges > SR_MAX_RANGES || task->addressee > ring->n_parties)
        return -EINVAL;
    uint64_t w, g, next;
    do { /* again, if memory was taken from it meanwhile */
        w = sr_load_acquire(&s->state); /* [D1] partner: [E1], what the last owner did */
        if (sr_state_of(w) != SR_FREE)
            return sr_state_of(w) == SR_TRIMMED ? -EAGAIN : -EBUSY;
        g = sr_next_gen(sr_gen_of(w));
        sr_keep_record(ring, slot);
        sr_reset_slot(s, task);
        bool has_index = task->kind == SR_TASK_INDICES && task->rows;
        sr_store_release(&s->times.first_index, /* [J7] too, and the next stamp */
                         has_index ? *(const uint64_t *)(const void *)sr_task_area(ring, slot) : SR_NO_INDEX);
        for (uint32_t i = 0; i < task->n_ranges; i++)
            sr_store_relaxed(&s->ranges[i].word, sr_word(SR_RANGE_FREE, 0, g));
        sr_store_relaxed(&s->layout, sr_word(SR_LAYOUT_NONE, 0, g));
        sr_store_release(&s->times.dispatched_at, sr_now());
        sr_raise_high_water(ring, slot);
        /* What the slot has given back since is mapped anew when it is there again. */
        uint64_t there = sr_load_relaxed(&s->committed);
        if (sr_load_relaxed(&ring->populated[slot]) > there)
            atomic_store_explicit(&ring->populated[slot], there, memory_order_relaxed); /* nobody else's word */
        if (ring->told)
            ring->told[slot] = (struct sr_told){true, g, *task};
        next = task->n_ranges ? sr_word(SR_SHARED, 0, g) : sr_word(SR_TASK, task->addressee, g);
    } while (!sr_cas(&s->state, w, next)); /* [D2] partners: [K1], [K2] */
    if (gen)
        *gen = g;
    if (!task->n_ranges)
        sr_wake_a_worker(ring, task->addressee);
    for (uint32_t i = 0; i < task->n_ranges; i++) /* ranges are anybody's */
        sr_wake_a_worker(ring, 0);
    return 0;
}

void sr_restore_task(const sr_ring *ring, uint32_t slot)
{
    sr_slot *s = &ring->slots[slot];
    const struct sr_told *told = ring->told ? &ring->told[slot] : NULL;
    if (!told || !told->is_set || told->gen != sr_gen_of(sr_load_acquire(&s->state)))
        return;
    if (memcmp(&s->task, &told->task, sizeof s->task) != 0)
        s->task = told->task;
    sr_store_relaxed(&s->ticket, told->task.ticket);
    sr_store_relaxed(&s->run, told->task.run);
    sr_store_relaxed(&s->n_ranges, told->task.n_ranges);
}

int sr_cancel(sr_ring *ring, uint32_t slot, uint64_t gen)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    uint64_t w = sr_load_acquire(&s->state);
    if (sr_gen_of(w) != gen)
        return -ESTALE;
    if (sr_state_of(w) == SR_TASK)
        return sr_set_free(ring, s, w) ? 0 : -EBUSY;
    if (sr_state_of(w) == SR_SHARED && sr_stop_ranges(s, gen))
        return sr_set_free(ring, s, w) ? 0 : -EBUSY;
    return -EBUSY;
}

/* Looks for the READY slot with the lowest ticket of the current run; its state word, 0: there is none. */
static uint64_t find_ready(sr_ring *ring, uint32_t *slot)
{
    uint64_t best = 0, best_word = 0;
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++) {
        sr_slot *s = &ring->slots[i];
        uint64_t w = sr_load_ordered(&s->state);
        if (sr_state_of(w) != SR_READY || sr_is_stale(ring, s))
            continue;
        uint64_t ticket = sr_load_relaxed(&s->ticket);
        if (!best_word || sr_before(ticket, best)) {
            best = ticket;
            best_word = w;
            *slot = i;
        }
    }
    return best_word;
}

static bool is_ready(sr_ring *ring, uint32_t slot, uint32_t *found)
{
    if (slot == SR_ANY)
        return find_ready(ring, found) != 0;
    if (sr_state_of(sr_load_ordered(&ring->slots[slot].state)) != SR_READY)
        return false;
    *found = slot;
    return true;
}

int sr_wait_ready(sr_ring *ring, uint32_t slot, uint64_t deadline, uint32_t *found)
{
    sr_header *h = ring->header;
    if (slot != SR_ANY && slot >= ring->n_slots)
        return -EINVAL;
    while (!is_ready(ring, slot, found)) {
        if (sr_closed(ring))
            return -ESHUTDOWN;
        if (deadline == 0)
            return -ETIMEDOUT;
        if (sr_load_ordered(&ring->interrupted))
            return -ECANCELED;
        /* A wake-up for another slot would be in vain; several consumers wait for any. */
        if (!(ring->flags & SR_SEG_PUSH))
            sr_store_ordered(&h->wanted, slot == SR_ANY ? 0 : slot + 1);
        sr_add_ordered(&h->ready_waiters, 1); /* [R2] partner: [R1] in sr_wake_ready */
        uint32_t seen = sr_load_acquire(&h->ready);
        int rc = 0;
        /* [I2] partner: [I1] in sr_interrupt; whoever comes in between changes the word that is slept on */
        if (!is_ready(ring, slot, found) && !sr_closed(ring) && !sr_load_ordered(&ring->interrupted))
            rc = sr_futex_wait(&h->ready, seen, deadline);
        sr_sub_ordered(&h->ready_waiters, 1);
        if (rc == -EINTR)
            return rc;
        if (rc == -ETIMEDOUT)
            return is_ready(ring, slot, found) ? 0 : rc;
    }
    return 0;
}

int sr_interrupt(sr_ring *ring, bool on)
{
    sr_store_ordered(&ring->interrupted, on); /* [I1] */
    if (on) {
        sr_add_ordered(&ring->header->ready, 1);
        sr_futex_wake(&ring->header->ready, INT_MAX);
    }
    return 0;
}

int sr_take(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t *gen, sr_result *result)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s || party >= ring->n_parties)
        return -EINVAL;
    for (;;) {
        uint64_t w = sr_load_acquire(&s->state); /* [P2] partner: [P1] in sr_publish */
        if (sr_state_of(w) != SR_READY)
            return -EBUSY;
        /* A look is no snapshot: while it passes over the slots, a producer may publish behind it and then ahead of
         * it. And since the wait, other consumers may have taken the batch, and a producer put a later one there.
         * But what its producer published before this batch was READY when w was read: another look decides. */
        uint32_t first;
        if ((ring->flags & SR_SEG_PUSH) && (find_ready(ring, &first) != w || first != slot))
            return -EBUSY;
        uint64_t leased = sr_word(SR_LEASED, (uint64_t)party + 1, sr_gen_of(w)) | (w & SR_HELD);
        if (sr_cas(&s->state, w, leased)) {
            *gen = sr_gen_of(w);
            *result = s->result;
            sr_store_relaxed(&s->times.taken_at, sr_now());
            return 0;
        }
    }
}

int sr_circulating(const sr_ring *ring)
{
    int n = (int)ring->n_slots;
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++) {
        unsigned state = sr_state_of(sr_load_relaxed(&ring->slots[i].state));
        n -= state == SR_LEASED || state == SR_PARKED;
    }
    return n;
}

int sr_release(sr_ring *ring, uint32_t slot, uint64_t gen)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    return s ? let_go(ring, s, SR_LEASED, gen, false) : -EINVAL;
}

int sr_discard(sr_ring *ring, uint32_t slot)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    return s ? let_go(ring, s, SR_READY, 0, true) : -EINVAL;
}
