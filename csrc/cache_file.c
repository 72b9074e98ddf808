/* cache_file.c - a cache as a file in memory: create it, map it twice, attach it, and describe it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cache_handle.h"

#define LARGEST_PAGE (UINT64_C(1) << 16)
#define MODEST_KEYS (UINT64_C(1) << 24) /* 128 MiB of words */

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

static void lay_out(sr_cache_header *h, uint64_t n_keys, uint64_t budget)
{
    memset(h, 0, sizeof *h);
    h->magic = SR_CACHE_MAGIC;
    h->version = SR_CACHE_VERSION;
    h->n_keys = n_keys;
    h->counters_off = SR_PAGE;
    h->fillers_off = h->counters_off + SR_CACHE_COUNTERS * sizeof(sr_counters);
    h->map_off = h->fillers_off + SR_CACHE_FILLERS * sizeof(sr_filler);
    /* Entries are mapped separately, and a page of arm64 may be this large. */
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
    return again.counters_off == h->counters_off && again.fillers_off == h->fillers_off &&
    again.map_off == h->map_off &&
           again.index_off == h->index_off && again.data_off == h->data_off && again.total == h->total &&
           h->total <= file_bytes;
}

/* Map the whole file for writing, and the entries once more for reading. */
static int map_both(int fd, const sr_cache_header *h, char **base, const char **view)
{
    *view = NULL;
    int rc = sr_map_file(fd, h->total, base);
    if (rc != 0)
        return rc;
    uint64_t length = h->total - h->data_off;
    /* As in sr_map_file: a process that locks its future mappings would allocate the whole budget. */
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
    int rc = sr_identify_file(&cache->file, fd);
    if (rc != 0) {
        free(cache);
        return rc;
    }
    cache->base = base;
    cache->view = view;
    cache->header = (sr_cache_header *)base;
    cache->counters = (sr_counters *)(base + h->counters_off);
    cache->fillers = (sr_filler *)(base + h->fillers_off);
    cache->map = (_Atomic uint64_t *)(base + h->map_off);
    cache->index = (_Atomic uint64_t *)(base + h->index_off);
    cache->n_keys = h->n_keys;
    cache->data_off = h->data_off;
    cache->budget = cache->wanted = h->budget;
    cache->total = h->total;
    /* A crashing worker must not spend minutes dumping the cache. A refusal is harmless. */
    (void)madvise(base, h->total, MADV_DONTDUMP);
    (void)madvise((void *)(uintptr_t)view, h->total - h->data_off, MADV_DONTDUMP);
    *out = cache;
    return 0;
}

/* Return how many bytes of address space a cache may reserve: half of the free ones. The program and its loaders need
 * the other half. */
static uint64_t share_of_addresses(void)
{
    uint64_t size = sr_address_space(), used = sr_mapped_bytes();
    struct rlimit space;
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur < size)
        size = space.rlim_cur;
    return used < size ? (size - used) / 2 : 0;
}

/* Reserve the file's length and its mappings. If a limit prevents it, use fewer keys, then a smaller budget, and
 * finally fewer keys than many datasets have: entries beyond those are never kept. */
static int reserve(int fd, uint64_t budget, sr_cache_header *h, char **base, const char **view, sr_alloc_error *why)
{
    struct rlimit limit;
    /* Check instead of trying: ftruncate beyond the limit raises SIGXFSZ. */
    bool limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    uint64_t keys = SR_CACHE_KEYS, most = share_of_addresses();
    for (;;) {
        lay_out(h, keys, budget);
        int rc = limited && h->total > limit.rlim_cur ? -EFBIG : 0;
        *why = (sr_alloc_error){.limit = rc ? SR_LIMIT_FILESIZE : SR_LIMIT_FILESYSTEM, .needed = h->total};
        if (rc == 0)
            rc = ftruncate(fd, (off_t)h->total) == 0 ? 0 : -errno;
        if (rc == 0) {
            why->limit = SR_LIMIT_ADDRESS;
            rc = 2 * h->total - h->data_off > most ? -ENOMEM : map_both(fd, h, base, view);
        }
        if (rc == 0)
            return 0;
        bool is_large = budget > 8 * keys * sizeof(uint64_t); /* then fewer keys hardly help */
        if (keys > MODEST_KEYS || (!is_large && keys > SR_CACHE_FEWEST))
            keys /= 2;
        else if (budget >= 2 * SR_PAGE)
            budget -= budget / 8;
        else
            return rc;
    }
}

int sr_cache_create(uint64_t budget, int backing, const char *where, sr_cache **out, sr_alloc_error *why)
{
    sr_cache_header h;
    sr_alloc_error ignored;
    char *base;
    const char *view = NULL, *reason;
    int chosen;

    if (!why)
        why = &ignored;
    *why = (sr_alloc_error){0};
    if (!out || budget == 0 || budget > SR_CACHE_LARGEST)
        return -EINVAL;
    int fd = sr_open_memory(backing, where, &chosen, &reason);
    if (fd < 0)
        return fd;
    int rc = reserve(fd, budget, &h, &base, &view, why);
    if (rc == 0) {
        sr_cgroup_locks locks;
        (void)sr_memory_available(-1, "", NULL, &locks); /* only for the locks */
        sr_lock_cgroups(&locks, SR_GROW_WAIT_NS);
        /* Without the margin KEPT_FREE, because a cache without any entry works too. */
        int head = SR_LIMIT_NONE;
        uint64_t available = sr_memory_available(fd, "", &head, NULL);
        *why = (sr_alloc_error){.limit = head, .needed = h.index_off, .free = available};
        rc = h.index_off <= available ? sr_put_memory(fd, 0, h.index_off) : -ENOSPC;
        sr_unlock_cgroups(&locks);
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

void sr_cache_describe(const sr_cache *cache, sr_cache_info *info)
{
    const sr_cache_header *h = cache->header;
    *info = (sr_cache_info){.budget = cache->budget, .wanted = cache->wanted, .n_keys = cache->n_keys};
    for (unsigned i = 0; i < SR_CACHE_COUNTERS; i++)
        for (unsigned what = 0; what < SR_N_COUNTERS; what++)
            info->counters[what] += sr_load_relaxed(&cache->counters[i].of[what]);
    uint64_t chunks = 0;
    for (uint64_t i = 0; i < (cache->n_keys / SR_CACHE_CHUNK + 63) / 64; i++)
        chunks += (uint64_t)__builtin_popcountll(sr_load_relaxed(&cache->map[i]));
    info->used = sr_load_relaxed(&h->cursor);
    info->committed = (uint64_t)((char *)cache->index - cache->base) + chunks * SR_CACHE_CHUNK * sizeof(uint64_t) +
                      sr_load_relaxed(&h->committed);
    info->entries = info->counters[SR_STORED];
    info->samples = sr_load_relaxed(&h->samples);
    info->recovered = sr_load_relaxed(&h->recovered);
    info->lost = sr_load_relaxed(&h->lost);
    info->full = sr_load_relaxed(&h->full);
}
