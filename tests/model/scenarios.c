/* scenarios.c - the explored scenarios and their bounds. */
#include "model.h"

void loader_mode(uint32_t me);
void queue_mode(uint32_t me);
void queue_death(uint32_t dead);
void incarnations(uint32_t me);
void sharing(uint32_t me);
void pool(uint32_t me);
void budget(uint32_t me);
void recorder(uint32_t me);
void watched(uint32_t me);
void cache_of_one(uint32_t me);
void cache_and_a_waiter(uint32_t me);
void cache_of_numbers(uint32_t me);
void cache_that_grows(uint32_t me);
void cache_of_survivors(uint32_t me);

#define LOADER(of) .name = of, .participant = loader_mode
#define QUEUE(of) .name = of, .participant = queue_mode, .on_death = queue_death, .flags = SR_SEG_QUEUE

#define SHARED(of) .name = of, .participant = sharing
#define POOL(of) .name = of, .participant = pool, .pooled = true, .workers = 2, .slots = 2
#define BUDGET(of) .name = of, .participant = budget, .flags = SR_SEG_QUEUE, .late = true, .grows = true, \
                   .divides = true
#define CACHE(of) .name = of, .flags = SR_SEG_QUEUE, .caches = true

/* CONTRIBUTING.md has the counts of states. */
const struct scenario scenarios[] = {
    {LOADER("loader"), .what = "2 workers, 2 slots, 2 tasks", .workers = 2, .slots = 2, .seqs = 2, .late = true},
    {LOADER("loader-3"), .what = "3 workers, 1 slot, 1 task", .workers = 3, .slots = 1, .seqs = 1, .late = true},
    {LOADER("death"), .what = "2 workers, 1 slot, 2 tasks, 1 death", .workers = 2, .slots = 1, .seqs = 2, .deaths = 1,
     .late = true},
    {LOADER("static"), .what = "2 workers, 2 slots, 2 addressed tasks, 1 death", .workers = 2, .slots = 2, .seqs = 2,
     .deaths = 1, .addressed = true},
    {LOADER("turns"), .what = "1 worker, 2 slots, 6 addressed tasks, dispatched 2 at a time, 1 death", .workers = 1,
     .slots = 2, .seqs = 6, .deaths = 1, .addressed = true, .in_rounds = true},
    {LOADER("any"), .what = "1 worker, 2 slots, 3 tasks delivered in order of completion, 1 death", .workers = 1,
     .slots = 2, .seqs = 3, .deaths = 1, .by_completion = true},
    {LOADER("lease"), .what = "1 worker, 3 slots, 3 tasks, dispatched while a batch is leased, 1 death", .workers = 1,
     .slots = 3, .seqs = 3, .deaths = 1, .leases = 1},
    {LOADER("pressure"), .what = "1 worker that releases memory of FREE slots, 2 slots, 2 tasks, 1 death",
     .workers = 1, .slots = 2, .seqs = 2, .deaths = 1, .trims = true},
    {LOADER("pressure-2"), .what = "2 workers that release memory of FREE slots, 2 slots, 2 tasks", .workers = 2,
     .slots = 2, .seqs = 2, .trims = true, .late = true},
    {LOADER("together"), .what = "2 workers, 2 slots, 2 tasks that need each other", .workers = 2, .slots = 2,
     .seqs = 2, .together = true},
    {LOADER("signal"), .what = "2 workers, 1 slot, 2 tasks, 1 signal", .workers = 2, .slots = 1, .seqs = 2,
     .signals = 1, .late = true},
    {LOADER("retire"), .what = "2 workers, 1 slot, 2 tasks, 1 worker retired", .workers = 2, .slots = 1, .seqs = 2,
     .retires = true, .late = true},
    {LOADER("retire-asleep"), .what = "2 workers, 1 slot, 1 task, 1 worker retired, no task follows", .workers = 2,
     .slots = 1, .seqs = 1, .retires = true, .late = true},
    {LOADER("pin"), .what = "1 worker, 2 slots, 2 tasks, pinned arrays, 2 deaths", .workers = 1, .slots = 2, .seqs = 2,
     .deaths = 2, .holds = true},
    {LOADER("early"), .what = "1 worker, 2 slots, 2 tasks, early end, 2 deaths", .workers = 1, .slots = 2, .seqs = 2,
     .deaths = 2, .early_end = true},
    {LOADER("early-ranges"), .what = "1 worker, 1 slot, 2 tasks in 2 ranges, early end, 1 death", .workers = 1,
     .slots = 1, .seqs = 2, .ranges = 2, .deaths = 1, .early_end = true},
    {LOADER("close"), .what = "2 workers, 1 slot, 1 task, the loader is closed", .workers = 2, .slots = 1, .seqs = 1,
     .closes = true},
    {LOADER("release-free"),
     .what = "1 worker, 3 slots, 3 tasks, memory released while the first batch is leased, 1 death", .workers = 1,
     .slots = 3, .seqs = 3, .deaths = 1, .closes = true, .trims = true, .releases_all = true},
    {LOADER("orphans"), .what = "2 workers, 1 slot, 1 task, the consumer dies", .workers = 2, .slots = 1, .seqs = 1,
     .deaths = 1, .consumer_dies = true, .late = true},
    {LOADER("ranges"), .what = "2 workers, 1 slot, 1 task in 2 ranges", .workers = 2, .slots = 1, .seqs = 1,
     .ranges = 2, .late = true},
    {LOADER("ranges-death"), .what = "2 workers, 1 slot, 1 task in 2 ranges, 1 death", .workers = 2, .slots = 1,
     .seqs = 1, .ranges = 2, .deaths = 1, .late = true},
    {LOADER("finisher"), .what = "1 worker, 1 slot, 1 task in 2 staged ranges, 2 deaths", .workers = 1, .slots = 1,
     .seqs = 1, .ranges = 2, .deaths = 2, .staged = true},
    {LOADER("races"), .what = "1 worker, 2 slots, 3 tasks, 1 death, data races", .workers = 1, .slots = 2, .seqs = 3,
     .deaths = 1, .races = true},
    {LOADER("races-2"), .what = "2 workers, 1 slot, 1 task, 1 death, data races", .workers = 2, .slots = 1, .seqs = 1,
     .deaths = 1, .races = true, .late = true},
    {LOADER("races-ranges"), .what = "2 workers, 1 slot, 1 task in 2 ranges, data races", .workers = 2, .slots = 1,
     .seqs = 1, .ranges = 2, .races = true, .late = true},
    {QUEUE("queue"), .what = "1 producer, 1 consumer, 2 slots, 3 batches, 1 death, data races", .workers = 2,
     .slots = 2, .seqs = 3, .deaths = 1, .races = true},
    {QUEUE("queue-close"), .what = "1 producer, 1 consumer, 1 slot, 2 batches, the queue is closed", .workers = 2,
     .slots = 1, .seqs = 2, .deaths = 1, .closes = true},
    {QUEUE("queue-2"), .what = "2 producers, 1 consumer, 1 slot, 1 batch each, 1 death", .workers = 3, .slots = 1,
     .seqs = 1, .deaths = 1},
    {POOL("pool"), .what = "1 worker serves 2 segments of 1 slot and 1 task each", .seqs = 1},
    {POOL("pool-death"), .what = "1 worker serves 2 segments of 1 slot and 1 task each, 1 death", .seqs = 1,
     .deaths = 1},
    {POOL("pool-together"), .what = "2 workers serve 2 segments of 1 slot, whose tasks need each other", .seqs = 1,
     .together = true},
    {POOL("pool-gives-way"), .what = "1 worker serves 2 segments, the first has memory after the second's batch",
     .seqs = 1, .deaths = 1, .gives_way = true},
    {BUDGET("budget"), .what = "2 workers allocate memory, the pool's process lowers the budget", .workers = 2,
     .slots = 2},
    {SHARED("share-1"), .what = "2 readers, 1 slot, 2 batches and an end, data races", .workers = 2, .readers = 2,
     .slots = 1, .seqs = 2, .races = true},
    {SHARED("share-2"), .what = "1 reader that keeps a lease, 2 slots, 4 batches and an end, data races", .workers = 1,
     .readers = 1, .slots = 2, .seqs = 4, .leases = 1, .races = true},
    {SHARED("share-death"), .what = "2 readers, 1 slot, 1 batch and an end, 1 death, data races", .workers = 2,
     .readers = 2, .slots = 1, .seqs = 1, .deaths = 1, .races = true},
    {SHARED("share-join"), .what = "1 reader that begins at any time and is replaced, 2 slots, 3 batches, 1 death",
     .workers = 1, .readers = 1, .slots = 2, .seqs = 3, .deaths = 1, .closes = true},
    {SHARED("share-leave"), .what = "1 reader that leaves twice, with a lease, 2 slots, 3 batches", .workers = 1,
     .readers = 1, .slots = 2, .seqs = 3, .leaves = 2, .closes = true},
    {SHARED("share-lead"), .what = "1 reader, 2 slots, 2 batches, the consumer dies", .workers = 1, .readers = 1,
     .slots = 2, .seqs = 2, .deaths = 1, .consumer_dies = true},
    {.name = "incarnations", .participant = incarnations, .flags = SR_SEG_QUEUE,
     .what = "1 death, 2 concurrent recoveries, 1 recovering process takes the number", .workers = 3, .slots = 1,
     .deaths = 1, .incarnations = true, .late = true},
    {.name = "incarnations-pin", .participant = incarnations, .flags = SR_SEG_QUEUE,
     .what = "the same, with pinned arrays", .workers = 3, .slots = 1, .deaths = 1, .incarnations = true, .late = true,
     .holds = true},
    {.name = "incarnations-grow", .participant = incarnations, .flags = SR_SEG_QUEUE,
     .what = "the same, with slots without memory", .workers = 3, .slots = 1, .deaths = 1, .incarnations = true,
     .late = true, .grows = true},
    {.name = "incarnations-2", .participant = incarnations, .flags = SR_SEG_QUEUE,
     .what = "the same, with pinned arrays, slots without memory and a second death", .workers = 3, .slots = 1,
     .deaths = 2, .incarnations = true, .late = true, .holds = true, .grows = true},
    {.name = "records", .participant = recorder, .what = "1 writer of 3 records, 1 reader, the same record, 1 death",
     .workers = 2, .slots = 1, .seqs = 3, .deaths = 1, .records = true, .flags = SR_SEG_QUEUE},
    {.name = "records-loader", .participant = recorder, .what = "the same in a loader segment, which has one writer",
     .workers = 2, .slots = 1, .seqs = 3, .deaths = 1, .records = true},
    {.name = "records-2", .participant = recorder,
     .what = "2 writers of 2 records each, 1 reader, the same record, 1 death", .workers = 3, .slots = 2, .seqs = 2,
     .deaths = 1, .records = true, .flags = SR_SEG_QUEUE},
    {.name = "observed", .participant = watched, .what = "1 worker, 1 slot, 2 tasks, 1 observer", .workers = 2,
     .slots = 1, .seqs = 2, .watched = true},
    {CACHE("cache"), .participant = cache_of_one,
     .what = "3 processes want one entry, 1 of them abandons it, data races", .workers = 2, .races = true},
    {CACHE("cache-death"), .participant = cache_and_a_waiter,
     .what = "2 processes want one entry, 1 process waits for it, 1 death, 1 signal, data races", .workers = 2,
     .deaths = 1, .signals = 1, .races = true},
    {CACHE("cache-grows"), .participant = cache_that_grows,
     .what = "2 processes want 2 entries without memory, 1 death, data races", .workers = 1, .deaths = 1,
     .races = true, .grows = true},
    {CACHE("cache-survivors"), .participant = cache_of_survivors,
     .what = "up to 2 deaths, 2 concurrent recoveries, 1 waiting process", .workers = 3, .deaths = 2, .late = true,
     .races = true},
    {CACHE("cache-numbers"), .participant = cache_of_numbers,
     .what = "1 death, 2 concurrent recoveries, 1 recovering process takes the number, data races", .workers = 3,
     .deaths = 1, .late = true, .races = true},
    {CACHE("cache-numbers-2"), .participant = cache_of_numbers, .what = "the same, with a second death", .workers = 3,
     .deaths = 2, .late = true, .races = true},
};
const size_t n_scenarios = sizeof scenarios / sizeof *scenarios;

const struct scenario full_scenarios[] = {
    {LOADER("loader-2"), .what = "2 workers that start at any time, 2 slots, 2 tasks", .workers = 2, .slots = 2,
     .seqs = 2},
    {LOADER("staged"), .what = "2 workers, 1 slot, 1 task in 2 staged ranges, 1 death", .workers = 2, .slots = 1,
     .seqs = 1, .ranges = 2, .deaths = 1, .staged = true, .late = true},
    {LOADER("pin-2"), .what = "2 workers, 1 slot, 2 tasks, pinned arrays", .workers = 2, .slots = 1, .seqs = 2,
     .holds = true, .late = true},
    {CACHE("cache-death-3"), .participant = cache_of_one,
     .what = "3 processes want one entry, 1 of them abandons it, 1 death", .workers = 2, .deaths = 1},
    {SHARED("share-2-readers"), .what = "2 readers, 2 slots, 2 batches and an end, data races", .workers = 2,
     .readers = 2, .slots = 2, .seqs = 2, .races = true},
    {SHARED("share-join-2"), .what = "2 readers that begin at any time and are replaced, 1 slot, 1 batch, 1 death",
     .workers = 2, .readers = 2, .slots = 1, .seqs = 1, .deaths = 1, .closes = true},
    {SHARED("share-leave-2"), .what = "2 readers, 1 leaves once, 1 slot, 1 batch", .workers = 2, .readers = 2,
     .slots = 1, .seqs = 1, .leaves = 1, .closes = true},
    {BUDGET("budget-death"), .what = "2 workers allocate memory, the pool's process lowers the budget, 1 death",
     .workers = 2, .slots = 2, .deaths = 1},
    {LOADER("early-2"), .what = "2 workers, 1 slot, 2 tasks, early end", .workers = 2, .slots = 1, .seqs = 2,
     .early_end = true},
};
const size_t n_full_scenarios = sizeof full_scenarios / sizeof *full_scenarios;
