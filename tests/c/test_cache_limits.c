/* Limits of a cache: its budget, available memory, and limits on files and addresses. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "caches.h"
#include "needs.h"
#include "small.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static bool has_room(const sr_cache *cache, uint64_t bytes) { return sr_cache_memory_available(cache, bytes) == 0; }

static sr_cache *small_cache(const char *size, uint64_t budget)
{
    sr_cache *cache = NULL;
    mount_small(size);
    CHECK(sr_cache_create(budget, SR_BACKING_DIR, mounted, &cache, NULL) == 0);
    return cache;
}

TEST(a_cache_needs_a_budget_and_a_place)
{
    sr_cache *cache = NULL;
    sr_alloc_error why;
    CHECK_EQ(sr_cache_create(0, SR_BACKING_MEMFD, NULL, &cache, NULL), -EINVAL);
    CHECK_EQ(sr_cache_create(SR_CACHE_LARGEST + 1, SR_BACKING_MEMFD, NULL, &cache, NULL), -EINVAL);
    CHECK_EQ(sr_cache_create(MIB, 99, NULL, &cache, NULL), -EINVAL);
    CHECK_EQ(sr_cache_create(MIB, SR_BACKING_DIR, NULL, &cache, &why), -EINVAL);
    CHECK_EQ(sr_cache_create(MIB, SR_BACKING_DIR, "/proc", &cache, &why), -EMEDIUMTYPE);
    CHECK_EQ(sr_cache_create(MIB, SR_BACKING_DIR, "/no such folder", &cache, &why), -ENOENT);
    CHECK_EQ(sr_cache_create(MIB, SR_BACKING_MEMFD, NULL, NULL, &why), -EINVAL);
    CHECK(cache == NULL);
    CHECK_EQ(sr_cache_destroy(NULL), -EINVAL);
}

TEST(the_budget_is_kept_to_the_byte_and_smaller_entries_still_fit)
{
    sr_cache *cache SCOPED_CACHE = make_cache(1000);
    sr_alloc_error why = {0};
    CHECK(has_room(cache, 936 / 64 * 64));
    CHECK(!has_room(cache, 936 / 64 * 64 + 1)); /* entries occupy whole cache lines */
    CHECK_EQ(sr_cache_memory_available(cache, 1001), -ENOSPC);
    CHECK(!has_room(cache, 1001) && !has_room(cache, UINT64_MAX));
    CHECK_OK(make_entry(cache, 1, 500)); /* 576 with its record */
    sr_fill fill = claimed(cache, 2);
    CHECK(!has_room(cache, 321));
    CHECK(!info_of(cache).full);
    CHECK_EQ(store(cache, &fill, 321, &why), -ENOSPC);
    CHECK_EQ(why.limit, SR_LIMIT_CAPACITY);
    CHECK_EQ(why.needed, 448);
    CHECK_EQ(why.free, 424);
    CHECK(info_of(cache).full);
    CHECK_EQ(look(cache, 2), -ENOENT); /* other processes may try, or make their own value */
    CHECK(has_room(cache, 320));
    CHECK_OK(make_entry(cache, 2, 320));
    check_entry(cache, 1, 500);
    check_entry(cache, 2, 320);
    CHECK_EQ(info_of(cache).used, 960);
    CHECK_EQ(make_entry(cache, 3, 0), -ENOSPC);
}

TEST(no_size_overflows)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    uint64_t sizes[] = {SR_CACHE_LARGEST, SR_CACHE_LARGEST + 1, UINT64_MAX - 127, UINT64_MAX - 63, UINT64_MAX};
    for (int i = 0; i < 5; i++) {
        sr_fill fill = claimed(cache, 1);
        sr_alloc_error why = {0};
        sr_result result = {0};
        CHECK_EQ(sr_cache_store(cache, &fill, &result, "", sizes[i], &why), -ENOSPC);
        CHECK_EQ(why.limit, SR_LIMIT_CAPACITY);
        CHECK_OP(why.needed, >, MIB);
        CHECK_EQ(look(cache, 1), -ENOENT);
    }
    CHECK_EQ(info_of(cache).used, 0);
    CHECK_OK(make_entry(cache, 1, 8));
}

TEST(entries_take_the_memory_there_is_and_not_more)
{
    sr_cache *cache = small_cache("8m", 64 * MIB);
    sr_alloc_error why = {0};
    struct stat file;
    uint64_t n = 0;
    int rc = 0;
    CHECK(has_room(cache, MIB));
    for (; n < 8 && rc == 0; n += rc == 0) {
        sr_fill fill = claimed(cache, n);
        rc = store(cache, &fill, MIB, &why);
    }
    /* 8 MiB less header and index: the last ones without the usual commit ahead. */
    CHECK(rc == -ENOSPC && n == 7);
    CHECK(why.limit == SR_LIMIT_FILESYSTEM && why.needed > why.free);
    CHECK(sr_cache_memory_available(cache, 8) == -EAGAIN); /* for a second no process tries again */
    CHECK(look(cache, n) == -ENOENT);
    CHECK(fstat(sr_cache_fd(cache), &file) == 0 && (uint64_t)file.st_blocks * 512 == info_of(cache).committed);
    CHECK(!info_of(cache).full && info_of(cache).used < 8 * MIB);
    for (uint64_t i = 0; i < n; i++)
        check_entry(cache, i, MIB);
    CHECK(make_entry(cache, n, 1000) == 0); /* a request still gets the remaining memory */
    CHECK(make_entry(cache, SR_CACHE_KEYS - 1, 8) == 0);
    check_entry(cache, n, 1000);
    sr_cache_destroy(cache);
}

TEST(words_take_memory_too)
{
    sr_cache *cache = small_cache("256k", MIB);
    sr_alloc_error why = {0};
    sr_fill fill;
    uint64_t chunks = 0;
    int rc = 0;
    for (; rc == 0 && chunks < 4; chunks += rc == 0)
        if ((rc = sr_cache_claim(cache, chunks * SR_CACHE_CHUNK, &fill, &why)) == 0)
            CHECK(sr_cache_abandon(cache, &fill) == 0);
    CHECK(rc == -ENOSPC && chunks == 2 && why.limit == SR_LIMIT_FILESYSTEM && why.needed > why.free);
    CHECK(look(cache, chunks * SR_CACHE_CHUNK) == -ENOENT);
    CHECK(sr_cache_claim(cache, 3 * SR_CACHE_CHUNK, &fill, NULL) == -ENOSPC);
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++)
        CHECK(sr_load_relaxed(&cache->fillers[i].incarnation) == 0);
    sr_cache_destroy(cache);
}

TEST(a_cache_that_finds_no_memory_at_all_is_not_made)
{
    sr_cache *cache = NULL;
    sr_alloc_error why = {0};
    mount_small("64k");
    CHECK(sr_cache_create(MIB, SR_BACKING_DIR, mounted, &cache, &why) == -ENOSPC);
    CHECK(cache == NULL && why.limit == SR_LIMIT_FILESYSTEM && why.needed > why.free);
}

TEST(memory_pressure_is_over_after_a_second_by_any_clock)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    sr_store_relaxed(&cache->header->short_until, sr_now() + 900 * MS);
    CHECK(!has_room(cache, 8));
    sr_store_relaxed(&cache->header->short_until, sr_now() - 1);
    CHECK(has_room(cache, 8));
    sr_store_relaxed(&cache->header->short_until, sr_now() + 3600 * UINT64_C(1000000000)); /* of another clock */
    CHECK(has_room(cache, 8));
}

TEST(memory_that_others_are_committing_is_theirs)
{
    sr_cache *cache SCOPED_CACHE = make_cache(64 * MIB);
    sr_alloc_error why = {0};
    uint64_t me = sr_incarnation_of((int)getpid());
    CHECK_OK(make_entry(cache, 0, 8));
    sr_store_relaxed(&cache->header->committed, 4096); /* the next one grows */
    sr_filler *other = &cache->fillers[5];
    sr_store_relaxed(&other->growing, UINT64_C(1) << 60);
    CHECK_OK(make_entry(cache, 1, 8192)); /* no process has this number */
    sr_store_relaxed(&cache->header->committed, 4096);
    sr_store_relaxed(&other->incarnation, me);
    sr_fill fill = claimed(cache, 2);
    CHECK_EQ(store(cache, &fill, 8192, &why), -ENOSPC);
    CHECK_EQ(why.free, 0);
    /* The process that announced it has died: same pid, but another start time. */
    sr_store_relaxed(&other->incarnation, me + (UINT64_C(1) << 32));
    fill = claimed(cache, 2);
    CHECK_OK(store(cache, &fill, 8192, &why));
    CHECK_EQ(sr_load_relaxed(&other->incarnation), 0);
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++)
        CHECK(i == 5 || sr_load_relaxed(&cache->fillers[i].growing) == 0); /* no announcement stays */
}

TEST(a_closed_descriptor_is_the_loss_of_one_process)
{
    sr_cache *cache = make_cache(64 * MIB), *other = attached(cache);
    CHECK_OK(make_entry(cache, 0, 8));
    CHECK_OK(close(cache->file.fd));
    CHECK_EQ(sr_cache_fd(cache), -EBADF);
    CHECK_EQ(make_entry(cache, SR_CACHE_CHUNK, 8), -EBADF);
    CHECK_EQ(make_entry(cache, 1, 5 * MIB), -EBADF);
    CHECK_EQ(look(cache, 1), -ENOENT);
    CHECK_OK(make_entry(cache, 2, 8)); /* it has memory already */
    CHECK(has_room(other, 8));
    CHECK_OK(make_entry(other, 1, 5 * MIB));
    check_entry(cache, 0, 8);
    check_entry(cache, 1, 5 * MIB);
    sr_cache_destroy(other);
    CHECK_OK(sr_cache_destroy(cache));
}

static sr_cache *with_limit(int which, uint64_t most, uint64_t budget, int *rc, sr_alloc_error *why)
{
    struct rlimit limit = {most, RLIM_INFINITY};
    sr_cache *cache = NULL;
    CHECK_OK(setrlimit(which, &limit));
    *rc = sr_cache_create(budget, SR_BACKING_MEMFD, NULL, &cache, why);
    return cache;
}

TEST(a_limit_on_files_costs_keys_first_and_then_room)
{
    sr_alloc_error why = {0};
    int rc;
    sr_cache *cache = with_limit(RLIMIT_FSIZE, 256 * MIB, 64 * MIB, &rc, &why);
    CHECK_OK(rc);
    CHECK_EQ(info_of(cache).budget, 64 * MIB);
    CHECK_EQ(info_of(cache).n_keys, UINT64_C(1) << 24); /* 128 MiB of words: twice that does not fit */
    sr_cache_destroy(attached(cache));
    sr_cache_destroy(cache);

    cache = with_limit(RLIMIT_FSIZE, MIB, 16 * MIB, &rc, &why);
    CHECK_OK(rc);
    CHECK_EQ(info_of(cache).wanted, 16 * MIB);
    CHECK_EQ(info_of(cache).n_keys, SR_CACHE_FEWEST);
    uint64_t budget = info_of(cache).budget; /* about 1 MiB less 512 KiB of words and the header */
    CHECK_OP(budget, >=, 300 * KIB);
    CHECK_OP(budget, <=, 384 * KIB);
    uint64_t before = info_of(cache).committed;
    CHECK_OK(make_entry(cache, SR_CACHE_FEWEST - 1, 200 * KIB));
    /* with few chunks, too */
    CHECK_EQ(info_of(cache).committed, before + SR_CACHE_CHUNK * 8 + (budget + SR_PAGE - 1) / SR_PAGE * SR_PAGE);
    CHECK_EQ(make_entry(cache, 0, 200 * KIB), -ENOSPC);
    check_entry(cache, SR_CACHE_FEWEST - 1, 200 * KIB);
    sr_cache_destroy(cache);

    CHECK(with_limit(RLIMIT_FSIZE, 600 * KIB, 16 * MIB, &rc, &why) == NULL);
    CHECK_EQ(rc, -EFBIG);
    CHECK_EQ(why.limit, SR_LIMIT_FILESIZE);
}

TEST(a_limit_on_addresses_leaves_the_program_half)
{
    if (SANITIZED)
        SKIP("a sanitizer has mapped all addresses");
    needs_limits_on_addresses();
    sr_alloc_error why = {0};
    int rc;
    uint64_t used = sr_mapped_bytes();
    sr_cache *cache = with_limit(RLIMIT_AS, used + 1024 * MIB, 64 * MIB, &rc, &why);
    CHECK_OK(rc);
    CHECK_EQ(info_of(cache).budget, 64 * MIB);
    CHECK_OP(sr_mapped_bytes() - used, <=, 512 * MIB);
    CHECK_OP(sr_mapped_bytes() - used, >=, 256 * MIB); /* as many keys as fit */
    CHECK_OK(make_entry(cache, 3, 8));
    sr_cache_destroy(cache);
    CHECK(with_limit(RLIMIT_AS, used + 256 * KIB, 64 * MIB, &rc, &why) == NULL);
    CHECK_EQ(rc, -ENOMEM);
    CHECK_EQ(why.limit, SR_LIMIT_ADDRESS);
}

TEST(locking_all_memory_allocates_nothing_of_it)
{
    struct stat file;
    if (SANITIZED || mlockall(MCL_FUTURE) != 0)
        SKIP("future mappings cannot be locked here");
    sr_cache *cache = NULL;
    sr_alloc_error why;
    int rc = sr_cache_create(64 * MIB, SR_BACKING_MEMFD, NULL, &cache, &why);
    if (rc == -EAGAIN || rc == -ENOMEM)
        SKIP("so much cannot be locked here");
    CHECK_OK(rc);
    CHECK_OK(fstat(sr_cache_fd(cache), &file));
    CHECK_EQ(file.st_blocks * 512, info_of(cache).committed);
    sr_cache *other = attached(cache);
    CHECK_OK(fstat(sr_cache_fd(cache), &file));
    CHECK_EQ(file.st_blocks * 512, info_of(cache).committed);
    sr_cache_destroy(other);
    sr_cache_destroy(cache);
}

RUN_TESTS(30)
