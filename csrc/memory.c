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

int (sr_put_memory)(int fd, uint64_t offset, uint64_t length)
{
    int rc;
    do {
        rc = fallocate(fd, 0, (off_t)offset, (off_t)length) == 0 ? 0 : -errno;
    } while (rc == -EINTR);
    return rc;
}

/* Compares what a commit needs with what there is, and says so in *why. */
int sr_check_room(int fd, uint64_t need, uint64_t others, sr_shortage *why)
{
    int limit = SR_LIMIT_NONE;
    uint64_t room = sr_headroom(fd, "", &limit);
    room = room > others ? room - others : 0;
    if (need <= room)
        return 0;
    if (why)
        *why = (sr_shortage){.limit = limit, .needed = need, .free = room};
    return -ENOSPC;
}

/* Growth in steps, so that a batch that is a little larger does not cost a system call each time; small
 * enough to keep a slot within 2 MiB of its largest batch. */
static uint64_t growth_step(uint64_t bytes)
{
    return bytes < MIB ? 64 * UINT64_C(1024) : MIB;
}

#define COUNT_OF(growing) ((growing) & ~(uint64_t)UINT32_MAX)

/* Each announcement has a number: two of the same size, of two tenants, are not the same word. */
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
        int rc = sr_check_room(ring->fd, need, 0, why);
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
            rc = sr_check_room(ring->fd, need, others, why);
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

static int grow(sr_ring *ring, uint32_t party, uint64_t area, _Atomic uint64_t *mark, uint64_t capacity,
                uint64_t bytes, sr_shortage *why)
{
    uint64_t have = sr_load_acquire(mark); /* [C1] with the release in sr_raise */
    if (bytes <= have)
        return 0;
    if (bytes > capacity || party >= ring->n_parties) {
        if (why)
            *why = (sr_shortage){.limit = SR_LIMIT_CAPACITY, .needed = bytes, .free = capacity};
        return -EFBIG;
    }
    uint64_t step = growth_step(bytes), want = (bytes + step - 1) / step * step;
    if (want > capacity)
        want = capacity;

    int rc = announce(ring, party, want - have, why);
    if (rc != 0 && want > bytes) { /* not a whole step, but perhaps what is needed */
        want = (bytes + SR_PAGE - 1) / SR_PAGE * SR_PAGE;
        rc = announce(ring, party, want - have, why);
    }
    if (rc != 0)
        return rc;
    rc = sr_put_memory(ring->fd, area + have, want - have);
    if (rc == 0)
        sr_raise(mark, want);
    else if (why)
        *why = (sr_shortage){.limit = rc == -EFBIG ? SR_LIMIT_FILESIZE : SR_LIMIT_FILESYSTEM,
                             .needed = want - have, .free = sr_headroom(ring->fd, "", NULL)};
    stop_growing(ring, party);
    return rc;
}

int sr_commit_task(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t bytes, sr_shortage *why)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    return grow(ring, party, ring->data_off + slot * ring->stride, &s->task_committed, ring->task_capacity,
                bytes, why);
}

int sr_commit(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t bytes, sr_shortage *why)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    int rc = grow(ring, party, ring->data_off + slot * ring->stride + ring->task_capacity, &s->committed,
                  ring->capacity, bytes, why);
    return rc == 0 ? sr_populate(ring, slot, bytes) : rc;
}

int sr_populate(sr_ring *ring, uint32_t slot, uint64_t bytes)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    uint64_t done = sr_load_relaxed(&ring->populated[slot]);
    if (bytes <= done)
        return 0;
    uint64_t upto = sr_load_acquire(&s->committed);
    if (upto > ring->capacity) /* whoever wrote that is not to make this process commit the rest of the machine */
        upto = ring->capacity;
    if (bytes > upto)
        return -EINVAL;
    /* One call instead of a page fault per page. Kernels before 5.14 do not know it: then pages fault. */
    (void)madvise(sr_payload(ring, slot) + done, upto - done, MADV_POPULATE_WRITE);
    sr_raise(&ring->populated[slot], upto);
    return 0;
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
    int rc = sr_commit(ring, party, slot, end, why);
    if (rc == 0)
        *offset = start;
    return rc;
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
