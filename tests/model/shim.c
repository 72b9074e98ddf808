/* shim.c - replaces the sanitizer's runtime, which the instrumented code calls, and the few system calls. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>

#include "model.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

static bool shared(const volatile void *address)
{
    return inside && (const char *)address >= segment && (const char *)address < segment + SEGMENT_BYTES;
}

/* Accesses to these words are no steps: statistics, on which nothing depends; `committed`, if memory never grows; words
 * that a scenario never changes; and words that only the owner of a slot reads. */
static bool no_step(const volatile void *address, int order)
{
    const sr_header *h = ring->header;
    uint32_t consumer = SR_CONSUMER;
    if (plan->caches)
        return cache_no_step(address);
    if (plan->pooled) { /* the rules of the first segment; the second one's consumer is the last participant */
        bool second;
        address = pool_first(address, &second);
        consumer = second && !plan->together ? plan->workers : SR_CONSUMER;
    }
    if (plan->records) { /* four words of a record stand for all: number, first, a middle one, last */
        size_t word = ((size_t)((const char *)address - segment) - RECORDS_AT) / 8 % (sizeof(sr_record) / 8);
        if ((const char *)address < segment + RECORDS_AT)
            return address != &h->recorded;
        return word > 1 && word != 12 && word != 8 + SR_TIMES - 1;
    }
    if (address == &h->closed)
        return !plan->closes;
    if (address == &h->iteration)
        return !plan->early_end;
    if (address == &h->memory_pressure) /* a hint */
        return true;
    if (address == &h->budget)
        return !plan->divides;
    bool dispatches = self == consumer && !(plan->flags & SR_SEG_QUEUE) && order == __ATOMIC_RELAXED;
    bool prepares = dispatches || (self == consumer && !(plan->flags & SR_SEG_QUEUE) && order == __ATOMIC_RELEASE);
    if (address == &h->high_water)
        return dispatches; /* the dispatcher is the only writer */
    size_t at = (size_t)((const char *)address - (const char *)ring->participants);
    if (at < sizeof(sr_participant) * ring->n_participants) /* no scenario reads which participants have joined */
        return at % sizeof(sr_participant) >= offsetof(sr_participant, pid) &&
               !(plan->retires && at % sizeof(sr_participant) == offsetof(sr_participant, retiring)) &&
               !(plan->incarnations && at % sizeof(sr_participant) == offsetof(sr_participant, incarnation)) &&
               !(plan->grows && at % sizeof(sr_participant) == offsetof(sr_participant, growing));
    at = (size_t)((const char *)address - (const char *)ring->slots);
    if (at >= sizeof(sr_slot) * plan->slots)
        return false;
    /* The dispatcher prepares a FREE slot. Without memory pressure nobody else changes its word, so the preparation is
     * one step. */
    if (prepares && !plan->trims && !plan->watched && sr_state_of(ring->slots[at / sizeof(sr_slot)].state) == SR_FREE)
        return true;
    at %= sizeof(sr_slot);
    if (plan->watched && (at == offsetof(sr_slot, times.claimed_at) || at == offsetof(sr_slot, times.published_at) ||
                          at == offsetof(sr_slot, times.fetch_ns)))
        return false;
    if (at == offsetof(sr_slot, iteration))
        return !plan->early_end;
    if (at == offsetof(sr_slot, n_ranges) || at == offsetof(sr_slot, cursor))
        return plan->ranges == 0;
    if (at == offsetof(sr_slot, pinned_by))
        return !plan->holds;
    if (at == offsetof(sr_slot, committed) || at == offsetof(sr_slot, registered) || at == offsetof(sr_slot, orphans))
        return !plan->trims && !plan->divides;
    return (at >= offsetof(sr_slot, times) && at < offsetof(sr_slot, layout)) ||
           (at > offsetof(sr_slot, cursor) && at < offsetof(sr_slot, rewound)) || at == offsetof(sr_slot, freed_at);
}

/* A reader of a record must acquire the number first and then each word. Its second check of the number orders nothing.
 * A writer (`stores`) must release each word that is copied. */
static void record_order(const volatile void *address, int order, bool stores)
{
    size_t at = (size_t)((const char *)address - segment);
    if (!plan->records || !inside || at < RECORDS_AT || at >= RECORDS_AT + sizeof(sr_record))
        return;
    uint32_t bit = 1u << (at - RECORDS_AT) / 8;
    if (stores)
        books.relaxed_words = order >= __ATOMIC_RELEASE ? books.relaxed_words & ~bit : books.relaxed_words | bit;
    else if (books.reading[self] && !(bit == 1 && books.reading[self] == 2)) {
        MUST(order == __ATOMIC_ACQUIRE || order == __ATOMIC_SEQ_CST);
        MUST(!(books.relaxed_words & bit));
        books.reading[self] = 2;
    }
}

/* A sleeper compares its counter only with the value that it has just read. While no participant is between the read
 * and the sleep, the value means nothing. It is then kept at 0, because equal states would differ otherwise. */
static bool a_counter(const volatile void *a)
{
    if (plan->pooled && pool_is_wake_word(a))
        return true;
    for (uint32_t p = 0; p < ring->n_participants; p++)
        if (a == &ring->participants[p].wake)
            return true;
    return a == &ring->header->ready || a == &ring->header->freed || a == &ring->header->share_wake;
}

static void look_begins(const volatile void *a)
{
    if (a_counter(a))
        books.looks[self] = (uint32_t)((const char *)a - segment);
}

/* A participant that has found something withdraws its announcement. */
static void look_may_end(const volatile void *a)
{
    const sr_header *h = ring->header;
    if (a == &ring->participants[self].waiting || a == &h->ready_waiters || a == &h->free_waiters ||
        a == &h->share_waiters)
        books.looks[self] = 0;
}

void machine_settle(void)
{
    enum { COMMON = 3 };
    bool used[MAX_PARTICIPANTS + COMMON] = {0};
    _Atomic uint32_t *words[MAX_PARTICIPANTS + COMMON] = {&ring->header->ready, &ring->header->freed,
                                                          &ring->header->share_wake};
    for (uint32_t p = 0; p < ring->n_participants; p++)
        words[COMMON + p] = plan->pooled ? pool_wake_word(p) : &ring->participants[p].wake;
    for (uint32_t p = 0; p < ring->n_participants; p++)
        for (uint32_t i = 0; books.looks[p] && i < ring->n_participants + COMMON; i++)
            used[i] |= (char *)words[i] == segment + books.looks[p];
    for (uint32_t i = 0; i < ring->n_participants + COMMON; i++)
        if (!used[i])
            *(uint32_t *)words[i] = 0;
}

#define TELL(what, address, value)                                                                              \
    do {                                                                                                        \
        if (step_seen)                                                                                          \
            step_seen(what, (const void *)(address), __builtin_return_address(0), (uint64_t)(value));           \
    } while (0)

static bool acquires(int order) { return order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE; }
static bool releases(int order) { return order >= __ATOMIC_RELEASE; }

#define ATOMICS(bits)                                                                                           \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t *a, int order)                      \
    {                                                                                                           \
        if (!shared(a))                                                                                         \
            return *a;                                                                                          \
        if (no_step(a, order))                                                                                  \
            return record_order(a, order, false), *a;                                                           \
        pause_here();                                                                                           \
        record_order(a, order, false);                                                                          \
        TELL("load", a, *a);                                                                                    \
        look_begins(a);                                                                                         \
        if (acquires(order))                                                                                    \
            race_acquire((const void *)a);                                                                      \
        return *a;                                                                                              \
    }                                                                                                           \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t *a, uint##bits##_t v, int order)                   \
    {                                                                                                           \
        if (shared(a) && !no_step(a, order)) {                                                                         \
            pause_here();                                                                                       \
            TELL("store", a, v);                                                                                \
            race_release((const void *)a, releases(order), false);                                              \
        }                                                                                                       \
        record_order(a, order, true);                                                                           \
        *a = v;                                                                                                 \
    }                                                                                                           \
    static uint##bits##_t add##bits(volatile uint##bits##_t *a, uint##bits##_t v, int order)                    \
    {                                                                                                           \
        uint##bits##_t was;                                                                                     \
        if (shared(a) && !no_step(a, order)) {                                                                         \
            pause_here();                                                                                       \
            if (acquires(order))                                                                                \
                race_acquire((const void *)a);                                                                  \
            race_release((const void *)a, releases(order), true);                                               \
            look_may_end(a);                                                                                    \
        }                                                                                                       \
        was = *a;                                                                                               \
        *a = was + v;                                                                                           \
        return was;                                                                                             \
    }                                                                                                           \
    uint##bits##_t __tsan_atomic##bits##_fetch_add(volatile uint##bits##_t *a, uint##bits##_t v, int order)     \
    {                                                                                                           \
        uint##bits##_t was = add##bits(a, v, order);                                                            \
        TELL("add", a, was + v);                                                                                \
        return was;                                                                                             \
    }                                                                                                           \
    uint##bits##_t __tsan_atomic##bits##_fetch_sub(volatile uint##bits##_t *a, uint##bits##_t v, int order)     \
    {                                                                                                           \
        uint##bits##_t was = add##bits(a, (uint##bits##_t)-v, order);                                           \
        TELL("sub", a, was - v);                                                                                \
        return was;                                                                                             \
    }                                                                                                           \
    bool __tsan_atomic##bits##_compare_exchange_strong(volatile uint##bits##_t *a, uint##bits##_t *expected,    \
                                                       uint##bits##_t v, int order, int failed)                 \
    {                                                                                                           \
        bool step = shared(a) && !no_step(a, order);                                                                   \
        if (step)                                                                                               \
            pause_here();                                                                                       \
        bool done = *a == *expected;                                                                            \
        if (step) {                                                                                             \
            TELL(done ? "swap" : "swap fails", a, done ? v : *a);                                               \
            look_may_end(a);                                                                                    \
            if (acquires(done ? order : failed))                                                                \
                race_acquire((const void *)a);                                                                  \
            if (done)                                                                                           \
                race_release((const void *)a, releases(order), true);                                           \
        }                                                                                                       \
        if (done)                                                                                               \
            record_order(a, order, true), *a = v;                                                               \
        else                                                                                                    \
            *expected = *a;                                                                                     \
        return done;                                                                                            \
    }                                                                                                           \
    bool __tsan_atomic##bits##_compare_exchange_weak(volatile uint##bits##_t *a, uint##bits##_t *expected,      \
                                                     uint##bits##_t v, int order, int failed)                   \
    {                                                                                                           \
        return __tsan_atomic##bits##_compare_exchange_strong(a, expected, v, order, failed);                    \
    }
ATOMICS(32)
ATOMICS(64)

/* A plain access belongs to the step before it. This hides nothing: race.c finds a conflict in either order. */
static void plain(const void *address, bool write)
{
    if (shared(address))
        race_plain(address, write);
}
#define PLAIN(bytes)                                                                                            \
    void __tsan_read##bytes(void *a) { plain(a, false); }                                                       \
    void __tsan_write##bytes(void *a) { plain(a, true); }                                                       \
    void __tsan_unaligned_read##bytes(void *a) { plain(a, false); }                                             \
    void __tsan_unaligned_write##bytes(void *a) { plain(a, true); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
void __tsan_read_range(void *a, size_t n) { (void)n, plain(a, false); }
void __tsan_write_range(void *a, size_t n) { (void)n, plain(a, true); }
void __tsan_init(void) {}

void *model_memcpy(void *to, const void *from, size_t n)
{
    plain(from, false);
    plain(to, true);
    return memcpy(to, from, n);
}

void put(uint32_t slot, uint32_t object, uint64_t offset, uint64_t value)
{
    uint64_t *at = (uint64_t *)(sr_payload(ring, slot) + offset);
    TELL("write", at, value);
    race_object(slot, object, true);
    *at = value;
}

uint64_t get(uint32_t slot, uint32_t object, uint64_t offset)
{
    uint64_t *at = (uint64_t *)(sr_payload(ring, slot) + offset);
    TELL("read", at, *at);
    race_object(slot, object, false);
    return *at;
}

/* ---- the kernel ---- */

int model_open(const char *path, int flags, ...)
{
    (void)path, (void)flags;
    return -1;
}

int model_clock_gettime(clockid_t clock, struct timespec *t)
{
    (void)clock;
    *t = (struct timespec){.tv_sec = 1};
    return 0;
}

/* Memory is available without a limit. */
int model_fstatfs(int fd, struct statfs *fs)
{
    (void)fd, (void)fs;
    return -1;
}

/* Nobody closes a descriptor. */
int model_fstat(int fd, struct stat *st)
{
    (void)fd;
    *st = (struct stat){0};
    return 0;
}

int model_fallocate(int fd, int mode, off_t offset, off_t length)
{
    (void)fd, (void)mode;
    if (plan->caches) {
        pause_here();
        cache_takes_memory((uint64_t)offset, (uint64_t)length);
        return 0;
    }
    uint32_t number = books.number[self] - 1u;
    /* The others count this announcement until the memory is allocated. */
    MUST(number < ring->n_participants &&
         sr_pages_of(ring->participants[number].growing) * SR_PAGE == (uint64_t)length);
    return 0;
}

int model_madvise(void *at, size_t length, int advice)
{
    (void)length;
    if (advice == MADV_REMOVE) { /* from a slot of this participant, after `committed` was reduced */
        pause_here(); /* a participant may die between the store of `committed` and this call */
        uint64_t offset = (uint64_t)((char *)at - sr_task_area(ring, 0));
        bool whole = offset % ring->stride == 0; /* or all after the first bytes; no scenario trims tails */
        uint64_t from = whole ? offset : offset - ring->task_capacity - SR_PAYLOAD_COMMIT;
        const sr_slot *s = &ring->slots[from / ring->stride];
        bool dead_ones = self == 0 && (sr_state_of(s->state) == SR_CLAIMED || sr_state_of(s->state) == SR_TRIMMED) &&
                         books.life[sr_owner_of(s->state) - 1] == DEAD; /* in a recovery */
        MUST(dead_ones || s->state == sr_word(SR_TRIMMED, self + 1, sr_gen_of(s->state)));
        books.orphans[s - ring->slots] = 0;
        MUST(whole ? s->committed == 0 && s->task_committed == 0 : s->committed == SR_PAYLOAD_COMMIT);
    }
    return 0;
}

int model_getpid(void) { return FIRST_PID + (int)self; }

/* Only signal 0, which checks whether the process exists. */
int model_kill(int pid, int signal)
{
    MUST(signal == 0 && pid >= FIRST_PID && pid < FIRST_PID + MAX_PARTICIPANTS);
    if (books.life[pid - FIRST_PID] != DEAD)
        return 0;
    errno = ESRCH;
    return -1;
}

static uint32_t sleepers(uint32_t word, uint32_t which)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p <= plan->workers; p++)
        if (books.life[p] == SLEEPS && books.futex[p] == word && n++ == which)
            return p;
    return which == UINT32_MAX ? n : UINT32_MAX;
}

static long wake(uint32_t word, long count)
{
    if (count == 1) {
        /* The kernel chooses any sleeper. Meanwhile others may fall asleep or wake up. */
        uint32_t which = choose(sleepers(word, UINT32_MAX)), n = sleepers(word, UINT32_MAX);
        if (n)
            machine_end_wait(sleepers(word, which < n ? which : n - 1), 0);
        return n != 0;
    }
    while (sleepers(word, UINT32_MAX))
        machine_end_wait(sleepers(word, 0), 0);
    return 0;
}

long model_syscall(long number, ...)
{
    if (number == SYS_pidfd_open) { /* then kill() checks for the process */
        errno = ENOSYS;
        return -1;
    }
    if (number == SYS_gettid)
        return FIRST_PID + (long)self;
    va_list arguments;
    va_start(arguments, number);
    uint32_t *word = va_arg(arguments, uint32_t *);
    int operation = va_arg(arguments, int);
    uint32_t value = va_arg(arguments, uint32_t);
    const struct timespec *until = va_arg(arguments, const struct timespec *);
    va_end(arguments);
    MUST(number == SYS_futex && shared(word));
    uint32_t at = (uint32_t)((char *)word - segment);
    bool bounded = operation != FUTEX_WAKE && until->tv_sec == BOUNDED;
    pause_here();
    TELL(operation == FUTEX_WAKE ? "FUTEX_WAKE" : "FUTEX_WAIT", word, value);
    if (operation == FUTEX_WAKE)
        return wake(at, (int)value);
    MUST(books.looks[self] == at || !a_counter(word)); /* otherwise machine_settle would be wrong */
    books.looks[self] = 0;
    if (*word != value) {
        errno = EAGAIN;
        return -1;
    }
    books.life[self] = SLEEPS;
    books.futex[self] = at;
    books.bounded[self] = bounded;
    pause_here();
    errno = books.why[self];
    books.why[self] = 0;
    return errno ? -1 : 0;
}
