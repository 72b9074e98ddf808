/* caches.c - processes that share a cache: each one finds an entry, makes it, or waits for the process that makes it.
 *
 * The cache's bytes follow the ring's in the segment. In a scenario without `grows`, the cache has its memory from the
 * start. A state contains only the words on which something depends.
 */
#include "cache_handle.h"
#include "model.h"

enum { KEYS = 2, ENTRIES = 6, ENTRY = 2 * SR_LINE };
enum { HEADER = SR_PAGE * (3 + MAX_SLOTS), FILLERS = HEADER + SR_PAGE, MAP = FILLERS + SR_PAGE, INDEX = MAP + SR_LINE,
       DATA = INDEX + SR_PAGE - SR_LINE };
_Static_assert(DATA + ENTRIES * ENTRY <= SEGMENT_BYTES, "the cache lies in the segment");
enum { NUMBER = 1 }; /* participant 0 owns all other numbers */

/* Which parts have memory. It is part of a state, so it is in the books. */
enum { OF_WORDS, OF_ENTRIES };
static uint8_t *const memory = books.orphans;

static struct sr_cache handles[MAX_PARTICIPANTS]; /* one per participant: the handle knows its process */
static sr_counters counters[SR_CACHE_COUNTERS]; /* nothing depends on them */

static sr_cache_header *header(void) { return (sr_cache_header *)(segment + HEADER); }
static sr_filler *fillers(void) { return (sr_filler *)(segment + FILLERS); }
static _Atomic uint64_t *words(void) { return (_Atomic uint64_t *)(segment + INDEX); }

void cache_begin(void)
{
    for (uint32_t p = 0; p < MAX_PARTICIPANTS; p++)
        handles[p] = (struct sr_cache){.base = segment, .view = segment + DATA, .header = header(),
            .counters = counters, .fillers = fillers(), .map = (_Atomic uint64_t *)(segment + MAP),
            .index = words(), .n_keys = KEYS,
            .data_off = DATA, .budget = ENTRIES * ENTRY, .total = DATA + ENTRIES * ENTRY};
    header()->committed = plan->grows ? 0 : ENTRIES * ENTRY;
    *(uint64_t *)(segment + MAP) = !plan->grows;
    memory[OF_WORDS] = memory[OF_ENTRIES] = !plan->grows;
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++)
        fillers()[i].key = SR_CACHE_NO_KEY;
    for (uint32_t key = 0; key < KEYS; key++) /* the first increment wraps the generation */
        words()[key] = UINT64_MAX >> SR_GEN_SHIFT << SR_GEN_SHIFT;
}

uint32_t cache_regions(struct region *out)
{
    out[0] = (struct region){&header()->cursor, 16}; /* and `committed` */
    out[1] = (struct region){&header()->waiters, 4};
    out[2] = (struct region){fillers(), SR_CACHE_FILLERS * sizeof(sr_filler)};
    out[3] = (struct region){segment + MAP, SR_LINE + KEYS * 8};
    out[4] = (struct region){segment + DATA, ENTRIES * ENTRY};
    return 5;
}

/* Statistics, words that never change here, and words that only their filler reads: without deaths, all of a filler. */
bool cache_no_step(const volatile void *address)
{
    size_t at = (size_t)((const char *)address - (const char *)fillers());
    bool of_filler = at < SR_CACHE_FILLERS * sizeof(sr_filler);
    if (plan->grows && (address == &header()->committed || address == segment + MAP ||
                        (of_filler && at % sizeof(sr_filler) == offsetof(sr_filler, growing))))
        return false;
    if (of_filler)
        return plan->deaths == 0 || (at % sizeof(sr_filler) != offsetof(sr_filler, incarnation) &&
                                     at % sizeof(sr_filler) != offsetof(sr_filler, key));
    at = (size_t)((const char *)address - segment);
    return at >= HEADER && at < INDEX && address != &header()->cursor && address != &header()->waiters;
}

int cache_entry_at(const void *address)
{
    size_t at = (size_t)((const char *)address - segment);
    return at >= DATA && at < DATA + ENTRIES * ENTRY ? (int)((at - DATA) / ENTRY) : -1;
}

int cache_key_at(const void *address)
{
    size_t at = (size_t)((const char *)address - (const char *)words());
    if (at >= KEYS * 8)
        return -1;
    MUST(memory[OF_WORDS]); /* no process accesses a word before it has memory */
    return (int)(at / 8);
}

/* fallocate. The participant must have announced the bytes, because the others count them until they are allocated. */
void cache_takes_memory(uint64_t offset, uint64_t length)
{
    bool said = false;
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++)
        said |= fillers()[i].incarnation == FIRST_PID + self && fillers()[i].growing == length;
    MUST(said && (offset == INDEX || offset == DATA));
    memory[offset == INDEX ? OF_WORDS : OF_ENTRIES] = 1;
}

bool cache_is_ready(uint32_t entry)
{
    MUST(memory[OF_ENTRIES]); /* no process accesses an entry before it has memory */
    for (uint32_t key = 0; key < KEYS; key++)
        if (words()[key] == (SR_ENTRY_READY | (uint64_t)entry * (ENTRY / SR_LINE) << SR_ENTRY_SHIFT))
            return true;
    return false;
}

bool cache_has_number(uint32_t participant)
{
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++)
        if (fillers()[i].incarnation == FIRST_PID + participant)
            return true;
    return false;
}

static bool alive(uint32_t participant) { return books.life[participant] != DEAD; }

/* Make an entry, or abandon it. Return the error of sr_cache_claim if another participant owns it. */
static int make(uint32_t me, uint32_t key, bool gives_up)
{
    sr_fill fill;
    sr_result result = {.kind = SR_BATCH, .def_hash = key};
    uint64_t content = key + 100;
    int rc = sr_cache_claim(&handles[me], key, &fill, NULL);
    if (rc != 0)
        return rc;
    MUST(books.fills[key] == 0 || !alive(books.fills[key] - 1u)); /* one filler at a time */
    MUST(books.delivered[key] == 0);                              /* and the entry is made once */
    books.fills[key] = (uint8_t)(me + 1);
    /* The next calls may make it READY at any moment. A READY entry has no owner. */
    if (gives_up) {
        books.fills[key] = 0;
        MUST(sr_cache_abandon(&handles[me], &fill) == 0);
        return 0;
    }
    MUST(sr_cache_store(&handles[me], &fill, &result, (const char *)&content, sizeof content, NULL) == 0);
    books.fills[key] = 0;
    MUST(books.delivered[key]++ == 0);
    return 0;
}

static bool found(uint32_t me, uint32_t key, int *rc)
{
    const char *payload;
    uint64_t bytes;
    sr_result result;
    *rc = sr_cache_lookup(&handles[me], key, &payload, &bytes, &result);
    MUST(*rc == 0 || *rc == -ENOENT || *rc == -EAGAIN);
    if (*rc != 0)
        return false;
    MUST(bytes == 8 && result.kind == SR_BATCH && result.def_hash == key);
    race_plain(payload, false);
    MUST(*(const uint64_t *)payload == key + 100);
    return true;
}

static void have(uint32_t me, uint32_t key, bool gives_up)
{
    int rc;
    while (!found(me, key, &rc)) {
        if (rc == -ENOENT) {
            rc = make(me, key, gives_up);
            MUST(rc == 0 || rc == -EAGAIN || rc == -EEXIST);
            gives_up = gives_up && rc != 0;
        } else {
            rc = sr_cache_wait(&handles[me], key, SR_FOREVER);
            MUST(rc == 0 || (rc == -EINTR && plan->signals));
        }
    }
}

/* Several processes want the same entry. The last one abandons it once if it gets the claim. */
void cache_of_one(uint32_t me) { have(me, 0, me == plan->workers && me > 0); }

/* Two processes want the same entry and one of them dies. Another process only waits, if one of them makes it. */
void cache_and_a_waiter(uint32_t me)
{
    int rc;
    if (me > 0)
        have(me, 0, false);
    else if (!found(me, 0, &rc) && rc == -EAGAIN)
        MUST(sr_cache_wait(&handles[me], 0, SR_FOREVER) == 0);
}

/* Two processes make one entry each, and then want the other process's entry. */
void cache_that_grows(uint32_t me)
{
    for (uint32_t i = 0; i < KEYS; i++)
        have(me, (me + i) % KEYS, false);
}

/* One process dies. A survivor and a newcomer recover it concurrently; the newcomer takes its number when it can. */
void cache_of_numbers(uint32_t me)
{
    if (me == VICTIM) {
        have(me, 0, false);
    } else if (me == NEWCOMER) {
        for (uint32_t key = 0; key < KEYS; key++)
            have(me, key, false);
    } else if (me == SURVIVOR) {
        MUST(sr_cache_recover(&handles[me]) >= 0);
    } else {
        for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++)
            if (i != NUMBER)
                fillers()[i].incarnation = FIRST_PID;
        spawn(VICTIM);
        wait_until(victim_has_gone);
        spawn(SURVIVOR);
        spawn(NEWCOMER);
        wait_until(recoveries_have_ended);
        for (uint32_t key = 0; key < KEYS; key++)
            have(me, key, false);
        MUST(sr_cache_recover(&handles[me]) >= 0); /* a filler may have died after READY */
        MUST(fillers()[NUMBER].incarnation == 0);
    }
}

/* One process dies. Two recover it concurrently, and one of them may die; another process waits for the entry. After
 * the number is free, no process checks for the death again, so the recovery must have woken the waiting process. */
void cache_of_survivors(uint32_t me)
{
    int rc;
    if (me == VICTIM) {
        have(me, 0, false);
        return;
    }
    if (me != SR_CONSUMER) {
        MUST(sr_cache_recover(&handles[me]) >= 0);
        return;
    }
    spawn(VICTIM);
    wait_until(victim_has_gone);
    spawn(SURVIVOR);
    spawn(NEWCOMER);
    if (!found(me, 0, &rc) && rc == -EAGAIN)
        MUST(sr_cache_wait(&handles[me], 0, SR_FOREVER) == 0);
    wait_until(recoveries_have_ended);
    have(me, 0, false);
    MUST(sr_cache_recover(&handles[me]) >= 0);
    MUST(header()->waiters == 0);
}
