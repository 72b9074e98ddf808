/* coop.c - cooperative slots: several workers fill one batch, each its ranges of rows. */
#include <limits.h>

#include "handle.h"

static uint32_t ranges_of(const sr_slot *s)
{
    uint32_t n = sr_load_relaxed(&s->n_ranges);
    return n < SR_MAX_RANGES ? n : SR_MAX_RANGES;
}

static bool has_ended(uint64_t word)
{
    return (word & 3) == SR_RANGE_DONE || (word & 3) == SR_RANGE_STOPPED;
}

int sr_claim_range(sr_slot *s, uint64_t word, uint32_t party, uint32_t *range)
{
    uint64_t gen = sr_gen_of(word), me = (uint64_t)party + 1;
    uint32_t n = ranges_of(s);
    bool all_done = true;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t w = sr_load_acquire(&s->ranges[i].word);
        if (sr_gen_of(w) != gen)
            return -EAGAIN; /* the slot went on to another task */
        /* [K2] partners: [D2], [X2] */
        if ((w & 3) == SR_RANGE_FREE && sr_cas(&s->ranges[i].word, w, sr_word(SR_RANGE_CLAIMED, me, gen))) {
            *range = i;
            return 0;
        }
        all_done = all_done && has_ended(sr_load_acquire(&s->ranges[i].word));
    }
    /* [G3] partner: [G1]. Whoever did the last range died before it could finish the slot. */
    if (n > 0 && all_done && sr_cas(&s->state, word, sr_word(SR_CLAIMED, me, gen))) {
        *range = SR_FINISH;
        return 0;
    }
    return -EAGAIN;
}

/* [G2] partner: [G1]. Whoever ends a range, or stops the free ones, asks this afterwards. Ordered: of two parties
 * that end the last two ranges at once, at least one sees both ended. */
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

int sr_range_done(sr_ring *ring, uint32_t party, uint32_t slot, uint32_t range, uint64_t gen,
                  const sr_result *result)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    uint64_t me = (uint64_t)party + 1;
    if (!s || range >= ranges_of(s))
        return -EINVAL;
    uint64_t w = sr_word(SR_RANGE_CLAIMED, me, gen);
    if (sr_load_acquire(&s->ranges[range].word) != w)
        return -ESTALE;
    s->ranges[range].result = result ? *result : (sr_result){0};
    if (!sr_cas(&s->ranges[range].word, w, sr_word(SR_RANGE_DONE, 0, gen))) /* [G1] */
        return -ESTALE;
    /* The slot's word comes before the look: if a finisher dies between look and swap, and the ranges are freed again,
     * the word names another round. */
    w = sr_load_ordered(&s->state);
    if (sr_state_of(w) != SR_SHARED || sr_gen_of(w) != gen || !all_ranges_ended(s, gen) ||
        !sr_cas(&s->state, w, sr_word(SR_CLAIMED, me, gen)))
        return 0;
    if (sr_is_stale(ring, s) || sr_was_stopped(s, gen)) {
        sr_abort(ring, party, slot, gen);
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

int sr_recover_ranges(sr_slot *s, uint64_t gen, uint32_t party, bool stale)
{
    uint64_t me = (uint64_t)party + 1;
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

int sr_layout_propose(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen, uint64_t deadline)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    uint64_t me = (uint64_t)party + 1;
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
        /* The low half of the word holds state and owner: it changes whenever the wait should end, but for a
         * close, which is seen at the next look. */
        int rc = sr_futex_wait((_Atomic uint32_t *)&s->layout, (uint32_t)w, sr_rescan_at(deadline));
        if (rc == -EINTR || (rc == -ETIMEDOUT && sr_now() >= deadline))
            return rc;
    }
}

int sr_layout_settle(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen, int layout,
                     const sr_result *result)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s || (layout != SR_LAYOUT_DIRECT && layout != SR_LAYOUT_STAGED))
        return -EINVAL;
    uint64_t w = sr_word(SR_LAYOUT_PROPOSING, (uint64_t)party + 1, gen);
    if (sr_load_acquire(&s->layout) != w)
        return -ESTALE;
    if (result)
        s->result = *result;
    if (!sr_cas(&s->layout, w, sr_word((unsigned)layout, 0, gen))) /* [L1] */
        return -ESTALE;
    sr_futex_wake((_Atomic uint32_t *)&s->layout, INT_MAX);
    return 0;
}
