/* ring.h - the whole API of the slipring core.
 *
 * A segment is one shared mapping of header, parties, slot controls and slots. An sr_ring is one
 * process's handle on it. Threads of a process may share a handle.
 *
 * Every function returns 0 (or the count that its comment names) or -errno; there is no global error
 * state. Times are CLOCK_MONOTONIC nanoseconds; a deadline is absolute, SR_FOREVER for none. Functions
 * that wait return -EINTR when a signal handler ran, so that the caller can look at its signals.
 *
 * docs/protocol.md describes the protocol that these functions speak.
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

/* sr_claim's *range */
#define SR_WHOLE UINT32_MAX        /* the whole slot */
#define SR_FINISH (UINT32_MAX - 1) /* all ranges are done: put them together and publish */

typedef struct sr_options {
    uint32_t n_slots;       /* 1 .. SR_MAX_SLOTS */
    uint32_t n_parties;     /* consumer included: 2 .. SR_MAX_PARTIES */
    uint32_t flags;         /* SR_SEG_PUSH */
    int backing;            /* enum sr_backing */
    const char *dir;        /* SR_BACKING_DIR: a directory on a tmpfs */
    uint64_t capacity;      /* payload bytes to reserve per slot; 0: as much as fits, at most 16 GiB */
    uint64_t task_capacity; /* task bytes to reserve per slot; 0: the default */
    const char *label;      /* what people know it by, or NULL; cut to SR_LABEL */
    const char *record;     /* a file for all but the slots, or NULL */
} sr_options;

typedef struct sr_info {
    uint32_t n_slots, n_parties, flags;
    int backing;            /* what was chosen; on an attached handle SR_BACKING_AUTO */
    const char *reason;     /* why, a static text */
    uint64_t capacity;      /* reserved per slot */
    uint64_t wanted;        /* capacity that was asked for; larger than capacity where a limit was in the way */
    const char *limited_by; /* that limit, or NULL */
    uint64_t total;
    uint32_t copies;        /* enum sr_copy: as the header has it */
    int record;             /* 0, or why there is no record file although it was asked for: -errno */
    uint32_t record_number; /* its name is the one asked for, with ".2", ".3", ... behind it; 0: there is none */
} sr_info;

/* ---- segment.c: making, sharing and ending a segment ------------------------------------------------ */

/* Creates a segment that has no name: when the last process has gone, so has it.
 * Commits header, controls, and the first bytes of each task area and payload.
 * -EINVAL bad options; -ENOMEM, -ENOSPC, -EFBIG, -EMFILE, ... what the system said (see *why). */
int sr_create(const sr_options *options, sr_ring **out, sr_shortage *why);
#define SR_TASK_COMMIT UINT64_C(8192)
/* The first bytes of each payload are committed too: an error that says 'no memory' needs a place to stand. */
#define SR_PAYLOAD_COMMIT UINT64_C(8192)

/* Maps the segment behind `fd` (which is duplicated). `record`: its record file's descriptor, -1 if it has none.
 * -EPROTO: not a segment, another version or an inconsistent header. */
int sr_attach(int fd, int record, sr_ring **out);

/* A second handle on the same mapping for a forked child: forgets what only held for the parent. */
int sr_after_fork(sr_ring *ring);

/* Unmaps and closes. The caller knows that nobody in this process uses the mapping any more. */
int sr_destroy(sr_ring *ring);

/* The segment's descriptor; -EBADF if it has been closed, whatever file may have its number by now. */
int sr_fd(const sr_ring *ring);
/* The record file's; -ENOENT: it has none. */
int sr_record_fd(const sr_ring *ring);
int sr_describe(const sr_ring *ring, sr_info *info);

/* For readers: the slot's control, task, task area, payload. NULL if there is no such slot. */
sr_slot *sr_slot_at(const sr_ring *ring, uint32_t slot);
const sr_task *sr_task_of(const sr_ring *ring, uint32_t slot);
/* What a range staged (SR_WHOLE: what the slot's layout or publish recorded). */
const sr_result *sr_result_of(const sr_ring *ring, uint32_t slot, uint32_t range);
char *sr_task_area(const sr_ring *ring, uint32_t slot);
char *sr_payload(const sr_ring *ring, uint32_t slot);

/* Payload bytes of one slot that are backed by memory: what a reader may touch. 0 if there is no such slot. */
uint64_t sr_slot_committed(const sr_ring *ring, uint32_t slot);

/* Bytes committed in the whole segment (slots, task areas, controls). */
uint64_t sr_committed(const sr_ring *ring);

/* ---- memory.c: memory of a slot ----------------------------------------------------------------------- */

/* Makes sure that the first `bytes` of the slot's payload are backed by memory and mapped here.
 * -EFBIG larger than the capacity; -ENOSPC would exceed a limit; *why tells (may be NULL). */
int sr_commit(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t bytes, sr_shortage *why);

/* The same for the task area. */
int sr_commit_task(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t bytes, sr_shortage *why);

/* Takes `bytes` (aligned to `align`, a power of two) from the payload of a slot that this party fills and
 * commits them; *offset is where. Several parties may take from a cooperative slot at once. What does not fit
 * the capacity takes nothing (-EFBIG; needed: the slot's bytes with it); what finds no memory stays taken, and can
 * be committed later. */
int sr_alloc(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t bytes, uint64_t align, uint64_t *offset,
             sr_shortage *why);

/* A commit has found no memory, and *why: waits for slots in use, some of whose memory may come back. 0: try again;
 * -EINTR; -ENOSPC: there is nothing to wait for. *waited, 0 at first, adds up how long nobody has got on. Others see that
 * this party waits until it calls sr_end_wait_room, whatever comes of it. */
int sr_wait_room(sr_ring *ring, uint32_t party, uint32_t slot, const sr_shortage *why, uint64_t *waited);
int sr_end_wait_room(sr_ring *ring, uint32_t party);
/* Whether a party waits for memory. */
bool sr_is_short(const sr_ring *ring, uint32_t party);

/* A device reads from the slot: its memory is not given back. The caller holds the slot. */
int sr_pin(sr_ring *ring, uint32_t slot);

/* Gives back all memory of slots that are FREE, task areas too, as `party`: the segment has served its time in this
 * process, and others that have it mapped (a worker's own children) would keep it. In a pull segment the consumer does
 * so, after sr_close: tasks that nobody works on and batches that nobody has taken go with it. In a push segment
 * nothing is done as long as another party takes part. What is leased, held or worked on stays: do it again then. */
int sr_vacate(sr_ring *ring, uint32_t party);

/* Forgets what was taken: the owner begins again (to write an error in place of a batch). */
int sr_rewind(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen);

/* Maps the first `bytes` of a payload in one call, if this process has not touched them yet; no more than a step of
 * growth beyond them, whatever a worker may have written as the mark of what is committed. */
int sr_populate(sr_ring *ring, uint32_t slot, uint64_t bytes);

/* ---- wait.c: parties --------------------------------------------------------------------------------- */

/* Enters the calling process as `party`; its pid and start time are its identity. */
int sr_join(sr_ring *ring, uint32_t party);
/* The worker is ready to claim; `flags` is its report to the consumer. Wakes the consumer. */
int sr_serve(sr_ring *ring, uint32_t party, uint32_t flags);
int sr_party_info(const sr_ring *ring, uint32_t party, int *pid, uint32_t *status, uint32_t *flags);
/* Waits until `party` serves. -ETIMEDOUT, -EINTR. */
int sr_wait_serving(sr_ring *ring, uint32_t party, uint64_t deadline);

/* Ends all waiting: every claim and wait returns -ESHUTDOWN from now on. */
int sr_close(sr_ring *ring);
/* Takes a close back. The caller knows that no other party uses the segment any more. */
int sr_reopen(sr_ring *ring);
bool sr_closed(const sr_ring *ring);
/* Pull mode, the consumer's verb: the worker `party` claims nothing more, whether it has begun or not. What it is at it
 * ends; then, or if it waits at once, its claim returns -ESHUTDOWN. What is addressed to it stays where it is. The
 * number can be used again once the worker has gone and sr_recover has been called for it. */
int sr_dismiss(sr_ring *ring, uint32_t party);
/* Takes that back, if the worker has not followed it yet; -ESTALE: it has, or was not dismissed. */
int sr_keep(sr_ring *ring, uint32_t party);
/* Wakes everybody, so that each looks again. */
int sr_wake_all(sr_ring *ring);

/* Ends this process by _exit(1) as soon as the process of party 0 has gone: by a thread that waits on its
 * pidfd. 0; -ENOSYS where the kernel has no pidfd. */
int sr_watch_consumer(const sr_ring *ring);

/* A number that a process shares with its parent until it is forked: a lease compares it, because a forked
 * child must not release what its parent holds (fork.c). */
extern _Atomic uint64_t sr_forks;
static inline uint64_t sr_fork_generation(void) { return atomic_load_explicit(&sr_forks, memory_order_relaxed); }

/* This process has a lease or a hold on a slot, from now on: a child that is forked meanwhile gets a copy of what lies
 * there, at the same addresses, for as long as it lives. By raw clone and vfork nothing is copied. */
void sr_use(sr_ring *ring, uint32_t slot);
/* Not any more, in the process that had it. False: the slot must not be released, nor unheld, as long as the segment lives,
 * because a child sees it and there was no memory for a copy. */
bool sr_unuse(sr_ring *ring, uint32_t slot);
bool sr_stays(const sr_ring *ring, uint32_t slot);
/* What this thread forks from now on is a worker of this library's: it needs the segment and no copies. The child's own
 * children are no workers. */
void sr_fork_of_worker(bool on);

/* ---- party.c: who has which number in a push segment --------------------------------------------------------- */

/* Takes a free party number for the calling process, after a look for those of the dead if there is none.
 * -EUSERS: living processes have them all; -EXDEV: the segment was made in another PID namespace. */
int sr_enter(sr_ring *ring, uint32_t *party);
/* Gives the number back. -EBUSY: a slot is still held under it; -ESTALE: it is not this process's. */
int sr_leave(sr_ring *ring, uint32_t party);
/* Looks for parties whose process has gone (`all`; else only those that hold something), and recovers them. Returns
 * how many there were. Any party may call it at any time. */
int sr_recover_dead(sr_ring *ring, bool all);

/* How many slots are READY, and how many FREE. */
int sr_count(const sr_ring *ring, uint32_t *ready, uint32_t *free_slots);

/* Somebody polls an event descriptor from now on: publishers ask sr_polled after each publish, and then signal it. */
int sr_set_polled(sr_ring *ring);
bool sr_polled(const sr_ring *ring);

/* ---- ring.c, claim.c: the life of a slot --------------------------------------------------------------------------- */

/* Consumer of a pull segment. ------------------------------------------------------------------------------- */

/* Begins run `run`: tasks and batches of any other run are stale from now on. */
int sr_begin_run(sr_ring *ring, uint64_t run);

/* The FREE slot that was released last (it is warm everywhere), without taking it: there is one
 * dispatcher. -EAGAIN: none. */
int sr_pick_free(sr_ring *ring, uint32_t *slot);

/* FREE -> TASK (or SHARED when task->n_ranges > 0), then wakes a worker that may take it. The task area has
 * been written before. *gen receives the generation. -EBUSY: not FREE; -EAGAIN: its memory is being given
 * back, take another; -EINVAL: also in a push segment, whose
 * slots the producers claim. */
int sr_dispatch(sr_ring *ring, uint32_t slot, const sr_task *task, uint64_t *gen);

/* TASK -> FREE; SHARED: no further range is given out, and FREE at once if none is being worked on.
 * 0; -EBUSY if a worker has it (a whole task will be published, and then is to be discarded; a stopped SHARED
 * one becomes FREE with the last range at work); -ESTALE: another generation. */
int sr_cancel(sr_ring *ring, uint32_t slot, uint64_t gen);

/* Waits until `slot` (SR_ANY: any slot of the current run, the lowest ticket first) is READY; *found tells
 * which. A deadline of 0 asks without sleeping. -ETIMEDOUT, -EINTR, -ESHUTDOWN, -ECANCELED. */
int sr_wait_ready(sr_ring *ring, uint32_t slot, uint64_t deadline, uint32_t *found);

/* The same, but -ETIMEDOUT also when the descriptor `watched` is readable, soon after it is: a pidfd, or an epoll of
 * several. -1: none. */
int sr_wait_watching(sr_ring *ring, uint32_t slot, uint64_t deadline, int watched, uint32_t *found);

/* From now on (until it is taken back) sr_wait_ready does not sleep in this process, and returns -ECANCELED
 * where it would; a thread that sleeps in it wakes. What is READY is still found. */
int sr_interrupt(sr_ring *ring, bool on);

/* READY -> LEASED with `party` as holder; *result is a copy, not yet checked. -EBUSY: not READY; in a push
 * segment also: not the first any more, because another consumer was faster (wait again). */
int sr_take(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t *gen, sr_result *result);

/* Slots that can still carry tasks: neither leased nor parked. */
int sr_circulating(const sr_ring *ring);

/* LEASED -> FREE (PARKED while worker code holds an array in it). -ESTALE: not this lease. */
int sr_release(sr_ring *ring, uint32_t slot, uint64_t gen);

/* READY -> FREE for what nobody wants. -EBUSY: not READY. */
int sr_discard(sr_ring *ring, uint32_t slot);

/* Worker. ------------------------------------------------------------------------------------------------- */

/* Waits for a task that `party` may take, lowest ticket first, and claims it.
 * *range: SR_WHOLE, a range number, or SR_FINISH. Adds the time waited to the slot's idle_ns.
 * -ETIMEDOUT, -EINTR, -ESHUTDOWN. */
int sr_claim(sr_ring *ring, uint32_t party, uint64_t deadline, uint32_t *slot, uint32_t *range, uint64_t *gen);

/* CLAIMED -> READY, and wakes who waits for it. `held`: worker code kept an array; sr_unhold will follow.
 * -ESTALE: not the owner of this generation. */
int sr_publish(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen, const sr_result *result, bool held);

/* CLAIMED -> FREE: the owner gives up and nothing is published. */
int sr_abort(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen);

/* CLAIMED -> PARKED: as sr_abort, but code of the owner keeps an array in it; sr_unhold will follow. */
int sr_park(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen);

/* The last array that worker code held in a published slot has gone. */
int sr_unhold(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen);

/* Cooperative slots (coop.c). ------------------------------------------------------------------------------ */

/* The owner has done its range; `result` (may be NULL) is what it staged. Returns 1 if this party is now the
 * slot's owner because it was the last: it must finish and publish; else 0. */
int sr_range_done(sr_ring *ring, uint32_t party, uint32_t slot, uint32_t range, uint64_t gen,
                  const sr_result *result);

/* Who decides how the rows lie: 0 this party must propose (and then settle); SR_LAYOUT_DIRECT or
 * SR_LAYOUT_STAGED: it is settled. Waits while another party proposes. -ETIMEDOUT, -EINTR, -ESHUTDOWN;
 * -ESTALE: another generation. */
int sr_layout_propose(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen, uint64_t deadline);

/* Settles the layout; for SR_LAYOUT_DIRECT `result` describes the table that has been written. */
int sr_layout_settle(sr_ring *ring, uint32_t party, uint32_t slot, uint64_t gen, int layout,
                     const sr_result *result);

/* Push mode. --------------------------------------------------------------------------------------------- */

/* FREE -> CLAIMED by a producer, waiting for a slot if need be; a deadline of 0 asks without sleeping. -ETIMEDOUT,
 * -EINTR, -ESHUTDOWN. */
int sr_claim_free(sr_ring *ring, uint32_t party, uint64_t deadline, uint32_t *slot, uint64_t *gen);

/* ---- record.c: how long what has taken ------------------------------------------------------------------------- */

/* Adds to the durations of the batch being made, and to the count of samples that were passed over; the owner of the
 * slot, or of one of its ranges, calls it. */
int sr_note(sr_ring *ring, uint32_t slot, uint64_t fetch_ns, uint64_t collate_ns, uint64_t skipped);
/* The same for what the dataset tells of the time of fetching, and for the sample that took longest. */
typedef struct sr_parts {
    uint64_t read_ns, decode_ns, resize_ns, slowest_ns;
    int64_t slowest_index;
    uint32_t hits, misses;
} sr_parts;
int sr_note_parts(sr_ring *ring, uint32_t slot, const sr_parts *parts);
/* The party reads that row of the slot from `since` on; SR_WHOLE: none any more. */
void sr_note_row(sr_ring *ring, uint32_t party, uint32_t slot, uint32_t row, uint64_t since);
/* The consumer, who has the slot: how long its copy to a device took. */
void sr_note_copy(sr_ring *ring, uint32_t slot, uint64_t copy_ns);
/* The loop has made a step with what a thread has taken for it: how long it waited, and how long all of it took. */
void sr_note_loop(sr_ring *ring, uint64_t wait_ns, uint64_t step_ns);

/* The slot's stamps and durations; they belong to one batch only while the caller holds the slot. */
typedef struct sr_stamps {
    uint64_t dispatched_at, claimed_at, fetched_at, published_at, taken_at, fetch_ns, collate_ns, idle_ns, skipped;
} sr_stamps;
int sr_stamps_of(const sr_ring *ring, uint32_t slot, sr_stamps *out);
/* The consumer has just taken the slot: notes how long it waited for it, and its step since `before`, when it took the
 * last one (0: none). Of the stamps it gives what the consumer adds up: all but dispatched, claimed, fetched. */
void sr_note_take(sr_ring *ring, uint32_t slot, uint64_t waited_ns, uint64_t before, sr_stamps *out);

/* ---- copy.c -------------------------------------------------------------------------------------------------- */

/* Ways of copying what is larger than the caches; memcpy apart, past them. All of it is visible to whoever sees a later
 * publish. */
enum sr_copy { SR_COPY_UNKNOWN = 0, SR_COPY_MEMCPY = 1, SR_COPY_STREAM16 = 2, SR_COPY_STREAM64 = 3, SR_COPY_WAYS = 4 };
/* The widest streaming way of this processor; memcpy where it has none. */
uint32_t sr_copy_widest(void);
/* Copies in a way, which must not be above the widest. */
void sr_copy_by(uint32_t way, void *to, const void *from, uint64_t bytes);
/* Copies `n` pieces, one behind the other, in the way that the first such calls of this process have shown to be the
 * fastest, or that it was told. SLIPRING_COPY=memcpy or =streaming in the environment decides it. */
void sr_copy_rows(char *to, const char *const *from, uint64_t n, uint64_t each);
/* The way that was chosen; SR_COPY_UNKNOWN: none yet. */
uint32_t sr_copy_chosen(void);
/* Takes over what another process has measured, unless this one has, too. */
void sr_copy_choose(uint32_t way);

/* ---- recover.c --------------------------------------------------------------------------------------------- */

/* Gives back all that `party` held; the caller has confirmed that it is dead. Returns the number of tasks that
 * will be done again (a pull segment), or -errno. */
int sr_recover(sr_ring *ring, uint32_t party);
/* The same for a thread of a process that lives on: the arrays that its code keeps are still there, and so their
 * slots stay held until sr_unhold. */
int sr_recover_thread(sr_ring *ring, uint32_t party);

/* The first slot from *slot on with a task that `party` has claimed (or a range of it), or that is addressed to
 * it: what a death leaves undone. -ENOENT: none. */
int sr_find_owned(const sr_ring *ring, uint32_t party, uint32_t *slot);

#endif
