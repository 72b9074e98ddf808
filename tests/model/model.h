/* model.h - exhaustive exploration of the shipped C code: every interleaving of a few participants, and deaths.
 *
 * csrc/ is compiled unchanged, with gcc's thread instrumentation, and linked with shim.c in place of the sanitizer's
 * runtime. So each access to the segment calls the shim before it happens. The shim pauses the participant, and
 * search.c decides which participant runs next, which one dies and whose wait ends. A state consists of the segment,
 * the participants' stacks and the books declared here. search.c visits each reachable state exactly once.
 */
#ifndef SLIPRING_MODEL_H
#define SLIPRING_MODEL_H

#include <stdnoreturn.h>

#include "internal.h"

enum { MAX_PARTICIPANTS = 4, MAX_SLOTS = 3, MAX_RANGES = 3, MAX_SEQS = 8, PAYLOAD = 512 };

enum life { NOBODY, RUNS, SLEEPS, CHOOSES, AWAITS, ENDED, DEAD };

/* One exploration, with all its bounds. */
struct scenario {
    const char *name, *what;
    void (*participant)(uint32_t number);
    void (*on_death)(uint32_t number); /* updates the books, or NULL */
    uint32_t flags, slots, workers, seqs, ranges, deaths, signals;
    bool addressed, by_completion, holds, staged, early_end, together, gives_way;
    uint32_t leases; /* batches that the consumer, or a reader, keeps leased while it waits */
    bool in_rounds; /* dispatches one task per slot, after all earlier ones are delivered */
    bool late;  /* the workers start after the first dispatch */
    bool races; /* also checks for data races, which needs more states */
    bool incarnations; /* processes take and free participant numbers; these accesses are steps too */
    bool grows;   /* slots, or a cache, start without memory */
    bool divides; /* a pool's process changes the budget */
    bool trims;   /* workers release the memory of FREE slots */
    bool releases_all; /* the consumer ends with its first batch and releases all memory */
    bool caches; /* a cache in place of the ring's slots */
    bool pooled; /* the slots belong to two segments, which the same workers serve */
    bool consumer_dies, closes, retires; /* otherwise the end is that all workers sleep without tasks */
    bool records; /* accesses to the flight recorder's words are steps */
    bool watched; /* an observer reads the slot */
    uint32_t readers; /* of shared batches: all participants except the consumer */
    uint32_t leaves; /* how often a reader may leave and begin again */
};

/* The part of a state that is neither in the segment nor on a stack. */
struct books {
    uint8_t life[MAX_PARTICIPANTS], options[MAX_PARTICIPANTS], answer[MAX_PARTICIPANTS], why[MAX_PARTICIPANTS];
    uint8_t bounded[MAX_PARTICIPANTS];   /* sleeps with a deadline */
    uint32_t futex[MAX_PARTICIPANTS];    /* the word on which it sleeps: an offset in the segment */
    uint32_t looks[MAX_PARTICIPANTS];    /* the counter that it has read and may sleep on: an offset */
    uint8_t deaths, signals;        /* how many may still occur */
    uint8_t unreaped[MAX_PARTICIPANTS];  /* it is dead, and its recovery has not ended */
    uint8_t fills[MAX_SLOTS];       /* participant + 1 that regards the slot as its own */
    uint8_t fills_range[MAX_SLOTS][MAX_RANGES];
    uint8_t leased[MAX_SLOTS];
    uint8_t orphans[MAX_SLOTS];      /* with `trims`: bytes after the first SR_PAYLOAD_COMMIT have memory */
    uint8_t delivered[MAX_SEQS], begun[MAX_SEQS];
    uint8_t next, n_delivered, ended;
    uint8_t number[MAX_PARTICIPANTS];    /* participant number + 1 that the process has taken; 0: its own */
    uint8_t reading[MAX_PARTICIPANTS];   /* it copies a record: 1 before it has read the number, 2 after */
    uint32_t relaxed_words;         /* bits of the record's words whose last store was no release */
    /* queue mode: the number of batches begun; by consumer, the last batch seen */
    uint8_t made[MAX_PARTICIPANTS], last[MAX_PARTICIPANTS][MAX_PARTICIPANTS];
    /* loader mode: the sequence number after the last one that this incarnation has claimed */
    uint8_t turn[MAX_PARTICIPANTS];
    uint8_t out_slot[MAX_SEQS];
    uint64_t out_gen[MAX_SEQS];
    uint8_t shares; /* of the consumer: how many it has begun */
    uint8_t absences; /* how often a reader may still leave */
    bool (*until[MAX_PARTICIPANTS])(uint32_t number);
    /* Bits of the plain accesses that happened before each participant, and of those that a release has published. */
    uint64_t knows[MAX_PARTICIPANTS], hands_on[MAX_SLOTS][3 + MAX_RANGES];
};

extern const struct scenario *plan;
extern struct books books;
extern sr_ring *ring;
extern uint32_t self; /* the running participant */

/* ---- for scenarios ---- */
noreturn void violated(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define MUST(condition)                                                                                         \
    do {                                                                                                        \
        if (!(condition))                                                                                       \
            violated("%s:%d: not true: %s", __FILE__, __LINE__, #condition);                                    \
    } while (0)
uint32_t choose(uint32_t options);               /* any of 0 .. options - 1 */
void wait_until(bool (*condition)(uint32_t));    /* a wait of the participants' own code, outside the ring */
void spawn(uint32_t participant);
bool has_gone(uint32_t participant); /* it has ended, or it is dead */
/* Scenarios of two concurrent recoveries: one process dies, a survivor and a newcomer recover it. */
enum { VICTIM = 1, SURVIVOR, NEWCOMER };
bool victim_has_gone(uint32_t me);
bool recoveries_have_ended(uint32_t me);
void confirm_death(uint32_t participant);              /* like a pidfd: all its accesses happened before */
/* Payload words of a slot. `object` is a range's number, or WHOLE_OBJECT for the part that all ranges share. */
void put(uint32_t slot, uint32_t object, uint64_t offset, uint64_t value);
uint64_t get(uint32_t slot, uint32_t object, uint64_t offset);
#define WHOLE_OBJECT MAX_RANGES
enum { FIRST_PID = 1000 }; /* the process of participant p has the pid FIRST_PID + p */
enum { BOUNDED = 2 }; /* a deadline, in seconds; the clock stands still at 1 */
#define BOUNDED_NS (BOUNDED * UINT64_C(1000000000))

extern const struct scenario scenarios[], full_scenarios[];
extern const size_t n_scenarios, n_full_scenarios;

/* ---- between machine.c, shim.c and search.c ---- */
enum { PAYLOAD_STRIDE = 2 * SR_PAGE, RECORDS_AT = SR_PAGE * (3 + MAX_SLOTS) + PAYLOAD_STRIDE * MAX_SLOTS,
       SEGMENT_BYTES = RECORDS_AT + SR_PAGE };
extern char segment[SEGMENT_BYTES];
extern bool inside;    /* a participant is running, so accesses are steps */
void pause_here(void); /* end this step and begin the next one */
struct saved {
    uint32_t length;
    uint8_t bytes[8192];
};
void machine_begin(const struct scenario *);
void machine_run(uint32_t participant);               /* one step */
bool machine_may_run(uint32_t participant);
void machine_kill(uint32_t participant);
void machine_settle(void);                      /* after each step */
void machine_end_wait(uint32_t participant, int error);
void machine_save_participant(uint32_t participant, struct saved *);
void machine_load_participant(uint32_t participant, const uint8_t *bytes, uint32_t length);
/* The regions of shared bytes of a component. Component 0 is the books with the header; the others are the slots. */
struct region {
    void *at;
    uint32_t length;
};
uint32_t machine_regions(uint32_t component, struct region *out);
extern bool violation;
extern uint32_t spawned; /* bit mask: participants that were started in this step */
extern void (*step_seen)(const char *what, const void *address, const void *code, uint64_t value);

bool explore(const struct scenario *);

/* caches.c: the cache's bytes, if a scenario has a cache */
void cache_begin(void);
uint32_t cache_regions(struct region *out);
bool cache_no_step(const volatile void *address);
int cache_entry_at(const void *address); /* -1: not in an entry */
int cache_key_at(const void *address);   /* -1: not a key's word */
bool cache_is_ready(uint32_t entry);
void cache_takes_memory(uint64_t offset, uint64_t length);
bool cache_has_number(uint32_t participant); /* a dead one's: waits may check for it */

/* pool.c: the second segment's bytes, and the wake file, if a scenario has a pool */
void pool_begin(void);
uint32_t pool_regions(struct region *out);
const volatile void *pool_first(const volatile void *address, bool *second);
bool pool_is_wake_word(const volatile void *address);
_Atomic uint32_t *pool_wake_word(uint32_t participant);

/* race.c: who may access plain fields, and whether the accesses are ordered */
void race_plain(const void *address, bool write);
void race_object(uint32_t slot, uint32_t object, bool write);
void race_acquire(const void *address);
void race_release(const void *address, bool release, bool rmw);

#endif
