/* recover.c - what a dead party held goes back to the living.
 *
 * The owner's number lies in the word itself, as in the kernel's robust futexes; but a survivor undoes what was held,
 * not the kernel, which knows nothing of half-filled slots.
 *
 * The caller has confirmed the death (a pidfd, or pid and start time), so nobody but the recovering party
 * changes words that name the dead one as owner: each step is still a CAS, because the words also carry
 * what others may change (HELD), and because several survivors may recover at once in push mode.
 *
 * There a slow survivor may still be at it when another has finished, and a new process has taken the number. So
 * each step reads a slot's word, then makes sure that the number still is the dead one's, then swaps: a word that
 * the next incarnation has written cannot be read before its incarnation can [N2].
 */
#include "handle.h"

/* A party may have died between a slot's mark and its pages [C2], or have written anything there. What lies behind the
 * mark goes, or nobody would count it, and the slot's next commit need the room twice. No more is believed than this
 * process has found backed by memory. */
static void take_strays(sr_ring *ring, sr_slot *s)
{
    if (ring->flags & SR_SEG_PUSH) { /* another survivor may have done all this, and the slot be somebody's by now */
        sr_store_relaxed(&s->strays, 1);
        return;
    }
    uint32_t slot = (uint32_t)(s - ring->slots);
    uint64_t known = sr_load_relaxed(&ring->populated[slot]), have = sr_load_relaxed(&s->committed);
    known = known > SR_PAYLOAD_COMMIT ? known : SR_PAYLOAD_COMMIT;
    if (sr_load_relaxed(&s->pinned))
        return;
    if (have > known)
        sr_store_relaxed(&s->committed, have = known);
    if (have < ring->capacity)
        (void)sr_drop_memory(sr_payload(ring, slot) + have, ring->capacity - have);
}

/* Its CAS are [X1], partners: [K1], [K2]. */
static int recover_claim(sr_ring *ring, sr_slot *s, uint64_t word, bool stale)
{
    uint64_t gen = sr_gen_of(word);
    if ((ring->flags & SR_SEG_PUSH) || stale) {
        take_strays(ring, s);
        return sr_set_free(ring, s, word) ? 0 : -EAGAIN;
    }
    if (sr_load_relaxed(&s->n_ranges)) { /* it died while finishing */
        return sr_cas(&s->state, word, sr_word(SR_SHARED, sr_undo_ranges(s, gen), gen)) ? 1 : -EAGAIN;
    }
    sr_store_relaxed(&s->cursor, 0);
    take_strays(ring, s);
    return sr_cas(&s->state, word, sr_word(SR_TASK, s->task.addressee, gen)) ? 1 : -EAGAIN;
}

/* One step towards a slot that the dead party does not hold; *again counts what will be redone. */
static bool recover_step(sr_ring *ring, sr_slot *s, uint32_t party, uint64_t incarnation, bool arrays, int *again)
{
    uint64_t me = (uint64_t)party + 1;
    uint64_t w = sr_load_acquire(&s->state);
    uint64_t gen = sr_gen_of(w);
    bool mine = sr_owner_of(w) == me;
    bool holds = arrays && (w & SR_HELD) && sr_load_relaxed(&s->holder) == party;

    if (sr_load_acquire(&ring->parties[party].incarnation) != incarnation) /* [N2] partner: [N1] in sr_enter */
        return true;
    if (sr_state_of(w) == SR_CLAIMED && mine)
        sr_restore_task(ring, (uint32_t)(s - ring->slots));
    bool stale = sr_is_stale(ring, s);
    if (sr_state_of(w) == SR_CLAIMED && mine) {
        int rc = recover_claim(ring, s, w, stale);
        *again += rc > 0;
        return rc >= 0;
    }
    if (sr_state_of(w) == SR_TRIMMED && mine) {
        take_strays(ring, s);
        return sr_set_free_cold(ring, s, w);
    }
    if (sr_state_of(w) == SR_SHARED) {
        *again += sr_recover_ranges(s, gen, party, stale);
        if ((stale || sr_was_stopped(s, gen)) && sr_stop_ranges(s, gen))
            (void)sr_set_free(ring, s, w); /* a finisher may have been faster, and aborts itself */
        return true;
    }
    if (sr_state_of(w) == SR_LEASED && mine && (ring->flags & SR_SEG_PUSH)) {
        if (!(w & SR_HELD) || holds)
            return sr_set_free(ring, s, w);
        uint64_t holder = (uint64_t)sr_load_relaxed(&s->holder) + 1;
        return sr_cas(&s->state, w, sr_word(SR_PARKED, holder, gen) | SR_HELD);
    }
    if (holds)
        return sr_state_of(w) == SR_PARKED ? sr_set_free(ring, s, w) : sr_cas(&s->state, w, w & ~SR_HELD);
    return true;
}

/* `arrays`: what its code kept in slots has gone with it. */
static int recover(sr_ring *ring, uint32_t party, uint64_t incarnation, bool arrays)
{
    int again = 0;
    sr_party *p = &ring->parties[party];
    for (uint32_t i = 0; i < ring->n_slots; i++)
        while (!recover_step(ring, &ring->slots[i], party, incarnation, arrays, &again)) {
        }
    uint64_t growing = sr_load_acquire(&p->growing);
    if (sr_load_acquire(&p->incarnation) == incarnation) { /* [N2] as in recover_step: a word first, then whose it is */
        sr_end_growing(ring, party, growing);
        if (ring->flags & SR_SEG_PUSH) {
            (void)sr_cas(&p->incarnation, incarnation, 0); /* [N1]: the number can be taken; who takes it sets the rest */
        } else {
            sr_store_relaxed(&p->waiting, 0);
            sr_store_relaxed(&p->short_of, 0);
            sr_store_relaxed(&p->leaving, 0); /* the next one with this number is to stay */
            sr_store_release(&p->status, SR_PARTY_NONE);
        }
    }
    /* A wake-up may have died with it. */
    sr_wake_all(ring);
    return again;
}

int sr_recover_incarnation(sr_ring *ring, uint32_t party, uint64_t incarnation)
{
    return recover(ring, party, incarnation, true);
}

static int recover_present(sr_ring *ring, uint32_t party, bool arrays)
{
    if (party >= ring->n_parties)
        return -EINVAL;
    return recover(ring, party, sr_load_acquire(&ring->parties[party].incarnation), arrays);
}

int sr_recover(sr_ring *ring, uint32_t party) { return recover_present(ring, party, true); }

int sr_recover_thread(sr_ring *ring, uint32_t party) { return recover_present(ring, party, false); }

static bool owns(const sr_slot *s, uint64_t me)
{
    uint64_t w = sr_load_acquire(&s->state);
    unsigned state = sr_state_of(w);
    if (state == SR_CLAIMED || state == SR_TASK)
        return sr_owner_of(w) == me;
    for (uint32_t i = 0, n = sr_load_relaxed(&s->n_ranges); state == SR_SHARED && i < n && i < SR_MAX_RANGES; i++)
        if (sr_load_acquire(&s->ranges[i].word) == sr_word(SR_RANGE_CLAIMED, me, sr_gen_of(w)))
            return true;
    return false;
}

int sr_find_owned(const sr_ring *ring, uint32_t party, uint32_t *slot)
{
    for (; *slot < ring->n_slots; (*slot)++)
        if (owns(&ring->slots[*slot], (uint64_t)party + 1)) {
            sr_restore_task(ring, *slot);
            return 0;
        }
    return -ENOENT;
}
