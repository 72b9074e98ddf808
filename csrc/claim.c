/* claim.c - the worker's side of a slot's life: claim, publish, abort; and the producer's, in push mode. */
#include "handle.h"

/* One look at all slots; claims the lowest ticket that this party may take. */
static int try_claim(sr_ring *ring, uint32_t party, uint32_t *slot, uint32_t *range, uint64_t *gen)
{
    uint64_t me = (uint64_t)party + 1;
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
            uint64_t ticket = sr_load_relaxed(&s->ticket);
            /* Two runs may use the same ticket: then the slot's number decides. */
            if (have_floor && (sr_before(ticket, floor) || (ticket == floor && i <= floor_slot)))
                continue;
            if (found && !sr_before(ticket, best))
                continue;
            found = true;
            best = ticket;
            best_word = w;
            *slot = i;
        }
        if (!found)
            return -EAGAIN;
        /* A look is no snapshot: an earlier task may have been dispatched behind it, and this one ahead of it. What is
         * addressed is to be done in turn (a stream would pass over a batch). Whoever saw it sees those before it. */
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
            continue; /* another was faster: look again */
        }
        if (sr_claim_range(s, best_word, party, range) == 0)
            return 0;
        /* All its ranges are taken: those behind it only. */
        floor = best;
        floor_slot = *slot;
        have_floor = true;
    }
}

/* Gives back at once what belongs to an old run or was cancelled; true if there was something to give back. */
static bool drop_stale(sr_ring *ring, uint32_t party, uint32_t slot, uint32_t range, uint64_t gen)
{
    sr_slot *s = &ring->slots[slot];
    if (!sr_is_stale(ring, s) && !(range == SR_FINISH && sr_was_stopped(s, gen)))
        return false;
    if (range == SR_WHOLE || range == SR_FINISH)
        sr_abort(ring, party, slot, gen);
    else
        sr_range_done(ring, party, slot, range, gen, NULL);
    return true;
}

/* Wakers look at the parties below this mark only: a segment may have room for many more than there are. */
static void raise_crowd(sr_ring *ring, uint32_t party)
{
    _Atomic uint32_t *crowd = &ring->header->crowd;
    for (uint32_t seen = sr_load_ordered(crowd); seen <= party; seen = sr_load_ordered(crowd))
        if (sr_cas32(crowd, seen, party + 1)) /* [W4] partner: [W3] in sr_wake_a_worker */
            return;
}

int sr_claim(sr_ring *ring, uint32_t party, uint64_t deadline, uint32_t *slot, uint32_t *range, uint64_t *gen)
{
    if (party >= ring->n_parties)
        return -EINVAL;
    sr_party *me = &ring->parties[party];
    uint64_t since = sr_now();
    int rc;

    for (;;) {
        if (sr_closed(ring))
            return -ESHUTDOWN;
        if (sr_load_ordered(&me->leaving) && (sr_cas32(&me->leaving, 1, 2) || sr_load_ordered(&me->leaving) == 2)) {
            /* [Q2] partners: [Q1] in sr_dismiss, [Q3] in sr_keep */
            sr_store_relaxed(&me->at_since, sr_now());
            sr_wake_a_worker(ring, 0); /* it may have been woken for a task that is another's now */
            return -ESHUTDOWN;
        }
        rc = try_claim(ring, party, slot, range, gen);
        if (rc == -EAGAIN) {
            if (sr_now() >= deadline)
                return -ETIMEDOUT;
            uint32_t seen = sr_load_acquire(&me->wake);
            raise_crowd(ring, party);
            sr_store_ordered(&me->waiting, 1); /* [W2] partner: [W1] in rouse */
            rc = try_claim(ring, party, slot, range, gen);
            if (rc == -EAGAIN && !sr_closed(ring) && !sr_load_ordered(&me->leaving)) /* [Q2] */
                rc = sr_futex_wait(&me->wake, seen, sr_rescan_at(deadline)) == -EINTR
                         ? -EINTR
                         : -EAGAIN;
            /* A wake-up that came although this party has found work itself, or goes to look at its signals,
             * is another's. After -EAGAIN it is followed, by looking again. */
            if (!sr_cas32(&me->waiting, 1, 0) && rc != -EAGAIN)
                sr_wake_a_worker(ring, 0);
        }
        if (rc == 0 && !drop_stale(ring, party, *slot, *range, *gen))
            break;
        if (rc == -EINTR)
            return rc;
    }
    sr_slot *s = &ring->slots[*slot];
    uint64_t now = sr_now();
    if (sr_load_relaxed(&s->times.claimed_at) == 0)
        sr_store_relaxed(&s->times.claimed_at, now);
    sr_add_relaxed(&s->times.idle_ns, now - since);
    return 0;
}

int sr_publish(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen, const sr_result *result, bool held)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    uint64_t w = sr_word(SR_CLAIMED, (uint64_t)party + 1, gen);
    if (sr_load_acquire(&s->state) != w)
        return -ESTALE;
    if (sr_load_relaxed(&ring->header->tight) && !held) /* arrays that are kept may lie anywhere */
        sr_trim_tail(ring, slot, result->bytes);
    s->result = *result;
    sr_store_relaxed(&s->times.published_at, sr_now());
    sr_store_relaxed(&s->holder, party);
    sr_note_made(ring, party, s);
    if (ring->flags & SR_SEG_PUSH)
        sr_store_relaxed(&s->ticket, sr_add_relaxed(&ring->header->order, 1));
    if (!sr_cas(&s->state, w, sr_word(SR_READY, 0, gen) | (held ? SR_HELD : 0))) /* [P1] partner: [P2] */
        return -ESTALE;
    sr_wake_ready(ring, slot);
    return 0;
}

int sr_abort(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    return sr_set_free(ring, s, sr_word(SR_CLAIMED, (uint64_t)party + 1, gen)) ? 0 : -ESTALE;
}

int sr_park(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    uint64_t me = (uint64_t)party + 1, w = sr_word(SR_CLAIMED, me, gen);
    if (sr_load_acquire(&s->state) != w)
        return -ESTALE;
    sr_store_relaxed(&s->holder, party);
    return sr_cas(&s->state, w, sr_word(SR_PARKED, me, gen) | SR_HELD) ? 0 : -ESTALE; /* [E2] partner: [U1] */
}

int sr_unhold(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    for (;;) {
        uint64_t w = sr_load_acquire(&s->state); /* [U1] partner: [E2]; what follows is [U2], partner: [E1] */
        if (sr_gen_of(w) != gen || !(w & SR_HELD) || sr_load_relaxed(&s->holder) != party)
            return -ESTALE;
        if (sr_state_of(w) == SR_PARKED ? sr_set_free(ring, s, w) : sr_cas(&s->state, w, w & ~SR_HELD))
            return 0;
    }
}

/* ---- push mode ------------------------------------------------------------------------------------------------ */

static int try_claim_free(sr_ring *ring, uint32_t party, uint32_t *slot, uint64_t *gen)
{
    static const sr_task none;
    uint32_t pick;
    while (sr_pick_free(ring, &pick) == 0) {
        sr_slot *s = &ring->slots[pick];
        uint64_t w = sr_load_ordered(&s->state);
        if (sr_state_of(w) != SR_FREE)
            continue;
        uint64_t g = sr_next_gen(sr_gen_of(w));
        sr_raise_high_water(ring, pick); /* before the claim: it is to be found, should this party die now */
        if (!sr_cas(&s->state, w, sr_word(SR_CLAIMED, (uint64_t)party + 1, g))) /* [K3] partner: [E1] */
            continue;
        sr_keep_record(ring, pick);
        sr_reset_slot(s, &none);
        sr_store_relaxed(&s->times.first_index, SR_NO_INDEX);
        sr_store_release(&s->times.claimed_at, sr_now()); /* [J7] the reset is done */
        *slot = pick;
        *gen = g;
        return 0;
    }
    return -EAGAIN;
}

int sr_claim_free(sr_ring *ring, uint32_t party, uint64_t deadline, uint32_t *slot, uint64_t *gen)
{
    sr_header *h = ring->header;
    if (party >= ring->n_parties || !(ring->flags & SR_SEG_PUSH))
        return -EINVAL;
    for (;;) {
        if (sr_closed(ring))
            return -ESHUTDOWN;
        if (try_claim_free(ring, party, slot, gen) == 0)
            return 0;
        if (deadline == 0)
            return -ETIMEDOUT;
        sr_add_ordered(&h->free_waiters, 1); /* [F2] partner: [F1] in sr_wake_free */
        uint32_t seen = sr_load_acquire(&h->freed);
        int rc = try_claim_free(ring, party, slot, gen);
        bool claimed = rc == 0;
        if (!claimed && !sr_closed(ring))
            rc = sr_futex_wait(&h->freed, seen, sr_rescan_at(deadline));
        sr_sub_ordered(&h->free_waiters, 1);
        if (claimed)
            return 0;
        if (rc == -EINTR)
            return rc;
        if (rc == -ETIMEDOUT && sr_now() >= deadline)
            return try_claim_free(ring, party, slot, gen) == 0 ? 0 : -ETIMEDOUT;
    }
}
