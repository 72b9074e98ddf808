/* recover.c - release everything that dead participants owned; and the participant numbers of queue mode.
 *
 * Each word contains its owner's number, as in the kernel's robust futexes. But survivors repair the words, not the
 * kernel, which knows nothing about half-filled slots.
 *
 * The caller has confirmed the death, by a pidfd, or by pid and start time. So only the recovering participant changes
 * words that name the dead one as owner. Each step is still a CAS: the words also contain bits that others may change
 * (PINNED), and several survivors may recover concurrently in queue mode.
 *
 * In queue mode, a slow survivor may still be recovering after another one has finished and a new process has taken the
 * number. So each step reads a slot's word, then checks that the number still belongs to the dead process, then swaps
 * the word. A participant that reads a word of the next incarnation also sees that incarnation [N2].
 */
#include <unistd.h>

#include "internal.h"

/* A participant may have died between lowering a mark and dropping its pages [C2], or may have overwritten the mark.
 * Drop the pages above the mark: otherwise they would not be counted, and the slot's next commit would need the memory
 * twice. Do not trust a mark above the bytes that this process has mapped. */
static void release_orphans(sr_ring *ring, sr_slot *s)
{
    /* Another survivor may have released the slot already, and another process may own it by now. */
    if (ring->flags & SR_SEG_QUEUE) {
        sr_store_relaxed(&s->orphans, 1);
        return;
    }
    uint32_t slot = (uint32_t)(s - ring->slots);
    uint64_t known = sr_load_relaxed(&ring->populated[slot]), have = sr_load_relaxed(&s->committed);
    known = known > SR_PAYLOAD_COMMIT ? known : SR_PAYLOAD_COMMIT;
    if (sr_load_relaxed(&s->registered))
        return;
    if (have > known)
        sr_store_relaxed(&s->committed, have = known);
    if (have < ring->capacity)
        (void)sr_drop_memory(sr_payload(ring, slot) + have, ring->capacity - have);
}

/* The CAS of this function is [X1], partners: [K1], [K2]. */
static int recover_claim(sr_ring *ring, sr_slot *s, uint64_t word, bool stale)
{
    uint64_t gen = sr_gen_of(word);
    if ((ring->flags & SR_SEG_QUEUE) || stale) {
        release_orphans(ring, s);
        return sr_set_free(ring, s, word) ? 0 : -EAGAIN;
    }
    if (sr_load_relaxed(&s->n_ranges)) { /* it died while finishing */
        return sr_cas(&s->state, word, sr_word(SR_SHARED, sr_undo_ranges(s, gen), gen)) ? 1 : -EAGAIN;
    }
    sr_store_relaxed(&s->cursor, 0);
    release_orphans(ring, s);
    return sr_cas(&s->state, word, sr_word(SR_TASK, s->task.addressee, gen)) ? 1 : -EAGAIN;
}

/* Do one step of recovering a slot; return whether none is left. *again counts the tasks that will be redone. */
static bool recover_step(sr_ring *ring, sr_slot *s, uint32_t participant, uint64_t incarnation, bool arrays, int *again)
{
    uint64_t me = (uint64_t)participant + 1;
    uint64_t w = sr_load_acquire(&s->state);
    uint64_t gen = sr_gen_of(w);
    bool mine = sr_owner_of(w) == me;
    bool holds = arrays && (w & SR_PINNED) && sr_load_relaxed(&s->pinned_by) == participant;

    /* [N2] partner: [N1] in sr_enter */
    if (sr_load_acquire(&ring->participants[participant].incarnation) != incarnation)
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
        release_orphans(ring, s);
        return sr_set_free_cold(ring, s, w);
    }
    if (sr_state_of(w) == SR_SHARED) {
        *again += sr_recover_ranges(s, gen, participant, stale);
        if ((stale || sr_was_stopped(s, gen)) && sr_stop_ranges(s, gen))
            (void)sr_set_free(ring, s, w); /* a finisher may have been faster; it aborts by itself */
        return true;
    }
    if (sr_state_of(w) == SR_LEASED && mine && (ring->flags & SR_SEG_QUEUE)) {
        if (!(w & SR_PINNED) || holds)
            return sr_set_free(ring, s, w);
        uint64_t pinned_by = (uint64_t)sr_load_relaxed(&s->pinned_by) + 1;
        return sr_cas(&s->state, w, sr_word(SR_PARKED, pinned_by, gen) | SR_PINNED);
    }
    if (holds)
        return sr_state_of(w) == SR_PARKED ? sr_set_free(ring, s, w) : sr_cas(&s->state, w, w & ~SR_PINNED);
    return true;
}

/* Recover the participant. `arrays`: the arrays that its code kept in slots are gone too. */
static int recover(sr_ring *ring, uint32_t participant, uint64_t incarnation, bool arrays)
{
    int again = 0;
    sr_participant *p = &ring->participants[participant];
    for (uint32_t i = 0; i < ring->n_slots; i++)
        while (!recover_step(ring, &ring->slots[i], participant, incarnation, arrays, &again)) {
        }
    if (arrays && participant >= sr_first_reader(ring))
        sr_recover_reader(ring, participant);
    uint64_t growing = sr_load_acquire(&p->growing);
    /* [N2], as in recover_step: read the word first, then the incarnation. */
    if (sr_load_acquire(&p->incarnation) == incarnation) {
        sr_end_growing(ring, participant, growing);
        if (ring->flags & SR_SEG_QUEUE) {
            /* [N1] Free the number. The process that takes it sets the other words. */
            (void)sr_cas(&p->incarnation, incarnation, 0);
        } else {
            sr_store_relaxed(&p->waiting, 0);
            sr_store_relaxed(&p->needs_memory_for, 0);
            sr_store_relaxed(&p->retiring, 0); /* the next worker with this number must stay */
            sr_store_release(&p->status, SR_PARTICIPANT_NONE);
        }
    }
    /* The dead participant may have consumed a wake-up that others need. */
    sr_wake_all(ring);
    return again;
}

int sr_recover_incarnation(sr_ring *ring, uint32_t participant, uint64_t incarnation)
{
    return recover(ring, participant, incarnation, true);
}

static int recover_present(sr_ring *ring, uint32_t participant, bool arrays)
{
    if (participant >= ring->n_participants)
        return -EINVAL;
    return recover(ring, participant, sr_load_acquire(&ring->participants[participant].incarnation), arrays);
}

int sr_recover(sr_ring *ring, uint32_t participant) { return recover_present(ring, participant, true); }

int sr_recover_thread(sr_ring *ring, uint32_t participant) { return recover_present(ring, participant, false); }

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

int sr_find_owned(const sr_ring *ring, uint32_t participant, uint32_t *slot)
{
    for (; *slot < ring->n_slots; (*slot)++)
        if (owns(&ring->slots[*slot], (uint64_t)participant + 1)) {
            sr_restore_task(ring, *slot);
            return 0;
        }
    return -ENOENT;
}

/* ---- queue mode: participant numbers ----------------------------------------------------------------------------- */

/* Processes come and go, and no process assigns the numbers.
 *
 * One word per participant decides which process has its number, as one word per slot decides its owner: the
 * incarnation, 0 for nobody, changed by compare-and-swap. It identifies a process forever, by pid and start time, so
 * any process that finds it dead may recover it.
 */

static int take_number(sr_ring *ring, uint64_t me, uint32_t *participant)
{
    for (uint32_t i = 0; i < ring->n_participants; i++) {
        sr_participant *p = &ring->participants[i];
        /* [N1] and [N2] in recover_step */
        if (sr_load_acquire(&p->incarnation) != 0 || !sr_cas(&p->incarnation, 0, me))
            continue;
        sr_store_relaxed(&p->pid, (int32_t)(uint32_t)me);
        sr_store_relaxed(&p->started, sr_start_time((int)(uint32_t)me));
        sr_store_relaxed(&p->program, sr_program_of(me));
        sr_store_relaxed(&p->waiting, 0);
        sr_store_release(&p->status, SR_PARTICIPANT_JOINED);
        *participant = i;
        return 0;
    }
    return -EUSERS;
}

int sr_enter(sr_ring *ring, uint32_t *participant)
{
    if (!(ring->flags & SR_SEG_QUEUE))
        return -EINVAL;
    uint64_t here = sr_pid_namespace();
    if (here && ring->header->pid_namespace && here != ring->header->pid_namespace)
        return -EXDEV;
    uint64_t me = sr_incarnation_of((int)getpid());
    for (;;) {
        if (take_number(ring, me, participant) == 0)
            return 0;
        if (sr_recover_dead(ring, true) == 0)
            return take_number(ring, me, participant); /* another survivor may have just freed one */
    }
}

/* Set the bits of the participants that own or pin a slot, or are committing. */
static void mark_owners(const sr_ring *ring, uint64_t *bits)
{
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++) {
        uint64_t w = sr_load_acquire(&ring->slots[i].state), owner = sr_owner_of(w);
        uint32_t pinned_by = sr_load_relaxed(&ring->slots[i].pinned_by);
        if (owner)
            bits[(owner - 1) / 64] |= UINT64_C(1) << (owner - 1) % 64;
        if ((w & SR_PINNED) && pinned_by < ring->n_participants)
            bits[pinned_by / 64] |= UINT64_C(1) << pinned_by % 64;
    }
    for (uint32_t i = 0; i < ring->n_participants; i++)
        if (sr_pages_of(sr_load_relaxed(&ring->participants[i].growing)))
            bits[i / 64] |= UINT64_C(1) << i % 64;
}

int sr_leave(sr_ring *ring, uint32_t participant)
{
    uint64_t holders[SR_MAX_PARTICIPANTS / 64 + 1] = {0};
    if (participant >= ring->n_participants || !(ring->flags & SR_SEG_QUEUE))
        return -EINVAL;
    sr_participant *p = &ring->participants[participant];
    uint64_t incarnation = sr_load_acquire(&p->incarnation);
    if ((uint32_t)incarnation != (uint32_t)getpid())
        return -ESTALE;
    mark_owners(ring, holders);
    if (holders[participant / 64] >> participant % 64 & 1)
        return -EBUSY;
    sr_store_relaxed(&p->status, SR_PARTICIPANT_NONE);
    return sr_cas(&p->incarnation, incarnation, 0) ? 0 : -ESTALE;
}

int sr_recover_dead(sr_ring *ring, bool all)
{
    uint64_t holders[SR_MAX_PARTICIPANTS / 64 + 1] = {0};
    int found = 0;
    if (!(ring->flags & SR_SEG_QUEUE))
        return -EINVAL;
    mark_owners(ring, holders);
    for (uint32_t i = 0; i < ring->n_participants; i++) {
        if (!all && !(holders[i / 64] >> i % 64 & 1))
            continue;
        uint64_t incarnation = sr_load_acquire(&ring->participants[i].incarnation);
        if (incarnation == 0 || sr_has_exited(incarnation, sr_load_relaxed(&ring->participants[i].program)) <= 0)
            continue;
        sr_recover_incarnation(ring, i, incarnation);
        found++;
    }
    return found;
}

int sr_count(const sr_ring *ring, uint32_t *ready, uint32_t *free_slots)
{
    uint32_t end = sr_scan_end(ring);
    *ready = 0;
    *free_slots = ring->n_slots - end;
    for (uint32_t i = 0; i < end; i++) {
        unsigned state = sr_state_of(sr_load_ordered(&ring->slots[i].state));
        *ready += state == SR_READY;
        *free_slots += state == SR_FREE;
    }
    return 0;
}

int sr_set_polled(sr_ring *ring)
{
    sr_store_ordered(&ring->header->polled, 1); /* [V2] set, then check; partner: [V1] */
    return 0;
}

bool sr_polled(const sr_ring *ring) { return sr_load_ordered(&ring->header->polled) != 0; /* [V1] after [P1] */ }
