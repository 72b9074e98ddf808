/* pool.c - workers that serve several segments: they wait for a task of any of them.
 *
 * Each segment's own protocol is unchanged: a worker announces its sleep in each segment, and checks each again. But it
 * sleeps on one word, in the pool's wake file, which the wakers of all segments change.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/stat.h>

#include "internal.h"

static uint64_t bytes_of(const sr_ring *ring) { return (uint64_t)ring->n_participants * sizeof(sr_wake_line); }

int sr_use_wake_file(sr_ring *ring, int fd)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return -errno;
    if ((uint64_t)status.st_size < bytes_of(ring))
        return -EINVAL;
    void *lines = mmap(NULL, bytes_of(ring), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (lines == MAP_FAILED)
        return -errno;
    int rc = sr_forget_wake_file(ring);
    ring->wake_lines = lines;
    return rc;
}

int sr_forget_wake_file(sr_ring *ring)
{
    sr_wake_line *lines = ring->wake_lines;
    ring->wake_lines = NULL;
    return !lines || munmap(lines, bytes_of(ring)) == 0 ? 0 : -errno;
}

uint32_t sr_wake_count(const sr_ring *ring, uint32_t participant)
{
    return sr_load_acquire(sr_wake_word(ring, participant));
}

int sr_wake_worker(sr_ring *ring, uint32_t participant)
{
    if (participant >= ring->n_participants)
        return -EINVAL;
    sr_add_ordered(sr_wake_word(ring, participant), 1);
    return sr_futex_wake(sr_wake_word(ring, participant), 1);
}

/* ---- which segment first ----------------------------------------------------------------------------------------- */

#define NO_TASK UINT32_MAX
#define SHARES 1024u

/* Return the share of the consumer's tasks that are done or in progress, in 1024ths; NO_TASK: nothing can be claimed.
 * The ordered loads make this scan the check before a sleep [W2] in segments without a task. */
static uint32_t supply_of(const sr_ring *ring)
{
    uint32_t tasks = 0, made = 0;
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++) {
        unsigned state = sr_state_of(sr_load_ordered(&ring->slots[i].state));
        tasks += state == SR_TASK || state == SR_SHARED;
        made += state == SR_CLAIMED || state == SR_READY;
    }
    return tasks == 0 || sr_closed(ring) ? NO_TASK : made * SHARES / (made + tasks);
}

/* Return the index of the segment with the lowest supply; of several, the first one after `last`. n: none is left. */
static uint32_t lowest(const sr_served *served, uint32_t n, uint32_t last)
{
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = (last + 1 + i) % n;
        if (served[at].supply != NO_TASK && (best == n || served[at].supply < served[best].supply))
            best = at;
    }
    return best;
}

bool sr_is_starving(const sr_ring *ring)
{
    uint32_t wanted = sr_load_ordered(&ring->header->wanted);
    if (sr_closed(ring) || !sr_load_ordered(&ring->header->ready_waiters))
        return false;
    const sr_slot *s = wanted ? sr_slot_checked(ring, wanted - 1) : NULL;
    if (!s)
        return supply_of(ring) == 0;
    unsigned state = sr_state_of(sr_load_ordered(&s->state));
    return state == SR_TASK || state == SR_SHARED;
}

static int try_claim_any(sr_served *served, uint32_t n, uint32_t participant, uint32_t *which, uint32_t *slot,
                         uint32_t *range, uint64_t *gen)
{
    for (uint32_t i = 0; i < n; i++)
        served[i].supply = supply_of(served[i].ring);
    for (uint32_t at; (at = lowest(served, n, *which)) < n; served[at].supply = NO_TASK)
        if (sr_try_claim(served[at].ring, participant, slot, range, gen) == 0) {
            *which = at;
            return 0;
        }
    return -EAGAIN;
}

/* ---- the wait ---------------------------------------------------------------------------------------------------- */

static void announce_in_all(sr_served *served, uint32_t n, uint32_t participant)
{
    for (uint32_t i = 0; i < n; i++) {
        sr_raise_waiter_high_water(served[i].ring, participant);
        sr_store_ordered(&served[i].ring->participants[participant].waiting, 1); /* [W2] partner: [W1] */
    }
}

static void withdraw_from_all(sr_served *served, uint32_t n, uint32_t participant)
{
    for (uint32_t i = 0; i < n; i++)
        served[i].woken = !sr_cas32(&served[i].ring->participants[participant].waiting, 1, 0);
}

/* Wakers of these segments have picked this worker, which does something else: let them pick another one. */
static void pass_wake_ups_on(sr_served *served, uint32_t n, uint32_t used)
{
    for (uint32_t i = 0; i < n; i++) {
        if (served[i].woken && i != used)
            sr_wake_a_worker(served[i].ring, 0);
        served[i].woken = 0;
    }
}

int sr_claim_any(sr_served *served, uint32_t n, uint32_t participant, uint32_t seen, uint32_t *which, uint32_t *slot,
                 uint32_t *range, uint64_t *gen)
{
    uint64_t since = sr_now();
    uint32_t used = n; /* the segment whose wake-up this claim uses */
    sr_count_cpu(served[*which].ring, participant);
    for (uint32_t i = 0; i < n; i++)
        served[i].woken = 0;
    int rc = try_claim_any(served, n, participant, which, slot, range, gen);
    while (rc == -EAGAIN && sr_wake_count(served[0].ring, participant) == seen) {
        announce_in_all(served, n, participant);
        rc = try_claim_any(served, n, participant, which, slot, range, gen);
        if (rc == -EAGAIN && sr_futex_wait(sr_wake_word(served[0].ring, participant), seen,
                                           sr_rescan_at(SR_FOREVER)) == -EINTR)
            rc = -EINTR;
        withdraw_from_all(served, n, participant);
        if (rc == -EAGAIN && (rc = try_claim_any(served, n, participant, which, slot, range, gen)) == 0)
            used = *which;
    }
    /* After -EAGAIN there is nothing to pass on: each segment was scanned after its announcement was withdrawn. */
    pass_wake_ups_on(served, rc == -EAGAIN ? 0 : n, used);
    if (rc == 0)
        sr_record_claim(served[*which].ring, *slot, since);
    return rc;
}
