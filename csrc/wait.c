/* wait.c - participants: how they join, sleep and wake, and how a worker watches the consumer's process.
 *
 * Waits are eventcounts: announce, check once more, then sleep on a word that was read before the check
 * (docs/protocol.md, Waiting and waking, names the sources).
 */
#define _GNU_SOURCE
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

uint64_t sr_rescan_at(uint64_t deadline)
{
    uint64_t then = sr_now() + SR_RESCAN_NS;
    return then < deadline ? then : deadline;
}

/* ---- waking ------------------------------------------------------------------------------------------------------ */

/* Withdraw the participant's announcement, so that the next wake-up goes to another one. True if there was one. */
static bool wake_if_waiting(sr_ring *ring, uint32_t participant)
{
    sr_participant *p = &ring->participants[participant];
    if (!sr_load_ordered(&p->waiting) || !sr_cas32(&p->waiting, 1, 0)) /* [W1] partner: [W2] in sr_claim */
        return false;
    _Atomic uint32_t *word = sr_wake_word(ring, participant);
    sr_add_ordered(word, 1);
    sr_futex_wake(word, 1);
    return true;
}

void sr_wake_participant(sr_ring *ring, uint32_t participant)
{
    if (participant < ring->n_participants)
        wake_if_waiting(ring, participant);
}

void sr_wake_a_worker(sr_ring *ring, uint64_t addressee)
{
    if (addressee) {
        sr_wake_participant(ring, (uint32_t)addressee - 1);
        return;
    }
    uint32_t end = sr_load_ordered(&ring->header->waiter_high_water); /* [W3] partner: [W4] in sr_claim */
    for (uint32_t i = 1; i < ring->n_participants && i < end; i++)
        if (wake_if_waiting(ring, i))
            return;
}

void sr_wake_ready(sr_ring *ring, uint32_t slot)
{
    sr_header *h = ring->header;
    if (sr_load_ordered(&h->ready_waiters) == 0) /* [R1] partner: [R2] in sr_wait_ready */
        return;
    uint32_t wanted = sr_load_ordered(&h->wanted);
    if (wanted != 0 && wanted != slot + 1)
        return;
    sr_add_ordered(&h->ready, 1);
    sr_futex_wake(&h->ready, 1);
}

static void wake_free(sr_ring *ring)
{
    sr_header *h = ring->header;
    if (sr_load_ordered(&h->free_waiters) == 0) /* [F1] partners: [F2] in sr_claim_free, sr_wait_free */
        return;
    sr_add_ordered(&h->freed, 1);
    /* In a loader segment, the consumer may wait for the slot and workers for its memory. */
    sr_futex_wake(&h->freed, (ring->flags & SR_SEG_QUEUE) ? 1 : INT_MAX);
}

void sr_wake_readers(sr_ring *ring)
{
    sr_header *h = ring->header;
    sr_add_ordered(&h->share_wake, 1);
    sr_futex_wake(&h->share_wake, INT_MAX);
}

bool sr_set_free_at(sr_ring *ring, sr_slot *s, uint64_t word, uint64_t at)
{
    sr_store_relaxed(&s->freed_at, at);
    if (!sr_cas(&s->state, word, sr_word(SR_FREE, 0, sr_gen_of(word)))) /* [E1] partners: [D1], [K3], [F3] */
        return false;
    wake_free(ring);
    return true;
}

int sr_wake_all(sr_ring *ring)
{
    sr_header *h = ring->header;
    for (uint32_t i = 0; i < ring->n_participants; i++) {
        sr_add_ordered(sr_wake_word(ring, i), 1);
        sr_futex_wake(sr_wake_word(ring, i), INT_MAX);
        sr_futex_wake(&ring->participants[i].status, INT_MAX);
    }
    /* Also wake the waits for a layout: the participant that settled it may have died before its wake-up. */
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++)
        if ((sr_load_acquire(&ring->slots[i].layout) & 3) != SR_LAYOUT_NONE)
            sr_futex_wake((_Atomic uint32_t *)&ring->slots[i].layout, INT_MAX);
    sr_add_ordered(&h->ready, 1);
    sr_futex_wake(&h->ready, INT_MAX);
    sr_add_ordered(&h->freed, 1);
    sr_futex_wake(&h->freed, INT_MAX);
    sr_wake_readers(ring);
    return 0;
}

int sr_close(sr_ring *ring)
{
    sr_store_ordered(&ring->header->closed, 1);
    return sr_wake_all(ring);
}

int sr_reopen(sr_ring *ring)
{
    sr_store_ordered(&ring->header->closed, 0);
    return 0;
}

bool sr_closed(const sr_ring *ring) { return sr_load_ordered(&ring->header->closed) != 0; }

int sr_retire(sr_ring *ring, uint32_t participant)
{
    if (participant == SR_CONSUMER || participant >= ring->n_participants || (ring->flags & SR_SEG_QUEUE))
        return -EINVAL;
    sr_participant *p = &ring->participants[participant];
    sr_cas32(&p->retiring, 0, 1); /* [Q1] partner: [Q2] in sr_claim; no effect if it is 1 or 2 already */
    sr_add_ordered(&p->wake, 1);
    sr_futex_wake(&p->wake, 1);
    return 0;
}

int sr_cancel_retirement(sr_ring *ring, uint32_t participant)
{
    if (participant == SR_CONSUMER || participant >= ring->n_participants || (ring->flags & SR_SEG_QUEUE))
        return -EINVAL;
    return sr_cas32(&ring->participants[participant].retiring, 1, 0) ? 0 : -ESTALE; /* [Q3] partner: [Q2] in sr_claim */
}

/* ---- participants ------------------------------------------------------------------------------------------------ */

int sr_join(sr_ring *ring, uint32_t participant)
{
    if (participant >= ring->n_participants)
        return -EINVAL;
    SR_STEP_AS(participant);
    sr_participant *p = &ring->participants[participant];
    int pid = (int)getpid();
    sr_store_relaxed(&p->pid, pid);
    sr_store_relaxed(&p->started, sr_start_time(pid));
    sr_store_relaxed(&p->program, sr_program_of(sr_incarnation_of(pid)));
    sr_store_relaxed(&p->growing, 0);
    sr_store_relaxed(&p->waiting, 0);
    sr_store_relaxed(&p->needs_memory_for, 0);
    sr_reset_stats(p);
    sr_store_release(&p->incarnation, sr_incarnation_of(pid));
    sr_store_release(&p->status, SR_PARTICIPANT_JOINED);
    return 0;
}

int sr_serve(sr_ring *ring, uint32_t participant)
{
    if (participant >= ring->n_participants)
        return -EINVAL;
    sr_participant *p = &ring->participants[participant];
    sr_start_cpu_clock(ring, participant);
    sr_store_release(&p->status, SR_PARTICIPANT_SERVING); /* [S1] partner: [S2] in sr_wait_serving */
    sr_futex_wake(&p->status, INT_MAX); /* once in a worker's life: waiters are not counted */
    return 0;
}

int sr_participant_info(const sr_ring *ring, uint32_t participant, int *pid, uint32_t *status)
{
    if (participant >= ring->n_participants)
        return -EINVAL;
    const sr_participant *p = &ring->participants[participant];
    *status = sr_load_acquire(&p->status);
    *pid = sr_load_relaxed(&p->pid);
    return 0;
}

int sr_wait_serving(sr_ring *ring, uint32_t participant, uint64_t deadline)
{
    if (participant >= ring->n_participants)
        return -EINVAL;
    _Atomic uint32_t *word = &ring->participants[participant].status;
    for (;;) {
        uint32_t status = sr_load_acquire(word); /* [S2] */
        if (status == SR_PARTICIPANT_SERVING)
            return 0;
        if (sr_closed(ring))
            return -ESHUTDOWN;
        int rc = sr_futex_wait(word, status, sr_rescan_at(deadline));
        if (rc == -EINTR)
            return rc;
        if (rc == -ETIMEDOUT && sr_now() >= deadline)
            return sr_load_acquire(word) == SR_PARTICIPANT_SERVING ? 0 : rc;
    }
}

/* ---- the consumer's death ---------------------------------------------------------------------------------------- */

/* The state of the thread that watches the consumer. It does not use the ring, whose handle may end before the
 * process. */
struct watched_consumer {
    int fd;
    uint64_t incarnation, program;
};

static void *watch(void *arg)
{
    struct watched_consumer *consumer = arg;
    for (;;) {
        struct pollfd fd = {.fd = consumer->fd, .events = POLLIN};
        bool ended = poll(&fd, 1, SR_WATCH_MS) > 0 && (fd.revents & POLLIN);
        int gone = sr_has_exited(consumer->incarnation, consumer->program);
        if (gone > 0 || (ended && gone < 0))
            /* No participant is left to inform, and Python's own exit could hang on a lock that the consumer held. */
            _exit(1);
        if (fd.revents)
            /* The consumer lives, so code of the worker has closed the pidfd. This thread cannot raise an error. It
             * checks once per SR_WATCH_MS, or a killed job would leave the worker behind. */
            consumer->fd = -1;
    }
}

int sr_watch_consumer(const sr_ring *ring)
{
    const sr_participant *participant = &ring->participants[SR_CONSUMER];
    struct watched_consumer *consumer = malloc(sizeof *consumer);
    if (!consumer)
        return -ENOMEM;
    consumer->incarnation = sr_load_acquire(&participant->incarnation);
    consumer->program = sr_load_relaxed(&participant->program);
    int fd = (int)syscall(SYS_pidfd_open, (int)(uint32_t)consumer->incarnation, 0);
    if (fd < 0 && errno != ESRCH) {
        int rc = -errno;
        free(consumer);
        return rc;
    }
    /* The pid may belong to another process by now, or the process may run another program. */
    if (fd < 0 || sr_has_exited(consumer->incarnation, consumer->program) > 0)
        _exit(1);
    consumer->fd = fd;

    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the main thread handles signals */
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 * 1024); /* the libraries' thread-local data need space too */
    int rc = pthread_create(&thread, &attributes, watch, consumer);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        close(fd);
        free(consumer);
    }
    return -rc;
}
