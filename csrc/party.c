/* party.c - who has which number in a push segment: processes come and go, and nobody assigns numbers.
 *
 * One word per party decides, as one word per slot does: its incarnation, 0 for nobody, changed by compare-and-swap.
 * It names a process once and for all, by pid and start time, so that whoever finds it dead may recover it.
 */
#include <unistd.h>

#include "handle.h"

static int take_number(sr_ring *ring, uint64_t me, uint32_t *party)
{
    for (uint32_t i = 0; i < ring->n_parties; i++) {
        sr_party *p = &ring->parties[i];
        if (sr_load_acquire(&p->incarnation) != 0 || !sr_cas(&p->incarnation, 0, me)) /* [N1] and [N2] in recover_step */
            continue;
        sr_store_relaxed(&p->pid, (int32_t)(uint32_t)me);
        sr_store_relaxed(&p->started, sr_start_time((int)(uint32_t)me));
        sr_store_relaxed(&p->program, sr_program_of(me));
        sr_store_relaxed(&p->waiting, 0);
        sr_store_release(&p->status, SR_PARTY_JOINED);
        *party = i;
        return 0;
    }
    return -EUSERS;
}

int sr_enter(sr_ring *ring, uint32_t *party)
{
    if (!(ring->flags & SR_SEG_PUSH))
        return -EINVAL;
    uint64_t here = sr_pid_namespace();
    if (here && ring->header->pid_namespace && here != ring->header->pid_namespace)
        return -EXDEV;
    uint64_t me = sr_incarnation_of((int)getpid());
    for (;;) {
        if (take_number(ring, me, party) == 0)
            return 0;
        if (sr_recover_dead(ring, true) == 0)
            return take_number(ring, me, party); /* another survivor may have just freed one */
    }
}

/* Notes, as bits, which parties hold a slot or are in the middle of a commit. */
static void note_holders(const sr_ring *ring, uint64_t *bits)
{
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++) {
        uint64_t w = sr_load_acquire(&ring->slots[i].state), owner = sr_owner_of(w);
        uint32_t holder = sr_load_relaxed(&ring->slots[i].holder);
        if (owner)
            bits[(owner - 1) / 64] |= UINT64_C(1) << (owner - 1) % 64;
        if ((w & SR_HELD) && holder < ring->n_parties)
            bits[holder / 64] |= UINT64_C(1) << holder % 64;
    }
    for (uint32_t i = 0; i < ring->n_parties; i++)
        if (sr_pages_of(sr_load_relaxed(&ring->parties[i].growing)))
            bits[i / 64] |= UINT64_C(1) << i % 64;
}

int sr_leave(sr_ring *ring, uint32_t party)
{
    uint64_t holders[SR_MAX_PARTIES / 64 + 1] = {0};
    if (party >= ring->n_parties || !(ring->flags & SR_SEG_PUSH))
        return -EINVAL;
    sr_party *p = &ring->parties[party];
    uint64_t incarnation = sr_load_acquire(&p->incarnation);
    if ((uint32_t)incarnation != (uint32_t)getpid())
        return -ESTALE;
    note_holders(ring, holders);
    if (holders[party / 64] >> party % 64 & 1)
        return -EBUSY;
    sr_store_relaxed(&p->status, SR_PARTY_NONE);
    return sr_cas(&p->incarnation, incarnation, 0) ? 0 : -ESTALE;
}

int sr_recover_dead(sr_ring *ring, bool all)
{
    uint64_t holders[SR_MAX_PARTIES / 64 + 1] = {0};
    int found = 0;
    if (!(ring->flags & SR_SEG_PUSH))
        return -EINVAL;
    note_holders(ring, holders);
    for (uint32_t i = 0; i < ring->n_parties; i++) {
        if (!all && !(holders[i / 64] >> i % 64 & 1))
            continue;
        uint64_t incarnation = sr_load_acquire(&ring->parties[i].incarnation);
        if (incarnation == 0 || sr_has_gone(incarnation, sr_load_relaxed(&ring->parties[i].program)) <= 0)
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
    sr_store_ordered(&ring->header->polled, 1); /* [V2] then look; partner: [V1] */
    return 0;
}

bool sr_polled(const sr_ring *ring) { return sr_load_ordered(&ring->header->polled) != 0; /* [V1] after [P1] */ }
