/* cache_handle.h - what a process knows about a cache; private to csrc, and for tests that look at its words. */
#ifndef SLIPRING_CACHE_HANDLE_H
#define SLIPRING_CACHE_HANDLE_H

#include "atomics.h"
#include "cache.h"

struct sr_cache {
    char *base;       /* writable, for fillers */
    const char *view; /* the entries, for reading alone: what code does to them it cannot do to others */
    sr_cache_header *header;
    sr_tallies *tallies;
    sr_filler *fillers;
    _Atomic uint64_t *map, *index;
    sr_file file;
    /* Constant fields of the header, checked once: the shared copy is not trusted again. */
    uint64_t n_keys, data_off, budget, total, wanted;
    /* Who this process is; of another one, or 0, after a fork. `program` is stored before. */
    _Atomic uint64_t incarnation, program;
    _Atomic uint32_t foreign; /* it cannot tell who of the others lives */
};

/* How soon who waits for an entry looks whether its filler lives, and how often then. */
#ifndef SR_CACHE_LOOK_NS
#define SR_CACHE_LOOK_NS UINT64_C(10000000)
#define SR_CACHE_LOOK_AGAIN_NS UINT64_C(100000000)
#else
#define SR_CACHE_LOOK_AGAIN_NS SR_CACHE_LOOK_NS
#endif

/* Gives back what that incarnation of a number has left behind. */
void sr_cache_bury(sr_cache *cache, uint32_t number, uint64_t dead);

#ifdef SR_STEPS
#include "steps.h" /* for tests: from here on each access to shared bytes has points where a party may be killed */
#endif

#endif
