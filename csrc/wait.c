/* wait.c - parties: who sleeps, who wakes, who joins.
 *
 * Sleeping is by eventcounts: announce, look once more, sleep on a word read before the look (docs/protocol.md, Waiting
 * and waking, names the sources).
 */
#define _GNU_SOURCE
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "handle.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

uint64_t sr_rescan_at(uint64_t deadline)
{
    uint64_t then = sr_now() + SR_RESCAN_NS;
    return then < deadline ? then : deadline;
}

/* ---- waking ------------------------------------------------------------------------------------------- */

/* Takes the party's announcement away, so that the next wake-up goes to another; true if it was there. */
static bool rouse(sr_party *p)
{
    if (!sr_load_ordered(&p->waiting) || !sr_cas32(&p->waiting, 1, 0)) /* [W1] partner: [W2] in sr_claim */
        return false;
    sr_add_ordered(&p->wake, 1);
    sr_futex_wake(&p->wake, 1);
    return true;
}

void sr_wake_party(sr_ring *ring, uint32_t party)
{
    if (party < ring->n_parties)
        rouse(&ring->parties[party]);
}

void sr_wake_a_worker(sr_ring *ring, uint64_t addressee)
{
    if (addressee) {
        sr_wake_party(ring, (uint32_t)addressee - 1);
        return;
    }
    uint32_t end = sr_load_ordered(&ring->header->crowd); /* [W3] partner: [W4] in sr_claim */
    for (uint32_t i = 1; i < ring->n_parties && i < end; i++)
        if (rouse(&ring->parties[i]))
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

void sr_wake_free(sr_ring *ring)
{
    sr_header *h = ring->header;
    if (sr_load_ordered(&h->free_waiters) == 0) /* [F1] partner: [F2] in sr_claim_free */
        return;
    sr_add_ordered(&h->freed, 1);
    sr_futex_wake(&h->freed, 1);
}

int sr_wake_all(sr_ring *ring)
{
    sr_header *h = ring->header;
    for (uint32_t i = 0; i < ring->n_parties; i++) {
        sr_add_ordered(&ring->parties[i].wake, 1);
        sr_futex_wake(&ring->parties[i].wake, INT_MAX);
        sr_futex_wake(&ring->parties[i].status, INT_MAX);
    }
    /* Also where a layout is settled: whoever settled it may have died before it woke those who wait for it. */
    for (uint32_t i = 0, end = sr_scan_end(ring); i < end; i++)
        if ((sr_load_acquire(&ring->slots[i].layout) & 3) != SR_LAYOUT_NONE)
            sr_futex_wake((_Atomic uint32_t *)&ring->slots[i].layout, INT_MAX);
    sr_add_ordered(&h->ready, 1);
    sr_futex_wake(&h->ready, INT_MAX);
    sr_add_ordered(&h->freed, 1);
    sr_futex_wake(&h->freed, INT_MAX);
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

int sr_dismiss(sr_ring *ring, uint32_t party)
{
    if (party == SR_CONSUMER || party >= ring->n_parties || (ring->flags & SR_SEG_PUSH))
        return -EINVAL;
    sr_party *p = &ring->parties[party];
    sr_cas32(&p->leaving, 0, 1); /* [Q1] partner: [Q2] in sr_claim. Twice is once, also behind that */
    sr_add_ordered(&p->wake, 1);
    sr_futex_wake(&p->wake, 1);
    return 0;
}

int sr_keep(sr_ring *ring, uint32_t party)
{
    if (party == SR_CONSUMER || party >= ring->n_parties || (ring->flags & SR_SEG_PUSH))
        return -EINVAL;
    return sr_cas32(&ring->parties[party].leaving, 1, 0) ? 0 : -ESTALE; /* [Q3] partner: [Q2] in sr_claim */
}

/* ---- parties -------------------------------------------------------------------------------------------- */

int sr_join(sr_ring *ring, uint32_t party)
{
    if (party >= ring->n_parties)
        return -EINVAL;
    SR_STEP_AS(party);
    sr_party *p = &ring->parties[party];
    int pid = (int)getpid();
    sr_store_relaxed(&p->pid, pid);
    sr_store_relaxed(&p->started, sr_start_time(pid));
    sr_store_relaxed(&p->program, sr_program_of(sr_incarnation_of(pid)));
    sr_store_relaxed(&p->growing, 0);
    sr_store_relaxed(&p->flags, 0);
    sr_store_relaxed(&p->waiting, 0);
    sr_store_relaxed(&p->short_of, 0);
    sr_begin_figures(p);
    sr_store_release(&p->incarnation, sr_incarnation_of(pid));
    sr_store_release(&p->status, SR_PARTY_JOINED);
    return 0;
}

int sr_serve(sr_ring *ring, uint32_t party, uint32_t flags)
{
    if (party >= ring->n_parties)
        return -EINVAL;
    sr_party *p = &ring->parties[party];
    sr_store_relaxed(&p->flags, flags);
    sr_begin_cpu(ring, party);
    sr_store_release(&p->status, SR_PARTY_SERVING); /* [S1] partner: [S2] in sr_wait_serving */
    sr_futex_wake(&p->status, INT_MAX);             /* once in a worker's life: no count of waiters */
    return 0;
}

int sr_party_info(const sr_ring *ring, uint32_t party, int *pid, uint32_t *status, uint32_t *flags)
{
    if (party >= ring->n_parties)
        return -EINVAL;
    const sr_party *p = &ring->parties[party];
    *status = sr_load_acquire(&p->status);
    *pid = sr_load_relaxed(&p->pid);
    *flags = sr_load_relaxed(&p->flags);
    return 0;
}

int sr_wait_serving(sr_ring *ring, uint32_t party, uint64_t deadline)
{
    if (party >= ring->n_parties)
        return -EINVAL;
    _Atomic uint32_t *word = &ring->parties[party].status;
    for (;;) {
        uint32_t status = sr_load_acquire(word); /* [S2] */
        if (status == SR_PARTY_SERVING)
            return 0;
        if (sr_closed(ring))
            return -ESHUTDOWN;
        int rc = sr_futex_wait(word, status, sr_rescan_at(deadline));
        if (rc == -EINTR)
            return rc;
        if (rc == -ETIMEDOUT && sr_now() >= deadline)
            return sr_load_acquire(word) == SR_PARTY_SERVING ? 0 : rc;
    }
}

/* ---- the workers' deaths ------------------------------------------------------------------------------ */

int sr_wait_watching(sr_ring *ring, uint32_t slot, uint64_t deadline, int watched, uint32_t *found)
{
    struct pollfd look = {.fd = watched, .events = POLLIN};
    for (;;) {
        uint64_t then = sr_now() + SR_LOOK_NS, until = watched >= 0 && then < deadline ? then : deadline;
        int rc = sr_wait_ready(ring, slot, until, found);
        if (rc != -ETIMEDOUT || until == deadline || poll(&look, 1, 0) != 0)
            return rc;
    }
}

/* ---- the consumer's death ---------------------------------------------------------------------------- */

/* What the thread that watches knows. Not the ring: its handle may end before the process does. */
struct watched {
    int fd; /* -1: code of the worker has closed it */
    uint64_t incarnation, program;
};

/* Whether `fd`, found readable, still is a pidfd, where no other one can be opened to ask. */
static bool still_a_pidfd(int fd) { return syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0) == 0 || errno != EBADF; }

static bool consumer_has_gone(struct watched *consumer)
{
    struct pollfd fd = {.fd = consumer->fd, .events = POLLIN};
    bool woken = poll(&fd, 1, SR_WATCH_MS) > 0;
    int gone = sr_has_gone(consumer->incarnation, consumer->program);
    if (woken && gone < 0)
        gone = still_a_pidfd(consumer->fd);
    if (woken && gone <= 0)
        consumer->fd = -1; /* readable, or closed, although the consumer lives: the number is another file's */
    return gone > 0;
}

static void *watch(void *consumer)
{
    while (!consumer_has_gone(consumer)) {
    }
    /* Nobody is left to tell, and Python's own exit could hang on whatever the consumer held. */
    _exit(1);
}

int sr_watch_consumer(const sr_ring *ring)
{
    const sr_party *party = &ring->parties[SR_CONSUMER];
    struct watched *consumer = malloc(sizeof *consumer);
    if (!consumer)
        return -ENOMEM;
    consumer->incarnation = sr_load_acquire(&party->incarnation);
    consumer->program = sr_load_relaxed(&party->program);
    int fd = sr_beyond_standard((int)syscall(SYS_pidfd_open, (int)(uint32_t)consumer->incarnation, 0));
    if (fd < 0 && errno != ESRCH) {
        int rc = -errno;
        free(consumer);
        return rc;
    }
    /* The number may belong to another process by now, or the process to another program. */
    if (fd < 0 || sr_has_gone(consumer->incarnation, consumer->program) > 0)
        _exit(1);
    consumer->fd = fd;

    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the main thread's business */
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 * 1024); /* the libraries' thread-local data lie in it too */
    int rc = pthread_create(&thread, &attributes, watch, consumer);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        close(fd);
        free(consumer);
    }
    return -rc;
}
