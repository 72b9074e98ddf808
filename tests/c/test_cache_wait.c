/* Waits for an entry that another process makes. No waiter checks again here: a lost wake-up is a hang. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "caches.h"

struct waiter {
    sr_cache *cache;
    uint64_t key;
    int rc;
    pthread_t thread;
};

static void *waits(void *as)
{
    struct waiter *w = as;
    w->rc = sr_cache_wait(w->cache, w->key, SR_FOREVER);
    return NULL;
}

static void begin_to_wait(struct waiter *w, sr_cache *cache, uint64_t key)
{
    *w = (struct waiter){.cache = cache, .key = key, .rc = 1};
    CHECK_OK(pthread_create(&w->thread, NULL, waits, w));
}

static int end_of(struct waiter *w)
{
    CHECK_OK(pthread_join(w->thread, NULL));
    return w->rc;
}

TEST(a_store_wakes_all_waiting_processes)
{
    sr_cache *cache = make_cache(MIB), *other = attached(cache);
    struct waiter w[4];
    sr_fill fill = claimed(cache, 7);
    for (int i = 0; i < 4; i++)
        begin_to_wait(&w[i], i % 2 ? cache : other, 7);
    await_waiters(cache, 4);
    CHECK_OK(store(cache, &fill, 100, NULL));
    for (int i = 0; i < 4; i++)
        CHECK_OK(end_of(&w[i]));
    check_entry(other, 7, 100);
    CHECK_EQ(sr_load_relaxed(&cache->header->waiters), 0);
    sr_cache_destroy(other);
    sr_cache_destroy(cache);
}

TEST(waiting_processes_are_woken_if_a_store_is_abandoned_or_refused)
{
    sr_cache *cache SCOPED_CACHE = make_cache(1000);
    struct waiter w;
    for (int i = 0; i < 2; i++) {
        sr_fill fill = claimed(cache, 7);
        begin_to_wait(&w, cache, 7);
        await_waiters(cache, 1);
        if (i)
            CHECK_EQ(store(cache, &fill, 2000, NULL), -ENOSPC);
        else
            CHECK_OK(sr_cache_abandon(cache, &fill));
        CHECK_OK(end_of(&w));
        CHECK_EQ(look(cache, 7), -ENOENT);
    }
}

/* Two threads in lockstep: one stores while the other begins to wait. */
enum { ENTRIES = 20000 };
struct race {
    sr_cache *cache;
    _Atomic uint64_t round;
};

static void *fills(void *as)
{
    struct race *race = as;
    sr_result result = {.kind = SR_BATCH};
    for (uint64_t key = 0; key < ENTRIES; key++) {
        sr_fill fill = claimed(race->cache, key);
        sr_store_release(&race->round, key + 1);
        CHECK_OK(sr_cache_store(race->cache, &fill, &result, (const char *)&key, 8, NULL));
    }
    return NULL;
}

TEST(a_store_and_a_wait_at_once_lose_no_wake_up)
{
    struct race race = {.cache = make_cache(4 * MIB)};
    pthread_t thread;
    CHECK_OK(pthread_create(&thread, NULL, fills, &race));
    for (uint64_t key = 0; key < ENTRIES; key++) {
        while (sr_load_acquire(&race.round) <= key)
            sched_yield();
        CHECK_OK(sr_cache_wait(race.cache, key, SR_FOREVER));
        CHECK_OK(look(race.cache, key));
    }
    CHECK_OK(pthread_join(thread, NULL));
    sr_cache_destroy(race.cache);
}

TEST(no_thread_waits_for_its_own_entry)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    struct waiter w;
    sr_fill fill = claimed(cache, 7);
    CHECK_EQ(sr_cache_wait(cache, 7, SR_FOREVER), -EDEADLK);
    begin_to_wait(&w, cache, 7); /* another thread may */
    await_waiters(cache, 1);
    CHECK_OK(sr_cache_abandon(cache, &fill));
    CHECK_OK(end_of(&w));
}

static void claims_and_stops(sr_cache *cache, void *unused)
{
    (void)unused;
    sr_fill fill = claimed(cache, 7);
    raise(SIGSTOP);
    CHECK_OK(store(cache, &fill, 100, NULL));
}

TEST(a_stopped_filler_is_waited_for_until_the_deadline)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    struct waiter w;
    int status;
    pid_t pid = in_another(claims_and_stops, cache, NULL);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK_EQ(sr_cache_wait(cache, 7, 0), -ETIMEDOUT);
    uint64_t then = in_ms(30);
    CHECK_EQ(sr_cache_wait(cache, 7, then), -ETIMEDOUT);
    CHECK(sr_now() >= then);
    CHECK_EQ(look(cache, 7), -EAGAIN); /* it still belongs to the other process */
    begin_to_wait(&w, cache, 7);
    await_waiters(cache, 1);
    kill(pid, SIGCONT);
    CHECK_OK(end_of(&w));
    CHECK_EQ(wait_for(pid), 0);
    check_entry(cache, 7, 100);
}

/* Signals its parent until the parent has noticed. */
static void interrupts(sr_cache *cache, void *enough)
{
    (void)cache;
    while (!sr_load_acquire((_Atomic uint32_t *)enough)) {
        kill(getppid(), SIGUSR1);
        sched_yield();
    }
}

TEST(a_signal_ends_the_wait)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    _Atomic uint32_t *enough = shared_page();
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESTART};
    CHECK_OK(sigaction(SIGUSR1, &action, NULL));
    int status;
    pid_t filler = in_another(claims_and_stops, cache, NULL);
    CHECK_EQ(waitpid(filler, &status, WUNTRACED), filler);
    pid_t pid = in_another(interrupts, cache, enough);
    CHECK_EQ(sr_cache_wait(cache, 7, SR_FOREVER), -EINTR);
    sr_store_release(enough, 1);
    CHECK_EQ(wait_for(pid), 0);
    CHECK_EQ(sr_load_relaxed(&cache->header->waiters), 0);
    kill(filler, SIGCONT);
    CHECK_EQ(wait_for(filler), 0);
}

RUN_TESTS(60)
