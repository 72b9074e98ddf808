/* cache.h - the shared bytes of a cache, and its complete API.
 *
 * A cache is one shared mapping, separate from the ring's: header, fillers, index, entries. It only grows. Nothing is
 * ever evicted, so an entry that was found stays at its address as long as the mapping exists. Threads of a process may
 * share a handle. A comment gives the meaning of a field; docs/protocol.md, The cache, has the rules.
 */
#ifndef SLIPRING_CACHE_H
#define SLIPRING_CACHE_H

#include "layout.h"
#include "system.h"

#define SR_CACHE_MAGIC UINT64_C(0x5045454b50494c53) /* "SLIPKEEP" read as little-endian bytes */
#define SR_CACHE_VERSION 1u
#define SR_CACHE_KEYS (UINT64_C(1) << 30)           /* maximum; fewer if the file's length is limited */
#define SR_CACHE_FEWEST (UINT64_C(1) << 16)
#define SR_CACHE_CHUNK UINT64_C(8192)               /* keys whose words get their memory together */
#ifndef SR_CACHE_FILLERS                            /* the model has fewer */
#define SR_CACHE_FILLERS 1024u                      /* entries that can be made at the same time */
#endif
#define SR_CACHE_COUNTERS 64u
#define SR_CACHE_LABEL 448u
#define SR_CACHE_LARGEST (UINT64_C(1) << 46)        /* maximum budget in bytes */
#define SR_CACHE_NO_KEY UINT64_MAX

/* ---- an entry's word --------------------------------------------------------------------------------------------- */

/* EMPTY and FILLING: bits 0-1 state | bits 8-19 owner (filler + 1; 0: nobody) | bits 20-63 generation, which grows by
 * one each time the entry becomes EMPTY again. READY, which is final: bits 8-63 position of the entry, in units of 64
 * bytes. */
enum sr_entry_state { SR_ENTRY_EMPTY = 0, SR_ENTRY_FILLING = 1, SR_ENTRY_READY = 2 };
#define SR_ENTRY_STATE UINT64_C(3)
#define SR_ENTRY_SHIFT 8

/* The record before an entry's bytes. */
typedef struct sr_entry {
    uint64_t key;
    uint64_t bytes;   /* how many bytes follow */
    sr_result result; /* describes them, as for a batch: offsets count from the first of them */
} sr_entry;

/* A filler is a thread, while it makes an entry. */
typedef struct sr_filler {
    _Atomic uint64_t incarnation; /* the process; 0: none. By CAS */
    _Atomic uint64_t program;     /* as for a participant */
    _Atomic uint64_t key;         /* of the entry that it makes */
    _Atomic uint64_t taken;       /* bytes that it has allocated for the entry; they are lost if it dies */
    _Atomic uint64_t growing;     /* bytes that it is committing right now */
    _Atomic uint64_t thread;      /* its thread id */
    uint64_t reserved[2];
} sr_filler;

/* Counters, on several lines, so that CPUs do not compete for one. */
enum sr_counter { SR_HITS, SR_MISSES, SR_STORED, SR_STORED_BYTES, SR_REFUSED_BUDGET, SR_REFUSED_MEMORY,
                 SR_REFUSED_OTHER, SR_WAITS, SR_N_COUNTERS };
typedef struct sr_counters {
    _Atomic uint64_t of[SR_N_COUNTERS];
} sr_counters;

typedef struct sr_cache_header {
    uint64_t magic;
    uint32_t version, reserved;
    uint64_t n_keys;
    uint64_t counters_off, fillers_off, map_off, index_off, data_off;
    uint64_t budget, total, pid_namespace;
    uint64_t reserved1[5];
    _Alignas(SR_LINE) _Atomic uint64_t cursor;      /* bytes of entries allocated */
    _Atomic uint64_t committed;                     /* bytes of entries backed by memory; only grows */
    _Alignas(SR_LINE) _Atomic uint32_t waiters;     /* how many sleep on an entry's word, or are about to */
    _Atomic uint32_t full;                          /* 1: an entry did not fit into the budget (a hint) */
    _Atomic uint64_t short_until;                   /* memory was missing: do not try again before then (a hint) */
    _Atomic uint64_t recovered;                     /* entries that dead fillers had begun */
    _Atomic uint64_t lost;                          /* bytes that they had allocated, at most */
    _Atomic uint32_t reported;                    /* 1: a process has logged that no more entries are kept */
    _Alignas(SR_LINE) _Atomic uint64_t fingerprint; /* identifies the cached dataset; 0: not set */
    _Atomic uint64_t samples;                       /* number of samples in total; 0: unknown */
    _Atomic uint32_t labelled;                      /* 1: the label is complete */
    _Alignas(SR_LINE) char label[SR_CACHE_LABEL];   /* a description, from the process that set the fingerprint */
} sr_cache_header;

static_assert(sizeof(sr_entry) == 64 && sizeof(sr_filler) == SR_LINE && sizeof(sr_counters) == SR_LINE,
              "one line each");
static_assert(offsetof(sr_cache_header, cursor) == 128 && offsetof(sr_cache_header, waiters) == 192, "lines");
static_assert(offsetof(sr_cache_header, fingerprint) == 256 && offsetof(sr_cache_header, label) == 320, "lines");
static_assert(sizeof(sr_cache_header) <= SR_PAGE, "one page");

typedef struct sr_cache sr_cache;

/* ---- create and share -------------------------------------------------------------------------------------------- */

typedef struct sr_cache_info {
    uint64_t budget, wanted;          /* bytes for entries; the requested number */
    uint64_t n_keys, used, committed; /* `committed` includes index and header */
    uint64_t entries, samples, recovered, lost;
    uint64_t counters[SR_N_COUNTERS];
    bool full;
} sr_cache_info;

/* Create a cache of at most `budget` bytes for entries, none of which is committed yet. `where`: as for sr_open_memory.
 * -EINVAL: invalid budget or backing; -ENOSPC, -EFBIG, -ENOMEM, ...: a limit or the system refused (see *why). */
int sr_cache_create(uint64_t budget, int backing, const char *where, sr_cache **out, sr_alloc_error *why);

/* Map the cache of the descriptor `fd`, which is duplicated. -EPROTO: not a cache, another version, or an inconsistent
 * header; -EACCES: it belongs to another user. */
int sr_cache_attach(int fd, sr_cache **out);

/* Unmap and close the cache. No thread of this process may use the mapping any more. */
int sr_cache_destroy(sr_cache *cache);
/* Return the cache's descriptor; -EBADF if it was closed. */
int sr_cache_fd(const sr_cache *cache);
void sr_cache_describe(const sr_cache *cache, sr_cache_info *info);

/* Bind the cache to a dataset, once: its hash (not 0) and its description. 0: the cache has this hash now; -EEXIST: it
 * has another one, and `label` (SR_CACHE_LABEL bytes, overwritten) receives that dataset's description, if known. */
int sr_cache_bind(sr_cache *cache, uint64_t fingerprint, uint64_t samples, char *label);

/* ---- entries ----------------------------------------------------------------------------------------------------- */

/* Find an entry, without a system call. *payload and *bytes receive its bytes, which are read-only. -ENOENT: nobody has
 * made it; -EAGAIN: a filler is making it; -ERANGE: no such key; -EPROTO: the record there is not of that key. */
int sr_cache_lookup(const sr_cache *cache, uint64_t key, const char **payload, uint64_t *bytes, sr_result *result);

/* An entry that the calling thread is making. */
typedef struct sr_fill {
    uint64_t key, word, incarnation;
    uint32_t filler;
} sr_fill;

/* EMPTY -> FILLING. -EEXIST: it is READY; -EAGAIN: another filler is making it; -ENOSPC: no memory for its word (*why);
 * -EUSERS: too many entries are being made; -EXDEV: the cache was created in another PID namespace; -EBADF: the
 * descriptor was closed; -ERANGE: no such key. */
int sr_cache_claim(sr_cache *cache, uint64_t key, sr_fill *fill, sr_alloc_error *why);
/* FILLING -> READY, with a copy of `bytes` bytes. -ENOSPC: no space for them (*why; SR_LIMIT_CAPACITY: in the budget),
 * and the entry is EMPTY again; -EBADF: the descriptor was closed, and the entry is EMPTY again; -ECHILD: the fill
 * belongs to this process's parent; -ESTALE: other processes took this one for dead. */
int sr_cache_store(sr_cache *cache, sr_fill *fill, const sr_result *result, const char *payload, uint64_t bytes,
                   sr_alloc_error *why);
/* FILLING -> EMPTY. -ECHILD as above. */
int sr_cache_abandon(sr_cache *cache, sr_fill *fill);
/* Wait while a living filler makes the entry. 0: look it up again; -ETIMEDOUT; -EINTR; -EDEADLK: the calling thread
 * itself makes it; -ERANGE: no such key. An entry of a dead filler becomes EMPTY. */
int sr_cache_wait(sr_cache *cache, uint64_t key, uint64_t deadline);
/* Check, without a system call, whether an entry of this size may fit. -ENOSPC: not into the budget; -EAGAIN: memory
 * was missing a moment ago. */
int sr_cache_memory_available(const sr_cache *cache, uint64_t bytes);
/* Recover dead fillers: remove the entries that they had begun. Return how many there were. */
int sr_cache_recover(sr_cache *cache);

void sr_cache_count(sr_cache *cache, enum sr_counter what, uint64_t n);
/* Return true to one caller in the life of the cache, which then logs that no more entries are kept. */
bool sr_cache_may_report(sr_cache *cache);

#endif
