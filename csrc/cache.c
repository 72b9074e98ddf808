/* cache.c - entries that one process makes and all processes find: an append-only segment with one word per key.
 *
 * The word decides, as a slot's does: EMPTY; FILLING, by a filler whose death can be confirmed; READY forever. There
 * are no locks, and memory is committed before it is written. docs/protocol.md, The cache, has the transitions by their
 * labels.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cache_handle.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* since Linux 5.14 */
#endif

#define MIB (UINT64_C(1) << 20)
#define GROWTH (4 * MIB)                         /* entries get their memory in such steps */
#define SHORT_NS UINT64_C(1000000000)            /* after memory was missing, no process tries again for this long */
#define KEPT_FREE(size) ((size) / 16 + 64 * MIB) /* memory that a cache leaves unused: training needs it more */

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
static unsigned state_of(uint64_t word) { return (unsigned)(word & SR_ENTRY_STATE); }
static uint64_t owner_of(uint64_t word) { return (word & SR_OWNER_MASK) >> SR_OWNER_SHIFT; }
static uint64_t empty_word(uint64_t gen) { return SR_ENTRY_EMPTY | gen << SR_GEN_SHIFT; }
static uint64_t next_empty(uint64_t word) { return empty_word((word >> SR_GEN_SHIFT) + 1); } /* it wraps */
static uint64_t filling_word(uint64_t word, uint32_t filler)
{
    return SR_ENTRY_FILLING | ((uint64_t)filler + 1) << SR_OWNER_SHIFT | (word >> SR_GEN_SHIFT) << SR_GEN_SHIFT;
}

/* ---- counters ---------------------------------------------------------------------------------------------------- */

void sr_cache_count(sr_cache *cache, enum sr_counter what, uint64_t n)
{
    int cpu = sched_getcpu(); /* no system call: the kernel keeps it in the thread's memory */
    sr_add_relaxed(&cache->counters[(unsigned)cpu % SR_CACHE_COUNTERS].of[what], n);
}

bool sr_cache_may_report(sr_cache *cache) { return sr_cas32(&cache->header->reported, 0, 1); }

/* ---- find -------------------------------------------------------------------------------------------------------- */

/* Return the word of a key; NULL: its chunk of the index has no memory, so the entry is EMPTY. */
static _Atomic uint64_t *word_of(const sr_cache *cache, uint64_t key)
{
    uint64_t chunk = key / SR_CACHE_CHUNK, bits = sr_load_acquire(&cache->map[chunk / 64]); /* [Y2] */
    return bits >> chunk % 64 & 1 ? &cache->index[key] : NULL;
}

int sr_cache_lookup(const sr_cache *cache, uint64_t key, const char **payload, uint64_t *bytes, sr_result *result)
{
    if (key >= cache->n_keys)
        return -ERANGE;
    const _Atomic uint64_t *word = word_of(cache, key);
    if (!word)
        return -ENOENT;
    uint64_t w = sr_load_acquire(word); /* [H2] partner: [H1] */
    if (state_of(w) == SR_ENTRY_EMPTY)
        return -ENOENT;
    if (state_of(w) == SR_ENTRY_FILLING)
        return -EAGAIN;
    /* Reading beyond the committed bytes would allocate memory, or end in SIGBUS. */
    uint64_t at = (w >> SR_ENTRY_SHIFT) * SR_LEAF_ALIGN, end = sr_load_relaxed(&cache->header->committed);
    if (end > cache->budget)
        end = cache->budget;
    if (at > end || end - at < sizeof(sr_entry))
        return -EPROTO;
    sr_entry entry;
    memcpy(&entry, cache->view + at, sizeof entry); /* read once: a faulty process may overwrite it */
    if (entry.key != key || entry.bytes > end - at - sizeof entry)
        return -EPROTO;
    *payload = cache->view + at + sizeof entry;
    *bytes = entry.bytes;
    *result = entry.result;
    return 0;
}

int sr_cache_memory_available(const sr_cache *cache, uint64_t bytes)
{
    uint64_t used = sr_load_relaxed(&cache->header->cursor), then = sr_load_relaxed(&cache->header->short_until);
    if (used > cache->budget || bytes > cache->budget ||
        sizeof(sr_entry) + round_up(bytes, SR_LEAF_ALIGN) > cache->budget - used)
        return -ENOSPC;
    /* That time has passed, or a clock of another time namespace has set it. */
    return then == 0 || then - sr_now() > SHORT_NS ? 0 : -EAGAIN;
}

/* ---- fillers ----------------------------------------------------------------------------------------------------- */

/* Return this process's incarnation; 0: it cannot tell which of the others live, nor can they for it. */
static uint64_t own_incarnation(sr_cache *cache)
{
    int pid = (int)getpid();
    uint64_t was = sr_load_acquire(&cache->incarnation), me = was;
    if ((uint32_t)me != (uint32_t)pid) {
        uint64_t ours = sr_pid_namespace(), theirs = cache->header->pid_namespace;
        me = sr_incarnation_of(pid);
        sr_store_relaxed(&cache->other_namespace, ours && theirs && ours != theirs);
        sr_store_relaxed(&cache->program, sr_program_of(me));
        /* Threads may do this concurrently, and one of them may lack a descriptor for /proc. The first value stored
         * counts. */
        if (!sr_cas(&cache->incarnation, was, me))
            me = sr_load_acquire(&cache->incarnation);
    }
    return sr_load_relaxed(&cache->other_namespace) ? 0 : me;
}

/* Recover a dead filler: make its entry EMPTY, then free its number. Several processes may do this concurrently, and a
 * slow one may still be at it when the number has another filler. So it reads the word first, and then checks that the
 * incarnation is still the dead one's, like sr_recover_dead. */
void sr_cache_reap(sr_cache *cache, uint32_t number, uint64_t dead)
{
    sr_filler *f = &cache->fillers[number];
    uint64_t key = sr_load_acquire(&f->key), taken = sr_load_relaxed(&f->taken);
    _Atomic uint64_t *word = key < cache->n_keys ? word_of(cache, key) : NULL;
    if (word) {
        uint64_t w = sr_load_acquire(word);
        if (state_of(w) == SR_ENTRY_FILLING && owner_of(w) == number + 1u &&
            sr_load_acquire(&f->incarnation) == dead /* [O2] partner: [O1] */ &&
            sr_cas(word, w, next_empty(w))) { /* [H4] */
            sr_add_relaxed(&cache->header->recovered, 1);
            sr_add_relaxed(&cache->header->lost, taken);
        }
        /* In any case: a faster process may have died before its wake-up. */
        sr_futex_wake((_Atomic uint32_t *)word, INT_MAX);
    }
    (void)sr_cas(&f->incarnation, dead, 0);
}

int sr_cache_recover(sr_cache *cache)
{
    int dead = 0;
    if (own_incarnation(cache) == 0)
        return 0;
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++) {
        uint64_t theirs = sr_load_acquire(&cache->fillers[i].incarnation);
        if (theirs && sr_has_exited(theirs, sr_load_relaxed(&cache->fillers[i].program)) == 1) {
            sr_cache_reap(cache, i, theirs);
            dead++;
        }
    }
    return dead;
}

/* Take a number for the calling thread; -EUSERS: there is none. Other processes use the fields of a number only after
 * the claim of its word [H3]: the key of a former filler leads to no entry that names this number. */
static int take_number(sr_cache *cache, uint64_t me, uint32_t *number)
{
    uint32_t start = (uint32_t)((me ^ (uint64_t)syscall(SYS_gettid)) * UINT64_C(0x9e3779b97f4a7c15) >> 54);
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++) {
        uint32_t at = (start + i) % SR_CACHE_FILLERS;
        sr_filler *f = &cache->fillers[at];
        if (sr_load_relaxed(&f->incarnation) != 0 || !sr_cas(&f->incarnation, 0, me)) /* [O1] partner: [O2] */
            continue;
        sr_store_relaxed(&f->program, sr_load_relaxed(&cache->program));
        sr_store_relaxed(&f->taken, 0);
        sr_store_ordered(&f->growing, 0);
        sr_store_relaxed(&f->thread, (uint64_t)syscall(SYS_gettid));
        *number = at;
        return 0;
    }
    return -EUSERS;
}

/* If the kernel has wrongly reported this process as dead, another filler may have the number by now. */
static void leave_number(sr_cache *cache, uint32_t number, uint64_t me)
{
    (void)sr_cas(&cache->fillers[number].incarnation, me, 0);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Check that `need` bytes are available in addition to what others are about to commit; *why receives both numbers. */
static int look_for_room(int fd, uint64_t need, uint64_t others, sr_alloc_error *why)
{
    sr_memory_info available;
    sr_process_memory_available("", &available);
    uint64_t keep = available.limit == SR_LIMIT_NONE ? 0 : KEPT_FREE(available.size);
    uint64_t left = available.free > keep ? available.free - keep : 0;
    int limit = SR_LIMIT_NONE;
    uint64_t head = sr_memory_available(fd, "", &limit, NULL); /* includes the file system's limit */
    if (head < left)
        left = head;
    else
        limit = available.limit;
    left = left > others ? left - others : 0;
    *why = (sr_alloc_error){.limit = limit, .needed = need, .free = left};
    return need <= left ? 0 : -ENOSPC;
}

/* Return how many bytes the other fillers have announced to commit. */
static uint64_t growth_of_others(const sr_cache *cache, uint32_t number)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++) {
        uint64_t theirs = i == number ? 0 : sr_load_ordered(&cache->fillers[i].growing); /* [Z2] partner: [Z1] */
        /* A dead filler's announcement ends with its number. */
        if (theirs && sr_load_acquire(&cache->fillers[i].incarnation))
            sum += theirs;
    }
    return sum;
}

/* Commit `need` bytes at `offset` of the file as filler `number`, unless too little remains for the rest of the
 * machine. Announce first, then check: of two fillers that grow concurrently, at least one sees the other. */
static int commit(sr_cache *cache, uint32_t number, uint64_t offset, uint64_t need, sr_alloc_error *why)
{
    sr_filler *f = &cache->fillers[number];
    sr_cgroup_locks locks;
    *why = (sr_alloc_error){.limit = SR_LIMIT_NONE, .needed = need};
    (void)sr_memory_available(-1, "", NULL, &locks); /* only for the locks */
    sr_lock_cgroups(&locks, SR_GROW_WAIT_NS);
    sr_store_ordered(&f->growing, need); /* [Z1] partner: [Z2] */
    uint64_t others = growth_of_others(cache, number);
    int fd = sr_cache_fd(cache), rc = fd < 0 ? fd : look_for_room(fd, need, others, why);
    if (rc == -ENOSPC && others && sr_cache_recover(cache) > 0) /* some of them died while committing */
        rc = look_for_room(fd, need, growth_of_others(cache, number), why);
    if (rc == 0)
        rc = sr_put_memory(fd, offset, need);
    sr_store_ordered(&f->growing, 0);
    sr_unlock_cgroups(&locks);
    return rc;
}

/* If only this process cannot commit, because its descriptor was closed, the others need not wait. */
static int count_memory_refusal(sr_cache *cache, int rc)
{
    if (rc == -EBADF)
        return rc;
    sr_store_relaxed(&cache->header->short_until, sr_now() + SHORT_NS);
    return -ENOSPC;
}

/* Commit at least the first `end` bytes of entries. Two fillers that do this concurrently allocate the same pages,
 * which is harmless: each begins at the mark that it has read. */
static int grow(sr_cache *cache, uint32_t number, uint64_t end, sr_alloc_error *why)
{
    sr_cache_header *h = cache->header;
    uint64_t have = sr_load_acquire(&h->committed), most = cache->total - cache->data_off; /* [Y2] */
    if (end <= have)
        return 0;
    uint64_t step = round_up(end, GROWTH), want = step < most ? step : most, least = round_up(end, SR_PAGE);
    int rc = commit(cache, number, cache->data_off + have, want - have, why);
    if (rc != 0 && want > least)
        rc = commit(cache, number, cache->data_off + have, (want = least) - have, why);
    if (rc != 0)
        return count_memory_refusal(cache, rc);
    sr_raise(&h->committed, want); /* [Y1], after the memory */
    return 0;
}

/* Find the word of a key, and commit its chunk if that has no memory. */
static int make_word(sr_cache *cache, uint32_t number, uint64_t key, _Atomic uint64_t **word, sr_alloc_error *why)
{
    uint64_t chunk = key / SR_CACHE_CHUNK, bytes = SR_CACHE_CHUNK * sizeof(uint64_t);
    if (!(*word = word_of(cache, key))) {
        int rc = commit(cache, number, (uint64_t)((char *)cache->index - cache->base) + chunk * bytes, bytes, why);
        if (rc != 0)
            return count_memory_refusal(cache, rc);
        _Atomic uint64_t *bits = &cache->map[chunk / 64];
        for (uint64_t seen = sr_load_relaxed(bits);; seen = sr_load_relaxed(bits))
            if (sr_cas(bits, seen, seen | UINT64_C(1) << chunk % 64)) /* [Y1], after the memory */
                break;
        *word = &cache->index[key];
    }
    return 0;
}

/* ---- make an entry ----------------------------------------------------------------------------------------------- */

int sr_cache_claim(sr_cache *cache, uint64_t key, sr_fill *fill, sr_alloc_error *why)
{
    if (key >= cache->n_keys)
        return -ERANGE;
    uint64_t me = own_incarnation(cache);
    if (me == 0)
        return -EXDEV;
    uint32_t number;
    sr_alloc_error ignored;
    int rc = take_number(cache, me, &number);
    if (rc == -EUSERS && sr_cache_recover(cache) >= 0)
        rc = take_number(cache, me, &number);
    if (rc != 0)
        return rc;
    _Atomic uint64_t *word;
    rc = make_word(cache, number, key, &word, why ? why : &ignored);
    if (rc == 0) {
        /* Before the claim: a process that finds this number in the word, and the filler dead, must find the key. */
        sr_store_release(&cache->fillers[number].key, key);
        uint64_t w = sr_load_acquire(word);
        rc = state_of(w) == SR_ENTRY_READY ? -EEXIST : state_of(w) == SR_ENTRY_FILLING ? -EAGAIN : 0;
        if (rc == 0 && !sr_cas(word, w, filling_word(w, number))) /* [H3] partners: [H4], [O1] */
            rc = -EAGAIN; /* another filler has or had it: the caller checks again */
        *fill = (sr_fill){.key = key, .word = filling_word(w, number), .incarnation = me, .filler = number};
    }
    if (rc != 0)
        leave_number(cache, number, me);
    return rc;
}

static bool is_mine(sr_cache *cache, const sr_fill *fill) { return fill->incarnation == own_incarnation(cache); }

/* End a fill: change the word, wake the processes that wait for it, and free the number. */
static int settle(sr_cache *cache, sr_fill *fill, uint64_t to)
{
    sr_filler *f = &cache->fillers[fill->filler];
    _Atomic uint64_t *word = &cache->index[fill->key];
    /* This fails only if other processes took this one for dead; then the entry belongs to another filler. */
    int rc = sr_cas(word, fill->word, to) ? 0 : -ESTALE; /* [H1] partner: [H2]; to EMPTY [H4] partner: [H3] */
    if (rc == 0)
        sr_store_relaxed(&f->taken, 0);
    if (sr_load_ordered(&cache->header->waiters)) /* [J1] partner: [J2] */
        sr_futex_wake((_Atomic uint32_t *)word, INT_MAX);
    leave_number(cache, fill->filler, fill->incarnation);
    fill->incarnation = 0;
    return rc;
}

int sr_cache_abandon(sr_cache *cache, sr_fill *fill)
{
    return is_mine(cache, fill) ? settle(cache, fill, next_empty(fill->word)) : -ECHILD;
}

/* Allocate and commit bytes for an entry. -ENOSPC: the budget or the memory does not suffice. */
static int take_bytes(sr_cache *cache, uint32_t number, uint64_t need, uint64_t *at, sr_alloc_error *why)
{
    sr_cache_header *h = cache->header;
    do {
        *at = sr_load_relaxed(&h->cursor);
        if (*at > cache->budget || need > cache->budget - *at) {
            *why = (sr_alloc_error){SR_LIMIT_CAPACITY, need, *at < cache->budget ? cache->budget - *at : 0};
            sr_store_relaxed(&h->full, 1);
            return -ENOSPC;
        }
        int rc = grow(cache, number, *at + need, why);
        if (rc != 0)
            return rc;
        sr_store_relaxed(&cache->fillers[number].taken, need);
    } while (!sr_cas(&h->cursor, *at, *at + need));
    return 0;
}

int sr_cache_store(sr_cache *cache, sr_fill *fill, const sr_result *result, const char *payload, uint64_t bytes,
                   sr_alloc_error *why)
{
    if (!is_mine(cache, fill))
        return -ECHILD;
    sr_alloc_error ignored;
    /* A larger entry does not fit either. */
    uint64_t most = SR_CACHE_LARGEST + 1, kept = bytes < most ? bytes : most;
    uint64_t need = sizeof(sr_entry) + round_up(kept, SR_LEAF_ALIGN), at;
    int rc = take_bytes(cache, fill->filler, need, &at, why ? why : &ignored);
    if (rc != 0) {
        settle(cache, fill, next_empty(fill->word));
        return rc;
    }
    char *to = cache->base + cache->data_off + at;
    /* One call instead of many page faults. If the kernel refuses, pages fault one by one. */
    if (need >= 16 * SR_PAGE) {
        char *page = (char *)((uintptr_t)to / SR_PAGE * SR_PAGE);
        (void)madvise(page, (size_t)(to + need - page), MADV_POPULATE_WRITE);
    }
    *(sr_entry *)to = (sr_entry){.key = fill->key, .bytes = bytes, .result = *result};
    if (bytes)
        memcpy(to + sizeof(sr_entry), payload, bytes);
    /* Entries are read through the other mapping, so this one need not count these pages as well. */
    if (need >= 16 * SR_PAGE) {
        char *page = (char *)(((uintptr_t)to + SR_PAGE - 1) / SR_PAGE * SR_PAGE);
        (void)madvise(page, (size_t)(need - SR_PAGE), MADV_DONTNEED);
    }
    rc = settle(cache, fill, SR_ENTRY_READY | at / SR_LEAF_ALIGN << SR_ENTRY_SHIFT);
    if (rc == 0) {
        sr_cache_count(cache, SR_STORED, 1);
        sr_cache_count(cache, SR_STORED_BYTES, need);
    }
    return rc;
}

/* ---- wait for an entry ------------------------------------------------------------------------------------------- */

/* Sleep once, while the word is `seen`. 0, -EINTR, -ETIMEDOUT. */
static int sleep_on(sr_cache *cache, _Atomic uint64_t *word, uint64_t seen, uint64_t until)
{
    int rc = 0;
    sr_add_ordered(&cache->header->waiters, 1); /* [J2]: announce, then check, then sleep */
    if (sr_load_ordered(word) == seen)
        rc = sr_futex_wait((_Atomic uint32_t *)word, (uint32_t)seen, until);
    sr_sub_ordered(&cache->header->waiters, 1);
    return rc == -EAGAIN ? 0 : rc;
}

int sr_cache_wait(sr_cache *cache, uint64_t key, uint64_t deadline)
{
    if (key >= cache->n_keys)
        return -ERANGE;
    uint64_t me = own_incarnation(cache), next = sr_now() + SR_CACHE_CHECK_NS;
    for (;;) {
        _Atomic uint64_t *word = word_of(cache, key);
        uint64_t w = word ? sr_load_acquire(word) : 0, owner = owner_of(w);
        if (state_of(w) != SR_ENTRY_FILLING)
            return 0;
        if (me == 0 || owner == 0 || owner > SR_CACHE_FILLERS)
            return -ETIMEDOUT;
        const sr_filler *f = &cache->fillers[owner - 1];
        uint64_t theirs = sr_load_acquire(&f->incarnation);
        if (theirs == me && sr_load_relaxed(&f->thread) == (uint64_t)syscall(SYS_gettid))
            return -EDEADLK;
        int rc = sleep_on(cache, word, w, next < deadline ? next : deadline);
        if (rc == -EINTR)
            return rc;
        if (rc != -ETIMEDOUT)
            continue;
        /* The number may have another filler by now. Then the word has changed, and the next check sees that. */
        if (theirs && sr_has_exited(theirs, sr_load_relaxed(&f->program)) == 1)
            sr_cache_reap(cache, (uint32_t)owner - 1, theirs);
        else if (sr_now() >= deadline)
            return rc;
        next = sr_now() + SR_CACHE_RECHECK_NS;
    }
}
