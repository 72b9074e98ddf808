/* Fillers that die, fork, or exec; the detection of their deaths, and their unfinished entries. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/personality.h>

#include "caches.h"

static uint64_t numbers_taken(const sr_cache *cache)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++)
        n += sr_load_relaxed(&cache->fillers[i].incarnation) != 0;
    return n;
}

static void claims_and_dies(sr_cache *cache, void *how_many)
{
    for (uint64_t key = 0; key < (uint64_t)(uintptr_t)how_many; key++)
        claimed(cache, key);
    raise(SIGKILL);
}

static void dead(sr_cache *cache, uint64_t how_many)
{
    int status = wait_for(in_another(claims_and_dies, cache, (void *)(uintptr_t)how_many));
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(a_waiting_process_recovers_a_dead_filler)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    dead(cache, 2);
    CHECK_EQ(look(cache, 0), -EAGAIN);
    CHECK_EQ(sr_cache_wait(cache, 0, 0), 0); /* even after the deadline it is recovered */
    CHECK_EQ(look(cache, 0), -ENOENT);
    CHECK_EQ(look(cache, 1), -EAGAIN);
    CHECK_OK(sr_cache_wait(cache, 1, SR_FOREVER));
    CHECK_EQ(info_of(cache).recovered, 2);
    CHECK_EQ(numbers_taken(cache), 0);
    for (uint64_t key = 0; key < 2; key++) {
        CHECK_EQ(entry_word(cache, key), UINT64_C(1) << SR_GEN_SHIFT);
        CHECK_OK(make_entry(cache, key, 100));
        check_entry(cache, key, 100);
    }
}

TEST(a_claim_without_a_free_number_recovers_dead_fillers)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    dead(cache, SR_CACHE_FILLERS);
    CHECK_EQ(numbers_taken(cache), SR_CACHE_FILLERS);
    sr_fill fill = claimed(cache, SR_CACHE_FILLERS);
    CHECK_EQ(numbers_taken(cache), 1);
    CHECK_EQ(info_of(cache).recovered, SR_CACHE_FILLERS);
    for (uint64_t key = 0; key < SR_CACHE_FILLERS; key++)
        CHECK_EQ(look(cache, key), -ENOENT);
    CHECK_OK(sr_cache_abandon(cache, &fill));
}

TEST(living_fillers_may_have_all_numbers)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    sr_fill fills[SR_CACHE_FILLERS], more;
    for (uint64_t key = 0; key < SR_CACHE_FILLERS; key++)
        fills[key] = claimed(cache, key);
    CHECK_EQ(sr_cache_claim(cache, SR_CACHE_FILLERS, &more, NULL), -EUSERS);
    CHECK_EQ(sr_cache_recover(cache), 0);
    CHECK_OK(store(cache, &fills[5], 8, NULL));
    CHECK_OK(sr_cache_claim(cache, SR_CACHE_FILLERS, &more, NULL));
    CHECK_EQ(more.filler, fills[5].filler);
}

TEST(memory_that_dead_fillers_had_taken_is_counted)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    dead(cache, 1);
    sr_filler *f = &cache->fillers[owner_of_entry(cache, 0) - 1];
    sr_store_relaxed(&f->taken, 640); /* as between the allocation and READY */
    sr_store_relaxed(&cache->header->cursor, 640);
    CHECK_EQ(sr_cache_recover(cache), 1);
    CHECK_EQ(info_of(cache).lost, 640);
    CHECK_OK(make_entry(cache, 0, 8));
    CHECK_EQ(info_of(cache).used, 640 + 128);
    check_entry(cache, 0, 8);
}

TEST(a_dead_filler_that_wrote_anything_does_no_harm)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    uint64_t keys[] = {SR_CACHE_NO_KEY, SR_CACHE_KEYS, SR_CACHE_KEYS - 1, 5};
    sr_fill other = claimed(cache, 5);
    for (int i = 0; i < 4; i++) {
        dead(cache, 1);
        sr_filler *f = &cache->fillers[owner_of_entry(cache, 0) - 1];
        sr_store_relaxed(&f->key, keys[i]); /* 5 belongs to another process */
        CHECK_EQ(sr_cache_recover(cache), 1);
        CHECK_EQ(numbers_taken(cache), 1);
        CHECK_EQ(look(cache, 0), -EAGAIN); /* its entry stays lost: a waiting process makes its own */
        CHECK_EQ(sr_cache_wait(cache, 0, in_ms(20)), -ETIMEDOUT);
        sr_store_relaxed(&cache->index[0], 0);
    }
    CHECK_OK(store(cache, &other, 100, NULL));
    check_entry(cache, 5, 100);
}

TEST(a_filler_taken_for_dead_takes_nothing_from_others)
{
    /* As if a process without /proc checks from another PID namespace. */
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    sr_fill mine = claimed(cache, 1);
    sr_cache_reap(cache, mine.filler, mine.incarnation);
    CHECK_EQ(look(cache, 1), -ENOENT);
    CHECK_OK(make_entry(cache, 1, 200));
    sr_store_relaxed(&cache->fillers[mine.filler].incarnation, 4711); /* another process has the number */
    CHECK_EQ(store(cache, &mine, 100, NULL), -ESTALE);
    check_entry(cache, 1, 200);
    CHECK_EQ(sr_load_relaxed(&cache->fillers[mine.filler].incarnation), 4711);
}

/* In the forked child of the process that makes entry 1. */
static void has_a_copy_of_the_fill(sr_cache *cache, void *fill)
{
    sr_fill copy = *(sr_fill *)fill;
    CHECK_EQ(store(cache, &copy, 8, NULL), -ECHILD);
    CHECK_EQ(sr_cache_abandon(cache, &copy), -ECHILD);
    CHECK_EQ(sr_cache_wait(cache, 1, in_ms(20)), -ETIMEDOUT); /* not -EDEADLK: its parent makes it */
    CHECK_EQ(sr_cache_recover(cache), 0);
    CHECK_OK(make_entry(cache, 2, 100));
    claimed(cache, 3);
}

TEST(a_forked_child_ends_no_fill_of_its_parents)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    sr_fill fill = claimed(cache, 1);
    CHECK_EQ(wait_for(in_another(has_a_copy_of_the_fill, cache, &fill)), 0);
    CHECK_EQ(look(cache, 1), -EAGAIN);
    CHECK_OK(store(cache, &fill, 100, NULL));
    check_entry(cache, 1, 100);
    check_entry(cache, 2, 100);
    CHECK_EQ(look(cache, 3), -EAGAIN);
    CHECK_OK(sr_cache_wait(cache, 3, SR_FOREVER)); /* the child has ended, this process has not */
    CHECK_EQ(look(cache, 3), -ENOENT);
}

static void becomes_another_program(sr_cache *cache, void *ends)
{
    claimed(cache, 1);
    CHECK_OP(dup2(((int *)ends)[0], 0), >=, 0);
    CHECK_OP(dup2(((int *)ends)[1], 1), >=, 0);
    execl("/bin/cat", "cat", (char *)NULL);
    CHECK(false);
}

TEST(a_filler_that_has_executed_another_program_counts_as_dead)
{
    if (personality(0xffffffff) & ADDR_NO_RANDOMIZE)
        SKIP("programs begin at the same place here");
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    int to[2], from[2];
    char c = 'x';
    CHECK_OK(pipe2(to, 0));
    CHECK_OK(pipe2(from, 0));
    int ends[2] = {to[0], from[1]};
    pid_t pid = in_another(becomes_another_program, cache, ends);
    CHECK_EQ(write(to[1], &c, 1), 1);
    CHECK_EQ(read(from[0], &c, 1), 1); /* by now it has become cat */
    CHECK_EQ(look(cache, 1), -EAGAIN);
    CHECK_OK(sr_cache_wait(cache, 1, SR_FOREVER));
    CHECK_EQ(look(cache, 1), -ENOENT);
    CHECK_OK(kill(pid, 0));
    kill(pid, SIGKILL);
    wait_for(pid);
}

TEST(from_another_pid_namespace_entries_are_only_found)
{
    sr_cache *cache = make_cache(MIB), *other;
    sr_fill fill = claimed(cache, 1);
    CHECK_OK(make_entry(cache, 2, 100));
    cache->header->pid_namespace++;
    other = attached(cache);
    check_entry(other, 2, 100);
    sr_fill more;
    CHECK_EQ(sr_cache_claim(other, 3, &more, NULL), -EXDEV);
    CHECK_EQ(sr_cache_wait(other, 1, SR_FOREVER), -ETIMEDOUT);
    sr_store_relaxed(&cache->fillers[fill.filler].incarnation, fill.incarnation + (UINT64_C(1) << 32));
    CHECK_EQ(sr_cache_recover(other), 0);
    CHECK_EQ(look(other, 1), -EAGAIN);
    sr_cache_destroy(other);
    sr_cache_destroy(cache);
}

RUN_TESTS(60)
