/* handle.h - what a process knows about a segment; private to csrc. */
#ifndef SLIPRING_HANDLE_H
#define SLIPRING_HANDLE_H

#include <errno.h>

#include "atomics.h"
#include "ring.h"

struct sr_told {
    bool is_set;
    uint64_t gen;
    sr_task task;
};

struct sr_ring {
    char *base;
    sr_header *header;
    sr_party *parties;
    sr_slot *slots;
    sr_totals *totals;  /* NULL: nothing is recorded (the model's handles) */
    sr_record *records;
    sr_file file; /* its descriptor is to be had by sr_fd alone */
    sr_file record; /* the file of the controls, where they have one (SR_SEG_RECORDED) */
    /* Constant fields of the header, checked once: the shared copy is not trusted again. */
    uint32_t n_slots, n_parties, flags;
    uint64_t data_off, stride, task_capacity, capacity, total;
    sr_info info;
    /* Payload bytes per slot that this process has mapped; threads share it. */
    _Atomic uint64_t *populated;
    /* What this process has dispatched, per slot: workers may write over the shared copy. NULL: it keeps none (the model's handles). */
    struct sr_told *told;
    /* This process's waits for batches are to return: sr_interrupt. */
    _Atomic uint32_t interrupted;
    /* fork.c: how many leases and holds this process has on each slot; whether it was forked from one that had some, and
     * has copies in their places; where the mapping lies of which that is true, once the segment is mapped anew. */
    _Atomic uint32_t *in_use;
    bool has_copies;
    char *inherited;
    sr_ring *next; /* in the list of this process's handles */
};

static inline uint64_t sr_word(unsigned state, uint64_t owner, uint64_t gen)
{
    return (uint64_t)state | owner << SR_OWNER_SHIFT | gen << SR_GEN_SHIFT;
}
static inline unsigned sr_state_of(uint64_t word) { return (unsigned)(word & SR_STATE_MASK); }
static inline uint64_t sr_owner_of(uint64_t word) { return (word & SR_OWNER_MASK) >> SR_OWNER_SHIFT; }
static inline uint64_t sr_gen_of(uint64_t word) { return word >> SR_GEN_SHIFT; }
static inline uint64_t sr_next_gen(uint64_t gen) { return (gen + 1) & (UINT64_MAX >> SR_GEN_SHIFT); }

/* Scans stop at the slots that were ever used. Ordered, as the states are: a sleeper that announced itself
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

/* fork.c: a handle that forks see to, from now on; and not any more. */
void sr_enlist(sr_ring *ring);
void sr_delist(sr_ring *ring);
/* In a forked child that takes part: the segment is mapped at another address, where no copies lie. */
int sr_move_from_copies(sr_ring *ring);
/* copy.c: tells the others of the segment how this process copies, if it knows. */
void sr_copy_tell(sr_header *header);

/* memory.c: whether `need` bytes fit. */
int sr_check_room(int fd, uint64_t need, sr_shortage *why);
/* Takes back what a dead party has announced to commit, unless its word is another than `seen` by now, and wakes who
 * waits for that. */
void sr_end_growing(sr_ring *ring, uint32_t party, uint64_t seen);
/* Has the FREE slot that was used longest ago give its memory back; false: none has any to give, or it stays. */
bool sr_trim_free(sr_ring *ring, uint32_t party);
/* The owner gives back what lies behind the first `used` bytes of a slot, if that is much. */
void sr_trim_tail(sr_ring *ring, uint32_t slot, uint64_t used);
static inline uint32_t sr_pages_of(uint64_t growing) { return (uint32_t)growing; }

/* How long a commit waits for others that are committing the room it needs. Whoever died in the middle of it
 * is recovered much sooner, unless the recovering party is the one that waits. */
#define SR_GROW_WAIT_NS UINT64_C(2000000000)

/* How long a worker that is short of memory waits when all that take part wait for one another: another thread of the
 * consumer's may let go of a batch, which nobody can know. And how often it looks. */
#ifndef SR_PATIENCE_NS
#define SR_PATIENCE_NS UINT64_C(1000000000)
#endif
#define SR_SHORT_LOOK_NS UINT64_C(50000000)

/* A sleeper looks again this often, whatever happened to the wake-up meant for it: the waker may have been
 * killed. Tests make it endless, so that a wake-up lost in any other way shows. */
#ifndef SR_RESCAN_NS
#define SR_RESCAN_NS UINT64_C(500000000)
#endif

/* How often a sleeping consumer looks whether a worker has died: no system call of the kernels in question sleeps
 * on a futex and a pidfd at once. */
#define SR_LOOK_NS UINT64_C(30000000)

/* How often a worker looks whether the consumer has become another program: an exec ends no pidfd. And whether it lives
 * at all, where code of the worker has closed that. */
#define SR_WATCH_MS 1000

/* wait.c */
uint64_t sr_rescan_at(uint64_t deadline);
void sr_wake_party(sr_ring *ring, uint32_t party);
void sr_wake_a_worker(sr_ring *ring, uint64_t addressee);
void sr_wake_ready(sr_ring *ring, uint32_t slot);
void sr_wake_free(sr_ring *ring);

/* coop.c: a claimable range (or SR_FINISH) of a SHARED slot whose word is `word`; -EAGAIN: none. */
int sr_claim_range(sr_slot *s, uint64_t word, uint32_t party, uint32_t *range);
/* Takes every unclaimed range out; true if no range is being worked on. */
bool sr_stop_ranges(sr_slot *s, uint64_t gen);
/* A cancel has taken ranges out: what lies in the slot is not a batch. */
bool sr_was_stopped(const sr_slot *s, uint64_t gen);
/* Gives the ranges of a dead party back; returns how many will be done again. */
int sr_recover_ranges(sr_slot *s, uint64_t gen, uint32_t party, bool stale);
/* The ranges of a CLAIMED slot whose finisher has died: to be done again if it had begun to write over them.
 * Returns the round that they are in now, for the slot's word. */
uint64_t sr_undo_ranges(sr_slot *s, uint64_t gen);

/* Tickets run free; the earlier one is found by difference, so that wrapping does not matter. */
static inline bool sr_before(uint64_t a, uint64_t b) { return (int64_t)(a - b) < 0; }

/* Pull mode: the task or batch belongs to a run that has ended. */
static inline bool sr_is_stale(const sr_ring *ring, const sr_slot *s)
{
    return !(ring->flags & SR_SEG_PUSH) && sr_load_relaxed(&s->run) != sr_load_acquire(&ring->header->run);
}

/* recover.c: gives back what `party` held while `incarnation` had its number. */
int sr_recover_incarnation(sr_ring *ring, uint32_t party, uint64_t incarnation);

/* record.c */
static inline _Atomic uint64_t *sr_words_of(sr_times *times) { return &times->dispatched_at; }
/* The slot is about to be used again, by this party: what its last batch was goes into the flight recorder. */
void sr_keep_record(sr_ring *ring, uint32_t slot);
/* The party joins: it has done nothing yet. */
void sr_begin_figures(sr_party *me);
/* The party serves from now on: its processor time counts. */
void sr_begin_cpu(const sr_ring *ring, uint32_t party);
/* The party is about to publish the slot. */
void sr_note_made(sr_ring *ring, uint32_t party, sr_slot *s);

/* ring.c */
/* Writes the task that this process dispatched into a slot over what may have become of it; nobody works on it. */
void sr_restore_task(const sr_ring *ring, uint32_t slot);
void sr_raise_high_water(sr_ring *ring, uint32_t slot);
void sr_reset_slot(sr_slot *s, const sr_task *task);
/* Makes a slot FREE whose word is `word`; false if the word has changed meanwhile. */
bool sr_set_free(sr_ring *ring, sr_slot *s, uint64_t word);
/* The same of one that is to be taken last. */
bool sr_set_free_cold(sr_ring *ring, sr_slot *s, uint64_t word);

#ifdef SR_STEPS
#include "steps.h" /* for tests: from here on each access to shared bytes has points where a party may be killed */
#else
#define SR_STEP_AS(party) ((void)0)
#endif

#endif
