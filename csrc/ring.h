/* ring.h - the complete API of the slipring core.
 *
 * A segment is one shared mapping of the header, the participants, the slot controls and the slots. An sr_ring is one
 * process's handle on it. Threads of a process may share a handle.
 *
 * Every function returns 0 (or the count that its comment names) or -errno. There is no global error state. Times are
 * CLOCK_MONOTONIC nanoseconds. A deadline is absolute; SR_FOREVER means none. Functions that wait return -EINTR after a
 * signal handler ran, so that the caller can handle its signals.
 *
 * docs/protocol.md describes the protocol that these functions implement.
 */
#ifndef SLIPRING_RING_H
#define SLIPRING_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"
#include "system.h"
#include "watch.h"

typedef struct sr_ring sr_ring;

#define SR_FOREVER UINT64_MAX
#define SR_ANY UINT32_MAX
#define SR_CONSUMER 0u
#define SR_TASK_DEFAULT (UINT64_C(64) << 20) /* bytes reserved for each slot's task, where limits allow */

/* values of *range in sr_claim */
#define SR_WHOLE UINT32_MAX        /* the whole slot */
#define SR_FINISH (UINT32_MAX - 1) /* all ranges are done: finish the slot and publish it */

typedef struct sr_options {
    uint32_t n_slots;        /* 1 .. SR_MAX_SLOTS */
    uint32_t n_participants; /* including consumer and readers: 2 .. SR_MAX_PARTICIPANTS */
    uint32_t flags;          /* SR_SEG_QUEUE */
    uint32_t n_readers;      /* of the participants, the last ones: at most SR_MAX_READERS; 0 in queue mode */
    int backing;             /* enum sr_backing */
    const char *dir;         /* for SR_BACKING_DIR: a directory on a tmpfs */
    uint64_t capacity;       /* payload bytes to reserve per slot; 0: as many as fit, at most 16 GiB */
    uint64_t task_capacity;  /* task bytes to reserve per slot; 0: the default */
    const char *label;       /* a name for users, or NULL; truncated to SR_LABEL */
    const char *record;      /* path of a file for everything except the slots, or NULL */
    uint32_t node;           /* 1 + the NUMA node on which to allocate, if it has free memory; 0: the kernel chooses */
} sr_options;

typedef struct sr_info {
    uint32_t n_slots, n_participants, flags, n_readers;
    int backing;            /* the chosen one; SR_BACKING_AUTO on an attached handle */
    const char *reason;     /* why it was chosen, a static text */
    uint64_t capacity;      /* reserved per slot */
    uint64_t wanted;        /* the requested capacity; larger than capacity if a limit applied */
    const char *limited_by; /* that limit, or NULL */
    uint64_t total;
    uint32_t copies;        /* enum sr_copy, from the header */
    uint64_t reads[SR_READ_COUNTS]; /* remote reads, from the header */
    int record;             /* 0; -errno: the requested record file could not be created */
    int node;               /* 0; -errno: the kernel chooses nodes, because the preference could not be set */
    uint32_t record_number; /* 0: no record file; 1: the requested path; n >= 2: that path with the suffix ".n" */
} sr_info;

/* ---- segment.c: create, attach and destroy a segment ------------------------------------------------------------- */

/* Create a segment without a name; it disappears with the last process that uses it. Commit the header, the controls,
 * and the first bytes of each task area and payload. -EINVAL: invalid options; -ENOSPC: a limit leaves too little
 * memory (see *why); -ENOMEM, -EFBIG, -EMFILE, ...: the system refused. */
int sr_create(const sr_options *options, sr_ring **out, sr_alloc_error *why);
#define SR_TASK_COMMIT UINT64_C(8192)
/* The first bytes of each payload are committed too: a batch that reports an allocation error needs memory itself. */
#define SR_PAYLOAD_COMMIT UINT64_C(8192)

/* Map the segment of the descriptor `fd`, which is duplicated. `record`: the descriptor of its record file, or -1.
 * -EPROTO: not a segment, another version, or an inconsistent header. */
int sr_attach(int fd, int record, sr_ring **out);

/* Adapt the handle in a forked child: discard the state that was valid only in the parent. */
int sr_after_fork(sr_ring *ring);

/* Unmap and close the segment. No thread of this process may use the mapping any more. */
int sr_destroy(sr_ring *ring);

/* ---- handle.c: query a handle ------------------------------------------------------------------------------------ */

/* Return the segment's descriptor; -EBADF if it was closed, even if another file has its number now. */
int sr_fd(const sr_ring *ring);
/* Return the record file's descriptor; -ENOENT: there is none. */
int sr_record_fd(const sr_ring *ring);
int sr_describe(const sr_ring *ring, sr_info *info);

/* Return the slot's control, task, task area or payload; NULL if there is no such slot. */
sr_slot *sr_slot_at(const sr_ring *ring, uint32_t slot);
const sr_task *sr_task_of(const sr_ring *ring, uint32_t slot);
/* Return the result that a range staged; SR_WHOLE: the one that the slot's layout or publish recorded. */
const sr_result *sr_result_of(const sr_ring *ring, uint32_t slot, uint32_t range);
char *sr_task_area(const sr_ring *ring, uint32_t slot);
char *sr_payload(const sr_ring *ring, uint32_t slot);

/* Return how many payload bytes of the slot are backed by memory, hence readable; 0 if there is no such slot. */
uint64_t sr_slot_committed(const sr_ring *ring, uint32_t slot);

/* Return how many bytes of the segment are committed: slots, task areas and controls. */
uint64_t sr_committed(const sr_ring *ring);

/* ---- budget.c: a segment's part of the memory of a pool ---------------------------------------------------------- */

typedef struct sr_usage {
    uint64_t used;    /* committed bytes, as sr_committed, and those that are being committed */
    uint64_t fixed;   /* those that the segment takes without a batch: controls, task areas, first bytes of payloads */
    uint64_t largest; /* payload bytes of the slot that has most */
} sr_usage;
void sr_usage_of(const sr_ring *ring, sr_usage *out);

/* Return the bytes that the segment may take; 0: there is no limit but the machine's. */
uint64_t sr_budget(const sr_ring *ring);

/* Let the segment take that many bytes (not 0) from now on, and release memory of FREE slots, as `participant`, as long
 * as it takes more. A payload that would exceed it is not committed. Growth of task areas counts, but is never refused.
 * *out receives what it takes then; if that is more than `bytes`, it may still shrink, but not grow. */
void sr_set_budget(sr_ring *ring, uint32_t participant, uint64_t bytes, sr_usage *out);

/* Return how many slots can carry batches of the largest size so far, next to those leased or parked; if there are
 * `enough`, the count may stop there. Without a budget, it is sr_circulating. */
int sr_fillable(const sr_ring *ring, int enough);

/* ---- numa.c: where the memory lies ------------------------------------------------------------------------------- */

/* Return the NUMA node of the first page of the slot's payload. -ENOENT: this process has not touched it; -EINVAL: no
 * such slot; -ENOSYS, -EPERM: the kernel or a sandbox has no move_pages. */
int sr_slot_node(const sr_ring *ring, uint32_t slot);

/* ---- memory.c: memory of a slot ---------------------------------------------------------------------------------- */

/* Commit and map at least the first `bytes` of the slot's payload. -EFBIG: larger than the capacity; -ENOSPC: would
 * exceed a limit. *why (may be NULL) has the details. */
int sr_commit(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t bytes, sr_alloc_error *why);

/* Commit at least the first `bytes` of the slot's task area; errors as for sr_commit. */
int sr_commit_task(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t bytes, sr_alloc_error *why);

/* Allocate `bytes` (aligned to `align`, a power of two) from the payload of a slot that this participant fills, and
 * commit them; *offset receives their offset. Several participants may allocate from a SHARED slot concurrently.
 * -EFBIG: the capacity does not suffice, and nothing is allocated (why->needed: bytes of the slot including this
 * request). If only the commit fails, the bytes stay allocated and can be committed later. */
int sr_alloc(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t bytes, uint64_t align, uint64_t *offset,
             sr_alloc_error *why);

/* Wait, after a commit failed with *why, for slots in use to release memory. *waited (initially 0) accumulates the time
 * in which no participant makes progress. 0: try the commit again; -EINTR; -ENOSPC: waiting is pointless. Other
 * participants see this one as waiting until it calls sr_end_wait_memory, which it must do in every case. */
int sr_wait_memory(sr_ring *ring, uint32_t participant, uint32_t slot, const sr_alloc_error *why, uint64_t *waited);
int sr_end_wait_memory(sr_ring *ring, uint32_t participant);
/* Return whether the participant waits for memory. */
bool sr_needs_memory(const sr_ring *ring, uint32_t participant);

/* Keep the slot's memory from now on, because a device reads from it. The caller owns the lease of the slot. */
int sr_set_registered(sr_ring *ring, uint32_t slot);

/* Release all memory of FREE slots, including task areas, as `participant` (defined in slot.c). Call it when this
 * process no longer needs the segment: other processes that have it mapped, such as a worker's own children, would keep
 * the memory. In a loader segment the consumer calls it after sr_close; idle tasks and READY batches are dropped too.
 * In a queue segment it does nothing while another participant has a number. It skips slots that are leased, pinned or
 * being filled: call it again after they are released. */
int sr_release_free(sr_ring *ring, uint32_t participant);

/* Reset the allocations of a slot: its owner starts over, to write an error in place of a batch. */
int sr_rewind(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen);

/* Map the first `bytes` of a payload in one call, unless this process has touched them already. Map at most one growth
 * step more, even if a worker has overwritten `committed`. */
int sr_populate(sr_ring *ring, uint32_t slot, uint64_t bytes);

/* ---- wait.c: participants ---------------------------------------------------------------------------------------- */

/* Register the calling process as `participant`. Its pid and start time identify it. */
int sr_join(sr_ring *ring, uint32_t participant);
/* Announce that the worker is ready to claim, and wake the consumer. */
int sr_serve(sr_ring *ring, uint32_t participant);
int sr_participant_info(const sr_ring *ring, uint32_t participant, int *pid, uint32_t *status);
/* Wait until `participant` serves. -ETIMEDOUT, -EINTR, -ESHUTDOWN. */
int sr_wait_serving(sr_ring *ring, uint32_t participant, uint64_t deadline);

/* Close the segment and end all waits: every claim and wait returns -ESHUTDOWN from now on. */
int sr_close(sr_ring *ring);
/* Undo a close. No other participant may use the segment any more. */
int sr_reopen(sr_ring *ring);
bool sr_closed(const sr_ring *ring);
/* Retire the worker `participant`: it claims no more tasks, even if it has not started yet. Only the consumer of a
 * loader segment calls this. The worker finishes the task that it has claimed, and then its claim returns -ESHUTDOWN; a
 * waiting worker's claim returns at once. Tasks addressed to it stay in their slots. The number can be reused after the
 * worker has exited and sr_recover has been called for it. */
int sr_retire(sr_ring *ring, uint32_t participant);
/* Cancel a retirement. -ESTALE: the worker has already retired, or was not asked to. */
int sr_cancel_retirement(sr_ring *ring, uint32_t participant);
/* Wake all participants, so that each checks its condition again. */
int sr_wake_all(sr_ring *ring);

/* Start a thread that ends this process by _exit(1) as soon as the process of participant 0 has exited. The thread
 * waits on that process's pidfd. -ENOSYS: the kernel has no pidfd. */
int sr_watch_consumer(const sr_ring *ring);

/* ---- fork.c: forks, and a child's view of its parent's slots --------------------------------------------------- */

/* A fork generation: a child gets a different number than its parent. A lease compares it, because a forked child must
 * not release its parent's leases. */
extern _Atomic uint64_t sr_forks;
static inline uint64_t sr_fork_generation(void) { return atomic_load_explicit(&sr_forks, memory_order_relaxed); }

/* Count a lease or a pin of this process on the slot. A child that is forked meanwhile gets a copy of the slot's bytes,
 * at the same addresses, for its whole life. A raw clone or a vfork copies nothing. */
void sr_ref(sr_ring *ring, uint32_t slot);
/* Undo one sr_ref, in the process that called it. False: neither release nor unpin the slot while the segment lives,
 * because a child sees it and there was no memory for a copy. */
bool sr_unref(sr_ring *ring, uint32_t slot);
bool sr_pinned_after_fork(const sr_ring *ring, uint32_t slot);
/* Mark forks of this thread as forks of slipring's workers: they need the segment and no copies. The mark does not
 * apply to the child's own forks. */
void sr_fork_of_worker(bool on);

/* ---- recover.c: processes of a queue segment --------------------------------------------------------------------- */

/* Take a free participant number for the calling process; if there is none, recover dead participants first. -EUSERS:
 * living processes have all numbers; -EXDEV: the segment was created in another PID namespace. */
int sr_enter(sr_ring *ring, uint32_t *participant);
/* Release the number. -EBUSY: a slot is still leased or pinned under it; -ESTALE: it is not this process's number. */
int sr_leave(sr_ring *ring, uint32_t participant);
/* Recover the participants whose process has exited: all of them if `all`, else only those that own something. Return
 * how many there were. Any participant may call this at any time. */
int sr_recover_dead(sr_ring *ring, bool all);

/* Count the READY and the FREE slots. */
int sr_count(const sr_ring *ring, uint32_t *ready, uint32_t *free_slots);

/* Note that a process polls an event descriptor: from now on publishers signal it if sr_polled returns true after a
 * publish. */
int sr_set_polled(sr_ring *ring);
bool sr_polled(const sr_ring *ring);

/* ---- slot.c: the state machine of a slot ------------------------------------------------------------------------- */

/* Consumer of a loader segment */

/* Make `iteration` the current iteration: tasks and batches of all others are stale from now on. */
int sr_begin_iteration(sr_ring *ring, uint64_t iteration);

/* Find the FREE slot that was released last, because its pages are warm in every process. The slot is not reserved:
 * there is only one dispatcher. -EAGAIN: no slot is FREE. */
int sr_pick_free(sr_ring *ring, uint32_t *slot);

/* FREE -> TASK, or SHARED if task->n_ranges > 0; then wake a worker that may take it. The caller has already written
 * the task area. *gen receives the generation. -EBUSY: not FREE; -EAGAIN: another participant is releasing its memory,
 * pick another slot; -EINVAL: invalid task, or a queue segment, whose producers claim slots themselves. */
int sr_dispatch(sr_ring *ring, uint32_t slot, const sr_task *task, uint64_t *gen);

/* TASK -> FREE. SHARED: stop all unclaimed ranges; the slot becomes FREE at once if no worker has a range. -EBUSY: a
 * worker has the task. A whole task will be published; discard it then. A stopped SHARED slot becomes FREE with its
 * last claimed range. -ESTALE: another generation. */
int sr_cancel(sr_ring *ring, uint32_t slot, uint64_t gen);

/* Wait until `slot` is READY; SR_ANY: any slot of the current iteration, lowest sequence number first. *found receives
 * the slot. A deadline of 0 checks without sleeping. -ETIMEDOUT, -EINTR, -ESHUTDOWN, -ECANCELED. */
int sr_wait_ready(sr_ring *ring, uint32_t slot, uint64_t deadline, uint32_t *found);

/* Like sr_wait_ready, but also return -ETIMEDOUT soon after the descriptor `death_fd` becomes readable. `death_fd` is a
 * pidfd or an epoll of several; -1: none. */
int sr_wait_ready_or_death(sr_ring *ring, uint32_t slot, uint64_t deadline, int death_fd, uint32_t *found);

/* If `on`, interrupt the waits of this process: sr_wait_ready returns -ECANCELED instead of sleeping, and a sleeping
 * thread wakes. Otherwise undo that. It still finds READY slots. */
int sr_interrupt(sr_ring *ring, bool on);

/* READY -> LEASED, owned by `participant`. *result receives a copy that is not yet validated. -EBUSY: not READY; in a
 * queue segment also: no longer the first, because another consumer was faster (wait again). */
int sr_take(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t *gen, sr_result *result);

/* Return how many slots can still carry tasks: those neither leased nor parked. If there are `enough`, the count may
 * stop there. */
int sr_circulating(const sr_ring *ring, int enough);

/* LEASED -> FREE; PARKED while worker code keeps an array in it. -ESTALE: not this lease. If the slot is BROADCAST, it
 * does the same as sr_release_shared for the consumer (defined in share.c). */
int sr_release(sr_ring *ring, uint32_t slot, uint64_t gen);

/* READY -> FREE (or PARKED, as above) for an unwanted batch. -EBUSY: not READY. */
int sr_discard(sr_ring *ring, uint32_t slot);

/* Wait for a FREE slot; *slot receives the one that sr_pick_free would choose. A deadline of 0 checks without sleeping.
 * -ETIMEDOUT, also soon after `death_fd` becomes readable (a pidfd or an epoll of several; -1: none); -EINTR;
 * -ESHUTDOWN; -ECANCELED as sr_wait_ready. A stale batch that is published meanwhile wakes nobody: the wait finds its
 * slot within half a second. */
int sr_wait_free(sr_ring *ring, uint64_t deadline, int death_fd, uint32_t *slot);

/* Worker */

/* Wait for a task that `participant` may take, lowest sequence number first, and claim it. *range receives SR_WHOLE, a
 * range number, or SR_FINISH. The wait is added to the slot's idle_ns. -ETIMEDOUT, -EINTR, -ESHUTDOWN. */
int sr_claim(sr_ring *ring, uint32_t participant, uint64_t deadline, uint32_t *slot, uint32_t *range, uint64_t *gen);

/* A pool of workers: each serves several segments, and has the same participant number in all of them */

/* A segment that a worker of a pool serves. The caller sets `ring`; the other fields are of sr_claim_any. */
typedef struct sr_served {
    sr_ring *ring;
    uint32_t supply;  /* how much of the segment's work is done or in progress: the lowest is served first */
    uint32_t woken;   /* 1: a waker of this segment has picked this worker */
} sr_served;

/* Use the pool's wake file (sr_wake_line) in place of the participants' `wake` words, in this handle. All participants
 * but observers must, before the first of them dispatches, serves or closes. -EINVAL: it is too short. */
int sr_use_wake_file(sr_ring *ring, int fd);

/* Read the worker's wake word, for sr_claim_any. */
uint32_t sr_wake_count(const sr_ring *ring, uint32_t participant);

/* Wake the worker, although there may be no task: its next sr_claim_any returns. */
int sr_wake_worker(sr_ring *ring, uint32_t participant);

/* Like sr_claim, for a task of any of the `n` segments that are not closed. `seen`: the result of sr_wake_count before
 * the caller last looked for other messages. -EAGAIN: the worker was woken, and there is no task. Otherwise
 * *which receives the segment's index. Segments whose consumer would run dry first are served first; of two equal ones,
 * the one that comes first after *which, which holds the index of the last claim. -EINTR. */
int sr_claim_any(sr_served *served, uint32_t n, uint32_t participant, uint32_t seen, uint32_t *which, uint32_t *slot,
                 uint32_t *range, uint64_t *gen);

/* Return whether the consumer waits for a batch that no worker has begun. */
bool sr_is_starving(const sr_ring *ring);

/* CLAIMED -> READY, and wake the participant that waits for it. `pinned`: worker code keeps an array in the slot;
 * sr_unpin will follow. -ESTALE: not the owner of this generation. */
int sr_publish(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen, const sr_result *result, bool pinned);

/* CLAIMED -> FREE: the owner gives up and publishes nothing. */
int sr_abort(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen);

/* CLAIMED -> PARKED: like sr_abort, but the owner's code keeps an array in the slot; sr_unpin will follow. */
int sr_park(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen);

/* Unpin a published or parked slot: worker code has dropped its last array in it. */
int sr_unpin(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen);

/* Slots with ranges */

/* End the owner's range; `result` (may be NULL) describes its staged rows. Return 1 if this was the last range: this
 * participant now owns the slot and must finish and publish it. Otherwise return 0. */
int sr_range_done(sr_ring *ring, uint32_t participant, uint32_t slot, uint32_t range, uint64_t gen,
                  const sr_result *result);

/* Decide which participant proposes the layout of the rows. Return 0: this participant must propose and then settle;
 * SR_LAYOUT_DIRECT or SR_LAYOUT_STAGED: it is settled. Wait while another participant proposes. -ETIMEDOUT, -EINTR,
 * -ESHUTDOWN; -ESTALE: another generation. */
int sr_layout_propose(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen, uint64_t deadline);

/* Settle the layout. For SR_LAYOUT_DIRECT, `result` describes the table that the caller has written. */
int sr_layout_settle(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen, int layout,
                     const sr_result *result);

/* Queue mode */

/* FREE -> CLAIMED by a producer; wait for a FREE slot if there is none. A deadline of 0 checks without sleeping.
 * -ETIMEDOUT, -EINTR, -ESHUTDOWN. */
int sr_claim_free(sr_ring *ring, uint32_t participant, uint64_t deadline, uint32_t *slot, uint64_t *gen);

/* ---- share.c: batches that the consumer shares with readers ------------------------------------------------------ */

/* Consumer of a loader segment. One thread at a time calls these two and sr_recover. */

/* LEASED -> BROADCAST: every reader that takes part now has a lease too, and the batch gets the next number. Return how
 * many readers these are. -ESTALE: not a lease of this generation; -EINVAL: no such slot, or a queue segment. */
int sr_share(sr_ring *ring, uint32_t slot, uint64_t gen);
/* Share a mark in place of a batch, in a FREE slot: the iteration ends with `seq` results. Errors as for
 * sr_dispatch. */
int sr_share_end(sr_ring *ring, uint32_t slot, uint64_t iteration, uint64_t seq);

/* Return how many slots only readers keep: the consumer has released them. */
int sr_lent(const sr_ring *ring);
/* Return how many slots no reader keeps: FREE ones, and those whose readers have yet to take the batch. If there are
 * `enough`, the count may stop there. */
int sr_unkept(const sr_ring *ring, int enough);

/* A reader as any participant sees it; it may change at any time. */
typedef struct sr_reader_info {
    uint64_t incarnation; /* the last process that had its number: pid in the low half; 0: none */
    uint64_t lag;      /* shared batches that it has not taken */
    uint32_t leases;      /* batches that it has taken and not released, also from before it left */
    bool takes_part;      /* it is between sr_begin_reading and sr_end_reading */
    bool serving;         /* sr_begin_reading has returned, or is about to */
} sr_reader_info;
/* -EINVAL: not a reader's number. */
int sr_reader_info_of(const sr_ring *ring, uint32_t participant, sr_reader_info *out);
/* Return 1 if the process that joined with this number has ended or runs another program, 0 if not, or if none did. */
int sr_participant_ended(const sr_ring *ring, uint32_t participant);

/* Reader */

typedef struct sr_shared {
    uint64_t number;    /* of the batch, among all that the consumer has shared */
    uint64_t gen;
    uint64_t iteration;
    uint64_t seq;       /* of an end mark: the number of results of the iteration */
    sr_result result;   /* not yet validated; kind SR_END for an end mark, too */
    uint32_t slot;
    bool is_end;        /* an end mark. It is released like a batch */
} sr_shared;

/* Take part from now on, as this process: the reader gets each batch that the consumer begins to share afterwards. It
 * joins if necessary, and wakes sr_wait_serving. -EINVAL: not a reader's number; -EBUSY: a process takes part with it,
 * or has died and was not recovered. */
int sr_begin_reading(sr_ring *ring, uint32_t participant);
/* Take part no longer: release all batches that the reader has not taken. Its leases stay until sr_release_shared. It
 * may begin again at once. -ESTALE: it does not take part. */
int sr_end_reading(sr_ring *ring, uint32_t participant);
/* Wait for the next batch of this reader. A deadline of 0 checks without sleeping. -ETIMEDOUT, -EINTR, -ECANCELED as
 * sr_wait_ready. -ESHUTDOWN: the segment is closed; -EOWNERDEAD: `death_fd`, the pidfd of the consumer or -1, is
 * readable; in both cases no shared batch is left. -ESTALE: the reader does not take part. */
int sr_wait_shared(sr_ring *ring, uint32_t participant, uint64_t deadline, int death_fd);
/* Take the next batch. The lease ends with sr_release_shared, in any order. -EAGAIN: there is none yet; -EPROTO: the
 * log is damaged. */
int sr_take_shared(sr_ring *ring, uint32_t participant, sr_shared *out);
/* End the lease of a reader or of the consumer. The last one makes the slot FREE (PARKED while worker code keeps an
 * array in it). -ESTALE: not this lease. */
int sr_release_shared(sr_ring *ring, uint32_t participant, uint32_t slot, uint64_t gen);

/* ---- record.c: durations and statistics -------------------------------------------------------------------------- */

/* Add to the durations of a batch, and to the count of samples that the dataset skipped. The owner of the slot, or of
 * one of its ranges, calls it. */
int sr_add_times(sr_ring *ring, uint32_t slot, uint64_t fetch_ns, uint64_t collate_ns, uint64_t skipped);
/* Add the parts of the fetch time that the dataset reports, and the slowest sample. */
typedef struct sr_parts {
    uint64_t read_ns, decode_ns, resize_ns, augment_ns, user_ns, slowest_ns;
    int64_t slowest_index;
    uint32_t hits, misses;
} sr_parts;
int sr_add_parts(sr_ring *ring, uint32_t slot, const sr_parts *parts);
/* Count an attempt to read a remote file: SR_READS, it succeeded; SR_READ_TIMEOUTS to SR_READ_REJECTED, it failed. Any
 * thread of any process that has mapped the segment may call it. Return how many attempts ended so before. */
uint64_t sr_add_read(sr_ring *ring, enum sr_read_count outcome, uint64_t bytes, uint64_t ns);
/* Record that the participant reads this row of the slot since `since`; SR_WHOLE: it reads none. */
void sr_set_row(sr_ring *ring, uint32_t participant, uint32_t slot, uint32_t row, uint64_t since);
/* Record how long the copy to a device took. The consumer that owns the slot calls it. */
void sr_set_copy_time(sr_ring *ring, uint32_t slot, uint64_t copy_ns);
/* Record a step of a training loop for which a thread takes the batches: its wait, and its total duration. */
void sr_add_loop_step(sr_ring *ring, uint64_t wait_ns, uint64_t step_ns);

/* Copy the slot's stamps and durations. They belong to one batch only while the caller owns the slot. */
typedef struct sr_stamps {
    uint64_t dispatched_at, claimed_at, fetched_at, published_at, taken_at, fetch_ns, collate_ns, idle_ns, skipped;
} sr_stamps;
int sr_stamps_of(const sr_ring *ring, uint32_t slot, sr_stamps *out);
/* Record, just after sr_take, how long the consumer waited for the slot, and its step since `before`, the time of its
 * previous take (0: none). *out receives the stamps and durations that the consumer sums: all except dispatched,
 * claimed and fetched. */
void sr_record_take(sr_ring *ring, uint32_t slot, uint64_t waited_ns, uint64_t before, sr_stamps *out);

/* ---- copy.c: copies larger than the caches ----------------------------------------------------------------------- */

/* Ways to copy. All except memcpy bypass the caches. A later publish makes every copy visible. */
enum sr_copy { SR_COPY_UNKNOWN = 0, SR_COPY_MEMCPY = 1, SR_COPY_STREAM16 = 2, SR_COPY_STREAM64 = 3, SR_COPY_WAYS = 4 };
/* Return the widest streaming way of this processor; SR_COPY_MEMCPY if it has none. */
uint32_t sr_copy_widest(void);
/* Copy `bytes` in the given way, at most the widest. */
void sr_copy_by(uint32_t way, void *to, const void *from, uint64_t bytes);
/* Copy `n` pieces of `each` bytes, contiguously, in the fastest way. The process measures it in its first such calls,
 * unless sr_copy_choose or SLIPRING_COPY=memcpy or =streaming in the environment sets it. */
void sr_copy_rows(char *to, const char *const *from, uint64_t n, uint64_t each);
/* Return the chosen way; SR_COPY_UNKNOWN: none yet. */
uint32_t sr_copy_chosen(void);
/* Adopt the way that another process has measured, unless this process has chosen one already. */
void sr_copy_choose(uint32_t way);

/* ---- recover.c: recovery of dead participants -------------------------------------------------------------------- */

/* Release everything that `participant` owned; the caller has confirmed its death. If it was a reader, also free the
 * slots that it was the last to release. Return how many tasks of a loader
 * segment will be redone, or -errno. */
int sr_recover(sr_ring *ring, uint32_t participant);
/* Like sr_recover, for a dead thread of a living process: its arrays still exist, so their slots stay pinned until
 * sr_unpin. */
int sr_recover_thread(sr_ring *ring, uint32_t participant);

/* Find the first slot, from *slot on, whose task `participant` has claimed (or a range of it), or that is addressed to
 * it: the work that a dead worker leaves unfinished. -ENOENT: there is none. */
int sr_find_owned(const sr_ring *ring, uint32_t participant, uint32_t *slot);

#endif
