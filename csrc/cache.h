/* cache.h - a cache's shared bytes, and its whole API.
 *
 * A cache is one shared mapping beside the ring's: header, fillers, index, entries. It only grows; nothing is ever
 * evicted, so that an entry which was found stays where it is for as long as the mapping. Threads of a process may
 * share a handle.
 * docs/protocol.md, The cache, explains each field, who may write it and when.
 */
#ifndef SLIPRING_CACHE_H
#define SLIPRING_CACHE_H

#include "layout.h"
#include "system.h"

#define SR_CACHE_MAGIC UINT64_C(0x5045454b50494c53) /* "SLIPKEEP" read as little-endian bytes */
#define SR_CACHE_VERSION 1u
#define SR_CACHE_KEYS (UINT64_C(1) << 30)  /* the most; fewer where a file may not be so long */
#define SR_CACHE_FEWEST (UINT64_C(1) << 16)
#define SR_CACHE_CHUNK UINT64_C(8192)      /* keys whose words get their memory at once */
#ifndef SR_CACHE_FILLERS                   /* the model has fewer */
#define SR_CACHE_FILLERS 1024u             /* entries that are being made at a time */
#endif
#define SR_CACHE_TALLIES 64u
#define SR_CACHE_LABEL 448u
#define SR_CACHE_LARGEST (UINT64_C(1) << 46) /* budget in bytes */
#define SR_CACHE_NO_KEY UINT64_MAX

/* ---- an entry's word --------------------------------------------------------------------------------
 * EMPTY and FILLING: bits 0-1 state | bits 8-19 owner (filler + 1; 0: nobody) | bits 20-63 generation, which grows by
 * one each time the entry becomes EMPTY again. READY: bits 8-63 where the entry lies, in units of 64; it stays. */
enum sr_entry_state { SR_ENTRY_EMPTY = 0, SR_ENTRY_FILLING = 1, SR_ENTRY_READY = 2 };
#define SR_ENTRY_STATE UINT64_C(3)
#define SR_ENTRY_SHIFT 8

/* What stands before an entry's bytes. */
typedef struct sr_entry {
    uint64_t key;
    uint64_t bytes;   /* that follow */
    sr_result result; /* what they are, as of a batch: offsets count from the first of them */
} sr_entry;

/* Who makes an entry: a thread, for as long as that takes. */
typedef struct sr_filler {
    _Atomic uint64_t incarnation; /* the process; 0: nobody */
    _Atomic uint64_t program;     /* as a party's */
    _Atomic uint64_t key;         /* what it makes */
    _Atomic uint64_t taken;       /* bytes that it has taken for it and that are nobody's if it dies */
    _Atomic uint64_t growing;     /* bytes that it is committing right now */
    _Atomic uint64_t thread;      /* its number in the kernel */
    uint64_t reserved[2];
} sr_filler;

/* Counts, on several lines, so that processors do not take one from each other. */
enum sr_tally { SR_HITS, SR_MISSES, SR_STORED, SR_STORED_BYTES, SR_REFUSED_BUDGET, SR_REFUSED_MEMORY, SR_REFUSED_OTHER,
                SR_WAITS, SR_N_TALLIES };
typedef struct sr_tallies {
    _Atomic uint64_t of[SR_N_TALLIES];
} sr_tallies;

typedef struct sr_cache_header {
    uint64_t magic;
    uint32_t version, reserved;
    uint64_t n_keys;
    uint64_t tallies_off, fillers_off, map_off, index_off, data_off;
    uint64_t budget, total, pid_namespace;
    uint64_t reserved1[5];
    _Alignas(SR_LINE) _Atomic uint64_t cursor; /* bytes of entries handed out */
    _Atomic uint64_t committed;                /* bytes of entries that are backed by memory; only grows */
    _Alignas(SR_LINE) _Atomic uint32_t waiters; /* how many sleep on an entry's word or are about to */
    _Atomic uint32_t full;                      /* 1: an entry did not fit the budget any more (a hint) */
    _Atomic uint64_t short_until;               /* memory was short: not asked for again before then (a hint) */
    _Atomic uint64_t recovered;                 /* entries that dead fillers had begun */
    _Atomic uint64_t lost;                      /* bytes that they had taken, at most */
    _Atomic uint32_t told;                      /* 1: somebody has logged that nothing more is kept */
    _Alignas(SR_LINE) _Atomic uint64_t fingerprint; /* of what is cached; 0: nobody has said */
    _Atomic uint64_t samples;                       /* how many there are in all; 0: unknown */
    _Atomic uint32_t labelled;                      /* 1: the text is whole */
    _Alignas(SR_LINE) char label[SR_CACHE_LABEL];   /* what it is, in words; who set the fingerprint */
} sr_cache_header;

static_assert(sizeof(sr_entry) == 64 && sizeof(sr_filler) == SR_LINE && sizeof(sr_tallies) == SR_LINE, "one line each");
static_assert(offsetof(sr_cache_header, cursor) == 128 && offsetof(sr_cache_header, waiters) == 192, "lines");
static_assert(offsetof(sr_cache_header, fingerprint) == 256 && offsetof(sr_cache_header, label) == 320, "lines");
static_assert(sizeof(sr_cache_header) <= SR_PAGE, "one page");

typedef struct sr_cache sr_cache;

/* ---- making and sharing ------------------------------------------------------------------------------ */

typedef struct sr_cache_info {
    uint64_t budget, wanted; /* bytes for entries; what was asked for */
    uint64_t n_keys, used, committed; /* `committed` with index and header */
    uint64_t entries, samples, recovered, lost;
    uint64_t tallies[SR_N_TALLIES];
    bool full;
} sr_cache_info;

/* Makes a cache of at most `budget` bytes for entries, of which none is committed yet. `where`: as sr_open_memory's.
 * -EINVAL: no such budget or backing; -ENOSPC, -EFBIG, -ENOMEM, ... what the system said (see *why). */
int sr_cache_create(uint64_t budget, int backing, const char *where, sr_cache **out, sr_shortage *why);

/* Maps the cache behind `fd` (which is duplicated). -EPROTO: not a cache, another version or an inconsistent header;
 * -EACCES: another user's. */
int sr_cache_attach(int fd, sr_cache **out);

/* Unmaps and closes. The caller knows that nobody in this process uses the mapping any more. */
int sr_cache_destroy(sr_cache *cache);
/* The cache's descriptor; -EBADF if it has been closed. */
int sr_cache_fd(const sr_cache *cache);
void sr_cache_describe(const sr_cache *cache, sr_cache_info *info);

/* Says what is cached, once: a hash that is not 0, and words. 0, also if it is the same; -EEXIST: something else is,
 * and `label` (SR_CACHE_LABEL bytes, written over) says what, if it is known. */
int sr_cache_bind(sr_cache *cache, uint64_t fingerprint, uint64_t samples, char *label);

/* ---- entries ------------------------------------------------------------------------------------------- */

/* Finds an entry; no system call. 0; -ENOENT: nobody has made it; -EAGAIN: somebody is making it; -ERANGE: no such key;
 * -EPROTO: what lies there is no entry of that key. *bytes lie there, for reading alone. */
int sr_cache_look(const sr_cache *cache, uint64_t key, const char **payload, uint64_t *bytes, sr_result *result);

/* An entry that the calling thread makes. */
typedef struct sr_fill {
    uint64_t key, word, incarnation;
    uint32_t filler;
} sr_fill;

/* EMPTY -> FILLING. 0; -EEXIST: it is READY; -EAGAIN: somebody is making it; -ENOSPC: no memory for its word (*why);
 * -EUSERS: too many are being made; -EXDEV: the cache was made in another PID namespace; -ERANGE. */
int sr_cache_claim(sr_cache *cache, uint64_t key, sr_fill *fill, sr_shortage *why);
/* FILLING -> READY, with a copy of `bytes` bytes. -ENOSPC: no room for them (*why; SR_LIMIT_CAPACITY: the budget), and
 * the entry is EMPTY again; -EBADF: the descriptor was closed, and it is, too (claim as well); -ECHILD: the fill is
 * this process's parent's; -ESTALE: others took this process for dead. */
int sr_cache_store(sr_cache *cache, sr_fill *fill, const sr_result *result, const char *payload, uint64_t bytes,
                   sr_shortage *why);
/* FILLING -> EMPTY. -ECHILD as above. */
int sr_cache_abandon(sr_cache *cache, sr_fill *fill);
/* Sleeps while somebody alive makes the entry. 0: look again; -ETIMEDOUT; -EINTR; -EDEADLK: it is the calling thread
 * itself; -ERANGE. An entry of a dead one becomes EMPTY. */
int sr_cache_wait(sr_cache *cache, uint64_t key, uint64_t deadline);
/* Whether an entry of that size may find room, as far as is known; no system call. 0; -ENOSPC: the budget has none;
 * -EAGAIN: memory was short a moment ago. */
int sr_cache_room(const sr_cache *cache, uint64_t bytes);
/* Looks for dead fillers, and undoes what they had begun. How many there were. */
int sr_cache_recover(sr_cache *cache);

void sr_cache_count(sr_cache *cache, enum sr_tally what, uint64_t n);
/* True for one caller in the life of the cache: who logs that nothing more is kept. */
bool sr_cache_may_tell(sr_cache *cache);

#endif
