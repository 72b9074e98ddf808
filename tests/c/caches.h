/* caches.h - small caches, entries whose bytes depend on their key, and processes that share a cache. */
#ifndef CACHES_H
#define CACHES_H

#include "cache_handle.h"
#include "fixture.h"

static inline sr_cache *make_cache(uint64_t budget)
{
    sr_cache *cache = NULL;
    CHECK_OK(sr_cache_create(budget, SR_BACKING_MEMFD, NULL, &cache, NULL));
    return cache;
}

static inline void destroy_cache(sr_cache **cache) { sr_cache_destroy(*cache); }
#define SCOPED_CACHE __attribute__((cleanup(destroy_cache)))

static inline sr_cache *attached(const sr_cache *to)
{
    sr_cache *cache = NULL;
    CHECK_OK(sr_cache_attach(sr_cache_fd(to), &cache));
    return cache;
}

static inline sr_cache_info info_of(const sr_cache *cache)
{
    sr_cache_info info;
    sr_cache_describe(cache, &info);
    return info;
}

/* The word of a key whose chunk has memory. */
static inline uint64_t entry_word(const sr_cache *cache, uint64_t key) { return sr_load_acquire(&cache->index[key]); }
static inline uint32_t owner_of_entry(const sr_cache *cache, uint64_t key)
{
    return (uint32_t)((entry_word(cache, key) & SR_OWNER_MASK) >> SR_OWNER_SHIFT);
}

static inline uint64_t word_at(uint64_t key, uint64_t i)
{
    uint64_t x = (key * 31 + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

static inline sr_result result_of(uint64_t key)
{
    return (sr_result){.table_off = key, .def_hash = word_at(key, 0), .bytes = 5, .kind = SR_BATCH, .pickled = 3};
}

static inline sr_fill claimed(sr_cache *cache, uint64_t key)
{
    sr_fill fill;
    sr_alloc_error why;
    CHECK_OK(sr_cache_claim(cache, key, &fill, &why));
    return fill;
}

/* Stores `bytes` bytes of the key; returns the result of sr_cache_store. */
static inline int store(sr_cache *cache, sr_fill *fill, uint64_t bytes, sr_alloc_error *why)
{
    uint64_t key = fill->key, *content = malloc(bytes + 8);
    CHECK(content != NULL);
    for (uint64_t i = 0; i < bytes / 8 + 1; i++)
        content[i] = word_at(key, i);
    sr_result result = result_of(key);
    int rc = sr_cache_store(cache, fill, &result, (const char *)content, bytes, why);
    free(content);
    return rc;
}

static inline int make_entry(sr_cache *cache, uint64_t key, uint64_t bytes)
{
    sr_fill fill;
    int rc = sr_cache_claim(cache, key, &fill, NULL);
    return rc ? rc : store(cache, &fill, bytes, NULL);
}

static inline int look(const sr_cache *cache, uint64_t key)
{
    const char *payload;
    uint64_t bytes;
    sr_result result;
    return sr_cache_lookup(cache, key, &payload, &bytes, &result);
}

static inline void check_entry(const sr_cache *cache, uint64_t key, uint64_t expected)
{
    const char *payload = NULL;
    uint64_t bytes = 0, word;
    sr_result result, right = result_of(key);
    CHECK_OK(sr_cache_lookup(cache, key, &payload, &bytes, &result));
    CHECK_EQ(bytes, expected);
    CHECK_EQ((uintptr_t)payload % SR_LEAF_ALIGN, 0);
    CHECK(memcmp(&result, &right, sizeof right) == 0);
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t n = bytes - i < 8 ? bytes - i : 8, all = word_at(key, i / 8);
        memcpy(&word, payload + i, n);
        CHECK(memcmp(&word, &all, n) == 0);
    }
}

/* Runs `body` in a child that then exits with 0. */
static inline pid_t in_another(void (*body)(sr_cache *, void *), sr_cache *cache, void *with)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        body(cache, with);
        _exit(0);
    }
    return pid;
}

/* Returns when so many processes sleep on entries, or are about to. */
static inline void await_waiters(const sr_cache *cache, uint32_t n)
{
    while (sr_load_ordered(&cache->header->waiters) != n)
        sched_yield();
}

static inline void *shared_page(void)
{
    void *at = mmap(NULL, SR_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

#endif
