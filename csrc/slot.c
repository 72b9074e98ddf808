/* slot.c - a slot's state machine, from dispatch to release.
 *
 * Loader mode: the consumer dispatches tasks into FREE slots, workers claim and publish them, and the consumer takes
 * and releases the batches. If a task has ranges, several workers fill one slot. Queue mode: producers claim FREE
 * slots. docs/protocol.md has the transitions and the partners of the labels.
 */
#include <limits.h>
#include <poll.h>
#include <string.h>

#include "internal.h"

/* ---- consumer: dispatch ------------------------------------------------------------------------------------------ */

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
    /* This store comes first, and all that follow are releases: an observer that sees one of them also sees this one.
     * [J7] partner: the second check in sr_watch_slot. The stamps not stored here are written before they are read. */
    sr_store_relaxed(&t->claimed_at, 0);
    sr_copy_after(&s->task, task, sizeof s->task);
    sr_copy_after(&s->result, &none, sizeof s->result);
    sr_store_release(&s->seq, task->seq);
    sr_store_release(&s->iteration, task->iteration);
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
    sr_store_release(&t->augment_ns, 0);
    sr_store_release(&t->user_ns, 0);
    sr_store_release(&t->lookups, 0);
    sr_store_release(&t->slowest_ns, 0);
    sr_store_release(&s->skipped, 0);
}

/* Return whether another FREE slot has more memory than this one. */
static bool another_has_more(const sr_ring *ring, const sr_slot *s)
{
    uint64_t mine = sr_load_relaxed(&s->committed);
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++)
        if (sr_state_of(sr_load_acquire(&ring->slots[i].state)) == SR_FREE &&
            sr_load_relaxed(&ring->slots[i].committed) > mine)
            return true;
    return false;
}

/* End the use of a slot: FREE, or PARKED while worker code keeps an array in it. */
static int release_slot(sr_ring *ring, sr_slot *s, unsigned state, uint64_t gen, bool any_gen)
{
    for (;;) {
        uint64_t w = sr_load_acquire(&s->state);
        if (sr_state_of(w) != state)
            return any_gen ? -EBUSY : -ESTALE;
        if (!any_gen && sr_gen_of(w) != gen)
            return -ESTALE;
        if (!(w & SR_PINNED)) {
            /* A slot that found no memory for its batch must not be dispatched next while others have memory. */
            bool last = state == SR_LEASED && s->result.kind == SR_ERROR && another_has_more(ring, s);
            if (sr_set_free_at(ring, s, w, last ? 0 : sr_now()))
                return 0;
            continue;
        }
        uint64_t pinned_by = (uint64_t)sr_load_relaxed(&s->pinned_by) + 1;
        if (sr_cas(&s->state, w, sr_word(SR_PARKED, pinned_by, sr_gen_of(w)) | SR_PINNED)) /* [E2] partner: [U1] */
            return 0;
    }
}

int sr_end_use(sr_ring *ring, sr_slot *s, unsigned state, uint64_t gen)
{
    return release_slot(ring, s, state, gen, false);
}

int sr_begin_iteration(sr_ring *ring, uint64_t iteration)
{
    sr_store_release(&ring->header->iteration, iteration);
    return 0;
}

int sr_pick_free(sr_ring *ring, uint32_t *slot)
{
    uint64_t best = 0;
    bool found = false;
    uint32_t end = sr_scan_end(ring);
    /* All slots at or above the high-water mark are FREE and cold, so the first one represents them. A participant that
     * takes it raises the mark first. */
    for (uint32_t i = 0; i < ring->n_slots && (i <= end || (!found && i <= sr_scan_end(ring))); i++) {
        sr_slot *s = &ring->slots[i];
        unsigned state = sr_state_of(sr_load_ordered(&s->state)); /* [F3] partner: the CAS in sr_set_free */
        /* Discard a batch of an old iteration as soon as it is found. */
        if (state == SR_READY && sr_is_stale(ring, s) && release_slot(ring, s, SR_READY, 0, true) == 0)
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
    if (!s || (ring->flags & SR_SEG_QUEUE) || task->n_ranges > SR_MAX_RANGES || task->addressee > ring->n_participants)
        return -EINVAL;
    uint64_t w, g, next;
    do { /* repeat if a participant released its memory meanwhile */
        w = sr_load_acquire(&s->state); /* [D1] partner: [E1], the writes of the last owner */
        if (sr_state_of(w) != SR_FREE)
            return sr_state_of(w) == SR_TRIMMED ? -EAGAIN : -EBUSY;
        g = sr_next_gen(sr_gen_of(w));
        sr_save_record(ring, slot);
        sr_reset_slot(s, task);
        bool has_index = task->kind == SR_TASK_INDICES && task->rows;
        sr_store_release(&s->times.first_index, /* [J7], like the next stamp */
                         has_index ? *(const uint64_t *)(const void *)sr_task_area(ring, slot) : SR_NO_INDEX);
        for (uint32_t i = 0; i < task->n_ranges; i++)
            sr_store_relaxed(&s->ranges[i].word, sr_word(SR_RANGE_FREE, 0, g));
        sr_store_relaxed(&s->layout, sr_word(SR_LAYOUT_NONE, 0, g));
        sr_store_release(&s->times.dispatched_at, sr_now());
        sr_raise_high_water(ring, slot);
        /* If the slot has released memory, this process must map it again after the next commit. */
        uint64_t there = sr_load_relaxed(&s->committed);
        if (sr_load_relaxed(&ring->populated[slot]) > there)
            /* A private word of this process. */
            atomic_store_explicit(&ring->populated[slot], there, memory_order_relaxed);
        if (ring->dispatched)
            ring->dispatched[slot] = (struct sr_dispatched){true, g, *task};
        next = task->n_ranges ? sr_word(SR_SHARED, 0, g) : sr_word(SR_TASK, task->addressee, g);
    } while (!sr_cas(&s->state, w, next)); /* [D2] partners: [K1], [K2] */
    if (gen)
        *gen = g;
    if (!task->n_ranges)
        sr_wake_a_worker(ring, task->addressee);
    for (uint32_t i = 0; i < task->n_ranges; i++) /* any worker may take a range */
        sr_wake_a_worker(ring, 0);
    return 0;
}

void sr_restore_task(const sr_ring *ring, uint32_t slot)
{
    sr_slot *s = &ring->slots[slot];
    const struct sr_dispatched *dispatched = ring->dispatched ? &ring->dispatched[slot] : NULL;
    if (!dispatched || !dispatched->is_set || dispatched->gen != sr_gen_of(sr_load_acquire(&s->state)))
        return;
    if (memcmp(&s->task, &dispatched->task, sizeof s->task) != 0)
        s->task = dispatched->task;
    sr_store_relaxed(&s->seq, dispatched->task.seq);
    sr_store_relaxed(&s->iteration, dispatched->task.iteration);
    sr_store_relaxed(&s->n_ranges, dispatched->task.n_ranges);
}

/* ---- ranges: several workers fill one batch, one range of rows each ---------------------------------------------- */

static uint32_t ranges_of(const sr_slot *s)
{
    uint32_t n = sr_load_relaxed(&s->n_ranges);
    return n < SR_MAX_RANGES ? n : SR_MAX_RANGES;
}

static bool has_ended(uint64_t word)
{
    return (word & 3) == SR_RANGE_DONE || (word & 3) == SR_RANGE_STOPPED;
}

static int claim_range(sr_slot *s, uint64_t word, uint32_t participant, uint32_t *range)
{
    uint64_t gen = sr_gen_of(word), me = (uint64_t)participant + 1;
    uint32_t n = ranges_of(s);
    bool all_done = true;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t w = sr_load_acquire(&s->ranges[i].word);
        if (sr_gen_of(w) != gen)
            return -EAGAIN; /* the slot has another task now */
        /* [K2] partners: [D2], [X2] */
        if ((w & 3) == SR_RANGE_FREE && sr_cas(&s->ranges[i].word, w, sr_word(SR_RANGE_CLAIMED, me, gen))) {
            *range = i;
            return 0;
        }
        all_done = all_done && has_ended(sr_load_acquire(&s->ranges[i].word));
    }
    /* [G3] partner: [G1]. The worker that ended the last range died before it finished the slot. */
    if (n > 0 && all_done && sr_cas(&s->state, word, sr_word(SR_CLAIMED, me, gen))) {
        *range = SR_FINISH;
        return 0;
    }
    return -EAGAIN;
}

/* [G2] partner: [G1]. A participant checks this after it ends a range or stops the free ones. The loads are ordered: of
 * two participants that end the last two ranges concurrently, at least one sees both as ended. */
static bool all_ranges_ended(const sr_slot *s, uint64_t gen)
{
    for (uint32_t i = 0, n = ranges_of(s); i < n; i++) {
        uint64_t w = sr_load_ordered(&s->ranges[i].word);
        if (sr_gen_of(w) != gen || !has_ended(w))
            return false;
    }
    return true;
}

bool sr_was_stopped(const sr_slot *s, uint64_t gen)
{
    for (uint32_t i = 0, n = ranges_of(s); i < n; i++)
        if (sr_load_acquire(&s->ranges[i].word) == sr_word(SR_RANGE_STOPPED, 0, gen))
            return true;
    return false;
}

int sr_range_done(sr_ring *ring, uint32_t participant, uint32_t slot, uint32_t range, uint64_t gen,
                  const sr_result *result)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    uint64_t me = (uint64_t)participant + 1;
    if (!s || range >= ranges_of(s))
        return -EINVAL;
    uint64_t w = sr_word(SR_RANGE_CLAIMED, me, gen);
    if (sr_load_acquire(&s->ranges[range].word) != w)
        return -ESTALE;
    s->ranges[range].result = result ? *result : (sr_result){0};
    if (!sr_cas(&s->ranges[range].word, w, sr_word(SR_RANGE_DONE, 0, gen))) /* [G1] */
        return -ESTALE;
    /* Read the slot's word before checking the ranges. If a finisher dies between this check and the CAS, recovery may
     * free the ranges again. Then the word has another round and the CAS fails. */
    w = sr_load_ordered(&s->state);
    if (sr_state_of(w) != SR_SHARED || sr_gen_of(w) != gen || !all_ranges_ended(s, gen) ||
        !sr_cas(&s->state, w, sr_word(SR_CLAIMED, me, gen)))
        return 0;
    if (sr_is_stale(ring, s) || sr_was_stopped(s, gen)) {
        sr_abort(ring, participant, slot, gen);
        return 0;
    }
    return 1;
}

bool sr_stop_ranges(sr_slot *s, uint64_t gen)
{
    for (uint32_t i = 0, n = ranges_of(s); i < n; i++)
        sr_cas(&s->ranges[i].word, sr_word(SR_RANGE_FREE, 0, gen), sr_word(SR_RANGE_STOPPED, 0, gen));
    return all_ranges_ended(s, gen);
}

int sr_recover_ranges(sr_slot *s, uint64_t gen, uint32_t participant, bool stale)
{
    uint64_t me = (uint64_t)participant + 1;
    int again = 0;
    unsigned next = stale || sr_was_stopped(s, gen) ? SR_RANGE_STOPPED : SR_RANGE_FREE;
    for (uint32_t i = 0, n = ranges_of(s); i < n; i++) {
        if (sr_cas(&s->ranges[i].word, sr_word(SR_RANGE_CLAIMED, me, gen), sr_word(next, 0, gen))) /* [X2] */
            again += next == SR_RANGE_FREE;
    }
    if (sr_cas(&s->layout, sr_word(SR_LAYOUT_PROPOSING, me, gen), sr_word(SR_LAYOUT_NONE, 0, gen)))
        sr_futex_wake((_Atomic uint32_t *)&s->layout, INT_MAX);
    return again;
}

uint64_t sr_undo_ranges(sr_slot *s, uint64_t gen)
{
    uint64_t w = sr_load_acquire(&s->rewound); /* [L4] */
    uint64_t round = sr_gen_of(w) == gen ? sr_owner_of(w) : 0;
    if (sr_gen_of(w) != gen || sr_state_of(w) != SR_CLAIMED)
        return round;
    round = (round + 1) & (SR_OWNER_MASK >> SR_OWNER_SHIFT);
    sr_store_relaxed(&s->cursor, 0);
    sr_store_relaxed(&s->rewound, sr_word(SR_FREE, round, gen));
    sr_store_relaxed(&s->layout, sr_word(SR_LAYOUT_NONE, 0, gen));
    for (uint32_t i = 0, n = ranges_of(s); i < n; i++)
        sr_store_release(&s->ranges[i].word, sr_word(SR_RANGE_FREE, 0, gen)); /* [X2] */
    return round;
}

int sr_layout_propose(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen, uint64_t deadline)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    uint64_t me = (uint64_t)participant + 1;
    if (!s)
        return -EINVAL;
    for (;;) {
        uint64_t w = sr_load_acquire(&s->layout); /* [L2] partner: [L1] in sr_layout_settle */
        if (sr_gen_of(w) != gen)
            return -ESTALE;
        unsigned state = (unsigned)(w & 3);
        if (state == SR_LAYOUT_DIRECT || state == SR_LAYOUT_STAGED)
            return (int)state;
        if (state == SR_LAYOUT_NONE) {
            if (sr_cas(&s->layout, w, sr_word(SR_LAYOUT_PROPOSING, me, gen)))
                return 0;
            continue;
        }
        if (sr_owner_of(w) == me)
            return 0;
        if (sr_closed(ring))
            return -ESHUTDOWN;
        /* The low half of the word contains state and owner, so it changes whenever the wait should end. The only
         * exception is a close, which the next iteration of this loop sees. */
        int rc = sr_futex_wait((_Atomic uint32_t *)&s->layout, (uint32_t)w, sr_rescan_at(deadline));
        if (rc == -EINTR || (rc == -ETIMEDOUT && sr_now() >= deadline))
            return rc;
    }
}

int sr_layout_settle(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen, int layout,
                     const sr_result *result)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s || (layout != SR_LAYOUT_DIRECT && layout != SR_LAYOUT_STAGED))
        return -EINVAL;
    uint64_t w = sr_word(SR_LAYOUT_PROPOSING, (uint64_t)participant + 1, gen);
    if (sr_load_acquire(&s->layout) != w)
        return -ESTALE;
    if (result)
        s->result = *result;
    if (!sr_cas(&s->layout, w, sr_word((unsigned)layout, 0, gen))) /* [L1] */
        return -ESTALE;
    sr_futex_wake((_Atomic uint32_t *)&s->layout, INT_MAX);
    return 0;
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

/* ---- worker: claim ----------------------------------------------------------------------------------------------- */

/* Scan all slots once, and claim the lowest sequence number that this participant may take. */
static int try_claim(sr_ring *ring, uint32_t participant, uint32_t *slot, uint32_t *range, uint64_t *gen)
{
    uint64_t me = (uint64_t)participant + 1;
    uint64_t floor = 0;
    uint32_t floor_slot = 0;
    bool have_floor = false;
    uint64_t seen_word = 0;
    uint32_t seen_slot = 0;

    for (;;) {
        uint64_t best = 0, best_word = 0;
        bool found = false;
        for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++) {
            sr_slot *s = &ring->slots[i];
            uint64_t w = sr_load_ordered(&s->state);
            uint64_t owner = sr_owner_of(w);
            bool mine = sr_state_of(w) == SR_TASK && (owner == 0 || owner == me);
            if (!mine && sr_state_of(w) != SR_SHARED)
                continue;
            uint64_t seq = sr_load_relaxed(&s->seq);
            /* Two iterations may use the same sequence number; then the slot's number decides. */
            if (have_floor && (sr_before(seq, floor) || (seq == floor && i <= floor_slot)))
                continue;
            if (found && !sr_before(seq, best))
                continue;
            found = true;
            best = seq;
            best_word = w;
            *slot = i;
        }
        if (!found)
            return -EAGAIN;
        /* A scan is not a snapshot: it may miss an earlier task and find a later one, both dispatched during the scan.
         * Tasks addressed to one worker must be claimed in order, or a stream would skip a batch. A worker that has
         * read the later word sees all earlier dispatches, so it scans once more. */
        if (sr_owner_of(best_word) == me && (seen_word != best_word || seen_slot != *slot)) {
            seen_word = best_word;
            seen_slot = *slot;
            continue;
        }
        sr_slot *s = &ring->slots[*slot];
        *gen = sr_gen_of(best_word);
        *range = SR_WHOLE;
        if (sr_state_of(best_word) == SR_TASK) {
            if (sr_cas(&s->state, best_word, sr_word(SR_CLAIMED, me, *gen))) /* [K1] partners: [D2], [X1] */
                return 0;
            continue; /* another worker was faster: scan again */
        }
        if (claim_range(s, best_word, participant, range) == 0)
            return 0;
        /* All its ranges are taken: consider only later tasks. */
        floor = best;
        floor_slot = *slot;
        have_floor = true;
    }
}

/* Release a claim at once if its task is stale or cancelled; return whether it was. */
static bool drop_stale(sr_ring *ring, uint32_t participant, uint32_t slot, uint32_t range, uint64_t gen)
{
    sr_slot *s = &ring->slots[slot];
    if (!sr_is_stale(ring, s) && !(range == SR_FINISH && sr_was_stopped(s, gen)))
        return false;
    if (range == SR_WHOLE || range == SR_FINISH)
        sr_abort(ring, participant, slot, gen);
    else
        sr_range_done(ring, participant, slot, range, gen, NULL);
    return true;
}

int sr_try_claim(sr_ring *ring, uint32_t participant, uint32_t *slot, uint32_t *range, uint64_t *gen)
{
    int rc;
    do
        rc = try_claim(ring, participant, slot, range, gen);
    while (rc == 0 && drop_stale(ring, participant, *slot, *range, *gen));
    return rc;
}

void sr_record_claim(sr_ring *ring, uint32_t slot, uint64_t since)
{
    sr_slot *s = &ring->slots[slot];
    uint64_t now = sr_now();
    if (sr_load_relaxed(&s->times.claimed_at) == 0)
        sr_store_relaxed(&s->times.claimed_at, now);
    sr_add_relaxed(&s->times.idle_ns, now - since);
}

/* Wakers check only the participants below this mark: a segment may have many more numbers than workers. */
void sr_raise_waiter_high_water(sr_ring *ring, uint32_t participant)
{
    _Atomic uint32_t *mark = &ring->header->waiter_high_water;
    for (uint32_t seen = sr_load_ordered(mark); seen <= participant; seen = sr_load_ordered(mark))
        if (sr_cas32(mark, seen, participant + 1)) /* [W4] partner: [W3] in sr_wake_a_worker */
            return;
}

int sr_claim(sr_ring *ring, uint32_t participant, uint64_t deadline, uint32_t *slot, uint32_t *range, uint64_t *gen)
{
    if (participant >= ring->n_participants)
        return -EINVAL;
    sr_participant *me = &ring->participants[participant];
    uint64_t since = sr_now();
    int rc;

    for (;;) {
        if (sr_closed(ring))
            return -ESHUTDOWN;
        if (sr_load_ordered(&me->retiring) && (sr_cas32(&me->retiring, 1, 2) || sr_load_ordered(&me->retiring) == 2)) {
            /* [Q2] partners: [Q1] in sr_retire, [Q3] in sr_cancel_retirement */
            sr_store_relaxed(&me->at_since, sr_now());
            /* The wake-up that this worker received may have been for a task that another worker must now claim. */
            sr_wake_a_worker(ring, 0);
            return -ESHUTDOWN;
        }
        rc = try_claim(ring, participant, slot, range, gen);
        if (rc == -EAGAIN) {
            if (sr_now() >= deadline)
                return -ETIMEDOUT;
            uint32_t seen = sr_load_acquire(&me->wake);
            sr_raise_waiter_high_water(ring, participant);
            sr_store_ordered(&me->waiting, 1); /* [W2] partner: [W1] in wake_if_waiting */
            rc = try_claim(ring, participant, slot, range, gen);
            if (rc == -EAGAIN && !sr_closed(ring) && !sr_load_ordered(&me->retiring)) /* [Q2] */
                rc = sr_futex_wait(&me->wake, seen, sr_rescan_at(deadline)) == -EINTR
                         ? -EINTR
                         : -EAGAIN;
            /* The announcement is gone although this participant found work itself or must handle a signal: pass the
             * wake-up on to another worker. After -EAGAIN, scanning again uses it. */
            if (!sr_cas32(&me->waiting, 1, 0) && rc != -EAGAIN)
                sr_wake_a_worker(ring, 0);
        }
        if (rc == 0 && !drop_stale(ring, participant, *slot, *range, *gen))
            break;
        if (rc == -EINTR)
            return rc;
    }
    sr_record_claim(ring, *slot, since);
    return 0;
}

/* ---- producer: claim a FREE slot --------------------------------------------------------------------------------- */

static int try_claim_free(sr_ring *ring, uint32_t participant, uint32_t *slot, uint64_t *gen)
{
    static const sr_task none;
    uint32_t pick;
    while (sr_pick_free(ring, &pick) == 0) {
        sr_slot *s = &ring->slots[pick];
        uint64_t w = sr_load_ordered(&s->state);
        if (sr_state_of(w) != SR_FREE)
            continue;
        uint64_t g = sr_next_gen(sr_gen_of(w));
        /* Before the claim, so that recovery finds the slot if this participant dies now. */
        sr_raise_high_water(ring, pick);
        if (!sr_cas(&s->state, w, sr_word(SR_CLAIMED, (uint64_t)participant + 1, g))) /* [K3] partner: [E1] */
            continue;
        sr_save_record(ring, pick);
        sr_reset_slot(s, &none);
        sr_store_relaxed(&s->times.first_index, SR_NO_INDEX);
        sr_store_release(&s->times.claimed_at, sr_now()); /* [J7] the reset is complete */
        *slot = pick;
        *gen = g;
        return 0;
    }
    return -EAGAIN;
}

int sr_claim_free(sr_ring *ring, uint32_t participant, uint64_t deadline, uint32_t *slot, uint64_t *gen)
{
    sr_header *h = ring->header;
    if (participant >= ring->n_participants || !(ring->flags & SR_SEG_QUEUE))
        return -EINVAL;
    for (;;) {
        if (sr_closed(ring))
            return -ESHUTDOWN;
        if (try_claim_free(ring, participant, slot, gen) == 0)
            return 0;
        if (deadline == 0)
            return -ETIMEDOUT;
        sr_add_ordered(&h->free_waiters, 1); /* [F2] partner: [F1] in wake_free */
        uint32_t seen = sr_load_acquire(&h->freed);
        int rc = try_claim_free(ring, participant, slot, gen);
        bool claimed = rc == 0;
        if (!claimed && !sr_closed(ring))
            rc = sr_futex_wait(&h->freed, seen, sr_rescan_at(deadline));
        sr_sub_ordered(&h->free_waiters, 1);
        if (claimed)
            return 0;
        if (rc == -EINTR)
            return rc;
        if (rc == -ETIMEDOUT && sr_now() >= deadline)
            return try_claim_free(ring, participant, slot, gen) == 0 ? 0 : -ETIMEDOUT;
    }
}

/* ---- worker, producer: publish ----------------------------------------------------------------------------------- */

int sr_publish(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen, const sr_result *result, bool pinned)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    uint64_t w = sr_word(SR_CLAIMED, (uint64_t)participant + 1, gen);
    if (sr_load_acquire(&s->state) != w)
        return -ESTALE;
    /* Arrays that worker code keeps may lie anywhere in the slot. */
    if (sr_load_relaxed(&ring->header->memory_pressure) && !pinned)
        sr_trim_tail(ring, slot, result->bytes);
    s->result = *result;
    sr_store_relaxed(&s->times.published_at, sr_now());
    sr_store_relaxed(&s->pinned_by, participant);
    sr_record_publish(ring, participant, s);
    if (ring->flags & SR_SEG_QUEUE)
        sr_store_relaxed(&s->seq, sr_add_relaxed(&ring->header->order, 1));
    if (!sr_cas(&s->state, w, sr_word(SR_READY, 0, gen) | (pinned ? SR_PINNED : 0))) /* [P1] partner: [P2] */
        return -ESTALE;
    sr_wake_ready(ring, slot);
    return 0;
}

int sr_abort(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    return sr_set_free(ring, s, sr_word(SR_CLAIMED, (uint64_t)participant + 1, gen)) ? 0 : -ESTALE;
}

int sr_park(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    uint64_t me = (uint64_t)participant + 1, w = sr_word(SR_CLAIMED, me, gen);
    if (sr_load_acquire(&s->state) != w)
        return -ESTALE;
    sr_store_relaxed(&s->pinned_by, participant);
    return sr_cas(&s->state, w, sr_word(SR_PARKED, me, gen) | SR_PINNED) ? 0 : -ESTALE; /* [E2] partner: [U1] */
}

int sr_unpin(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    for (;;) {
        uint64_t w = sr_load_acquire(&s->state); /* [U1] partner: [E2]; the CAS below is [U2], partner: [E1] */
        if (sr_gen_of(w) != gen || !(w & SR_PINNED) || sr_load_relaxed(&s->pinned_by) != participant)
            return -ESTALE;
        if (sr_state_of(w) == SR_PARKED ? sr_set_free(ring, s, w) : sr_cas(&s->state, w, w & ~SR_PINNED))
            return 0;
    }
}

/* ---- consumer: wait, take, release ------------------------------------------------------------------------------- */

/* Find the READY slot with the lowest sequence number of the current iteration. Return its state word; 0: there is
 * none. */
static uint64_t find_ready(sr_ring *ring, uint32_t *slot)
{
    uint64_t best = 0, best_word = 0;
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++) {
        sr_slot *s = &ring->slots[i];
        uint64_t w = sr_load_ordered(&s->state);
        if (sr_state_of(w) != SR_READY || sr_is_stale(ring, s))
            continue;
        uint64_t seq = sr_load_relaxed(&s->seq);
        if (!best_word || sr_before(seq, best)) {
            best = seq;
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
        /* The consumer of a loader segment needs no wake-ups for other slots. In queue mode several consumers wait for
         * any slot. */
        if (!(ring->flags & SR_SEG_QUEUE))
            sr_store_ordered(&h->wanted, slot == SR_ANY ? 0 : slot + 1);
        sr_add_ordered(&h->ready_waiters, 1); /* [R2] partner: [R1] in sr_wake_ready */
        uint32_t seen = sr_load_acquire(&h->ready);
        int rc = 0;
        /* [I2] partner: [I1] in sr_interrupt. An interrupt after this check changes the word that the futex
         * compares. */
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

int sr_wait_ready_or_death(sr_ring *ring, uint32_t slot, uint64_t deadline, int death_fd, uint32_t *found)
{
    struct pollfd look = {.fd = death_fd, .events = POLLIN};
    for (;;) {
        uint64_t then = sr_now() + SR_DEATH_CHECK_NS, until = death_fd >= 0 && then < deadline ? then : deadline;
        int rc = sr_wait_ready(ring, slot, until, found);
        if (rc != -ETIMEDOUT || until == deadline || poll(&look, 1, 0) != 0)
            return rc;
    }
}

int sr_interrupt(sr_ring *ring, bool on)
{
    sr_store_ordered(&ring->interrupted, on); /* [I1] */
    if (on) {
        sr_add_ordered(&ring->header->ready, 1);
        sr_futex_wake(&ring->header->ready, INT_MAX);
        sr_add_ordered(&ring->header->freed, 1);
        sr_futex_wake(&ring->header->freed, INT_MAX);
        sr_wake_readers(ring);
    }
    return 0;
}

int sr_take(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t *gen, sr_result *result)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s || participant >= ring->n_participants)
        return -EINVAL;
    for (;;) {
        uint64_t w = sr_load_acquire(&s->state); /* [P2] partner: [P1] in sr_publish */
        if (sr_state_of(w) != SR_READY)
            return -EBUSY;
        /* A scan is not a snapshot: a producer may publish into slots that it has passed, and then into slots that it
         * has yet to read. Also, since the wait another consumer may have taken the batch, and a producer may have
         * published a later one in the same slot. But everything that its producer published before this batch was
         * READY when w was read, so a second scan decides. */
        uint32_t first;
        if ((ring->flags & SR_SEG_QUEUE) && (find_ready(ring, &first) != w || first != slot))
            return -EBUSY;
        uint64_t leased = sr_word(SR_LEASED, (uint64_t)participant + 1, sr_gen_of(w)) | (w & SR_PINNED);
        if (sr_cas(&s->state, w, leased)) {
            *gen = sr_gen_of(w);
            *result = s->result;
            sr_store_relaxed(&s->times.taken_at, sr_now());
            return 0;
        }
    }
}

int sr_circulating(const sr_ring *ring, int enough)
{
    uint32_t end = sr_scan_end(ring); /* the slots after it are free */
    int n = (int)(ring->n_slots - end);
    for (uint32_t i = 0; i < end && n < enough; i++) {
        unsigned state = sr_state_of(sr_load_relaxed(&ring->slots[i].state));
        n += state != SR_LEASED && state != SR_PARKED && state != SR_BROADCAST;
    }
    return n;
}

int sr_discard(sr_ring *ring, uint32_t slot)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    return s ? release_slot(ring, s, SR_READY, 0, true) : -EINVAL;
}

/* In a queue segment, a process that has a number may put and get at any time. */
static bool others_take_part(const sr_ring *ring, uint32_t participant)
{
    for (uint32_t i = 0; (ring->flags & SR_SEG_QUEUE) && i < ring->n_participants; i++)
        if (i != participant && sr_load_acquire(&ring->participants[i].incarnation) != 0)
            return true;
    return false;
}

int sr_release_free(sr_ring *ring, uint32_t participant)
{
    if (participant >= ring->n_participants)
        return -EINVAL;
    for (uint32_t i = 0; i < ring->n_slots && !others_take_part(ring, participant); i++) {
        sr_slot *s = &ring->slots[i];
        uint64_t w = sr_load_acquire(&s->state);
        /* Nobody will take this batch or do this task. */
        if (!(ring->flags & SR_SEG_QUEUE) && sr_state_of(w) != SR_FREE) {
            if (sr_state_of(w) == SR_READY)
                (void)sr_discard(ring, i);
            else
                (void)sr_cancel(ring, i, sr_gen_of(w));
            w = sr_load_acquire(&s->state);
        }
        uint64_t have = sr_load_relaxed(&s->committed), had = sr_load_relaxed(&s->task_committed);
        uint64_t mine = sr_word(SR_TRIMMED, (uint64_t)participant + 1, sr_next_gen(sr_gen_of(w)));
        if (sr_state_of(w) != SR_FREE || (have == 0 && had == 0) || !sr_cas(&s->state, w, mine)) /* [T1] */
            continue;
        sr_store_release(&s->committed, 0); /* [C2] */
        sr_store_release(&s->task_committed, 0);
        /* Otherwise the next commit would find its pages still allocated. */
        (void)sr_drop_memory(sr_task_area(ring, i), ring->stride);
        (void)sr_set_free_cold(ring, s, mine);
    }
    return 0;
}
