/* scenarios.c - what is explored, and within which bounds. */
#include "model.h"

void pull(uint32_t me);
void push(uint32_t me);
void push_death(uint32_t dead);
void incarnations(uint32_t me);
void recorder(uint32_t me);
void watched(uint32_t me);
void cache_of_one(uint32_t me);
void cache_and_a_waiter(uint32_t me);
void cache_of_numbers(uint32_t me);
void cache_that_grows(uint32_t me);
void cache_of_survivors(uint32_t me);

#define PULL(of) .name = of, .party = pull
#define PUSH(of) .name = of, .party = push, .on_death = push_death, .flags = SR_SEG_PUSH

#define CACHE(of) .name = of, .flags = SR_SEG_PUSH, .caches = true

/* The counts of states stand in docs/protocol.md. `late`: both workers begin when the first task lies there. */
const struct scenario scenarios[] = {
    {PULL("pull"), .what = "2 workers, 2 slots, 2 tickets", .workers = 2, .slots = 2, .tickets = 2, .late = true},
    {PULL("pull-3"), .what = "3 workers, 1 slot, 1 ticket", .workers = 3, .slots = 1, .tickets = 1, .late = true},
    {PULL("death"), .what = "2 workers, 1 slot, 2 tickets, 1 death", .workers = 2, .slots = 1, .tickets = 2, .deaths = 1,
     .late = true},
    {PULL("static"), .what = "2 workers, 2 slots, 2 addressed tickets, 1 death", .workers = 2, .slots = 2, .tickets = 2,
     .deaths = 1, .addressed = true},
    {PULL("turns"), .what = "1 worker, 2 slots, 6 addressed tickets, dispatched two at a time, 1 death", .workers = 1, .slots = 2,
     .tickets = 6, .deaths = 1, .addressed = true, .in_rounds = true},
    {PULL("any"), .what = "1 worker, 2 slots, 3 tickets by completion, 1 death", .workers = 1, .slots = 2, .tickets = 3,
     .deaths = 1, .by_completion = true},
    {PULL("lease"), .what = "1 worker, 3 slots, 3 tickets, dispatched while one is leased, 1 death", .workers = 1, .slots = 3,
     .tickets = 3, .deaths = 1, .leases = 1},
    {PULL("short"), .what = "1 worker that is short of memory, 2 slots, 2 tickets, 1 death", .workers = 1, .slots = 2,
     .tickets = 2, .deaths = 1, .trims = true},
    {PULL("short-2"), .what = "2 workers that are short of memory, 2 slots, 2 tickets", .workers = 2, .slots = 2,
     .tickets = 2, .trims = true, .late = true},
    {PULL("together"), .what = "2 workers, 2 slots, 2 tickets that need each other", .workers = 2, .slots = 2,
     .tickets = 2, .together = true},
    {PULL("signal"), .what = "2 workers, 1 slot, 2 tickets, 1 signal", .workers = 2, .slots = 1, .tickets = 2,
     .signals = 1, .late = true},
    {PULL("dismiss"), .what = "2 workers, 1 slot, 2 tickets, 1 worker is dismissed", .workers = 2, .slots = 1, .tickets = 2,
     .dismisses = true, .late = true},
    {PULL("dismiss-asleep"), .what = "2 workers, 1 slot, 1 ticket, 1 worker is dismissed and no task follows", .workers = 2,
     .slots = 1, .tickets = 1, .dismisses = true, .late = true},
    {PULL("hold"), .what = "1 worker, 2 slots, 2 tickets, arrays kept, 2 deaths", .workers = 1, .slots = 2, .tickets = 2,
     .deaths = 2, .holds = true},
    {PULL("early"), .what = "1 worker, 2 slots, 2 tickets, left early, 2 deaths", .workers = 1, .slots = 2, .tickets = 2,
     .deaths = 2, .early_end = true},
    {PULL("early-ranges"), .what = "1 worker, 1 slot, 2 tickets in 2 ranges, left early, 1 death", .workers = 1, .slots = 1,
     .tickets = 2, .ranges = 2, .deaths = 1, .early_end = true},
    {PULL("close"), .what = "2 workers, 1 slot, 1 ticket, closed", .workers = 2, .slots = 1, .tickets = 1, .closes = true},
    {PULL("vacate"), .what = "1 worker, 3 slots, 3 tickets, memory given back with the first batch leased, 1 death", .workers = 1,
     .slots = 3, .tickets = 3, .deaths = 1, .closes = true, .trims = true, .vacates = true},
    {PULL("orphans"), .what = "2 workers, 1 slot, 1 ticket, the consumer dies", .workers = 2, .slots = 1, .tickets = 1,
     .deaths = 1, .consumer_dies = true, .late = true},
    {PULL("ranges"), .what = "2 workers, 1 slot, 1 ticket in 2 ranges", .workers = 2, .slots = 1, .tickets = 1, .ranges = 2,
     .late = true},
    {PULL("ranges-death"), .what = "2 workers, 1 slot, 1 ticket in 2 ranges, 1 death", .workers = 2, .slots = 1,
     .tickets = 1, .ranges = 2, .deaths = 1, .late = true},
    {PULL("finisher"), .what = "1 worker, 1 slot, 1 ticket in 2 staged ranges, 2 deaths", .workers = 1, .slots = 1,
     .tickets = 1, .ranges = 2, .deaths = 2, .staged = true},
    {PULL("races"), .what = "1 worker, 2 slots, 3 tickets, 1 death, data races", .workers = 1, .slots = 2, .tickets = 3,
     .deaths = 1, .races = true},
    {PULL("races-2"), .what = "2 workers, 1 slot, 1 ticket, 1 death, data races", .workers = 2, .slots = 1, .tickets = 1,
     .deaths = 1, .races = true, .late = true},
    {PULL("races-ranges"), .what = "2 workers, 1 slot, 1 ticket in 2 ranges, data races", .workers = 2, .slots = 1,
     .tickets = 1, .ranges = 2, .races = true, .late = true},
    {PUSH("push"), .what = "1 producer, 1 consumer, 2 slots, 3 batches, 1 death, data races", .workers = 2, .slots = 2,
     .tickets = 3, .deaths = 1, .races = true},
    {PUSH("push-close"), .what = "1 producer, 1 consumer, 1 slot, 2 batches, closed", .workers = 2, .slots = 1, .tickets = 2,
     .deaths = 1, .closes = true},
    {PUSH("push-2"), .what = "2 producers, 1 consumer, 1 slot, 1 batch each, 1 death", .workers = 3, .slots = 1,
     .tickets = 1, .deaths = 1},
    {.name = "incarnations", .party = incarnations, .flags = SR_SEG_PUSH, .what = "1 dies, 2 recover it at once, 1 of them takes its number",
     .workers = 3, .slots = 1, .deaths = 1, .incarnations = true, .late = true},
    {.name = "incarnations-hold", .party = incarnations, .flags = SR_SEG_PUSH, .what = "the same, and arrays are kept",
     .workers = 3, .slots = 1, .deaths = 1, .incarnations = true, .late = true, .holds = true},
    {.name = "incarnations-grow", .party = incarnations, .flags = SR_SEG_PUSH, .what = "the same, and slots have no memory yet",
     .workers = 3, .slots = 1, .deaths = 1, .incarnations = true, .late = true, .grows = true},
    {.name = "records", .party = recorder, .what = "1 writes 3 records, 1 reads, in one place, 1 death", .workers = 2, .slots = 1,
     .tickets = 3, .deaths = 1, .records = true, .flags = SR_SEG_PUSH},
    {.name = "records-pull", .party = recorder, .what = "the same, of a pull segment, which has one writer", .workers = 2, .slots = 1,
     .tickets = 3, .deaths = 1, .records = true},
    {.name = "records-2", .party = recorder, .what = "2 write 2 records each, 1 reads, in one place, 1 death", .workers = 3,
     .slots = 2, .tickets = 2, .deaths = 1, .records = true, .flags = SR_SEG_PUSH},
    {.name = "watched", .party = watched, .what = "1 worker, 1 slot, 2 tickets, 1 looks on", .workers = 2, .slots = 1, .tickets = 2,
     .watched = true},
    {CACHE("cache"), .party = cache_of_one, .what = "3 processes want one entry, one of them gives it up, data races", .workers = 2,
     .races = true},
    {CACHE("cache-death"), .party = cache_and_a_waiter, .what = "2 processes want one entry, another waits for it, 1 death, 1 signal, data races",
     .workers = 2, .deaths = 1, .signals = 1, .races = true},
    {CACHE("cache-grows"), .party = cache_that_grows, .what = "2 processes want 2 entries, that have no memory yet, 1 death, data races",
     .workers = 1, .deaths = 1, .races = true, .grows = true},
    {CACHE("cache-survivors"), .party = cache_of_survivors, .what = "1 dies, 2 recover it while another waits, 2 deaths",
     .workers = 3, .deaths = 2, .late = true, .races = true},
    {CACHE("cache-numbers"), .party = cache_of_numbers, .what = "1 dies, 2 recover it at once, 1 of them takes its number, data races",
     .workers = 3, .deaths = 1, .late = true, .races = true},
    {CACHE("cache-numbers-2"), .party = cache_of_numbers, .what = "the same, and another one dies", .workers = 3, .deaths = 2,
     .late = true, .races = true},
};
const size_t n_scenarios = sizeof scenarios / sizeof *scenarios;

const struct scenario full_scenarios[] = {
    {PULL("pull-2"), .what = "2 workers, 2 slots, 2 tickets, that begin at any time", .workers = 2, .slots = 2, .tickets = 2},
    {PULL("staged"), .what = "2 workers, 1 slot, 1 ticket in 2 staged ranges, 1 death", .workers = 2, .slots = 1,
     .tickets = 1, .ranges = 2, .deaths = 1, .staged = true, .late = true},
    {PULL("hold-2"), .what = "2 workers, 1 slot, 2 tickets, arrays kept", .workers = 2, .slots = 1, .tickets = 2,
     .holds = true, .late = true},
    {CACHE("cache-death-3"), .party = cache_of_one, .what = "3 processes want one entry, one of them gives it up, 1 death",
     .workers = 2, .deaths = 1},
    {PULL("early-2"), .what = "2 workers, 1 slot, 2 tickets, left early", .workers = 2, .slots = 1, .tickets = 2,
     .early_end = true},
};
const size_t n_full_scenarios = sizeof full_scenarios / sizeof *full_scenarios;
