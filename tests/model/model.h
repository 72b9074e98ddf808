/* model.h - exhaustive exploration of the shipped C code: every interleaving of a few parties, and deaths.
 *
 * csrc/ is compiled as it is, with gcc's thread instrumentation, and linked with shim.c in place of the
 * sanitizer's runtime. So every access to the segment comes by here before it happens. There the party is
 * switched away from, and search.c decides who goes on, who dies, whose wait ends. A state is the segment, what
 * the parties' stacks hold, and what this header names; search.c visits each reachable one exactly once.
 */
#ifndef SLIPRING_MODEL_H
#define SLIPRING_MODEL_H

#include <stdnoreturn.h>

#include "handle.h"

enum { MAX_PARTIES = 4, MAX_SLOTS = 3, MAX_RANGES = 3, MAX_TICKETS = 8, PAYLOAD = 512 };

enum life { NOBODY, RUNS, SLEEPS, CHOOSES, AWAITS, ENDED, DEAD };

/* What one exploration covers; all bounds of a scenario are here. */
struct scenario {
    const char *name, *what;
    void (*party)(uint32_t number);
    void (*on_death)(uint32_t number); /* what the books must know of it, or NULL */
    uint32_t flags, slots, workers, tickets, ranges, deaths, signals;
    bool addressed, by_completion, holds, staged, early_end, together;
    uint32_t leases; /* that the consumer keeps while it waits */
    bool in_rounds; /* dispatches only when all is delivered, as many as there are slots */
    bool late;  /* the workers begin when the first tasks lie there */
    bool races; /* look for data races too, which makes more states of one */
    bool incarnations; /* party numbers are taken and given back: what decides about them is a step too */
    bool grows;   /* slots, or a cache, begin without memory */
    bool trims;   /* workers have FREE slots give memory back */
    bool vacates; /* the consumer ends when it has its first batch, and gives all memory back */
    bool caches; /* a cache in place of the ring's slots */
    bool consumer_dies, closes, dismisses; /* else it ends when all sleep and nothing is left to do */
    bool records; /* the flight recorder's words are steps */
    bool watched; /* what is seen of a slot too */
};

/* Everything about a state that is neither in the segment nor on a stack. */
struct books {
    uint8_t life[MAX_PARTIES], options[MAX_PARTIES], answer[MAX_PARTIES], why[MAX_PARTIES];
    uint8_t bounded[MAX_PARTIES];   /* sleeps with a deadline */
    uint32_t futex[MAX_PARTIES];    /* where it sleeps: an offset in the segment */
    uint32_t looks[MAX_PARTIES];    /* a counter that it has read and may sleep on: an offset */
    uint8_t deaths, signals;        /* still to come */
    uint8_t unburied[MAX_PARTIES];  /* dead, and recovery has not returned */
    uint8_t fills[MAX_SLOTS];       /* party + 1 that believes to own the slot */
    uint8_t fills_range[MAX_SLOTS][MAX_RANGES];
    uint8_t leased[MAX_SLOTS];
    uint8_t strays[MAX_SLOTS];      /* what lies behind the first bytes has memory, where slots give it back */
    uint8_t delivered[MAX_TICKETS], begun[MAX_TICKETS];
    uint8_t next, n_delivered, ended;
    uint8_t number[MAX_PARTIES];    /* the party number, + 1, of a process that has taken one; 0: its own */
    uint8_t reading[MAX_PARTIES];   /* copies a record: 1 before its number, 2 behind it */
    uint32_t relaxed_words;         /* of the record, that were stored last without a release: bits */
    uint8_t made[MAX_PARTIES], last[MAX_PARTIES][MAX_PARTIES]; /* push: batches begun; last one seen, by consumer */
    uint8_t turn[MAX_PARTIES];      /* pull: the ticket behind the last one that was claimed in this life */
    uint8_t out_slot[MAX_TICKETS];
    uint64_t out_gen[MAX_TICKETS];
    bool (*until[MAX_PARTIES])(uint32_t number);
    /* Which plain accesses each party knows to have happened before it, and which a word hands on: bits. */
    uint64_t knows[MAX_PARTIES], hands_on[MAX_SLOTS][2 + MAX_RANGES];
};

extern const struct scenario *plan;
extern struct books books;
extern sr_ring *ring;
extern uint32_t self; /* the party that runs */

/* ---- for scenarios ---- */
noreturn void violated(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define MUST(condition)                                                                                         \
    do {                                                                                                        \
        if (!(condition))                                                                                       \
            violated("%s:%d: not true: %s", __FILE__, __LINE__, #condition);                                    \
    } while (0)
uint32_t choose(uint32_t options);               /* any of 0 .. options - 1 */
void wait_until(bool (*condition)(uint32_t));    /* what the parties' own code waits for, outside of the ring */
void spawn(uint32_t party);
void confirm_death(uint32_t party);              /* as a pidfd does: everything it did happened before */
/* Payload words of a slot, `object`: a range's number, or MAX_RANGES for what belongs to all. */
void put(uint32_t slot, uint32_t object, uint64_t offset, uint64_t value);
uint64_t get(uint32_t slot, uint32_t object, uint64_t offset);
#define WHOLE_OBJECT MAX_RANGES
enum { FIRST_PID = 1000 }; /* the process of party p has the pid FIRST_PID + p */
enum { BOUNDED = 2 }; /* a deadline, in seconds of a clock that stands still at 1 */
#define BOUNDED_NS (BOUNDED * UINT64_C(1000000000))

extern const struct scenario scenarios[], full_scenarios[];
extern const size_t n_scenarios, n_full_scenarios;

/* ---- between machine.c, shim.c and search.c ---- */
enum { PAYLOAD_STRIDE = 2 * SR_PAGE, RECORDS_AT = SR_PAGE * (3 + MAX_SLOTS) + PAYLOAD_STRIDE * MAX_SLOTS,
       SEGMENT_BYTES = RECORDS_AT + SR_PAGE };
extern char segment[SEGMENT_BYTES];
extern bool inside;    /* a party runs, so that accesses are steps */
void pause_here(void); /* a step ends, the next one begins */
struct saved {
    uint32_t length;
    uint8_t bytes[8192];
};
void machine_begin(const struct scenario *);
void machine_run(uint32_t party);               /* one step */
bool machine_may_run(uint32_t party);
void machine_kill(uint32_t party);
void machine_settle(void);                      /* after each step */
void machine_end_wait(uint32_t party, int error);
void machine_save_party(uint32_t party, struct saved *);
void machine_load_party(uint32_t party, const uint8_t *bytes, uint32_t length);
/* Regions of shared bytes that make up a component: the books with the header, then each slot. */
struct region {
    void *at;
    uint32_t length;
};
uint32_t machine_regions(uint32_t component, struct region *out);
extern bool violation;
extern uint32_t spawned; /* bit mask: parties that began anew in this step */
extern void (*step_seen)(const char *what, const void *address, const void *code, uint64_t value);

bool explore(const struct scenario *);

/* caches.c: the cache's bytes, where a scenario has one */
void cache_begin(void);
uint32_t cache_regions(struct region *out);
bool cache_no_step(const volatile void *address);
int cache_entry_at(const void *address); /* of the entries, -1: none */
int cache_key_at(const void *address);   /* whose word that is, -1: none's */
bool cache_is_ready(uint32_t entry);
void cache_takes_memory(uint64_t offset, uint64_t length);
bool cache_has_number(uint32_t party); /* whose death has not been recovered: who waits may look for it */

/* race.c: the rule of plain accesses, and the order that makes them one after another */
void race_plain(const void *address, bool write);
void race_object(uint32_t slot, uint32_t object, bool write);
void race_acquire(const void *address);
void race_release(const void *address, bool release, bool rmw);

#endif
