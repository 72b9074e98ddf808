/* internal.h - what the files of the ring share, such as a process's handle on a segment. Private to csrc. */
#ifndef SLIPRING_INTERNAL_H
#define SLIPRING_INTERNAL_H

#include <errno.h>

#include "atomics.h"
#include "ring.h"

struct sr_dispatched {
    bool is_set;
    uint64_t gen;
    sr_task task;
};

struct sr_ring {
    char *base;
    sr_header *header;
    sr_participant *participants;
    sr_slot *slots;
    sr_totals *totals; /* NULL: nothing is recorded (handles of the model) */
    sr_record *records;
    sr_file file;      /* use its descriptor only through sr_fd */
    sr_file record;    /* the file of the controls, if they are in one (SR_SEG_RECORDED) */
    /* Constant fields of the header, validated once: the shared copy is never trusted again. */
    uint32_t n_slots, n_participants, flags, n_readers;
    uint64_t data_off, stride, task_capacity, capacity, total;
    sr_info info;
    /* Payload bytes per slot that this process has mapped. Threads share it. */
    _Atomic uint64_t *populated;
    /* The tasks that this process has dispatched, per slot: workers may overwrite the shared copy. NULL: not kept
     * (handles of the model). */
    struct sr_dispatched *dispatched;
    /* 1: waits for batches in this process return (sr_interrupt). */
    _Atomic uint32_t interrupted;
    /* fork.c: how many leases and pins this process has on each slot; whether it was forked with copies in place of
     * some slots; and the old address of the mapping, if the segment was mapped again because of them. */
    _Atomic uint32_t *refs;
    bool has_copies;
    char *inherited;
    sr_wake_line *wake_lines; /* n_participants lines of the wake file of the pool that serves the segment; or NULL */
    sr_ring *next;     /* in the list of this process's handles */
};

static inline uint64_t sr_word(unsigned state, uint64_t owner, uint64_t gen)
{
    return (uint64_t)state | owner << SR_OWNER_SHIFT | gen << SR_GEN_SHIFT;
}
static inline unsigned sr_state_of(uint64_t word) { return (unsigned)(word & SR_STATE_MASK); }
static inline uint64_t sr_owner_of(uint64_t word) { return (word & SR_OWNER_MASK) >> SR_OWNER_SHIFT; }
static inline uint64_t sr_gen_of(uint64_t word) { return word >> SR_GEN_SHIFT; }
static inline uint64_t sr_next_gen(uint64_t gen) { return (gen + 1) & (UINT64_MAX >> SR_GEN_SHIFT); }

/* Scans stop at the slots used so far. Ordered, like the loads of states: a participant that has announced its sleep
 * must see the slot whose dispatcher did not see the announcement. */
static inline uint32_t sr_scan_end(const sr_ring *ring)
{
    uint32_t n = sr_load_ordered(&ring->header->high_water);
    return n < ring->n_slots ? n : ring->n_slots;
}

static inline sr_slot *sr_slot_checked(const sr_ring *ring, uint32_t slot)
{
    return slot < ring->n_slots ? &ring->slots[slot] : NULL;
}

/* fork.c: add the handle to the list that forks process, and remove it. */
void sr_enlist(sr_ring *ring);
void sr_delist(sr_ring *ring);
/* Map the segment at another address, where no copies lie; for a forked child that becomes a participant. */
int sr_move_from_copies(sr_ring *ring);
/* copy.c: share this process's way to copy with the other processes of the segment, if it has chosen one. */
void sr_copy_report(sr_header *header);

/* memory.c: check that `need` bytes are available; -ENOSPC: they are not, see *why. */
int sr_check_memory(int fd, uint64_t need, sr_alloc_error *why);
/* Clear a dead participant's announced growth, unless its word differs from `seen` by now; wake the participants that
 * wait for that. */
void sr_end_growing(sr_ring *ring, uint32_t participant, uint64_t seen);
/* Release the memory of the FREE slot that was used longest ago. False: no such slot has any, or the kernel refused. */
bool sr_trim_free(sr_ring *ring, uint32_t participant);
/* Release the owner's memory after the first `used` bytes of a slot, if that is much. */
void sr_trim_tail(sr_ring *ring, uint32_t slot, uint64_t used);
/* Return whether a reader that does not wait for a batch has a lease: it may release memory. */
bool sr_readers_work(const sr_ring *ring);
static inline uint32_t sr_pages_of(uint64_t growing) { return (uint32_t)growing; }

/* How long a worker waits for memory when all participants wait for one another: another thread of the consumer may
 * release a batch, which no other process can know. And how often the worker checks. */
#ifndef SR_MEMORY_WAIT_NS
#define SR_MEMORY_WAIT_NS UINT64_C(1000000000)
#endif
#define SR_MEMORY_CHECK_NS UINT64_C(50000000)

/* Interval at which a sleeping participant checks again, because a waker may be killed before its wake-up. Tests make
 * it infinite, so that a wake-up lost in any other way shows. */
#ifndef SR_RESCAN_NS
#define SR_RESCAN_NS UINT64_C(500000000)
#endif

/* Interval at which a sleeping consumer checks for dead workers: the supported kernels have no system call that sleeps
 * on a futex and a pidfd at once. */
#define SR_DEATH_CHECK_NS UINT64_C(30000000)

/* Interval at which a worker checks whether the consumer's process runs another program, because an exec does not
 * signal a pidfd. The check also finds its death, if code of the worker has closed the pidfd. */
#define SR_WATCH_MS 1000

/* wait.c */
uint64_t sr_rescan_at(uint64_t deadline);
void sr_wake_participant(sr_ring *ring, uint32_t participant);
void sr_wake_a_worker(sr_ring *ring, uint64_t addressee);
void sr_wake_ready(sr_ring *ring, uint32_t slot);
void sr_wake_readers(sr_ring *ring);
/* Make the slot with the state word `word` FREE and wake a producer; false if the word has changed. Slots with a later
 * `at` are dispatched first. */
bool sr_set_free_at(sr_ring *ring, sr_slot *s, uint64_t word, uint64_t at);
static inline bool sr_set_free(sr_ring *ring, sr_slot *s, uint64_t word)
{
    return sr_set_free_at(ring, s, word, sr_now());
}
/* Like sr_set_free, but dispatch the slot last. */
static inline bool sr_set_free_cold(sr_ring *ring, sr_slot *s, uint64_t word)
{
    return sr_set_free_at(ring, s, word, 0);
}

/* pool.c */
/* Return the futex word on which the worker with this number sleeps for a task. */
static inline _Atomic uint32_t *sr_wake_word(const sr_ring *ring, uint32_t participant)
{
    return ring->wake_lines ? &ring->wake_lines[participant].wake : &ring->participants[participant].wake;
}
/* Unmap the wake file, if the handle has one. */
int sr_forget_wake_file(sr_ring *ring);

/* slot.c */
/* Claim a task that is not stale, without waiting; -EAGAIN: there is none. */
int sr_try_claim(sr_ring *ring, uint32_t participant, uint32_t *slot, uint32_t *range, uint64_t *gen);
/* Record when the slot was claimed, and the worker's wait since then. */
void sr_note_claim(sr_ring *ring, uint32_t slot, uint64_t since);
/* Raise the mark below which wakers look for sleeping workers. */
void sr_raise_waiter_high_water(sr_ring *ring, uint32_t participant);
/* Stop every unclaimed range; return whether no range is being worked on. */
bool sr_stop_ranges(sr_slot *s, uint64_t gen);
/* Return whether a cancel has stopped ranges: then the slot's contents are not a batch. */
bool sr_was_stopped(const sr_slot *s, uint64_t gen);
/* Free the ranges of a dead participant; return how many will be redone. */
int sr_recover_ranges(sr_slot *s, uint64_t gen, uint32_t participant, bool stale);
/* Free the ranges of a CLAIMED slot whose finisher has died, if it had begun to overwrite them. Return their current
 * round, for the slot's word. */
uint64_t sr_undo_ranges(sr_slot *s, uint64_t gen);

/* Sequence numbers wrap, so they are compared by difference. */
static inline bool sr_before(uint64_t a, uint64_t b) { return (int64_t)(a - b) < 0; }

/* Loader mode: return whether the task or batch belongs to an iteration that is not the current one. */
static inline bool sr_is_stale(const sr_ring *ring, const sr_slot *s)
{
    return !(ring->flags & SR_SEG_QUEUE) && sr_load_relaxed(&s->iteration) != sr_load_acquire(&ring->header->iteration);
}

/* Participants from this number on are readers; workers have the numbers below it. */
static inline uint32_t sr_first_reader(const sr_ring *ring) { return ring->n_participants - ring->n_readers; }

static inline bool sr_takes_part(uint64_t membership) { return membership & 1; }

/* share.c */
/* Clear the bits of a dead reader, and free the slots that no participant reads any more. */
void sr_recover_reader(sr_ring *ring, uint32_t participant);
/* slot.c: end the use of a slot in this state: FREE, or PARKED while worker code keeps an array in it. -ESTALE: another
 * state or generation. */
int sr_end_use(sr_ring *ring, sr_slot *s, unsigned state, uint64_t gen);

/* recover.c: release everything that `participant` owned while `incarnation` had its number. */
int sr_recover_incarnation(sr_ring *ring, uint32_t participant, uint64_t incarnation);

/* record.c */
static inline _Atomic uint64_t *sr_words_of(sr_times *times) { return &times->dispatched_at; }
/* Write the slot's last batch to the flight recorder; this participant is about to reuse the slot. */
void sr_save_record(sr_ring *ring, uint32_t slot);
/* Reset the statistics of a participant that joins. */
void sr_reset_stats(sr_participant *me);
/* Start counting the CPU time of a participant that begins to serve. */
void sr_start_cpu_clock(const sr_ring *ring, uint32_t participant);
/* Add the CPU time since the last count to the participant. A worker of several segments does so before each claim. */
void sr_count_cpu(const sr_ring *ring, uint32_t participant);
/* Update the statistics of a participant that is about to publish the slot. */
void sr_record_publish(sr_ring *ring, uint32_t participant, sr_slot *s);

/* slot.c: restore the task that this process dispatched into a slot, in case a worker overwrote it; no worker owns the
 * slot. */
void sr_restore_task(const sr_ring *ring, uint32_t slot);
void sr_raise_high_water(sr_ring *ring, uint32_t slot);
void sr_reset_slot(sr_slot *s, const sr_task *task);

#ifdef SR_STEPS
/* for tests: every access to shared bytes below has points where a participant may be killed */
#include "steps.h"
#else
#define SR_STEP_AS(participant) ((void)0)
#endif

#endif
