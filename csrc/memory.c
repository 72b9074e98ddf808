/* memory.c - putting memory under a slot, before it is written and never beyond what there is. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>

#include "handle.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define MIB (UINT64_C(1) << 20)

/* Compares what a commit needs with what there is; *why tells both, also where it suffices. */
static int look(int fd, uint64_t need, uint64_t others, sr_shortage *why)
{
    int limit = SR_LIMIT_NONE;
    uint64_t room = sr_headroom(fd, "", &limit);
    room = room > others ? room - others : 0;
    *why = (sr_shortage){.limit = limit, .needed = need, .free = room};
    return need <= room ? 0 : -ENOSPC;
}

int sr_check_room(int fd, uint64_t need, sr_shortage *why)
{
    sr_shortage room;
    int rc = look(fd, need, 0, &room);
    if (rc != 0 && why)
        *why = room;
    return rc;
}

/* Growth in steps, so that a batch that is a little larger does not cost a system call each time; small
 * enough to keep a slot within 2 MiB of its largest batch. */
static uint64_t growth_step(uint64_t bytes)
{
    return bytes < MIB ? 64 * UINT64_C(1024) : MIB;
}

#define COUNT_OF(growing) ((growing) & ~(uint64_t)UINT32_MAX)

/* Each announcement has a number: two of the same size, of two incarnations, are not the same word. */
static void start_growing(sr_ring *ring, uint32_t party, uint32_t pages)
{
    _Atomic uint64_t *mine = &ring->parties[party].growing;
    uint64_t count = COUNT_OF(sr_load_relaxed(mine)) + (UINT64_C(1) << 32);
    sr_store_ordered(mine, count | pages);
}

static void wake_for_room(_Atomic uint64_t *growing)
{
    sr_futex_wake((_Atomic uint32_t *)growing, INT_MAX); /* [M1] partner: [M2] */
}

static void stop_growing(sr_ring *ring, uint32_t party)
{
    _Atomic uint64_t *mine = &ring->parties[party].growing;
    sr_store_ordered(mine, COUNT_OF(sr_load_relaxed(mine)));
    wake_for_room(mine);
}

void sr_end_growing(sr_ring *ring, uint32_t party, uint64_t seen)
{
    _Atomic uint64_t *theirs = &ring->parties[party].growing;
    if (sr_pages_of(seen))
        (void)sr_cas(theirs, seen, COUNT_OF(seen)); /* another survivor may have been faster */
    wake_for_room(theirs); /* in any case: who was faster may have died before it woke anybody */
}

/* Makes sure of room beside what the others are committing, and leaves the party's announcement standing.
 * Where only theirs is in the way it waits for them: some of it may never be committed. The lower party
 * keeps its announcement meanwhile, the higher one takes it back, so that one of them can go on. */
static int announce(sr_ring *ring, uint32_t party, uint64_t need, sr_shortage *why)
{
    uint64_t give_up = sr_now() + SR_GROW_WAIT_NS, pages = (need + SR_PAGE - 1) / SR_PAGE;
    for (;;) {
        /* What cannot be had at all must not stand in anybody's way, not even for a moment. */
        int rc = look(ring->file.fd, need, 0, why);
        if (rc == 0) {
            /* Announce first, then look: of two parties that grow at once, at least one sees the other. */
            start_growing(ring, party, pages < UINT32_MAX ? (uint32_t)pages : UINT32_MAX);
            uint64_t others = 0;
            uint32_t first = ring->n_parties, seen = 0;
            for (uint32_t i = 0; i < ring->n_parties; i++) {
                uint32_t theirs = i == party ? 0 : sr_pages_of(sr_load_ordered(&ring->parties[i].growing));
                others += (uint64_t)theirs * SR_PAGE;
                if (theirs && first == ring->n_parties)
                    first = i, seen = theirs;
            }
            rc = look(ring->file.fd, need, others, why);
            if (rc == 0)
                return 0;
            if (sr_now() < give_up) {
                if (first < party)
                    stop_growing(ring, party);
                if (seen)
                    sr_futex_wait((_Atomic uint32_t *)&ring->parties[first].growing, seen, give_up); /* [M2] */
                continue;
            }
        }
        stop_growing(ring, party);
        return rc;
    }
}

/* ---- giving back ---- */

/* What a slot has behind its first `keep` bytes. The mark falls first [C2]: should this party die in between, pages are
 * left that the next commit covers, and no mark without pages. */
static uint64_t give_back(sr_ring *ring, uint32_t slot, uint64_t keep)
{
    sr_slot *s = &ring->slots[slot];
    uint64_t have = sr_load_acquire(&s->committed), from = have < keep ? have : keep;
    bool strays = sr_load_relaxed(&s->strays);
    if ((have <= keep && !strays) || sr_load_relaxed(&s->pinned))
        return 0;
    sr_store_release(&s->committed, from);
    if (strays)
        sr_store_relaxed(&s->strays, 0);
    /* All that is reserved: somebody else may have died in between. */
    if (sr_drop_memory(sr_payload(ring, slot) + from, ring->capacity - from) == 0)
        return have - from + strays;
    sr_store_release(&s->committed, have); /* pages that are locked (mlockall) stay */
    return 0;
}

#define MAY_BE_ANY (UINT64_C(1) << 46) /* nobody has counted them; the sum over SR_MAX_SLOTS slots does not overflow */

static uint64_t spare_bytes(const sr_slot *s)
{
    uint64_t have = sr_load_relaxed(&s->committed);
    if (sr_load_relaxed(&s->pinned))
        return 0;
    if (sr_load_relaxed(&s->strays))
        return MAY_BE_ANY;
    return have > SR_PAYLOAD_COMMIT ? have - SR_PAYLOAD_COMMIT : 0;
}

bool sr_trim_free(sr_ring *ring, uint32_t party)
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
        /* With a generation of its own: whoever read the word before does not get the slot [D1], [K3]. */
        uint64_t mine = sr_word(SR_TRIMMED, (uint64_t)party + 1, sr_next_gen(sr_gen_of(word)));
        if (!sr_cas(&s->state, word, mine)) /* [T1] partners: [E1], [D2], [K3] */
            continue;
        uint64_t given = give_back(ring, pick, SR_PAYLOAD_COMMIT);
        (void)sr_set_free_cold(ring, s, mine); /* it cannot fail while this party lives */
        return given != 0;
    }
}

/* In a push segment a number means a process, which may put and get as long as it has one. */
static bool others_take_part(const sr_ring *ring, uint32_t party)
{
    for (uint32_t i = 0; (ring->flags & SR_SEG_PUSH) && i < ring->n_parties; i++)
        if (i != party && sr_load_acquire(&ring->parties[i].incarnation) != 0)
            return true;
    return false;
}

int sr_vacate(sr_ring *ring, uint32_t party)
{
    if (party >= ring->n_parties)
        return -EINVAL;
    for (uint32_t i = 0; i < ring->n_slots && !others_take_part(ring, party); i++) {
        sr_slot *s = &ring->slots[i];
        uint64_t w = sr_load_acquire(&s->state);
        if (!(ring->flags & SR_SEG_PUSH) && sr_state_of(w) != SR_FREE) { /* what nobody will take or do */
            if (sr_state_of(w) == SR_READY)
                (void)sr_discard(ring, i);
            else
                (void)sr_cancel(ring, i, sr_gen_of(w));
            w = sr_load_acquire(&s->state);
        }
        uint64_t have = sr_load_relaxed(&s->committed), had = sr_load_relaxed(&s->task_committed);
        uint64_t mine = sr_word(SR_TRIMMED, (uint64_t)party + 1, sr_next_gen(sr_gen_of(w)));
        if (sr_state_of(w) != SR_FREE || (have == 0 && had == 0) || !sr_cas(&s->state, w, mine)) /* [T1] */
            continue;
        sr_store_release(&s->committed, 0); /* [C2] */
        sr_store_release(&s->task_committed, 0);
        (void)sr_drop_memory(sr_task_area(ring, i), ring->stride); /* else the next commit finds its pages there */
        (void)sr_set_free_cold(ring, s, mine);
    }
    return 0;
}

void sr_trim_tail(sr_ring *ring, uint32_t slot, uint64_t used)
{
    sr_slot *s = &ring->slots[slot];
    uint64_t taken = sr_load_relaxed(&s->cursor), have = sr_load_relaxed(&s->committed);
    if (used < taken) /* arrays that code keeps lie there too */
        used = taken;
    uint64_t step = growth_step(used), keep = (used + step - 1) / step * step;
    if (keep < have && have - keep > keep / 2)
        give_back(ring, slot, keep > SR_PAYLOAD_COMMIT ? keep : SR_PAYLOAD_COMMIT);
}

/* What all slots but one might give back; `moving`: those only that come back while the consumer waits. */
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

static bool may_come_back(const sr_shortage *why)
{
    return why->limit == SR_LIMIT_FILESYSTEM || why->limit == SR_LIMIT_CGROUP || why->limit == SR_LIMIT_MEMORY;
}

/* A worker that does not wait for memory itself, or whose place the consumer is about to fill: it will get on, or die. */
static bool works(const sr_ring *ring, uint64_t party, uint32_t me)
{
    return party != me && party != SR_CONSUMER && party < ring->n_parties &&
           !sr_load_ordered(&ring->parties[party].short_of); /* [Q2] partner: [Q1] */
}

static bool somebody_works(const sr_ring *ring, uint32_t me)
{
    for (uint32_t i = 1; i < ring->n_parties; i++)
        if (works(ring, i, me))
            return true;
    return false;
}

/* Whether a slot will become READY, or get on towards it, though all who wait for memory go on waiting. */
static bool gets_on(const sr_ring *ring, uint32_t slot, uint32_t me)
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

/* Whether the consumer sleeps, and will for ever unless memory comes from where nobody here can see: another of its
 * threads may let something go. */
static bool is_stuck(const sr_ring *ring, uint32_t wanted, uint32_t me)
{
    if (!sr_load_ordered(&ring->header->ready_waiters))
        return false;
    if (wanted)
        return !gets_on(ring, wanted - 1, me);
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++)
        if (gets_on(ring, i, me))
            return false;
    return true;
}

/* Of all who wait for memory one is refused, so that the others can go on: who has what the consumer waits for. */
static bool is_to_be_refused(const sr_ring *ring, uint32_t party, uint32_t slot, uint32_t wanted)
{
    bool first = true;
    for (uint32_t i = 1; i < ring->n_parties && wanted != slot + 1; i++) {
        uint32_t theirs = i == party ? 0 : sr_load_ordered(&ring->parties[i].short_of);
        if (theirs && theirs == wanted)
            return false;
        first = first && !(theirs && i < party);
    }
    return first;
}

int sr_wait_room(sr_ring *ring, uint32_t party, uint32_t slot, const sr_shortage *why, uint64_t *waited)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    sr_header *h = ring->header;
    if (!s || !why)
        return -EINVAL;
    /* The consumer itself has all that could come back, also where it makes the batches, as a party that nobody has
     * joined; a queue's full memory is its user's to know of. */
    if (party >= ring->n_parties || party == SR_CONSUMER || (ring->flags & SR_SEG_PUSH) ||
        sr_load_acquire(&ring->parties[party].status) == SR_PARTY_NONE)
        return -ENOSPC;
    if (!may_come_back(why) || sr_closed(ring) || sr_is_stale(ring, s))
        return -ENOSPC;
    if (sr_load_relaxed(&ring->parties[party].short_of) != slot + 1)
        sr_store_ordered(&ring->parties[party].short_of, slot + 1); /* [Q1], then look: of two one sees the other */
    uint32_t wanted = sr_load_ordered(&h->wanted);
    bool stuck = is_stuck(ring, wanted, party);
    if (why->needed > why->free + spare_of_others(ring, slot, stuck && wanted))
        return -ENOSPC;
    if (!stuck)
        *waited = 0;
    else if (*waited >= SR_PATIENCE_NS && is_to_be_refused(ring, party, slot, wanted))
        return -ENOSPC;
    uint64_t since = sr_now();
    sr_add_ordered(&h->free_waiters, 1); /* as [F2]; a wake-up that is missed costs one look */
    uint32_t seen = sr_load_acquire(&h->freed);
    int rc = sr_futex_wait(&h->freed, seen, since + SR_SHORT_LOOK_NS);
    sr_sub_ordered(&h->free_waiters, 1);
    if (stuck)
        *waited += sr_now() - since;
    return rc == -EINTR ? rc : 0;
}

int sr_end_wait_room(sr_ring *ring, uint32_t party)
{
    if (party >= ring->n_parties)
        return -EINVAL;
    if (sr_load_relaxed(&ring->parties[party].short_of))
        sr_store_ordered(&ring->parties[party].short_of, 0);
    return 0;
}

bool sr_is_short(const sr_ring *ring, uint32_t party)
{
    return party < ring->n_parties && sr_load_ordered(&ring->parties[party].short_of);
}

int sr_pin(sr_ring *ring, uint32_t slot)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    sr_store_relaxed(&s->pinned, 1); /* seen by whoever takes the slot after its release [E1] */
    return 0;
}

/* Announces, and has FREE slots give back what is short; not what would not suffice. */
static int make_room(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t need, sr_shortage *why)
{
    for (;;) {
        int rc = announce(ring, party, need, why);
        if (rc != -ENOSPC || !may_come_back(why) || need > why->free + spare_of_others(ring, slot, false) ||
            !sr_trim_free(ring, party))
            return rc;
    }
}

/* Publishers give back what a batch does not use where less memory is left than the segment has. */
static void note_room(sr_ring *ring, const sr_shortage *room)
{
    uint64_t then = sr_committed(ring) + room->needed; /* which is not committed yet */
    uint32_t tight = room->free < room->needed || room->free - room->needed < then;
    if (sr_load_relaxed(&ring->header->tight) != tight)
        sr_store_relaxed(&ring->header->tight, tight);
}

static int grow(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t area, _Atomic uint64_t *mark,
                uint64_t capacity, uint64_t bytes, sr_shortage *why)
{
    sr_shortage unheard;
    uint64_t have = sr_load_acquire(mark); /* [C1] with the release in sr_raise */
    if (bytes <= have)
        return 0;
    if (!why)
        why = &unheard;
    if (bytes > capacity || party >= ring->n_parties) {
        *why = (sr_shortage){.limit = SR_LIMIT_CAPACITY, .needed = bytes, .free = capacity};
        return -EFBIG;
    }
    int fd = sr_fd(ring);
    if (fd < 0) /* never into a file that has got its number */
        return fd;
    uint64_t step = growth_step(bytes), want = (bytes + step - 1) / step * step;
    if (want > capacity)
        want = capacity;

    int rc = make_room(ring, party, slot, want - have, why);
    if (rc != 0 && want > bytes) { /* not a whole step, but perhaps what is needed */
        want = (bytes + SR_PAGE - 1) / SR_PAGE * SR_PAGE;
        rc = make_room(ring, party, slot, want - have, why);
    }
    note_room(ring, why);
    if (rc != 0)
        return rc;
    fd = sr_fd(ring); /* once more: the wait for room may have been long */
    rc = fd < 0 ? fd : sr_put_memory(fd, area + have, want - have);
    if (rc == 0) {
        if (mark == &ring->slots[slot].committed && sr_load_relaxed(&ring->populated[slot]) > have)
            atomic_store_explicit(&ring->populated[slot], have, memory_order_relaxed); /* it had been given back */
        sr_raise(mark, want);
        *why = (sr_shortage){0};
    } else if (rc != -EBADF) {
        *why = (sr_shortage){.limit = rc == -EFBIG ? SR_LIMIT_FILESIZE : SR_LIMIT_FILESYSTEM,
                             .needed = want - have, .free = sr_headroom(ring->file.fd, "", NULL)};
    }
    stop_growing(ring, party);
    return rc;
}

int sr_commit_task(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t bytes, sr_shortage *why)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    if (bytes <= sr_load_acquire(&s->task_committed)) /* as nearly always: [C1] */
        return 0;
    return grow(ring, party, slot, ring->data_off + slot * ring->stride, &s->task_committed, ring->task_capacity,
                bytes, why);
}

int sr_commit(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t bytes, sr_shortage *why)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    int rc = grow(ring, party, slot, ring->data_off + slot * ring->stride + ring->task_capacity, &s->committed,
                  ring->capacity, bytes, why);
    return rc == 0 ? sr_populate(ring, slot, bytes) : rc;
}

/* Apart from sr_populate, which runs once per batch and seldom comes here. */
__attribute__((noinline)) static int map_more(sr_ring *ring, uint32_t slot, uint64_t bytes, uint64_t upto)
{
    uint64_t done = sr_load_relaxed(&ring->populated[slot]);
    if (upto > ring->capacity) /* whoever wrote that is not to make this process commit the rest of the machine */
        upto = ring->capacity;
    /* No more than the batch needs: the mark may have been written over, and what lies behind it not be there. */
    uint64_t step = growth_step(bytes), needed = (bytes + step - 1) / step * step;
    upto = needed < upto ? needed : upto;
    /* One call instead of a page fault per page. Kernels before 5.14 do not know it: then pages fault. */
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
        return 0; /* the slot may have given back and got again what lies there: pages fault singly then */
    return map_more(ring, slot, bytes, upto);
}

int sr_alloc(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t bytes, uint64_t align, uint64_t *offset,
             sr_shortage *why)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s || align == 0 || (align & (align - 1)) || align > SR_PAGE)
        return -EINVAL;
    uint64_t start, end, seen = sr_load_relaxed(&s->cursor);
    do {
        start = seen < ring->capacity ? (seen + align - 1) & ~(align - 1) : ring->capacity;
        if (bytes > ring->capacity - start) { /* nothing is taken: a smaller request may still fit */
            if (why)
                *why = (sr_shortage){.limit = SR_LIMIT_CAPACITY, .free = ring->capacity,
                                     .needed = bytes < UINT64_MAX - start ? start + bytes : UINT64_MAX};
            return -EFBIG;
        }
        end = start + bytes;
    } while (!sr_cas_relaxed(&s->cursor, &seen, end));
    *offset = start;
    return sr_commit(ring, party, slot, end, why);
}

int sr_rewind(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    if (sr_load_acquire(&s->state) != sr_word(SR_CLAIMED, (uint64_t)party + 1, gen))
        return -ESTALE;
    sr_store_relaxed(&s->cursor, 0);
    /* A finisher is about to write over what the ranges have left: should it die, they are done again. */
    if (sr_load_relaxed(&s->n_ranges)) {
        uint64_t w = sr_load_relaxed(&s->rewound), round = sr_gen_of(w) == gen ? sr_owner_of(w) : 0;
        sr_store_release(&s->rewound, sr_word(SR_CLAIMED, round, gen)); /* [L3] partner: [L4] in sr_undo_ranges */
    }
    return 0;
}
