/* share.c - batches that the consumer of a loader segment shares with readers.
 *
 * The consumer takes a batch, then gives every reader a lease of the same slot: one word has a bit for each. The
 * participant that clears the last bit frees the slot. Shared batches are numbered; a log says which slot has which
 * number. Each reader has its own position, and takes the batches in that order. docs/protocol.md (Shared batches) has
 * the proofs.
 */
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include "internal.h"

/* Return a reader's bit; 0: it is not a reader's number. */
static uint64_t bit_of(const sr_ring *ring, uint32_t participant)
{
    uint32_t first = sr_first_reader(ring);
    if (participant == SR_CONSUMER)
        return SR_CONSUMER_BIT;
    return participant >= first && participant < ring->n_participants ? UINT64_C(2) << (participant - first) : 0;
}

static sr_participant *reader_at(const sr_ring *ring, uint32_t participant)
{
    return participant != SR_CONSUMER && bit_of(ring, participant) ? &ring->participants[participant] : NULL;
}

static uint64_t tag_of(uint64_t gen) { return gen << SR_READERS_GEN_SHIFT; }

/* ---- release ----------------------------------------------------------------------------------------------------- */

/* Clear a bit of a slot's `readers`; return 1 if it was the last one, -ESTALE if it was not set. */
static int clear_bit(sr_slot *s, uint64_t bit, uint64_t gen)
{
    for (;;) {
        uint64_t w = sr_load_acquire(&s->readers);
        if (!(w & bit) || (w & ~SR_READERS_MASK) != tag_of(gen))
            return -ESTALE;
        /* [E3] It releases this participant's reads. The last one acquires those of all others, and passes them on by
         * [E1]. */
        if (sr_cas(&s->readers, w, w & ~bit))
            return (w & ~bit & SR_READERS_MASK) == 0;
    }
}

int sr_release_shared(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    uint64_t bit = bit_of(ring, participant);
    if (!s || !bit)
        return -EINVAL;
    uint64_t w = sr_load_acquire(&s->state);
    if (sr_state_of(w) != SR_BROADCAST || sr_gen_of(w) != gen)
        return -ESTALE;
    int last = clear_bit(s, bit, gen);
    /* If the consumer recovers a reader meanwhile, it may be faster. */
    if (last == 1)
        (void)sr_end_use(ring, s, SR_BROADCAST, gen);
    return last < 0 ? last : 0;
}

int sr_release(sr_ring *ring, uint32_t slot, uint64_t gen)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    if (sr_state_of(sr_load_acquire(&s->state)) == SR_BROADCAST)
        return sr_release_shared(ring, SR_CONSUMER, slot, gen);
    return sr_end_use(ring, s, SR_LEASED, gen);
}

/* ---- consumer ---------------------------------------------------------------------------------------------------- */

/* Return the bits of the readers that take part. *memberships receives each reader's. Tell the new ones that their
 * first batch is `number`. */
static uint64_t admit_readers(sr_ring *ring, uint64_t number, uint64_t *memberships)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < ring->n_readers; i++) {
        sr_participant *p = &ring->participants[sr_first_reader(ring) + i];
        memberships[i] = sr_load_acquire(&p->membership);
        if (!sr_takes_part(memberships[i]))
            continue;
        bits |= UINT64_C(2) << i;
        if (sr_load_relaxed(&p->admitted) != memberships[i]) {
            sr_store_relaxed(&p->first_shared, number);
            sr_store_release(&p->admitted, memberships[i]); /* [N3] partner: [N4] in next_of */
        }
    }
    return bits;
}

/* Clear the bits of readers that have ended their membership since admit_readers; return the others. */
static uint64_t drop_leavers(sr_ring *ring, sr_slot *s, uint64_t bits, uint64_t gen, const uint64_t *memberships)
{
    for (uint32_t i = 0; i < ring->n_readers; i++) {
        uint64_t bit = UINT64_C(2) << i;
        if (!(bits & bit))
            continue;
        /* [Q4] after the store of `readers`; partner: [Q5] in sr_end_reading. One of the two sees the other. */
        if (sr_load_ordered(&ring->participants[sr_first_reader(ring) + i].membership) == memberships[i])
            continue;
        (void)clear_bit(s, bit, gen); /* never the last: the consumer's own is set */
        bits &= ~bit;
    }
    return bits;
}

/* Share a slot that the consumer has leased. `mark`: SR_SHARED_END or 0. */
static int share(sr_ring *ring, uint32_t slot, uint64_t gen, uint64_t mark)
{
    sr_slot *s = &ring->slots[slot];
    sr_header *h = ring->header;
    uint64_t memberships[SR_MAX_READERS], number = sr_load_relaxed(&h->shared), w;
    w = sr_load_acquire(&s->state);
    if (sr_state_of(w) != SR_LEASED || sr_gen_of(w) != gen)
        return -ESTALE;
    uint64_t bits = admit_readers(ring, number, memberships);
    sr_store_relaxed(&ring->slots[number % ring->n_slots].shared_log,
                     number << SR_SHARED_NUMBER_SHIFT | mark | slot);
    sr_store_relaxed(&s->shared_as, number);
    sr_store_ordered(&s->readers, tag_of(gen) | bits | SR_CONSUMER_BIT); /* [Q4] */
    while (!sr_cas(&s->state, w, sr_word(SR_BROADCAST, 0, gen) | (w & SR_PINNED))) /* [P3] partner: [P4] */
        w = sr_load_acquire(&s->state); /* an unpin */
    bits = drop_leavers(ring, s, bits, gen, memberships);
    sr_store_ordered(&h->shared, number + 1); /* [R3] partner: [R4] in sr_wait_shared */
    if (sr_load_ordered(&h->share_waiters))
        sr_wake_readers(ring);
    return __builtin_popcountll(bits);
}

int sr_share(sr_ring *ring, uint32_t slot, uint64_t gen)
{
    return slot < ring->n_slots && !(ring->flags & SR_SEG_QUEUE) ? share(ring, slot, gen, 0) : -EINVAL;
}

int sr_share_end(sr_ring *ring, uint32_t slot, uint64_t iteration, uint64_t seq)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    sr_task task = {.iteration = iteration, .seq = seq};
    uint64_t w, gen;
    if (!s || (ring->flags & SR_SEG_QUEUE))
        return -EINVAL;
    do { /* repeat if a participant released its memory meanwhile */
        w = sr_load_acquire(&s->state); /* [D1] */
        if (sr_state_of(w) != SR_FREE)
            return sr_state_of(w) == SR_TRIMMED ? -EAGAIN : -EBUSY;
        gen = sr_next_gen(sr_gen_of(w));
        sr_save_record(ring, slot);
        sr_reset_slot(s, &task);
        s->result.kind = SR_END;
        sr_raise_high_water(ring, slot);
    } while (!sr_cas(&s->state, w, sr_word(SR_LEASED, SR_CONSUMER + 1, gen)));
    sr_store_relaxed(&s->times.claimed_at, sr_now()); /* observers may read it now [J7] */
    int rc = share(ring, slot, gen, SR_SHARED_END);
    int done = sr_release_shared(ring, SR_CONSUMER, slot, gen);
    return rc < 0 ? rc : done;
}

int sr_lent(const sr_ring *ring)
{
    int n = 0;
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++)
        n += sr_state_of(sr_load_acquire(&ring->slots[i].state)) == SR_BROADCAST &&
             !(sr_load_relaxed(&ring->slots[i].readers) & SR_CONSUMER_BIT);
    return n;
}

/* Return whether the reader has taken the batch of a BROADCAST slot and not released it. */
static bool keeps(const sr_slot *s, uint64_t readers, uint64_t bit, const sr_participant *reader)
{
    return (readers & bit) && sr_load_relaxed(&s->shared_as) < sr_load_relaxed(&reader->batches);
}

static bool is_kept(const sr_ring *ring, const sr_slot *s)
{
    uint64_t readers = sr_load_acquire(&s->readers);
    for (uint32_t i = 0; i < ring->n_readers; i++)
        if (keeps(s, readers, UINT64_C(2) << i, &ring->participants[sr_first_reader(ring) + i]))
            return true;
    return false;
}

int sr_unkept(const sr_ring *ring, int enough)
{
    uint32_t end = sr_scan_end(ring);
    int n = (int)(ring->n_slots - end);
    for (uint32_t i = 0; i < end && n < enough; i++) {
        const sr_slot *s = &ring->slots[i];
        unsigned state = sr_state_of(sr_load_acquire(&s->state));
        n += state == SR_BROADCAST ? !is_kept(ring, s) : state != SR_LEASED && state != SR_PARKED;
    }
    return n;
}

int sr_reader_info_of(const sr_ring *ring, uint32_t participant, sr_reader_info *out)
{
    const sr_participant *reader = reader_at(ring, participant);
    if (!reader)
        return -EINVAL;
    uint64_t bit = bit_of(ring, participant), membership = sr_load_acquire(&reader->membership);
    *out = (sr_reader_info){.incarnation = sr_load_acquire(&reader->incarnation),
                            .takes_part = sr_takes_part(membership),
                            .serving = sr_load_acquire(&reader->status) == SR_PARTICIPANT_SERVING};
    uint64_t shared = sr_load_ordered(&ring->header->shared), first = sr_load_relaxed(&reader->first_shared);
    uint64_t taken = sr_load_relaxed(&reader->batches), next = taken > first ? taken : first;
    if (sr_load_acquire(&reader->admitted) == membership && next < shared)
        out->lag = shared - next;
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++) {
        const sr_slot *s = &ring->slots[i];
        out->leases += sr_state_of(sr_load_acquire(&s->state)) == SR_BROADCAST &&
                       keeps(s, sr_load_acquire(&s->readers), bit, reader);
    }
    return 0;
}

int sr_participant_ended(const sr_ring *ring, uint32_t participant)
{
    if (participant >= ring->n_participants)
        return -EINVAL;
    const sr_participant *p = &ring->participants[participant];
    uint64_t incarnation = sr_load_acquire(&p->incarnation);
    return incarnation && sr_has_exited(incarnation, sr_load_relaxed(&p->program)) > 0;
}

static bool has_died(int death_fd)
{
    struct pollfd look = {.fd = death_fd, .events = POLLIN};
    return death_fd >= 0 && poll(&look, 1, 0) != 0;
}

/* Return the end of one sleep: a waker may be killed before its wake-up, and a death may be reported. */
static uint64_t check_at(uint64_t deadline, int death_fd)
{
    uint64_t rescan = sr_rescan_at(deadline), death = death_fd >= 0 ? sr_now() + SR_DEATH_CHECK_NS : SR_FOREVER;
    return death < rescan ? death : rescan;
}

int sr_wait_free(sr_ring *ring, uint64_t deadline, int death_fd, uint32_t *slot)
{
    sr_header *h = ring->header;
    for (;;) {
        if (sr_closed(ring))
            return -ESHUTDOWN;
        if (sr_pick_free(ring, slot) == 0)
            return 0;
        if (deadline == 0)
            return -ETIMEDOUT;
        if (sr_load_ordered(&ring->interrupted)) /* [I2] */
            return -ECANCELED;
        sr_add_ordered(&h->free_waiters, 1); /* [F2] partner: [F1] in wake_free */
        uint32_t seen = sr_load_acquire(&h->freed);
        uint64_t until = check_at(deadline, death_fd);
        int rc = sr_pick_free(ring, slot); /* [F3] */
        bool found = rc == 0;
        if (!found && !sr_closed(ring) && !sr_load_ordered(&ring->interrupted))
            rc = sr_futex_wait(&h->freed, seen, until);
        sr_sub_ordered(&h->free_waiters, 1);
        if (found)
            return 0;
        if (rc == -EINTR)
            return rc;
        if (rc == -ETIMEDOUT && (until == deadline || has_died(death_fd)))
            return sr_pick_free(ring, slot) == 0 ? 0 : -ETIMEDOUT;
    }
}

/* ---- reader ------------------------------------------------------------------------------------------------------ */

int sr_begin_reading(sr_ring *ring, uint32_t participant)
{
    sr_participant *me = reader_at(ring, participant);
    if (!me)
        return -EINVAL;
    uint64_t membership = sr_load_acquire(&me->membership);
    if (sr_takes_part(membership) || !sr_cas(&me->membership, membership, membership + 1))
        return -EBUSY;
    uint64_t process = sr_incarnation_of((int)getpid());
    if (sr_load_relaxed(&me->incarnation) != process) /* otherwise it may have leases of its last membership */
        sr_join(ring, participant);
    sr_store_release(&me->status, SR_PARTICIPANT_SERVING); /* [S1] */
    sr_futex_wake(&me->status, INT_MAX);
    return 0;
}

int sr_end_reading(sr_ring *ring, uint32_t participant)
{
    sr_participant *me = reader_at(ring, participant);
    if (!me)
        return -EINVAL;
    uint64_t membership = sr_load_acquire(&me->membership), bit = bit_of(ring, participant);
    if (!sr_takes_part(membership))
        return -ESTALE;
    uint64_t taken = sr_load_relaxed(&me->batches); /* numbers below it: of all its memberships */
    /* [Q5] before the loads of `readers`; partner: [Q4] in share */
    sr_store_ordered(&me->membership, membership + 1);
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++) {
        sr_slot *s = &ring->slots[i];
        uint64_t w = sr_load_ordered(&s->readers); /* [Q5] */
        /* A batch that it has taken stays leased. */
        if (!(w & bit) || sr_load_relaxed(&s->shared_as) < taken)
            continue;
        /* While the bit is set, the generation stays. */
        uint64_t gen = sr_gen_of(sr_load_acquire(&s->state));
        if (clear_bit(s, bit, gen) == 1)
            (void)sr_end_use(ring, s, SR_BROADCAST, gen);
    }
    sr_store_release(&me->status, SR_PARTICIPANT_JOINED);
    return 0;
}

/* Return whether the reader's next batch is there; *next receives its number. */
static bool next_of(sr_ring *ring, const sr_participant *me, uint64_t *next)
{
    /* Read `shared` first: the consumer admits a reader before it raises `shared` for its first batch. */
    uint64_t shared = sr_load_ordered(&ring->header->shared); /* [R4] */
    if (sr_load_acquire(&me->admitted) != sr_load_relaxed(&me->membership)) /* [N4] partner: [N3] */
        return false;
    uint64_t first = sr_load_relaxed(&me->first_shared), taken = sr_load_relaxed(&me->batches);
    *next = taken > first ? taken : first; /* what it took in an earlier membership came before `first` */
    return *next < shared;
}

int sr_wait_shared(sr_ring *ring, uint32_t participant, uint64_t deadline, int death_fd)
{
    sr_header *h = ring->header;
    sr_participant *me = reader_at(ring, participant);
    uint64_t next;
    if (!me)
        return -EINVAL;
    if (!sr_takes_part(sr_load_relaxed(&me->membership)))
        return -ESTALE;
    while (!next_of(ring, me, &next)) {
        if (sr_closed(ring))
            return next_of(ring, me, &next) ? 0 : -ESHUTDOWN;
        if (deadline == 0)
            return -ETIMEDOUT;
        if (sr_load_ordered(&ring->interrupted)) /* [I2] */
            return -ECANCELED;
        sr_add_ordered(&h->share_waiters, 1); /* [R4] partner: [R3] in sr_share */
        uint32_t seen = sr_load_acquire(&h->share_wake);
        uint64_t until = check_at(deadline, death_fd);
        int rc = 0;
        if (!next_of(ring, me, &next) && !sr_closed(ring) && !sr_load_ordered(&ring->interrupted))
            rc = sr_futex_wait(&h->share_wake, seen, until);
        sr_sub_ordered(&h->share_waiters, 1);
        if (rc == -EINTR)
            return rc;
        if (rc != -ETIMEDOUT)
            continue;
        /* First ask for the death, then check once more: the consumer may have shared batches before it died. */
        int why = has_died(death_fd) ? -EOWNERDEAD : until == deadline ? -ETIMEDOUT : 0;
        if (why)
            return next_of(ring, me, &next) ? 0 : why;
    }
    return 0;
}

int sr_take_shared(sr_ring *ring, uint32_t participant, sr_shared *out)
{
    sr_participant *me = reader_at(ring, participant);
    uint64_t next;
    if (!me)
        return -EINVAL;
    if (!next_of(ring, me, &next))
        return -EAGAIN;
    uint64_t entry = sr_load_relaxed(&ring->slots[next % ring->n_slots].shared_log);
    sr_slot *s = sr_slot_checked(ring, entry & SR_SHARED_SLOT);
    if (!s || entry >> SR_SHARED_NUMBER_SHIFT != (next & (UINT64_MAX >> SR_SHARED_NUMBER_SHIFT)))
        return -EPROTO;
    uint64_t w = sr_load_acquire(&s->state); /* [P4] partner: [P3] */
    if (sr_state_of(w) != SR_BROADCAST || !(sr_load_acquire(&s->readers) & bit_of(ring, participant)))
        return -EPROTO;
    *out = (sr_shared){.number = next, .gen = sr_gen_of(w), .iteration = s->task.iteration, .seq = s->task.seq,
                       .result = s->result, .slot = (uint32_t)(entry & SR_SHARED_SLOT),
                       .is_end = entry & SR_SHARED_END};
    sr_store_relaxed(&me->batches, next + 1);
    return 0;
}

/* ---- recovery ---------------------------------------------------------------------------------------------------- */

void sr_recover_reader(sr_ring *ring, uint32_t participant)
{
    sr_participant *p = reader_at(ring, participant);
    uint64_t membership = sr_load_acquire(&p->membership), bit = bit_of(ring, participant);
    if (sr_takes_part(membership))
        sr_store_release(&p->membership, membership + 1);
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++) {
        sr_slot *s = &ring->slots[i];
        uint64_t w = sr_load_acquire(&s->state), gen = sr_gen_of(w);
        if (sr_state_of(w) != SR_BROADCAST)
            continue;
        (void)clear_bit(s, bit, gen);
        /* [E4] The dead reader may have cleared the last bit before. A living reader that has just done so finds that
         * the slot is no longer its own to free. */
        if ((sr_load_acquire(&s->readers) & SR_READERS_MASK) == 0)
            (void)sr_end_use(ring, s, SR_BROADCAST, gen);
    }
}
