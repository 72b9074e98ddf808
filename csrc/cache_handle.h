/* cache_handle.h - a process's handle on a cache; private to csrc, and for tests that check its words. */
#ifndef SLIPRING_CACHE_HANDLE_H
#define SLIPRING_CACHE_HANDLE_H

#include "atomics.h"
#include "cache.h"

struct sr_cache {
    char *base;               /* writable, for fillers */
    const char *view;         /* the entries, read-only: code that reads them cannot change them for others */
    sr_cache_header *header;
    sr_counters *counters;
    sr_filler *fillers;
    _Atomic uint64_t *map, *index;
    sr_file file;
    /* Constant fields of the header, validated once: the shared copy is never trusted again. */
    uint64_t n_keys, data_off, budget, total, wanted;
    /* The identity of this process: 0 before its first use, and the parent's after a fork. `program` is stored
     * first. */
    _Atomic uint64_t incarnation, program;
    _Atomic uint32_t other_namespace; /* it cannot tell which of the others live */
};

/* How soon a process that waits for an entry checks whether its filler lives, and how often after that. */
#ifndef SR_CACHE_CHECK_NS
#define SR_CACHE_CHECK_NS UINT64_C(10000000)
#define SR_CACHE_RECHECK_NS UINT64_C(100000000)
#else
#define SR_CACHE_RECHECK_NS SR_CACHE_CHECK_NS
#endif

/* Recover the filler `number`, if it still belongs to the incarnation `dead`. */
void sr_cache_reap(sr_cache *cache, uint32_t number, uint64_t dead);

#ifdef SR_STEPS
/* for tests: every access to shared bytes below has points where a participant may be killed */
#include "steps.h"
#endif

#endif
