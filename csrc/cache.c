/* cache.c - entries that are made once and then found by everybody: an append-only segment with a word per key.
 *
 * The word decides, as a slot's does: EMPTY, FILLING by a filler whose death can be confirmed, READY for ever. Nobody
 * locks; memory is committed before it is written. docs/protocol.md, The cache, has the transitions by their labels.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cache_handle.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define MIB (UINT64_C(1) << 20)
#define LARGEST_PAGE (UINT64_C(1) << 16)
#define GROWTH (4 * MIB)                           /* entries get their memory in such steps */
#define MODEST_KEYS (UINT64_C(1) << 24)           /* 128 MiB of words */
#define SHORT_NS UINT64_C(1000000000)              /* how long memory that was short is not asked for again */
#define KEPT_FREE(size) ((size) / 16 + 64 * MIB)   /* what a cache leaves of all memory: training needs it more */

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
static unsigned state_of(uint64_t word) { return (unsigned)(word & SR_ENTRY_STATE); }
static uint64_t owner_of(uint64_t word) { return (word & SR_OWNER_MASK) >> SR_OWNER_SHIFT; }
static uint64_t empty_word(uint64_t gen) { return SR_ENTRY_EMPTY | gen << SR_GEN_SHIFT; }
static uint64_t next_empty(uint64_t word) { return empty_word((word >> SR_GEN_SHIFT) + 1); } /* it wraps */
static uint64_t filling_word(uint64_t word, uint32_t filler)
{
    return SR_ENTRY_FILLING | ((uint64_t)filler + 1) << SR_OWNER_SHIFT | (word >> SR_GEN_SHIFT) << SR_GEN_SHIFT;
}

/* ---- making and sharing ------------------------------------------------------------------------------ */

static void lay_out(sr_cache_header *h, uint64_t n_keys, uint64_t budget)
{
    memset(h, 0, sizeof *h);
    h->magic = SR_CACHE_MAGIC;
    h->version = SR_CACHE_VERSION;
    h->n_keys = n_keys;
    h->tallies_off = SR_PAGE;
    h->fillers_off = h->tallies_off + SR_CACHE_TALLIES * sizeof(sr_tallies);
    h->map_off = h->fillers_off + SR_CACHE_FILLERS * sizeof(sr_filler);
    /* Entries are mapped by themselves, and arm64's pages may be so large. */
    h->index_off = round_up(h->map_off + n_keys / SR_CACHE_CHUNK / 8, LARGEST_PAGE);
    h->data_off = h->index_off + n_keys * sizeof(uint64_t);
    h->budget = budget;
    h->total = h->data_off + round_up(budget, SR_PAGE);
}

static bool is_sound(const sr_cache_header *h, uint64_t file_bytes)
{
    if (h->magic != SR_CACHE_MAGIC || h->version != SR_CACHE_VERSION || h->n_keys < SR_CACHE_FEWEST ||
        h->n_keys > SR_CACHE_KEYS || h->n_keys % SR_CACHE_CHUNK || h->budget == 0 || h->budget > SR_CACHE_LARGEST)
        return false;
    sr_cache_header again;
    lay_out(&again, h->n_keys, h->budget);
    return again.tallies_off == h->tallies_off && again.fillers_off == h->fillers_off && again.map_off == h->map_off &&
           again.index_off == h->index_off && again.data_off == h->data_off && again.total == h->total &&
           h->total <= file_bytes;
}

/* Maps all of it for writing, and the entries once more for reading. */
static int map_both(int fd, const sr_cache_header *h, char **base, const char **view)
{
    *view = NULL;
    int rc = sr_map_file(fd, h->total, base);
    if (rc != 0)
        return rc;
    uint64_t length = h->total - h->data_off;
    /* As sr_map_file: a process that locks its future mappings would have all of the budget allocated. */
    char *entries = mmap(NULL, length, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)h->data_off);
    if (entries != MAP_FAILED && munlock(entries, length) == 0 && mprotect(entries, length, PROT_READ) == 0) {
        *view = entries;
        return 0;
    }
    rc = -errno;
    if (entries != MAP_FAILED)
        munmap(entries, length);
    munmap(*base, h->total);
    return rc;
}

static int open_handle(int fd, const sr_cache_header *h, char *base, const char *view, sr_cache **out)
{
    sr_cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return -ENOMEM;
    int rc = sr_know_file(&cache->file, fd);
    if (rc != 0) {
        free(cache);
        return rc;
    }
    cache->base = base;
    cache->view = view;
    cache->header = (sr_cache_header *)base;
    cache->tallies = (sr_tallies *)(base + h->tallies_off);
    cache->fillers = (sr_filler *)(base + h->fillers_off);
    cache->map = (_Atomic uint64_t *)(base + h->map_off);
    cache->index = (_Atomic uint64_t *)(base + h->index_off);
    cache->n_keys = h->n_keys;
    cache->data_off = h->data_off;
    cache->budget = cache->wanted = h->budget;
    cache->total = h->total;
    /* A crashing worker must not spend minutes on dumping it. Refusal is harmless. */
    (void)madvise(base, h->total, MADV_DONTDUMP);
    (void)madvise((void *)(uintptr_t)view, h->total - h->data_off, MADV_DONTDUMP);
    *out = cache;
    return 0;
}

/* What a cache may reserve of this process's addresses: half of those left. The program and its loaders need some. */
static uint64_t share_of_addresses(void)
{
    uint64_t size = sr_address_space(), used = sr_mapped_bytes();
    struct rlimit space;
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur < size)
        size = space.rlim_cur;
    return used < size ? (size - used) / 2 : 0;
}

/* Reserves the file's length and its mappings. Where a limit is in the way there are fewer keys, then less budget, and
 * in the end fewer keys than many datasets have: those beyond are never kept. */
static int reserve(int fd, uint64_t budget, sr_cache_header *h, char **base, const char **view, sr_shortage *why)
{
    struct rlimit limit;
    /* Asked, not tried: ftruncate beyond the limit raises SIGXFSZ. */
    bool limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    uint64_t keys = SR_CACHE_KEYS, most = share_of_addresses();
    for (;;) {
        lay_out(h, keys, budget);
        int rc = limited && h->total > limit.rlim_cur ? -EFBIG : 0;
        *why = (sr_shortage){.limit = rc ? SR_LIMIT_FILESIZE : SR_LIMIT_FILESYSTEM, .needed = h->total};
        if (rc == 0)
            rc = ftruncate(fd, (off_t)h->total) == 0 ? 0 : -errno;
        if (rc == 0) {
            why->limit = SR_LIMIT_ADDRESS;
            rc = 2 * h->total - h->data_off > most ? -ENOMEM : map_both(fd, h, base, view);
        }
        if (rc == 0)
            return 0;
        bool is_large = budget > 8 * keys * sizeof(uint64_t); /* then fewer keys would hardly help */
        if (keys > MODEST_KEYS || (!is_large && keys > SR_CACHE_FEWEST))
            keys /= 2;
        else if (budget >= 2 * SR_PAGE)
            budget -= budget / 8;
        else
            return rc;
    }
}

/* Whether `need` bytes may be taken besides what others are about to take; *why tells both numbers if not. */
static int look_for_room(int fd, uint64_t need, uint64_t others, sr_shortage *why)
{
    sr_room room;
    sr_room_left("", &room);
    uint64_t keep = room.limit == SR_LIMIT_NONE ? 0 : KEPT_FREE(room.size);
    uint64_t left = room.free > keep ? room.free - keep : 0;
    int limit = SR_LIMIT_NONE;
    uint64_t head = sr_headroom(fd, "", &limit); /* the file system's, too */
    if (head < left)
        left = head;
    else
        limit = room.limit;
    left = left > others ? left - others : 0;
    *why = (sr_shortage){.limit = limit, .needed = need, .free = left};
    return need <= left ? 0 : -ENOSPC;
}

int sr_cache_create(uint64_t budget, int backing, const char *where, sr_cache **out, sr_shortage *why)
{
    sr_cache_header h;
    sr_shortage ignored;
    char *base;
    const char *view = NULL, *reason;
    int chosen;

    if (!why)
        why = &ignored;
    *why = (sr_shortage){0};
    if (!out || budget == 0 || budget > SR_CACHE_LARGEST)
        return -EINVAL;
    int fd = sr_open_memory(backing, where, &chosen, &reason);
    if (fd < 0)
        return fd;
    int rc = reserve(fd, budget, &h, &base, &view, why);
    if (rc == 0) {
        int head = SR_LIMIT_NONE; /* a cache without a single entry works, too: so without the margin */
        uint64_t room = sr_headroom(fd, "", &head);
        *why = (sr_shortage){.limit = head, .needed = h.index_off, .free = room};
        rc = h.index_off <= room ? sr_put_memory(fd, 0, h.index_off) : -ENOSPC;
        if (rc == 0) {
            h.pid_namespace = sr_pid_namespace();
            memcpy(base, &h, offsetof(sr_cache_header, cursor));
            rc = open_handle(fd, &h, base, view, out);
        }
        if (rc != 0) {
            munmap((void *)(uintptr_t)view, h.total - h.data_off);
            munmap(base, h.total);
        }
    }
    if (rc != 0) {
        close(fd);
        return rc;
    }
    (*out)->wanted = budget;
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++)
        sr_store_relaxed(&(*out)->fillers[i].key, SR_CACHE_NO_KEY);
    return 0;
}

int sr_cache_attach(int given, sr_cache **out)
{
    sr_cache_header h;
    struct stat st;
    char *base = NULL;
    const char *view = NULL;

    int fd = fcntl(given, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return -errno;
    int rc = fstat(fd, &st) == 0 ? 0 : -errno;
    if (rc == 0 && st.st_uid != geteuid())
        rc = -EACCES;
    if (rc == 0)
        rc = pread(fd, &h, sizeof h, 0) == (ssize_t)sizeof h && is_sound(&h, (uint64_t)st.st_size) ? 0 : -EPROTO;
    if (rc == 0 && (rc = map_both(fd, &h, &base, &view)) == 0 && (rc = open_handle(fd, &h, base, view, out)) != 0) {
        munmap((void *)(uintptr_t)view, h.total - h.data_off);
        munmap(base, h.total);
    }
    if (rc != 0)
        close(fd);
    return rc;
}

int sr_cache_destroy(sr_cache *cache)
{
    if (!cache)
        return -EINVAL;
    int rc = munmap((void *)(uintptr_t)cache->view, cache->total - cache->data_off) == 0 ? 0 : -errno;
    if (munmap(cache->base, cache->total) != 0 && rc == 0)
        rc = -errno;
    int fd = sr_cache_fd(cache);
    if (fd >= 0 && close(fd) != 0 && rc == 0)
        rc = -errno;
    free(cache);
    return rc;
}

int sr_cache_fd(const sr_cache *cache) { return sr_file_fd(&cache->file); }

int sr_cache_bind(sr_cache *cache, uint64_t fingerprint, uint64_t samples, char *label)
{
    sr_cache_header *h = cache->header;
    if (fingerprint == 0 || !label)
        return -EINVAL;
    if (sr_cas(&h->fingerprint, 0, fingerprint)) {
        memcpy(h->label, label, SR_CACHE_LABEL);
        h->label[SR_CACHE_LABEL - 1] = '\0';
        sr_store_relaxed(&h->samples, samples);
        sr_store_release(&h->labelled, 1); /* [O3] partner: [O4] */
        return 0;
    }
    if (sr_load_acquire(&h->fingerprint) == fingerprint)
        return 0;
    bool whole = sr_load_acquire(&h->labelled); /* [O4] */
    memcpy(label, whole ? h->label : "", whole ? SR_CACHE_LABEL : 1);
    label[SR_CACHE_LABEL - 1] = '\0';
    return -EEXIST;
}

/* ---- counting ------------------------------------------------------------------------------------------ */

void sr_cache_count(sr_cache *cache, enum sr_tally what, uint64_t n)
{
    int cpu = sched_getcpu(); /* no system call: the kernel keeps it in memory of the thread's */
    sr_add_relaxed(&cache->tallies[(unsigned)cpu % SR_CACHE_TALLIES].of[what], n);
}

bool sr_cache_may_tell(sr_cache *cache) { return sr_cas32(&cache->header->told, 0, 1); }

void sr_cache_describe(const sr_cache *cache, sr_cache_info *info)
{
    const sr_cache_header *h = cache->header;
    *info = (sr_cache_info){.budget = cache->budget, .wanted = cache->wanted, .n_keys = cache->n_keys};
    for (unsigned i = 0; i < SR_CACHE_TALLIES; i++)
        for (unsigned what = 0; what < SR_N_TALLIES; what++)
            info->tallies[what] += sr_load_relaxed(&cache->tallies[i].of[what]);
    uint64_t chunks = 0;
    for (uint64_t i = 0; i < (cache->n_keys / SR_CACHE_CHUNK + 63) / 64; i++)
        chunks += (uint64_t)__builtin_popcountll(sr_load_relaxed(&cache->map[i]));
    info->used = sr_load_relaxed(&h->cursor);
    info->committed = (uint64_t)((char *)cache->index - cache->base) + chunks * SR_CACHE_CHUNK * sizeof(uint64_t) +
                      sr_load_relaxed(&h->committed);
    info->entries = info->tallies[SR_STORED];
    info->samples = sr_load_relaxed(&h->samples);
    info->recovered = sr_load_relaxed(&h->recovered);
    info->lost = sr_load_relaxed(&h->lost);
    info->full = sr_load_relaxed(&h->full);
}

/* ---- finding --------------------------------------------------------------------------------------------- */

/* The word of a key; NULL: its chunk of the index has no memory, so that it is EMPTY. */
static _Atomic uint64_t *word_of(const sr_cache *cache, uint64_t key)
{
    uint64_t chunk = key / SR_CACHE_CHUNK, bits = sr_load_acquire(&cache->map[chunk / 64]); /* [Y2] */
    return bits >> chunk % 64 & 1 ? &cache->index[key] : NULL;
}

int sr_cache_look(const sr_cache *cache, uint64_t key, const char **payload, uint64_t *bytes, sr_result *result)
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
    /* Beyond what is committed a read would take memory, or end in SIGBUS. */
    uint64_t at = (w >> SR_ENTRY_SHIFT) * SR_LEAF_ALIGN, end = sr_load_relaxed(&cache->header->committed);
    if (end > cache->budget)
        end = cache->budget;
    if (at > end || end - at < sizeof(sr_entry))
        return -EPROTO;
    sr_entry entry;
    memcpy(&entry, cache->view + at, sizeof entry); /* once: another process may have gone mad */
    if (entry.key != key || entry.bytes > end - at - sizeof entry)
        return -EPROTO;
    *payload = cache->view + at + sizeof entry;
    *bytes = entry.bytes;
    *result = entry.result;
    return 0;
}

int sr_cache_room(const sr_cache *cache, uint64_t bytes)
{
    uint64_t used = sr_load_relaxed(&cache->header->cursor), then = sr_load_relaxed(&cache->header->short_until);
    if (used > cache->budget || bytes > cache->budget ||
        sizeof(sr_entry) + round_up(bytes, SR_LEAF_ALIGN) > cache->budget - used)
        return -ENOSPC;
    /* It has passed; or another time namespace's clock has said it. */
    return then == 0 || then - sr_now() > SHORT_NS ? 0 : -EAGAIN;
}

/* ---- fillers --------------------------------------------------------------------------------------------- */

/* This process, as an incarnation. 0: it cannot tell who of the others lives, nor they of it. */
static uint64_t who_am_i(sr_cache *cache)
{
    int pid = (int)getpid();
    uint64_t was = sr_load_acquire(&cache->incarnation), me = was;
    if ((uint32_t)me != (uint32_t)pid) {
        uint64_t ours = sr_pid_namespace(), theirs = cache->header->pid_namespace;
        me = sr_incarnation_of(pid);
        sr_store_relaxed(&cache->foreign, ours && theirs && ours != theirs);
        sr_store_relaxed(&cache->program, sr_program_of(me));
        /* Threads may do this at once, and one of them have no descriptor for /proc: what the first stored counts. */
        if (!sr_cas(&cache->incarnation, was, me))
            me = sr_load_acquire(&cache->incarnation);
    }
    return sr_load_relaxed(&cache->foreign) ? 0 : me;
}

/* What a dead filler has left: its entry becomes EMPTY, then its number free. Several may do this at once, and a slow
 * one may still be at it when the number is another's: it holds the word that it has read against the incarnation
 * which it read afterwards, as sr_recover_dead does. */
void sr_cache_bury(sr_cache *cache, uint32_t number, uint64_t dead)
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
        /* In any case: who was faster may have died before it woke anybody. */
        sr_futex_wake((_Atomic uint32_t *)word, INT_MAX);
    }
    (void)sr_cas(&f->incarnation, dead, 0);
}

int sr_cache_recover(sr_cache *cache)
{
    int dead = 0;
    if (who_am_i(cache) == 0)
        return 0;
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++) {
        uint64_t theirs = sr_load_acquire(&cache->fillers[i].incarnation);
        if (theirs && sr_has_gone(theirs, sr_load_relaxed(&cache->fillers[i].program)) == 1) {
            sr_cache_bury(cache, i, theirs);
            dead++;
        }
    }
    return dead;
}

/* A number for the calling thread; -EUSERS: there is none. What is stored under it counts for others only behind its
 * word's claim [H3]: what a former filler has left there leads to no entry that names this number. */
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

/* Where the kernel has told wrongly of this process that it has gone, the number may be another's by now. */
static void leave_number(sr_cache *cache, uint32_t number, uint64_t me)
{
    (void)sr_cas(&cache->fillers[number].incarnation, me, 0);
}

/* ---- memory ------------------------------------------------------------------------------------------------ */

/* What others are committing right now, as far as they have said so. */
static uint64_t growth_of_others(const sr_cache *cache, uint32_t number)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++) {
        uint64_t theirs = i == number ? 0 : sr_load_ordered(&cache->fillers[i].growing); /* [Z2] partner: [Z1] */
        if (theirs && sr_load_acquire(&cache->fillers[i].incarnation)) /* what a dead one said ends with its number */
            sum += theirs;
    }
    return sum;
}

/* Commits `need` bytes at `offset` of the file as `number`, unless that leaves too little to the rest of the machine.
 * Announce first, then look: of two that grow at once at least one sees the other. */
static int commit(sr_cache *cache, uint32_t number, uint64_t offset, uint64_t need, sr_shortage *why)
{
    sr_filler *f = &cache->fillers[number];
    *why = (sr_shortage){.limit = SR_LIMIT_NONE, .needed = need};
    sr_store_ordered(&f->growing, need); /* [Z1] partner: [Z2] */
    uint64_t others = growth_of_others(cache, number);
    int fd = sr_cache_fd(cache), rc = fd < 0 ? fd : look_for_room(fd, need, others, why);
    if (rc == -ENOSPC && others && sr_cache_recover(cache) > 0) /* some of them have died over it */
        rc = look_for_room(fd, need, growth_of_others(cache, number), why);
    if (rc == 0)
        rc = sr_put_memory(fd, offset, need);
    sr_store_ordered(&f->growing, 0);
    return rc;
}

/* Where only this process cannot commit, because its descriptor has been closed, the others need not wait. */
static int refuse_for_memory(sr_cache *cache, int rc)
{
    if (rc == -EBADF)
        return rc;
    sr_store_relaxed(&cache->header->short_until, sr_now() + SHORT_NS);
    return -ENOSPC;
}

/* Makes sure that the first `end` bytes of entries have memory. Two that do so at once allocate the same pages, which
 * does no harm: each begins at the mark that it has read. */
static int grow(sr_cache *cache, uint32_t number, uint64_t end, sr_shortage *why)
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
        return refuse_for_memory(cache, rc);
    sr_raise(&h->committed, want); /* [Y1], after the memory */
    return 0;
}

/* The word of a key, with its chunk's memory. */
static int make_word(sr_cache *cache, uint32_t number, uint64_t key, _Atomic uint64_t **word, sr_shortage *why)
{
    uint64_t chunk = key / SR_CACHE_CHUNK, bytes = SR_CACHE_CHUNK * sizeof(uint64_t);
    if (!(*word = word_of(cache, key))) {
        int rc = commit(cache, number, (uint64_t)((char *)cache->index - cache->base) + chunk * bytes, bytes, why);
        if (rc != 0)
            return refuse_for_memory(cache, rc);
        _Atomic uint64_t *bits = &cache->map[chunk / 64];
        for (uint64_t seen = sr_load_relaxed(bits);; seen = sr_load_relaxed(bits))
            if (sr_cas(bits, seen, seen | UINT64_C(1) << chunk % 64)) /* [Y1], after the memory */
                break;
        *word = &cache->index[key];
    }
    return 0;
}

/* ---- making an entry --------------------------------------------------------------------------------------- */

int sr_cache_claim(sr_cache *cache, uint64_t key, sr_fill *fill, sr_shortage *why)
{
    if (key >= cache->n_keys)
        return -ERANGE;
    uint64_t me = who_am_i(cache);
    if (me == 0)
        return -EXDEV;
    uint32_t number;
    sr_shortage ignored;
    int rc = take_number(cache, me, &number);
    if (rc == -EUSERS && sr_cache_recover(cache) >= 0)
        rc = take_number(cache, me, &number);
    if (rc != 0)
        return rc;
    _Atomic uint64_t *word;
    rc = make_word(cache, number, key, &word, why ? why : &ignored);
    if (rc == 0) {
        /* Before the claim: whoever finds this number in the word, and its process dead, finds the key. */
        sr_store_release(&cache->fillers[number].key, key);
        uint64_t w = sr_load_acquire(word);
        rc = state_of(w) == SR_ENTRY_READY ? -EEXIST : state_of(w) == SR_ENTRY_FILLING ? -EAGAIN : 0;
        if (rc == 0 && !sr_cas(word, w, filling_word(w, number))) /* [H3] partners: [H4], [O1] */
            rc = -EAGAIN; /* somebody is at it, or has been: the caller looks again */
        *fill = (sr_fill){.key = key, .word = filling_word(w, number), .incarnation = me, .filler = number};
    }
    if (rc != 0)
        leave_number(cache, number, me);
    return rc;
}

static bool is_mine(sr_cache *cache, const sr_fill *fill) { return fill->incarnation == who_am_i(cache); }

/* The end of a fill: the word changes, who waits for it is woken, the number is free. */
static int settle(sr_cache *cache, sr_fill *fill, uint64_t to)
{
    sr_filler *f = &cache->fillers[fill->filler];
    _Atomic uint64_t *word = &cache->index[fill->key];
    /* It cannot fail while this process counts as alive; should it, the entry is another's. */
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

/* Takes bytes for an entry, committed; -ENOSPC: there are none. */
static int take_bytes(sr_cache *cache, uint32_t number, uint64_t need, uint64_t *at, sr_shortage *why)
{
    sr_cache_header *h = cache->header;
    do {
        *at = sr_load_relaxed(&h->cursor);
        if (*at > cache->budget || need > cache->budget - *at) {
            *why = (sr_shortage){SR_LIMIT_CAPACITY, need, *at < cache->budget ? cache->budget - *at : 0};
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
                   sr_shortage *why)
{
    if (!is_mine(cache, fill))
        return -ECHILD;
    sr_shortage ignored;
    uint64_t most = SR_CACHE_LARGEST + 1, kept = bytes < most ? bytes : most; /* what is beyond does not fit, either */
    uint64_t need = sizeof(sr_entry) + round_up(kept, SR_LEAF_ALIGN), at;
    int rc = take_bytes(cache, fill->filler, need, &at, why ? why : &ignored);
    if (rc != 0) {
        settle(cache, fill, next_empty(fill->word));
        return rc;
    }
    char *to = cache->base + cache->data_off + at;
    if (need >= 16 * SR_PAGE) { /* one call in place of many faults; where it is refused pages fault singly */
        char *page = (char *)((uintptr_t)to / SR_PAGE * SR_PAGE);
        (void)madvise(page, (size_t)(to + need - page), MADV_POPULATE_WRITE);
    }
    *(sr_entry *)to = (sr_entry){.key = fill->key, .bytes = bytes, .result = *result};
    if (bytes)
        memcpy(to + sizeof(sr_entry), payload, bytes);
    if (need >= 16 * SR_PAGE) { /* it is read by another mapping: this one need not count it as well */
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

/* ---- waiting for one ------------------------------------------------------------------------------------------ */

/* Sleeps once while the word is that; 0, -EINTR, -ETIMEDOUT. */
static int sleep_on(sr_cache *cache, _Atomic uint64_t *word, uint64_t seen, uint64_t until)
{
    int rc = 0;
    sr_add_ordered(&cache->header->waiters, 1); /* [J2]: announce, then look, then sleep */
    if (sr_load_ordered(word) == seen)
        rc = sr_futex_wait((_Atomic uint32_t *)word, (uint32_t)seen, until);
    sr_sub_ordered(&cache->header->waiters, 1);
    return rc == -EAGAIN ? 0 : rc;
}

int sr_cache_wait(sr_cache *cache, uint64_t key, uint64_t deadline)
{
    if (key >= cache->n_keys)
        return -ERANGE;
    uint64_t me = who_am_i(cache), next = sr_now() + SR_CACHE_LOOK_NS;
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
        /* The number may be another process's by now: then the word has changed, and the next look sees it. */
        if (theirs && sr_has_gone(theirs, sr_load_relaxed(&f->program)) == 1)
            sr_cache_bury(cache, (uint32_t)owner - 1, theirs);
        else if (sr_now() >= deadline)
            return rc;
        next = sr_now() + SR_CACHE_LOOK_AGAIN_NS;
    }
}
