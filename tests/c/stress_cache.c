/* Threads and processes that find, make, abandon and wait for a cache's entries at random, and die at any instant.
 *
 * Few keys are in use at a time: a window that moves on when its first key is READY. Checked throughout: a found
 * entry holds its key's value, a READY word does not change, an entry is made once. In the end all keys can be
 * found.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "caches.h"

enum { WINDOW = 8, KEYS = 1 << 15, PROCESSES = 3, THREADS = 2, LEAST = 10, MOST = 6000 /* bytes of an entry */ };

struct account {
    _Atomic uint64_t front; /* all earlier keys have been found */
    _Atomic uint64_t deaths;
    _Atomic uint32_t stop;
    _Atomic uint64_t word[KEYS]; /* the word when it was first found */
    _Atomic uint32_t made[KEYS];
};

static sr_cache *cache;
static struct account *account;
static bool mortal;

static uint64_t seconds(void)
{
    const char *asked = getenv("STRESS_SECONDS");
    return asked ? strtoull(asked, NULL, 10) : 1;
}

/* A slow machine needs longer to make any progress. */
static bool goes_on(uint64_t until)
{
    uint64_t front = sr_load_relaxed(&account->front);
    return front < KEYS && (front <= LEAST || sr_now() < until);
}

static uint64_t roll(uint64_t *chance, uint64_t sides)
{
    *chance += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = (*chance ^ *chance >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    return (x ^ x >> 27) % sides;
}

/* Sizes depend on the key, so that a wrong record is noticed. */
static uint64_t size_of(uint64_t key) { return word_at(key, 77) % MOST; }

static void moment(uint64_t *chance)
{
    uint64_t what = roll(chance, 1000);
    if (what < 100)
        sched_yield();
    else if (what < 130)
        usleep((useconds_t)roll(chance, 100));
    else if (mortal && what < 132)
        kill(getpid(), SIGKILL);
}

static void found(uint64_t key)
{
    check_entry(cache, key, size_of(key));
    uint64_t w = entry_word(cache, key);
    if (!sr_cas(&account->word[key], 0, w))
        CHECK_EQ(sr_load_acquire(&account->word[key]), w);
    uint64_t front = sr_load_acquire(&account->front);
    if (key == front)
        (void)sr_cas(&account->front, front, front + 1);
}

static void makes(uint64_t key, uint64_t *chance)
{
    sr_fill fill;
    int rc = sr_cache_claim(cache, key, &fill, NULL);
    CHECK(rc == 0 || rc == -EAGAIN || rc == -EEXIST);
    if (rc != 0)
        return;
    moment(chance);
    CHECK_EQ(sr_cache_wait(cache, key, 0), -EDEADLK);
    if (roll(chance, 5) == 0) {
        CHECK_OK(sr_cache_abandon(cache, &fill));
        return;
    }
    CHECK_OK(store(cache, &fill, size_of(key), NULL));
    CHECK_EQ(sr_add_relaxed(&account->made[key], 1), 0);
}

static void *takes_part(void *number)
{
    uint64_t chance = (uint64_t)(uintptr_t)number * 1000003 + sr_now();
    while (!sr_load_acquire(&account->stop)) {
        uint64_t key = sr_load_acquire(&account->front) + roll(&chance, WINDOW);
        if (key >= KEYS)
            break;
        moment(&chance);
        int rc = look(cache, key);
        if (rc == 0) {
            found(key);
        } else if (rc == -ENOENT) {
            makes(key, &chance);
        } else {
            CHECK_EQ(rc, -EAGAIN);
            rc = sr_cache_wait(cache, key, roll(&chance, 4) ? SR_FOREVER : sr_now() + roll(&chance, 3) * MS);
            CHECK(rc == 0 || rc == -ETIMEDOUT);
        }
    }
    return NULL;
}

static void by_threads(uint64_t number, int n)
{
    pthread_t threads[8];
    for (int i = 0; i < n; i++)
        CHECK_OK(pthread_create(&threads[i], NULL, takes_part, (void *)(uintptr_t)(number * 8 + (uint64_t)i)));
    for (int i = 0; i < n; i++)
        CHECK_OK(pthread_join(threads[i], NULL));
}

static void begin(void)
{
    account = mmap(NULL, sizeof *account, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(account != MAP_FAILED);
    cache = make_cache((uint64_t)KEYS * (MOST + 128));
}

/* No entry is being made any more. */
static void all_can_be_made(void)
{
    uint64_t used = 0, front = sr_load_relaxed(&account->front), end = front + WINDOW < KEYS ? front + WINDOW : KEYS;
    for (uint64_t key = 0; key < end; key++) {
        int rc = look(cache, key);
        if (rc == -EAGAIN) {
            CHECK_OK(sr_cache_wait(cache, key, SR_FOREVER));
            rc = look(cache, key);
        }
        if (rc == -ENOENT)
            CHECK_OK(make_entry(cache, key, size_of(key)));
        found(key);
        used += 64 + (size_of(key) + 63) / 64 * 64;
        CHECK_OP(sr_load_relaxed(&account->made[key]), <=, 1);
    }
    (void)sr_cache_recover(cache); /* recovers a process that died after READY */
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++)
        CHECK_EQ(sr_load_relaxed(&cache->fillers[i].incarnation), 0);
    CHECK_OP(info_of(cache).used, >=, used);
    if (!mortal)
        CHECK_EQ(info_of(cache).used, used);
    CHECK_OP(front, >, LEAST);
    printf("      %" PRIu64 " entries, %" PRIu64 " deaths, %" PRIu64 " fills recovered\n", front,
           sr_load_relaxed(&account->deaths), info_of(cache).recovered);
    sr_cache_destroy(cache);
}

TEST(threads_make_each_entry_once)
{
    uint64_t until = sr_now() + seconds() * 1000 * MS;
    begin();
    cache->view = cache->base + cache->data_off; /* so that the thread sanitizer sees each read of written bytes */
    pthread_t clock;
    CHECK_OK(pthread_create(&clock, NULL, takes_part, NULL));
    pthread_t others[3];
    for (uintptr_t i = 0; i < 3; i++)
        CHECK_OK(pthread_create(&others[i], NULL, takes_part, (void *)(i + 1)));
    while (goes_on(until))
        sleep_ms(1);
    sr_store_release(&account->stop, 1);
    CHECK_OK(pthread_join(clock, NULL));
    for (int i = 0; i < 3; i++)
        CHECK_OK(pthread_join(others[i], NULL));
    uint64_t length = cache->total - cache->data_off;
    cache->view = mmap(NULL, length, PROT_READ, MAP_SHARED, sr_cache_fd(cache), (off_t)cache->data_off);
    CHECK(cache->view != MAP_FAILED);
    all_can_be_made();
}

static pid_t process(uint64_t number)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        by_threads(number, THREADS);
        _exit(0);
    }
    return pid;
}

static void run_processes(void)
{
    pid_t pids[PROCESSES];
    uint64_t chance = sr_now(), until = sr_now() + seconds() * 1000 * MS, number = 0;
    begin();
    for (int i = 0; i < PROCESSES; i++)
        pids[i] = process(number++);
    while (goes_on(until)) {
        usleep((useconds_t)roll(&chance, 4000));
        for (int i = 0; mortal && i < PROCESSES; i++) {
            if (roll(&chance, 8) == 0)
                kill(pids[i], SIGKILL);
            int status;
            if (waitpid(pids[i], &status, WNOHANG) != pids[i])
                continue;
            CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
            sr_add_relaxed(&account->deaths, WIFSIGNALED(status));
            pids[i] = process(number++);
        }
    }
    sr_store_release(&account->stop, 1);
    for (int i = 0; i < PROCESSES; i++) {
        int status = wait_for(pids[i]); /* a process that waits forever hangs here */
        CHECK(WIFSIGNALED(status) ? mortal && WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
    }
    all_can_be_made();
}

TEST(processes_make_each_entry_once) { run_processes(); }

TEST(nothing_is_lost_with_processes_that_die)
{
    mortal = true;
    run_processes();
}

RUN_TESTS((unsigned)seconds() + 60)
