/* layout.h - the shared bytes of a segment, and nothing else.
 *
 * Every process that maps a segment sees exactly these structures. No function lives here; the only
 * code that reads or changes a control word is in this folder's .c files. docs/protocol.md explains
 * each field, who may write it and when; a second implementation needs only that page and this file.
 */
#ifndef SLIPRING_LAYOUT_H
#define SLIPRING_LAYOUT_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(__linux__) || !(defined(__x86_64__) || defined(__aarch64__))
#error "slipring needs Linux on x86-64 or arm64 (futex, pidfd, fallocate; little-endian 64-bit atomics)"
#endif

#define SR_MAGIC UINT64_C(0x474e495250494c53) /* "SLIPRING" read as little-endian bytes */
#define SR_VERSION 6u

#define SR_LINE 64u           /* one cache line: words that different parties write lie on different ones */
#define SR_PAGE 4096u         /* payloads start on such a boundary */
#define SR_LEAF_ALIGN 64u     /* leaves inside a payload start on such a boundary */
#define SR_MAX_PARTIES 4094u  /* what 12 bits of owner can name, less 'nobody' */
#define SR_MAX_SLOTS 65536u
#define SR_MAX_RANGES 56u     /* what fits a page of a slot's control */
#define SR_MAX_DIMS 12u       /* dimensions that a leaf record can describe */
#ifndef SR_RECORDS /* tests may have fewer */
#define SR_RECORDS 1024u      /* batches that the flight recorder remembers */
#endif
#define SR_LABEL 128u         /* bytes of a segment's label, its end included */

/* ---- the slot's state word ------------------------------------------------------------------------
 * bits 0-3 state | bit 4 HELD | bits 8-19 owner (party + 1; 0: nobody) | bits 20-63 generation
 * The generation grows by one each time the slot leaves FREE; it wraps and is compared for equality. */
enum sr_state {
    SR_FREE = 0,    /* nobody's; only a dispatcher (pull) or a producer (push) may take it */
    SR_TASK = 1,    /* a task lies in it; owner: the worker it is addressed to, 0: anybody */
    SR_CLAIMED = 2, /* owner fills it */
    SR_READY = 3,   /* a batch (or error, or end mark) lies in it */
    SR_LEASED = 4,  /* owner (the consumer) hands out views of it */
    SR_SHARED = 5,  /* cooperative task: its rows are claimed range by range; owner: the round, from 0 */
    SR_PARKED = 6,  /* the consumer let go, worker code still holds an array in it */
    SR_TRIMMED = 7  /* was FREE; owner, who is short of memory, gives its memory back */
};
#define SR_STATE_MASK UINT64_C(0xf)
#define SR_HELD (UINT64_C(1) << 4) /* worker code kept an array of this slot past the publish */
#define SR_OWNER_SHIFT 8
#define SR_OWNER_MASK (UINT64_C(0xfff) << SR_OWNER_SHIFT)
#define SR_GEN_SHIFT 20

/* ---- a range's word: bits 0-1 state | bits 8-19 owner | bits 20-63 generation of its slot ----------
 * STOPPED: taken out by a cancel before anybody did it; a slot with such a range is never published. */
enum sr_range_state { SR_RANGE_FREE = 0, SR_RANGE_CLAIMED = 1, SR_RANGE_DONE = 2, SR_RANGE_STOPPED = 3 };

/* ---- the layout word of a cooperative slot: same fields as a range's word -------------------------- */
enum sr_layout_state { SR_LAYOUT_NONE = 0, SR_LAYOUT_PROPOSING = 1, SR_LAYOUT_DIRECT = 2, SR_LAYOUT_STAGED = 3 };

/* What a published slot (or a staged range) holds. Offsets count from the slot's payload. */
enum sr_kind { SR_BATCH = 1, SR_ERROR = 2, SR_END = 3 };

typedef struct sr_result {
    uint64_t table_off; /* n_leaves records of type sr_leaf */
    uint64_t def_off;   /* the tree's definition */
    uint64_t def_hash;
    uint64_t bytes;     /* payload bytes in use, everything included */
    uint32_t n_leaves;
    uint32_t def_bytes;
    uint16_t kind;      /* enum sr_kind */
    uint16_t flags;
    uint32_t pickled;   /* leaves that went through pickle */
} sr_result;

/* One leaf. kind and dtype are the codec's (docs/protocol.md); the ring does not look inside. */
typedef struct sr_leaf {
    uint8_t kind;
    uint8_t dtype;
    uint8_t ndim;
    uint8_t flags;
    uint32_t itemsize;
    uint64_t offset; /* from the start of the payload */
    uint64_t nbytes;
    int64_t shape[SR_MAX_DIMS];
    uint64_t extra;
} sr_leaf;

/* What a worker must do. Written by the dispatcher while the slot is FREE and his. */
enum sr_task_kind { SR_TASK_INDICES = 1, SR_TASK_OBJECT = 2, SR_TASK_NEXT = 3 };

typedef struct sr_task {
    uint64_t run;       /* which live iteration (never reused within a segment) */
    uint64_t epoch;
    uint64_t ticket;    /* dispatch number within the run, from 0 */
    uint64_t seed;      /* the run's base seed */
    uint64_t sequence;  /* streams: number of this batch within (run, worker) */
    uint64_t bytes;     /* used bytes of the task area */
    uint32_t kind;      /* enum sr_task_kind */
    uint32_t rows;      /* indices in the task area */
    uint32_t n_ranges;  /* 0: one worker does it all */
    uint32_t chunk;     /* rows per range */
    uint32_t addressee; /* party + 1, 0: anybody */
    uint32_t flags;
} sr_task;

typedef struct sr_range {
    _Atomic uint64_t word;
    sr_result result; /* of a staged range; written by the owner before DONE */
    uint64_t pad;
} sr_range;

/* How a batch came about: CLOCK_MONOTONIC stamps, and durations in ns; 0: not yet, or not at all. Whoever takes a step
 * writes it, while the slot is his. */
typedef struct sr_times {
    _Atomic uint64_t dispatched_at;
    _Atomic uint64_t claimed_at;
    _Atomic uint64_t fetched_at;
    _Atomic uint64_t published_at;
    _Atomic uint64_t taken_at;
    _Atomic uint64_t fetch_ns;   /* summed over ranges, as all that a worker measures */
    _Atomic uint64_t collate_ns;
    _Atomic uint64_t idle_ns;    /* how long the workers waited for this task */
    _Atomic uint64_t waited_ns;  /* how long the consumer waited for this batch */
    _Atomic uint64_t step_ns;    /* from the taking of the batch before to the asking for this one */
    _Atomic uint64_t copy_ns;    /* to a device */
    _Atomic uint64_t first_index;   /* of the task, an int64; SR_NO_INDEX: it has none */
    _Atomic uint64_t read_ns;       /* parts of fetch_ns, where the dataset tells them */
    _Atomic uint64_t decode_ns;
    _Atomic uint64_t resize_ns;
    _Atomic uint64_t lookups;       /* in a cache: hits, and in the high half misses */
    _Atomic uint64_t slowest_ns;    /* the sample that took longest, where samples are read one by one */
    _Atomic uint64_t slowest_index; /* an int64; what is no int: SR_NO_INDEX and its row in the low half */
    uint64_t pad[6];
} sr_times;
#define SR_TIMES 18u /* words of it that are in use */
#define SR_NO_INDEX (UINT64_C(1) << 63)

/* What is left of a batch when its slot is used again. Written once, by who uses the slot again; `number` last. */
#define SR_RECORD_TORN (UINT64_C(1) << 63)
#ifndef SR_FOLD
#define SR_FOLD 64u /* so many records at a time are added to the totals */
#endif
typedef struct sr_record {
    _Atomic uint64_t number; /* 1 for the segment's first; with SR_RECORD_TORN: is being written. 0: none */
    _Atomic uint64_t run;
    _Atomic uint64_t ticket;
    _Atomic uint64_t epoch;
    _Atomic uint64_t bytes;
    _Atomic uint64_t freed_at;
    _Atomic uint64_t maker;  /* party that has published it | rows << 32 */
    _Atomic uint64_t place;  /* slot | enum sr_kind << 32 */
    sr_times times;
} sr_record;

/* What all records together say: per stage how many batches took how long, and the slowest. */
enum sr_stage {
    SR_QUEUED = 0,  /* dispatched, not yet claimed */
    SR_FETCHED = 1,
    SR_COLLATED = 2,
    SR_LAY_READY = 3, /* published, not yet taken */
    SR_WAITED = 4,  /* the consumer, for it */
    SR_STEPPED = 5,
    SR_LEASE = 6,
    SR_COPIED = 7,
    SR_STAGES = 8
};
#define SR_BUCKETS 256u /* eight for each power of two, from 256 ns on */
#define SR_SLOWEST 16u

typedef struct sr_stage_totals {
    _Atomic uint64_t sum; /* ns */
    _Atomic uint64_t most;
    _Atomic uint64_t counts[SR_BUCKETS];
} sr_stage_totals;

typedef struct sr_totals {
    _Atomic uint64_t batches, bytes, rows, errors;
    _Atomic uint64_t read_ns, decode_ns, resize_ns, hits, misses;
    _Atomic uint64_t folded;                 /* number of the last record that is in here */
    _Atomic uint64_t batch_bar, sample_bar;  /* what makes a batch or a sample one of the slowest */
    uint64_t pad[4];
    sr_stage_totals stages[SR_STAGES];
    sr_record slowest[SR_SLOWEST];         /* by fetch and collation; pull segments only */
    sr_record slowest_samples[SR_SLOWEST]; /* by slowest_ns */
} sr_totals;

typedef struct sr_slot {
    /* line 0: the word that decides, and what a scan for work must see next to it */
    _Atomic uint64_t state;
    _Atomic uint64_t ticket;     /* copy of task.ticket that may be read before a claim */
    _Atomic uint64_t freed_at;   /* when it last became FREE: the warmest slot is dispatched first */
    _Atomic uint32_t n_ranges;   /* copy of task.n_ranges that may be read before a claim */
    _Atomic uint32_t holder;     /* HELD, PARKED: the party whose code keeps an array */
    _Atomic uint64_t run;        /* copy of task.run that may be read before a claim */
    uint64_t pad0[3];
    /* lines 1-2 */
    sr_task task;
    uint64_t pad1[7];
    /* line 3 */
    sr_result result;
    _Atomic uint64_t skipped; /* samples that the dataset passed over, summed over ranges */
    uint64_t pad2;
    /* line 4 */
    _Atomic uint64_t cursor;         /* payload bytes handed out by sr_alloc */
    _Atomic uint64_t committed;      /* payload bytes backed by memory, from offset 0; falls where it is given back */
    _Atomic uint64_t task_committed; /* the same of the task area */
    _Atomic uint64_t rewound;        /* generation and round whose finisher has begun to write over its ranges */
    _Atomic uint32_t pinned;         /* 1: a device reads from it; its memory stays */
    _Atomic uint32_t strays;         /* 1: there may be pages behind `committed`, which a dead party has left (a hint) */
    uint32_t pad3[6];
    /* lines 5-7 */
    sr_times times;
    /* line 8 */
    _Atomic uint64_t layout;
    uint64_t pad4[7];
    /* With them a slot has a line more than a page: scans read the first line of each, and a page apart all would fall
     * into one set of a processor's cache. */
    sr_range ranges[SR_MAX_RANGES];
} sr_slot;

/* A process or thread that takes part. Party 0 is the consumer of a pull segment. */
enum sr_party_status { SR_PARTY_NONE = 0, SR_PARTY_JOINED = 1, SR_PARTY_SERVING = 2 };

typedef struct sr_party {
    _Atomic uint32_t wake;    /* futex word: grows with every wake-up sent to this party */
    _Atomic uint32_t waiting; /* 1: the party sleeps, or is about to */
    _Atomic uint64_t told_ns; /* fetch_ns and collate_ns as of cpu_ns; here, because it is seldom written */
    uint64_t pad0[6];
    _Atomic int32_t pid;
    _Atomic uint32_t status;
    _Atomic uint64_t started; /* start time of the process in clock ticks: with pid, its identity */
    _Atomic uint64_t growing; /* low half, a futex word: pages that it is committing right now; high: a count of these */
    _Atomic uint32_t flags; /* the worker's report (bit 0: worker_init_fn seeded generators) */
    uint32_t pad1;
    _Atomic uint64_t incarnation; /* the process that has this number: pid | start time << 32; 0: nobody */
    _Atomic uint64_t program; /* hashes of the incarnation | of where its stack begins: which program runs; 0: unknown */
    _Atomic uint32_t short_of; /* slot + 1 for which it waits for memory; 0: it does not */
    _Atomic uint32_t leaving; /* 1: it is to claim nothing more (the consumer); 2: it does not (the party) */
    _Atomic uint64_t queued_ns; /* as cpu_ns, for which it was ready to run and had no processor */
    /* line 2: what the worker does and has done, written by itself */
    _Atomic uint64_t batches; /* published */
    _Atomic uint64_t bytes;
    _Atomic uint64_t fetch_ns;
    _Atomic uint64_t collate_ns;
    _Atomic uint64_t idle_ns;
    _Atomic uint64_t at;       /* the row that it reads, + 1, of slot `at >> 32`; 0: none */
    _Atomic uint64_t at_since; /* when it began with that */
    _Atomic uint64_t cpu_ns;   /* of a processor, since it serves; told seldom */
} sr_party;

#define SR_SEG_PUSH 1u     /* producers claim FREE slots themselves */
#define SR_SEG_RECORDED 2u /* all but the slots lies in a file of its own (SLIPRING_RECORD) */

typedef struct sr_header {
    /* lines 0-1: constant once the creator has shared the segment */
    uint64_t magic;
    uint32_t version;
    uint32_t flags;
    uint32_t n_slots;
    uint32_t n_parties;
    uint64_t parties_off;
    uint64_t slots_off;     /* the slot controls */
    uint64_t data_off;      /* slot 0's task area */
    uint64_t stride;        /* from one slot's task area to the next one's */
    uint64_t task_capacity; /* the payload begins this far behind the task area */
    uint64_t capacity;      /* reserved payload bytes per slot */
    uint64_t total;         /* length of the mapping */
    uint64_t pid_namespace; /* of the creator (inode of /proc/self/ns/pid): pids mean something only there; 0: unknown */
    uint64_t records_off;   /* sr_totals, and behind them the records */
    uint64_t n_records;
    uint64_t pad0[3];
    /* line 2: written by the consumer */
    _Atomic uint64_t run;
    _Atomic uint32_t closed;
    _Atomic uint32_t high_water; /* slots used so far: scans stop there */
    _Atomic uint32_t tight;      /* 1: less memory is left than the segment has */
    _Atomic uint32_t copies;     /* enum sr_copy, as a worker has measured it; 0: nobody has */
    _Atomic uint32_t crowd;      /* parties that ever slept for a task lie below: wake-ups look no further */
    uint32_t pad1[9];
    /* line 3: those who wait for READY */
    _Atomic uint32_t ready;
    _Atomic uint32_t ready_waiters;
    _Atomic uint32_t wanted; /* slot + 1 that the consumer waits for; 0: any */
    _Atomic uint32_t polled; /* 1: somebody polls an event descriptor in place of sleeping on `ready` */
    uint32_t pad2[12];
    /* line 4: those who wait for FREE */
    _Atomic uint32_t freed;
    _Atomic uint32_t free_waiters;
    uint64_t pad3[7];
    /* line 5: push mode draws tickets here, at publish */
    _Atomic uint64_t order;
    uint64_t pad4[7];
    /* line 6: the flight recorder, and the loop behind a thread that takes the batches for it */
    _Atomic uint64_t recorded; /* records that were begun */
    _Atomic uint64_t loop_steps;
    _Atomic uint64_t loop_wait_ns;
    _Atomic uint64_t loop_ns; /* all of the time of these steps, waits included */
    uint64_t pad5[4];
    /* lines 7-8: constant */
    char label[SR_LABEL];
} sr_header;

static_assert(sizeof(sr_result) == 48, "sr_result");
static_assert(sizeof(sr_leaf) == 128, "sr_leaf");
static_assert(sizeof(sr_task) == 72, "sr_task");
static_assert(sizeof(sr_range) == SR_LINE, "a range has a line of its own");
static_assert(offsetof(sr_slot, task) == 1 * SR_LINE, "slot line 1");
static_assert(offsetof(sr_slot, result) == 3 * SR_LINE, "slot line 3");
static_assert(offsetof(sr_slot, cursor) == 4 * SR_LINE, "slot line 4");
static_assert(offsetof(sr_slot, times) == 5 * SR_LINE, "slot line 5");
static_assert(offsetof(sr_slot, layout) == 8 * SR_LINE, "slot line 8");
static_assert(offsetof(sr_slot, ranges) == 9 * SR_LINE, "slot line 9");
static_assert(sizeof(sr_times) == 3 * SR_LINE && offsetof(sr_times, pad) == SR_TIMES * 8, "sr_times");
static_assert(sizeof(sr_record) == 4 * SR_LINE, "a record has four lines");
static_assert(sizeof(sr_slot) == SR_PAGE + SR_LINE, "slot controls lie a page and a line apart");
static_assert(sizeof(sr_party) == 3 * SR_LINE, "a party has three lines");
static_assert(offsetof(sr_party, pid) == SR_LINE, "party line 1");
static_assert(offsetof(sr_party, growing) == 80, "growing");
static_assert(offsetof(sr_party, batches) == 2 * SR_LINE, "party line 2");
static_assert(offsetof(sr_party, incarnation) == 96, "incarnation");
static_assert(offsetof(sr_party, program) == 104, "program");
static_assert(offsetof(sr_party, leaving) == 116, "leaving");
static_assert(offsetof(sr_header, run) == 2 * SR_LINE, "header line 2");
static_assert(offsetof(sr_header, ready) == 3 * SR_LINE, "header line 3");
static_assert(offsetof(sr_header, freed) == 4 * SR_LINE, "header line 4");
static_assert(offsetof(sr_header, order) == 5 * SR_LINE, "header line 5");
static_assert(offsetof(sr_header, recorded) == 6 * SR_LINE, "header line 6");
static_assert(offsetof(sr_header, label) == 7 * SR_LINE, "header line 7");
static_assert(sizeof(sr_header) <= SR_PAGE, "the header is one page");
static_assert(sizeof(_Atomic uint64_t) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "lock-free 64-bit atomics");

#endif
