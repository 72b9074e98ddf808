/* memory.c - commit memory of a slot before it is written, within all limits, and release it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>

#include "internal.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* since Linux 5.14 */
#endif

#define MIB (UINT64_C(1) << 20)

/* Compare the need of a commit with the available memory. *why receives both, also on success. */
static int check_available(int fd, uint64_t need, uint64_t others, sr_cgroup_locks *locks, sr_alloc_error *why)
{
    int limit = SR_LIMIT_NONE;
    uint64_t available = sr_memory_available(fd, "", &limit, locks);
    available = available > others ? available - others : 0;
    *why = (sr_alloc_error){.limit = limit, .needed = need, .free = available};
    return need <= available ? 0 : -ENOSPC;
}

int sr_check_memory(int fd, uint64_t need, sr_alloc_error *why)
{
    sr_alloc_error available;
    int rc = check_available(fd, need, 0, NULL, &available);
    if (rc != 0 && why)
        *why = available;
    return rc;
}

/* Compare growth with the segment's budget, next to the growth that others have announced. Call it after the
 * announcement of this growth. */
static int check_budget(const sr_ring *ring, uint64_t need, uint64_t others,
                        sr_alloc_error *why)
{
    uint64_t bytes = sr_load_ordered(&ring->header->budget); /* [B1] partner: [B2] */
    if (bytes == 0)
        return 0;
    uint64_t used = sr_committed(ring) + others, available = bytes > used ? bytes - used : 0;
    if (need <= available)
        return 0;
    *why = (sr_alloc_error){.limit = SR_LIMIT_BUDGET, .needed = need, .free = available};
    return -ENOSPC;
}

/* Grow in steps, so that a slightly larger batch does not cost a system call each time. The steps are small enough to
 * keep a slot within 2 MiB of its largest batch. */
static uint64_t growth_step(uint64_t bytes)
{
    return bytes < MIB ? 64 * UINT64_C(1024) : MIB;
}

#define COUNT_OF(growing) ((growing) & ~(uint64_t)UINT32_MAX)

/* Each announcement has a number, so that two of the same size by different incarnations are different words. */
static void announce_commit(sr_ring *ring, uint32_t participant, uint32_t pages)
{
    _Atomic uint64_t *mine = &ring->participants[participant].growing;
    uint64_t count = COUNT_OF(sr_load_relaxed(mine)) + (UINT64_C(1) << 32);
    sr_store_ordered(mine, count | pages);
}

static void wake_memory_waiters(_Atomic uint64_t *growing)
{
    sr_futex_wake((_Atomic uint32_t *)growing, INT_MAX); /* [M1] partner: [M2] */
}

static void end_commit(sr_ring *ring, uint32_t participant)
{
    _Atomic uint64_t *mine = &ring->participants[participant].growing;
    sr_store_ordered(mine, COUNT_OF(sr_load_relaxed(mine)));
    wake_memory_waiters(mine);
}

void sr_end_growing(sr_ring *ring, uint32_t participant, uint64_t seen)
{
    _Atomic uint64_t *theirs = &ring->participants[participant].growing;
    if (sr_pages_of(seen))
        (void)sr_cas(theirs, seen, COUNT_OF(seen)); /* another survivor may have been faster */
    /* In any case: a faster survivor may have died before its wake-up. */
    wake_memory_waiters(theirs);
}

/* Check that `need` bytes are available in addition to the announced commits of others, and announce this one. If only
 * those announcements prevent it, wait for them: part of them may never be committed. Meanwhile the lower of two
 * participants keeps its announcement and the higher one withdraws it, so that one of them proceeds. On success the
 * announcement stands, and the caller must unlock *locks. No participant sleeps on an announcement while it has the
 * locks. */
static int announce(sr_ring *ring, uint32_t participant, uint64_t need, bool in_budget, sr_cgroup_locks *locks,
                    sr_alloc_error *why)
{
    uint64_t give_up = sr_now() + SR_GROW_WAIT_NS, pages = (need + SR_PAGE - 1) / SR_PAGE;
    for (;;) {
        /* A request that cannot succeed must never delay another participant, so it is refused without an
         * announcement. */
        int rc = check_available(ring->file.fd, need, 0, locks, why);
        if (rc == 0 && in_budget)
            rc = check_budget(ring, need, 0, why);
        if (rc == 0) {
            /* Lock before announcing: an announcement counts against the participant that has the locks. */
            uint64_t since = sr_now();
            sr_lock_cgroups(locks, SR_GROW_WAIT_NS);
            give_up += sr_now() - since;
            /* Announce first, then check: of two participants that grow concurrently, at least one sees the other. */
            announce_commit(ring, participant, pages < UINT32_MAX ? (uint32_t)pages : UINT32_MAX);
            uint64_t others = 0;
            uint32_t first = ring->n_participants, seen = 0;
            for (uint32_t i = 0; i < ring->n_participants; i++) {
                uint32_t theirs = i == participant ? 0 : sr_pages_of(sr_load_ordered(&ring->participants[i].growing));
                others += (uint64_t)theirs * SR_PAGE;
                if (theirs && first == ring->n_participants)
                    first = i, seen = theirs;
            }
            rc = check_available(ring->file.fd, need, others, NULL, why);
            if (rc == 0 && in_budget)
                rc = check_budget(ring, need, others, why);
            if (rc == 0)
                return 0;
            sr_unlock_cgroups(locks);
            if (sr_now() < give_up) {
                if (first < participant)
                    end_commit(ring, participant);
                if (seen)
                    sr_futex_wait((_Atomic uint32_t *)&ring->participants[first].growing, seen, give_up); /* [M2] */
                continue;
            }
        }
        sr_unlock_cgroups(locks);
        end_commit(ring, participant);
        return rc;
    }
}

/* ---- release ----------------------------------------------------------------------------------------------------- */

/* Release a slot's memory after its first `keep` bytes. Lower the mark first [C2]: if this participant dies in between,
 * it leaves pages above the mark, which the next commit covers, but never a mark without pages. */
static uint64_t release_memory(sr_ring *ring, uint32_t slot, uint64_t keep)
{
    sr_slot *s = &ring->slots[slot];
    uint64_t have = sr_load_acquire(&s->committed), from = have < keep ? have : keep;
    bool orphans = sr_load_relaxed(&s->orphans);
    if ((have <= keep && !orphans) || sr_load_relaxed(&s->registered))
        return 0;
    sr_store_release(&s->committed, from);
    if (orphans)
        sr_store_relaxed(&s->orphans, 0);
    /* Drop everything up to the capacity: another participant may have died and left pages there. */
    if (sr_drop_memory(sr_payload(ring, slot) + from, ring->capacity - from) == 0)
        return have - from + orphans;
    sr_store_release(&s->committed, have); /* the kernel keeps locked pages (mlockall) */
    return 0;
}

#define MAY_BE_ANY (UINT64_C(1) << 46) /* an unknown number; the sum over SR_MAX_SLOTS slots does not overflow */

static uint64_t spare_bytes(const sr_slot *s)
{
    uint64_t have = sr_load_relaxed(&s->committed);
    if (sr_load_relaxed(&s->registered))
        return 0;
    if (sr_load_relaxed(&s->orphans))
        return MAY_BE_ANY;
    return have > SR_PAYLOAD_COMMIT ? have - SR_PAYLOAD_COMMIT : 0;
}

bool sr_trim_free(sr_ring *ring, uint32_t participant)
{
    for (;;) {
        uint64_t word = 0, oldest = 0;
        uint32_t pick = ring->n_slots;
        for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++) {
            sr_slot *s = &ring->slots[i];
            uint64_t w = sr_load_acquire(&s->state), at = sr_load_relaxed(&s->freed_at);
            if (sr_state_of(w) == SR_FREE && spare_bytes(s) && (pick == ring->n_slots || at < oldest)) {
                pick = i;
                word = w;
                oldest = at;
            }
        }
        if (pick == ring->n_slots)
            return false;
        sr_slot *s = &ring->slots[pick];
        /* A new generation: a participant that has read the old word does not get the slot [D1], [K3]. */
        uint64_t mine = sr_word(SR_TRIMMED, (uint64_t)participant + 1, sr_next_gen(sr_gen_of(word)));
        if (!sr_cas(&s->state, word, mine)) /* [T1] partners: [E1], [D2], [K3] */
            continue;
        uint64_t given = release_memory(ring, pick, SR_PAYLOAD_COMMIT);
        (void)sr_set_free_cold(ring, s, mine); /* it cannot fail while this participant lives */
        return given != 0;
    }
}

void sr_trim_tail(sr_ring *ring, uint32_t slot, uint64_t used)
{
    sr_slot *s = &ring->slots[slot];
    uint64_t taken = sr_load_relaxed(&s->cursor), have = sr_load_relaxed(&s->committed);
    if (used < taken) /* arrays that code keeps lie there too */
        used = taken;
    uint64_t step = growth_step(used), keep = (used + step - 1) / step * step;
    if (keep < have && have - keep > keep / 2)
        release_memory(ring, slot, keep > SR_PAYLOAD_COMMIT ? keep : SR_PAYLOAD_COMMIT);
}

/* Return how much all slots except one might release. `moving`: skip READY slots, which no consumer takes now. */
static uint64_t spare_of_others(const sr_ring *ring, uint32_t slot, bool moving)
{
    uint64_t sum = 0;
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++) {
        unsigned state = sr_state_of(sr_load_acquire(&ring->slots[i].state));
        if (i != slot && state != SR_PARKED && !(moving && state == SR_READY))
            sum += spare_bytes(&ring->slots[i]);
    }
    return sum;
}

static bool may_come_back(const sr_alloc_error *why)
{
    return why->limit == SR_LIMIT_FILESYSTEM || why->limit == SR_LIMIT_CGROUP || why->limit == SR_LIMIT_MEMORY ||
           why->limit == SR_LIMIT_BUDGET;
}

/* Return whether the participant is a worker that does not wait for memory, or one that the consumer is about to start:
 * it will make progress or die. */
static bool works(const sr_ring *ring, uint64_t participant, uint32_t me)
{
    return participant != me && participant != SR_CONSUMER && participant < sr_first_reader(ring) &&
           !sr_load_ordered(&ring->participants[participant].needs_memory_for); /* [Q2] partner: [Q1] */
}

static bool somebody_works(const sr_ring *ring, uint32_t me)
{
    for (uint32_t i = 1; i < sr_first_reader(ring); i++)
        if (works(ring, i, me))
            return true;
    return false;
}

/* Return whether a slot will become READY, or progress towards it, even if all participants that wait for memory keep
 * waiting. */
static bool makes_progress(const sr_ring *ring, uint32_t slot, uint32_t me)
{
    const sr_slot *s = sr_slot_checked(ring, slot);
    uint64_t w = s ? sr_load_acquire(&s->state) : 0, owner = sr_owner_of(w);
    bool all_ended = true;
    switch (sr_state_of(w)) {
    case SR_READY:
        return !sr_is_stale(ring, s);
    case SR_TASK:
        return owner ? works(ring, owner - 1, me) : somebody_works(ring, me);
    case SR_CLAIMED:
        return owner && works(ring, owner - 1, me);
    case SR_SHARED:
        for (uint32_t i = 0, n = sr_load_relaxed(&s->n_ranges); i < n && i < SR_MAX_RANGES; i++) {
            uint64_t range = sr_load_acquire(&s->ranges[i].word), whose = sr_owner_of(range);
            if ((range & 3) == SR_RANGE_CLAIMED && whose && works(ring, whose - 1, me))
                return true;
            if (range == sr_word(SR_RANGE_FREE, 0, sr_gen_of(w)) && somebody_works(ring, me))
                return true;
            all_ended = all_ended && (range & 3) != SR_RANGE_CLAIMED && (range & 3) != SR_RANGE_FREE;
        }
        return all_ended && somebody_works(ring, me);
    default:
        return false;
    }
}

bool sr_readers_work(const sr_ring *ring)
{
    uint32_t members = 0;
    bool leased = false;
    for (uint32_t i = sr_first_reader(ring); i < ring->n_participants; i++)
        members += sr_takes_part(sr_load_relaxed(&ring->participants[i].membership));
    for (uint32_t i = 0, end = members ? sr_scan_end(ring) : 0; i < end; i++)
        leased |= sr_state_of(sr_load_acquire(&ring->slots[i].state)) == SR_BROADCAST &&
                  (sr_load_relaxed(&ring->slots[i].readers) & SR_READERS_MASK & ~SR_CONSUMER_BIT);
    return leased && sr_load_ordered(&ring->header->share_waiters) < members;
}

/* Return whether the consumer sleeps, and will not wake unless memory comes from a source that no worker can see:
 * another thread of the consumer may release a batch. */
static bool is_stuck(const sr_ring *ring, uint32_t wanted, uint32_t me)
{
    if (!sr_load_ordered(&ring->header->ready_waiters) || sr_readers_work(ring))
        return false;
    if (wanted)
        return !makes_progress(ring, wanted - 1, me);
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++)
        if (makes_progress(ring, i, me))
            return false;
    return true;
}

/* Return whether this participant is the one to be refused, of all that wait for memory, so that the others can
 * proceed. It is the one that fills the slot that the consumer waits for, or else the lowest. */
static bool is_to_be_refused(const sr_ring *ring, uint32_t participant, uint32_t slot, uint32_t wanted)
{
    bool first = true;
    for (uint32_t i = 1; i < ring->n_participants && wanted != slot + 1; i++) {
        uint32_t theirs = i == participant ? 0 : sr_load_ordered(&ring->participants[i].needs_memory_for);
        if (theirs && theirs == wanted)
            return false;
        first = first && !(theirs && i < participant);
    }
    return first;
}

int sr_wait_memory(sr_ring *ring, uint32_t participant, uint32_t slot, const sr_alloc_error *why, uint64_t *waited)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    sr_header *h = ring->header;
    if (!s || !why)
        return -EINVAL;
    /* The consumer itself owns everything that could be released. So does a consumer that makes the batches itself, as
     * a participant that no process has joined. In queue mode the caller handles the error. */
    if (participant >= ring->n_participants || participant == SR_CONSUMER || (ring->flags & SR_SEG_QUEUE) ||
        sr_load_acquire(&ring->participants[participant].status) == SR_PARTICIPANT_NONE)
        return -ENOSPC;
    if (!may_come_back(why) || sr_closed(ring) || sr_is_stale(ring, s))
        return -ENOSPC;
    if (sr_load_relaxed(&ring->participants[participant].needs_memory_for) != slot + 1)
        /* [Q1] Announce, then check: of two participants, at least one sees the other. */
        sr_store_ordered(&ring->participants[participant].needs_memory_for, slot + 1);
    uint32_t wanted = sr_load_ordered(&h->wanted);
    bool stuck = is_stuck(ring, wanted, participant);
    if (why->needed > why->free + spare_of_others(ring, slot, stuck && wanted))
        return -ENOSPC;
    if (!stuck)
        *waited = 0;
    else if (*waited >= SR_MEMORY_WAIT_NS && is_to_be_refused(ring, participant, slot, wanted))
        return -ENOSPC;
    uint64_t since = sr_now();
    sr_add_ordered(&h->free_waiters, 1); /* like [F2]; a missed wake-up costs one check interval */
    uint32_t seen = sr_load_acquire(&h->freed);
    int rc = sr_futex_wait(&h->freed, seen, since + SR_MEMORY_CHECK_NS);
    sr_sub_ordered(&h->free_waiters, 1);
    if (stuck)
        *waited += sr_now() - since;
    return rc == -EINTR ? rc : 0;
}

int sr_end_wait_memory(sr_ring *ring, uint32_t participant)
{
    if (participant >= ring->n_participants)
        return -EINVAL;
    if (sr_load_relaxed(&ring->participants[participant].needs_memory_for))
        sr_store_ordered(&ring->participants[participant].needs_memory_for, 0);
    return 0;
}

bool sr_needs_memory(const sr_ring *ring, uint32_t participant)
{
    return participant < ring->n_participants && sr_load_ordered(&ring->participants[participant].needs_memory_for);
}

int sr_set_registered(sr_ring *ring, uint32_t slot)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    sr_store_relaxed(&s->registered, 1); /* the next owner sees it, after the release [E1] */
    return 0;
}

/* Announce a commit. If memory is missing and FREE slots have enough, release theirs. */
static int announce_or_trim(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t need, bool in_budget,
                            sr_cgroup_locks *locks, sr_alloc_error *why)
{
    for (;;) {
        int rc = announce(ring, participant, need, in_budget, locks, why);
        if (rc != -ENOSPC || !may_come_back(why) || need > why->free + spare_of_others(ring, slot, false) ||
            !sr_trim_free(ring, participant))
            return rc;
    }
}

/* Update memory_pressure. While less memory is available than the segment has committed, publishers release the
 * memory that their batches do not use. */
static void update_memory_pressure(sr_ring *ring, const sr_alloc_error *available)
{
    uint64_t then = sr_committed(ring) + available->needed; /* including this commit */
    uint32_t memory_pressure = available->free < available->needed || available->free - available->needed < then;
    if (sr_load_relaxed(&ring->header->memory_pressure) != memory_pressure)
        sr_store_relaxed(&ring->header->memory_pressure, memory_pressure);
}

static int grow(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t area, _Atomic uint64_t *mark,
                uint64_t capacity, uint64_t bytes, sr_alloc_error *why)
{
    sr_alloc_error unheard;
    sr_cgroup_locks locks;
    uint64_t have = sr_load_acquire(mark); /* [C1] with the release in sr_raise */
    if (bytes <= have)
        return 0;
    if (!why)
        why = &unheard;
    if (bytes > capacity || participant >= ring->n_participants) {
        *why = (sr_alloc_error){.limit = SR_LIMIT_CAPACITY, .needed = bytes, .free = capacity};
        return -EFBIG;
    }
    int fd = sr_fd(ring);
    if (fd < 0) /* closed: another file may have its number */
        return fd;
    uint64_t step = growth_step(bytes), want = (bytes + step - 1) / step * step;
    if (want > capacity)
        want = capacity;

    bool in_budget = mark == &ring->slots[slot].committed;
    int rc = announce_or_trim(ring, participant, slot, want - have, in_budget, &locks, why);
    if (rc != 0 && want > bytes) { /* a smaller step may still fit */
        want = (bytes + SR_PAGE - 1) / SR_PAGE * SR_PAGE;
        rc = announce_or_trim(ring, participant, slot, want - have, in_budget, &locks, why);
    }
    update_memory_pressure(ring, why);
    if (rc != 0)
        return rc;
    fd = sr_fd(ring); /* check again: the wait may have been long */
    rc = fd < 0 ? fd : sr_put_memory(fd, area + have, want - have);
    if (rc == 0) {
        if (mark == &ring->slots[slot].committed && sr_load_relaxed(&ring->populated[slot]) > have)
            atomic_store_explicit(&ring->populated[slot], have, memory_order_relaxed); /* its pages were released */
        sr_raise(mark, want);
        *why = (sr_alloc_error){0};
    } else if (rc != -EBADF) {
        *why = (sr_alloc_error){.limit = rc == -EFBIG ? SR_LIMIT_FILESIZE : SR_LIMIT_FILESYSTEM,
                             .needed = want - have, .free = sr_memory_available(ring->file.fd, "", NULL, NULL)};
    }
    end_commit(ring, participant);
    sr_unlock_cgroups(&locks);
    return rc;
}

int sr_commit_task(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t bytes, sr_alloc_error *why)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    if (bytes <= sr_load_acquire(&s->task_committed)) /* the usual case: [C1] */
        return 0;
    return grow(ring, participant, slot, ring->data_off + slot * ring->stride, &s->task_committed, ring->task_capacity,
                bytes, why);
}

int sr_commit(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t bytes, sr_alloc_error *why)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    int rc = grow(ring, participant, slot, ring->data_off + slot * ring->stride + ring->task_capacity, &s->committed,
                  ring->capacity, bytes, why);
    return rc == 0 ? sr_populate(ring, slot, bytes) : rc;
}

/* Not inlined: sr_populate runs once per batch and rarely needs this. */
__attribute__((noinline)) static int map_more(sr_ring *ring, uint32_t slot, uint64_t bytes, uint64_t upto)
{
    uint64_t done = sr_load_relaxed(&ring->populated[slot]);
    /* A worker that has overwritten the mark must not make this process commit the rest of the machine's memory. */
    if (upto > ring->capacity)
        upto = ring->capacity;
    /* Map only the bytes of the batch: if a worker has overwritten the mark, there may be no memory below it. */
    uint64_t step = growth_step(bytes), needed = (bytes + step - 1) / step * step;
    upto = needed < upto ? needed : upto;
    /* One call instead of one page fault per page. Kernels before 5.14 do not support it; then pages fault one by
     * one. */
    (void)madvise(sr_payload(ring, slot) + done, upto - done, MADV_POPULATE_WRITE);
    sr_raise(&ring->populated[slot], upto);
    return 0;
}

int sr_populate(sr_ring *ring, uint32_t slot, uint64_t bytes)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    uint64_t upto = sr_load_acquire(&s->committed);
    if (bytes > upto || bytes > ring->capacity)
        return -EINVAL;
    if (bytes <= sr_load_relaxed(&ring->populated[slot]))
        /* If the slot has released and committed this memory since it was mapped, its pages fault one by one. */
        return 0;
    return map_more(ring, slot, bytes, upto);
}

int sr_alloc(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t bytes, uint64_t align, uint64_t *offset,
             sr_alloc_error *why)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s || align == 0 || (align & (align - 1)) || align > SR_PAGE)
        return -EINVAL;
    uint64_t start, end, seen = sr_load_relaxed(&s->cursor);
    do {
        start = seen < ring->capacity ? (seen + align - 1) & ~(align - 1) : ring->capacity;
        if (bytes > ring->capacity - start) { /* nothing is allocated: a smaller request may still fit */
            if (why)
                *why = (sr_alloc_error){.limit = SR_LIMIT_CAPACITY, .free = ring->capacity,
                                     .needed = bytes < UINT64_MAX - start ? start + bytes : UINT64_MAX};
            return -EFBIG;
        }
        end = start + bytes;
    } while (!sr_cas_relaxed(&s->cursor, &seen, end));
    *offset = start;
    return sr_commit(ring, participant, slot, end, why);
}

int sr_rewind(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    if (sr_load_acquire(&s->state) != sr_word(SR_CLAIMED, (uint64_t)participant + 1, gen))
        return -ESTALE;
    sr_store_relaxed(&s->cursor, 0);
    /* A finisher is about to overwrite what the ranges have written. If it dies, all ranges must be redone. */
    if (sr_load_relaxed(&s->n_ranges)) {
        uint64_t w = sr_load_relaxed(&s->rewound), round = sr_gen_of(w) == gen ? sr_owner_of(w) : 0;
        sr_store_release(&s->rewound, sr_word(SR_CLAIMED, round, gen)); /* [L3] partner: [L4] in sr_undo_ranges */
    }
    return 0;
}
