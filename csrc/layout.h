/* layout.h - the shared bytes of a segment, and nothing else.
 *
 * Every process that maps a segment sees exactly these structures. Only the .c files in this folder read or change the
 * control words; this file has no functions. A comment gives the meaning of a field and, after a semicolon, its writer.
 * docs/protocol.md has the rules. A second implementation needs only that page and this file. Bytes that have no name
 * here are zero and reserved.
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
#define SR_VERSION 10u

#define SR_LINE 64u               /* one cache line: words that different participants write lie on different lines */
#define SR_PAGE 4096u             /* payloads start on such a boundary */
#define SR_LEAF_ALIGN 64u         /* leaves inside a payload start on such a boundary */
#define SR_MAX_PARTICIPANTS 4094u /* the owners that 12 bits can name, except 'nobody' */
#define SR_MAX_SLOTS 65536u
#define SR_MAX_RANGES 56u         /* as many as fit into a page of a slot's control */
#define SR_MAX_READERS 40u         /* with the consumer, as many as a slot's `readers` has bits */
#define SR_MAX_DIMS 12u           /* dimensions that a leaf record can describe */
#ifndef SR_RECORDS                /* tests may have fewer */
#define SR_RECORDS 1024u          /* batches that the flight recorder keeps */
#endif
#define SR_LABEL 128u             /* bytes of a segment's label, including its terminating zero */

/* ---- the slot's state word --------------------------------------------------------------------------------------- */

/* bits 0-3 state | bit 4 PINNED | bits 8-19 owner (participant + 1; 0: nobody) | bits 20-63 generation. The generation
 * grows by one each time the slot leaves FREE; it wraps and is compared for equality only. */
enum sr_state {
    SR_FREE = 0,    /* no owner; a dispatcher (loader mode) or a producer (queue mode) may take it */
    SR_TASK = 1,    /* has a task; owner: the worker it is addressed to, 0: any worker */
    SR_CLAIMED = 2, /* the owner fills it */
    SR_READY = 3,   /* has a batch, an error or an end mark */
    SR_LEASED = 4,  /* the owner (a consumer) hands out views of it */
    SR_SHARED = 5,  /* has a task with ranges, which workers claim one by one; owner: the round, from 0 */
    SR_PARKED = 6,  /* the consumer has released it, but worker code still keeps an array in it */
    SR_TRIMMED = 7, /* was FREE; the owner, which needs memory or shuts down, releases its memory */
    SR_BROADCAST = 8 /* leased by all participants whose bits are set in `readers` */
};
#define SR_STATE_MASK UINT64_C(0xf)
#define SR_PINNED (UINT64_C(1) << 4) /* worker code keeps an array in this slot after the publish */
#define SR_OWNER_SHIFT 8
#define SR_OWNER_MASK (UINT64_C(0xfff) << SR_OWNER_SHIFT)
#define SR_GEN_SHIFT 20

/* ---- a range's word: bits 0-1 state | bits 8-19 owner | bits 20-63 generation of its slot ------------------------ */

/* STOPPED: a cancel stopped the range before a worker claimed it. A slot with such a range is never published. */
enum sr_range_state { SR_RANGE_FREE = 0, SR_RANGE_CLAIMED = 1, SR_RANGE_DONE = 2, SR_RANGE_STOPPED = 3 };

/* ---- the layout word of a SHARED slot: the fields of a range's word ---------------------------------------------- */
enum sr_layout_state { SR_LAYOUT_NONE = 0, SR_LAYOUT_PROPOSING = 1, SR_LAYOUT_DIRECT = 2, SR_LAYOUT_STAGED = 3 };

/* ---- a slot's `readers`: the participants that have not released the BROADCAST slot ------------------------------ */

/* bit 0: the consumer | bit i: reader i, from 1 | bits 41-63: the low bits of the slot's generation */
#define SR_READERS_GEN_SHIFT 41
#define SR_CONSUMER_BIT UINT64_C(1)
#define SR_READERS_MASK ((UINT64_C(1) << SR_READERS_GEN_SHIFT) - 1)
/* ---- `shared_log`: bits 0-15 slot | bit 16 end mark | bits 20-63 the batch's number, modulo 2^44 ----------------- */
#define SR_SHARED_SLOT UINT64_C(0xffff)
#define SR_SHARED_END (UINT64_C(1) << 16) /* no batch: it marks the end of an iteration */
#define SR_SHARED_NUMBER_SHIFT 20

/* The contents of a published slot or a staged range. Offsets count from the start of the slot's payload. */
enum sr_kind { SR_BATCH = 1, SR_ERROR = 2, SR_END = 3, SR_EMPTY = 4 };

typedef struct sr_result {
    uint64_t table_off; /* n_leaves records of type sr_leaf */
    uint64_t def_off;   /* the treedef: the encoded container structure of the batch, of def_bytes bytes */
    uint64_t def_hash;  /* its hash: readers cache treedefs by it */
    uint64_t bytes;     /* payload bytes in use, including table and treedef */
    uint32_t n_leaves;
    uint32_t def_bytes;
    uint16_t kind;      /* enum sr_kind */
    /* bit 0: worker code keeps an array of the slot; 1: no byte of it is part of the batch; 2: the last leaf record is
     * the state of the worker's dataset */
    uint16_t flags;
    uint32_t pickled;   /* leaves that were pickled */
} sr_result;

/* One leaf. The codec defines kind and dtype (docs/protocol.md); the ring does not interpret them. */
typedef struct sr_leaf {
    uint8_t kind;
    uint8_t dtype;     /* of arrays: numpy's type number; 255: the treedef has it */
    uint8_t ndim;      /* dimensions in use */
    uint8_t flags;     /* bit 0: the tensor requires grad */
    uint32_t itemsize; /* bytes per element */
    /* from the start of the payload: a multiple of SR_LEAF_ALIGN if the encoder allocated the bytes, any number if they
     * are a part of an array in the slot. Two leaves may share bytes. */
    uint64_t offset;
    uint64_t nbytes;
    int64_t shape[SR_MAX_DIMS];
    uint64_t extra;    /* depends on the kind */
} sr_leaf;

/* The work for a worker. The dispatcher writes it while the slot is FREE. The task area has the indices (int64), the
 * pickle of an object, or (NEXT) nothing. */
enum sr_task_kind { SR_TASK_INDICES = 1, SR_TASK_OBJECT = 2, SR_TASK_NEXT = 3 };

typedef struct sr_task {
    uint64_t iteration; /* which iteration; never reused within a segment */
    uint64_t epoch;     /* low half: its number; high half, for rng="sample": where sequence number 0 is in the epoch */
    uint64_t seq;       /* dispatch number within the iteration, from 0 */
    uint64_t seed;      /* base seed of the iteration */
    uint64_t sequence;  /* streams: number of this batch within (iteration, worker) */
    uint64_t bytes;     /* used bytes of the task area */
    uint32_t kind;      /* enum sr_task_kind */
    uint32_t rows;      /* indices in the task area */
    uint32_t n_ranges;  /* 0: one worker does the whole task */
    uint32_t range_rows; /* rows per range; the last range may have fewer */
    uint32_t addressee; /* participant + 1; 0: any worker. Ignored if n_ranges > 0 */
    uint32_t flags;     /* bit 0: one sample, not a list of samples */
} sr_task;

typedef struct sr_range {
    _Atomic uint64_t word;
    sr_result result; /* of a staged range; its owner writes it before DONE */
    uint64_t pad;
} sr_range;

/* The history of a batch: CLOCK_MONOTONIC stamps, and durations in ns. 0: not yet, or never. The participant that takes
 * a step writes its stamp while it owns the slot. */
typedef struct sr_times {
    _Atomic uint64_t dispatched_at; /* 0 in queue mode; the dispatcher */
    _Atomic uint64_t claimed_at;    /* the first claim */
    _Atomic uint64_t fetched_at;    /* end of reading */
    _Atomic uint64_t published_at;  /* just before the publish */
    _Atomic uint64_t taken_at;      /* the lessee, also of waited_ns, step_ns and copy_ns */
    _Atomic uint64_t fetch_ns;      /* summed over ranges, like all durations that a worker measures */
    _Atomic uint64_t collate_ns;
    _Atomic uint64_t idle_ns;       /* how long the workers waited for this task */
    _Atomic uint64_t waited_ns;     /* the lessee's wait for this batch; like step_ns, valid only with taken_at */
    _Atomic uint64_t step_ns;       /* from taking the previous batch to requesting this one; 0: unknown */
    _Atomic uint64_t copy_ns;       /* to a device */
    _Atomic uint64_t first_index;   /* of the task, an int64; SR_NO_INDEX: it has none */
    _Atomic uint64_t read_ns;       /* parts of fetch_ns, if the dataset reports them */
    _Atomic uint64_t decode_ns;
    _Atomic uint64_t resize_ns;
    _Atomic uint64_t augment_ns;    /* operations on the image after the resize */
    _Atomic uint64_t user_ns;       /* a user's functions in the list of transforms */
    _Atomic uint64_t lookups;       /* in a cache: low half hits, high half misses */
    _Atomic uint64_t slowest_ns;    /* the slowest sample, if samples are read one by one */
    _Atomic uint64_t slowest_index; /* an int64; if the index is not an int: SR_NO_INDEX | row */
    uint64_t pad[4];
} sr_times;
#define SR_TIMES 20u /* words of it that are in use */
#define SR_NO_INDEX (UINT64_C(1) << 63)

/* The record of a batch whose slot is being reused. The participant that reuses the slot writes it once, `number`
 * last. */
#define SR_RECORD_TORN (UINT64_C(1) << 63)
#ifndef SR_FOLD
#define SR_FOLD 64u /* records are added to the totals in groups of this size */
#endif
typedef struct sr_record {
    _Atomic uint64_t number;    /* 1 for the segment's first; with SR_RECORD_TORN: being written; 0: none */
    _Atomic uint64_t iteration;
    _Atomic uint64_t seq;
    _Atomic uint64_t epoch;
    _Atomic uint64_t bytes;
    _Atomic uint64_t freed_at;
    _Atomic uint64_t publisher; /* participant that published it | rows << 32 */
    _Atomic uint64_t slot_kind; /* slot | enum sr_kind << 32 */
    sr_times times;
} sr_record;

/* The totals of all records: for each stage, a histogram of durations; and the slowest batches and samples. */
enum sr_stage {
    SR_QUEUED = 0,   /* dispatched, not yet claimed */
    SR_FETCHED = 1,
    SR_COLLATED = 2,
    SR_BUFFERED = 3, /* published, not yet taken */
    SR_WAITED = 4,   /* the consumer's wait for the batch */
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
    _Atomic uint64_t read_ns, decode_ns, resize_ns, augment_ns, user_ns, hits, misses;
    _Atomic uint64_t folded;                /* number of the last record that is included */
    _Atomic uint64_t batch_bar, sample_bar; /* a batch or a sample above its bar is one of the slowest */
    uint64_t pad[2];
    sr_stage_totals stages[SR_STAGES];
    sr_record slowest[SR_SLOWEST];          /* by fetch and collation; loader segments only */
    sr_record slowest_samples[SR_SLOWEST];  /* by slowest_ns */
} sr_totals;

typedef struct sr_slot {
    /* line 0: the state word, and the words that a scan for work reads with it */
    _Atomic uint64_t state;
    _Atomic uint64_t seq;       /* copy of task.seq that may be read before a claim; in queue mode the publisher */
    _Atomic uint64_t freed_at;  /* when it last became FREE (a hint); the participant that frees it */
    _Atomic uint32_t n_ranges;  /* copy of task.n_ranges that may be read before a claim */
    _Atomic uint32_t pinned_by; /* published or parked it (set before the swap); with PINNED, its code keeps an array */
    _Atomic uint64_t iteration; /* copy of task.iteration that may be read before a claim */
    uint64_t pad0[3];
    /* lines 1-2 */
    sr_task task;
    uint64_t pad1[7];
    /* line 3 */
    sr_result result;         /* the owner (DIRECT layout: the proposer, until it settles) */
    _Atomic uint64_t skipped; /* samples that the dataset skipped, summed over ranges */
    uint64_t pad2;
    /* line 4 */
    _Atomic uint64_t cursor;         /* payload bytes that sr_alloc has handed out */
    _Atomic uint64_t committed;      /* payload bytes backed by memory, from offset 0; only the owner lowers it */
    _Atomic uint64_t task_committed; /* the same for the task area */
    /* a state word, CLAIMED, whose owner bits are the round: its finisher has begun to overwrite the ranges; the
     * finisher, recovery */
    _Atomic uint64_t rewound;
    _Atomic uint32_t registered;     /* 1: a device reads from it, so its memory stays; the lessee */
    /* 1: a dead participant may have left pages after `committed` (a hint); recovery of a queue segment sets it, the
     * participant that releases the memory clears it */
    _Atomic uint32_t orphans;
    uint32_t pad3[6];
    /* lines 5-7 */
    sr_times times;
    /* line 8 */
    _Atomic uint64_t layout;
    _Atomic uint64_t readers;    /* the consumer, before BROADCAST; then each participant clears its own bit */
    _Atomic uint64_t shared_as;  /* the number of its shared batch, valid while `readers` has a bit; the consumer */
    /* Entry of the log of shared batches, which is spread over the slots: slot i has those of the numbers i,
     * i + n_slots, i + 2 * n_slots, ... It may name any slot; the consumer, before `shared` grows */
    _Atomic uint64_t shared_log;
    uint64_t pad4[4];
    /* The ranges make a control one line longer than a page. Scans read the first line of each control; with a stride
     * of one page, all of them would map to one set of the CPU cache. */
    sr_range ranges[SR_MAX_RANGES];
} sr_slot;

/* A process or thread that uses the segment. Participant 0 of a loader segment is the consumer. */
enum sr_participant_status { SR_PARTICIPANT_NONE = 0, SR_PARTICIPANT_JOINED = 1, SR_PARTICIPANT_SERVING = 2 };

typedef struct sr_participant {
    _Atomic uint32_t wake;             /* futex word: grows with every wake-up of this participant; wakers */
    _Atomic uint32_t waiting;          /* 1: it sleeps, or is about to; it sets it, and a waker or itself clears it */
    _Atomic uint64_t reported_ns;      /* fetch_ns and collate_ns as of cpu_ns; here because it is rarely written */
    /* of a reader: odd while it takes part; each begin and each end adds one; the reader, after its death recovery */
    _Atomic uint64_t membership;
    _Atomic uint64_t admitted;         /* of a reader: the last membership that the consumer has seen; the consumer */
    _Atomic uint64_t first_shared;     /* of a reader: number of the first batch of that membership; the consumer */
    uint64_t pad0[3];
    _Atomic int32_t pid;               /* 0 before the first join */
    _Atomic uint32_t status;           /* futex word of waits for a worker; the participant, in loaders also recovery */
    /* start time of the process in clock ticks (field 22 of /proc/<pid>/stat), its identity together with pid; 0:
     * unknown (no /proc, or that of another PID namespace: NSpid of /proc/self/status has more than one pid) */
    _Atomic uint64_t started;
    /* low half, a futex word: pages that it is committing right now; high half: number of such announcements; the
     * participant, recovery */
    _Atomic uint64_t growing;
    uint64_t pad1;
    _Atomic uint64_t incarnation;      /* the process with this number: pid | start time << 32; 0: none */
    /* hash of the incarnation << 32 | hash of its stack's start: identifies the program that it runs; 0: unknown */
    _Atomic uint64_t program;
    _Atomic uint32_t needs_memory_for; /* slot + 1 for which it waits for memory, or 0; the participant, recovery */
    _Atomic uint32_t retiring;         /* 1: claim no more (the consumer), 2: accepted (itself), by CAS; recovery */
    _Atomic uint64_t queued_ns;        /* like cpu_ns: time in which it was runnable but had no CPU */
    /* line 2: the worker's present and past work since it joined; only the worker writes it */
    _Atomic uint64_t batches;  /* published; of a reader: the number after that of the last shared batch that it took */
    _Atomic uint64_t bytes;
    _Atomic uint64_t fetch_ns;
    _Atomic uint64_t collate_ns;
    _Atomic uint64_t idle_ns;
    _Atomic uint64_t at;       /* slot << 32 | (row + 1) that it reads; 0: none */
    _Atomic uint64_t at_since; /* when that row began; else the end of the last one, the join, or the retirement */
    _Atomic uint64_t cpu_ns;   /* CPU time since it serves; updated at publishes, every 20 ms at first, then 320 ms */
} sr_participant;

/* Counts of remote reads: attempts, those that failed, by reason, and durations. */
enum sr_read_count {
    SR_READS = 0,          /* attempts */
    SR_READ_TIMEOUTS = 1,  /* no answer in time */
    SR_READ_BROKEN = 2,    /* no connection, or a broken one, or a wrong answer */
    SR_READ_REFUSED = 3,   /* the server said: later (429, 5xx) */
    SR_READ_REJECTED = 4,  /* the server said: no (404, 403); not repeated */
    SR_READ_BYTES = 5,
    SR_READ_NS = 6,        /* duration of the attempts that succeeded */
    SR_READ_LOST_NS = 7,   /* duration of the others, and of the pauses after them */
    SR_READ_COUNTS = 8
};

/* A pool's wake file has a line for each worker of the pool. A worker that serves several segments sleeps there, and
 * not on `wake` of its participants. Line i belongs to participant i of each segment; line 0 is not used. */
typedef struct sr_wake_line {
    _Atomic uint32_t wake; /* futex word: grows with every wake-up of this worker; wakers, and the pool's process */
    uint32_t pad[15];
} sr_wake_line;

#define SR_SEG_QUEUE 1u    /* producers claim FREE slots themselves */
#define SR_SEG_RECORDED 2u /* everything except the slots lies in a separate file (SLIPRING_RECORD) */

typedef struct sr_header {
    /* lines 0-1: constant after the creator has shared the segment */
    uint64_t magic;
    uint32_t version;
    uint32_t flags;
    uint32_t n_slots;
    uint32_t n_participants;
    uint64_t participants_off;
    uint64_t slots_off;     /* the slot controls */
    uint64_t data_off;      /* slot 0's task area */
    uint64_t stride;        /* from one slot's task area to the next one's */
    uint64_t task_capacity; /* from a slot's task area to its payload */
    uint64_t capacity;      /* reserved payload bytes per slot */
    uint64_t total;         /* length of the mapping */
    /* of the creator (inode of /proc/self/ns/pid): pids are valid only there; 0: unknown */
    uint64_t pid_namespace;
    uint64_t records_off;   /* sr_totals, followed by the records; 0: in the record file */
    uint64_t n_records;
    uint32_t n_readers;     /* the last participants are readers; 0 in queue mode */
    uint32_t pad;
    uint64_t pad0[2];
    /* line 2 */
    _Atomic uint64_t iteration;       /* the current one; the consumer */
    /* 1: every wait ends; any participant. sr_reopen clears it, after all other participants have left */
    _Atomic uint32_t closed;
    _Atomic uint32_t high_water;      /* slots used so far: scans end there; grows before a dispatch or queue claim */
    _Atomic uint32_t memory_pressure; /* 1: less is available than is committed (a hint); the committing participant */
    _Atomic uint32_t copies;          /* enum sr_copy (a hint); the worker that has measured it. 0: not yet */
    /* all participants that ever slept for a task lie below: wake-ups check only those; a worker, before it sleeps */
    _Atomic uint32_t waiter_high_water;
    uint32_t pad1;
    _Atomic uint64_t budget;          /* bytes that the segment may take, 0: no limit; the process of a pool */
    uint64_t pad1a[3];
    /* line 3: waits for READY */
    _Atomic uint32_t ready;         /* futex word: grows with every wake-up; publishers */
    _Atomic uint32_t ready_waiters; /* how many sleep on `ready` or are about to; the waiters */
    _Atomic uint32_t wanted;        /* slot + 1 that the consumer waits for; 0: any, and in queue mode */
    _Atomic uint32_t polled;        /* 1: a process polls an event descriptor instead of sleeping; that process, once */
    uint32_t pad2[12];
    /* line 4: waits for FREE */
    _Atomic uint32_t freed;         /* as `ready`; participants that free a slot */
    _Atomic uint32_t free_waiters;
    uint64_t pad3[7];
    /* line 5: in queue mode, the next sequence number; a publish draws it */
    _Atomic uint64_t order;
    uint64_t pad4[7];
    /* line 6: the flight recorder; and the training loop, if a thread takes the batches for it */
    _Atomic uint64_t recorded; /* records begun so far; the participant that reuses a slot */
    _Atomic uint64_t loop_steps;
    _Atomic uint64_t loop_wait_ns;
    _Atomic uint64_t loop_ns;  /* total duration of these steps, including waits */
    uint64_t pad5[4];
    /* lines 7-8: constant; a name for people, in UTF-8 */
    char label[SR_LABEL];
    /* line 9: remote reads of all participants and of their threads; never reset */
    _Atomic uint64_t reads[SR_READ_COUNTS];
    /* line 10: batches that readers take too */
    _Atomic uint64_t shared;         /* how many were shared so far; the consumer */
    _Atomic uint32_t share_wake;     /* futex word: grows with every wake-up; the consumer */
    _Atomic uint32_t share_waiters;  /* how many readers sleep on it or are about to; the readers */
    uint64_t pad6[6];
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
static_assert(offsetof(sr_totals, stages) == 2 * SR_LINE, "totals line 2");
static_assert(sizeof(sr_slot) == SR_PAGE + SR_LINE, "slot controls lie a page and a line apart");
static_assert(sizeof(sr_participant) == 3 * SR_LINE, "a participant has three lines");
static_assert(sizeof(sr_wake_line) == SR_LINE, "a worker's wake word has a line of its own");
static_assert(offsetof(sr_participant, pid) == SR_LINE, "participant line 1");
static_assert(offsetof(sr_participant, growing) == 80, "growing");
static_assert(offsetof(sr_participant, batches) == 2 * SR_LINE, "participant line 2");
static_assert(offsetof(sr_participant, incarnation) == 96, "incarnation");
static_assert(offsetof(sr_participant, program) == 104, "program");
static_assert(offsetof(sr_participant, retiring) == 116, "retiring");
static_assert(offsetof(sr_header, iteration) == 2 * SR_LINE, "header line 2");
static_assert(offsetof(sr_header, ready) == 3 * SR_LINE, "header line 3");
static_assert(offsetof(sr_header, freed) == 4 * SR_LINE, "header line 4");
static_assert(offsetof(sr_header, order) == 5 * SR_LINE, "header line 5");
static_assert(offsetof(sr_header, recorded) == 6 * SR_LINE, "header line 6");
static_assert(offsetof(sr_header, label) == 7 * SR_LINE, "header line 7");
static_assert(offsetof(sr_header, reads) == 9 * SR_LINE, "header line 9");
static_assert(offsetof(sr_header, shared) == 10 * SR_LINE, "header line 10");
static_assert(SR_MAX_READERS + 1 == SR_READERS_GEN_SHIFT, "a bit for each reader and the consumer");
static_assert(SR_MAX_SLOTS - 1 == SR_SHARED_SLOT, "shared_log can name every slot");
static_assert(sizeof(sr_header) <= SR_PAGE, "the header is one page");
static_assert(sizeof(_Atomic uint64_t) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "lock-free 64-bit atomics");

#endif
