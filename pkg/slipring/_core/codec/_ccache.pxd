# Declarations of csrc/cache.h. None of its functions needs the GIL.

from libc.stdint cimport uint32_t, uint64_t

from slipring._core.ring._cring cimport sr_result, sr_alloc_error

cdef extern from "cache.h" nogil:
    enum:
        SR_HITS
        SR_MISSES
        SR_REFUSED_BUDGET
        SR_REFUSED_MEMORY
        SR_REFUSED_OTHER
        SR_STORED
        SR_STORED_BYTES
        SR_WAITS
        SR_CACHE_LABEL
        SR_N_COUNTERS

    ctypedef struct sr_cache:
        pass

    ctypedef struct sr_fill:
        pass

    ctypedef struct sr_cache_info:
        uint64_t budget
        uint64_t wanted
        uint64_t n_keys
        uint64_t used
        uint64_t committed
        uint64_t entries
        uint64_t samples
        uint64_t recovered
        uint64_t lost
        uint64_t counters[8]
        bint full

    int sr_cache_create(uint64_t budget, int backing, const char *where, sr_cache **out, sr_alloc_error *why)
    int sr_cache_attach(int fd, sr_cache **out)
    int sr_cache_destroy(sr_cache *cache)
    int sr_cache_fd(const sr_cache *cache)
    void sr_cache_describe(const sr_cache *cache, sr_cache_info *info)
    int sr_cache_bind(sr_cache *cache, uint64_t fingerprint, uint64_t samples, char *label)
    int sr_cache_lookup(const sr_cache *cache, uint64_t key, const char **payload, uint64_t *bytes, sr_result *result)
    int sr_cache_claim(sr_cache *cache, uint64_t key, sr_fill *fill, sr_alloc_error *why)
    int sr_cache_store(sr_cache *cache, sr_fill *fill, const sr_result *result, const char *payload, uint64_t bytes,
                       sr_alloc_error *why)
    int sr_cache_abandon(sr_cache *cache, sr_fill *fill)
    int sr_cache_wait(sr_cache *cache, uint64_t key, uint64_t deadline)
    int sr_cache_memory_available(const sr_cache *cache, uint64_t bytes)
    int sr_cache_recover(sr_cache *cache)
    void sr_cache_count(sr_cache *cache, int what, uint64_t n)
    bint sr_cache_may_report(sr_cache *cache)
    uint64_t sr_now()
