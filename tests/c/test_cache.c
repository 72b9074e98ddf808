/* A cache's entries, its header and its statistics. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "caches.h"

TEST(an_entry_is_found_as_it_was_stored)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    CHECK_EQ(look(cache, 7), -ENOENT);
    sr_fill fill = claimed(cache, 7);
    CHECK_EQ(look(cache, 7), -EAGAIN);
    CHECK_EQ(look(cache, 8), -ENOENT);
    CHECK_OK(store(cache, &fill, 1001, NULL));
    check_entry(cache, 7, 1001);
    CHECK_EQ(sr_cache_abandon(cache, &fill), -ECHILD); /* it has ended */
    CHECK_EQ(store(cache, &fill, 8, NULL), -ECHILD);
    check_entry(cache, 7, 1001);
}

TEST(an_entry_is_made_once)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    sr_fill fill = claimed(cache, 7), other;
    CHECK_EQ(sr_cache_claim(cache, 7, &other, NULL), -EAGAIN);
    CHECK_OK(store(cache, &fill, 64, NULL));
    CHECK_EQ(sr_cache_claim(cache, 7, &other, NULL), -EEXIST);
    for (uint32_t i = 0; i < SR_CACHE_FILLERS; i++)
        CHECK_EQ(sr_load_relaxed(&cache->fillers[i].incarnation), 0); /* no process has kept a number */
    check_entry(cache, 7, 64);
}

TEST(an_abandoned_entry_can_be_claimed_again)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    sr_fill fill = claimed(cache, 7);
    CHECK_OK(sr_cache_abandon(cache, &fill));
    CHECK_EQ(look(cache, 7), -ENOENT);
    CHECK_EQ(entry_word(cache, 7), UINT64_C(1) << SR_GEN_SHIFT); /* the next generation */
    CHECK_OK(make_entry(cache, 7, 10));
    check_entry(cache, 7, 10);
}

TEST(keys_after_the_last_are_refused)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    uint64_t n = info_of(cache).n_keys, beyond[] = {n, n + 1, SR_CACHE_NO_KEY};
    sr_fill fill;
    CHECK_EQ(n, SR_CACHE_KEYS);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(look(cache, beyond[i]), -ERANGE);
        CHECK_EQ(sr_cache_claim(cache, beyond[i], &fill, NULL), -ERANGE);
        CHECK_EQ(sr_cache_wait(cache, beyond[i], 0), -ERANGE);
    }
    CHECK_OK(make_entry(cache, n - 1, 10));
    check_entry(cache, n - 1, 10);
}

TEST(keys_far_apart_take_memory_for_the_words_round_them)
{
    sr_cache *cache SCOPED_CACHE = make_cache(64 * MIB);
    struct stat file;
    uint64_t keys[] = {0, SR_CACHE_CHUNK - 1, SR_CACHE_CHUNK, 100 * SR_CACHE_CHUNK, SR_CACHE_KEYS / 2,
                       SR_CACHE_KEYS - 1};
    uint64_t before = info_of(cache).committed, chunk = SR_CACHE_CHUNK * 8;
    int chunks[] = {1, 1, 2, 3, 4, 5};
    CHECK_EQ(before, (char *)cache->index - cache->base);
    for (int i = 0; i < 6; i++) {
        CHECK_EQ(look(cache, keys[i]), -ENOENT);
        CHECK_OK(make_entry(cache, keys[i], 100));
        CHECK_EQ(info_of(cache).committed, before + (uint64_t)chunks[i] * chunk + 4 * MIB);
    }
    for (int i = 0; i < 6; i++)
        check_entry(cache, keys[i], 100);
    CHECK_OK(fstat(sr_cache_fd(cache), &file));
    CHECK_EQ(file.st_blocks * 512, info_of(cache).committed); /* lookups alone take no memory */
}

TEST(entries_have_any_size)
{
    sr_cache *cache SCOPED_CACHE = make_cache(64 * MIB);
    uint64_t sizes[] = {0, 1, 63, 64, 65, 4096, 65535, 65536, 5 * MIB + 1}, used = 0;
    for (uint64_t i = 0; i < 9; i++) {
        CHECK_OK(make_entry(cache, i, sizes[i]));
        used += 64 + (sizes[i] + 63) / 64 * 64;
    }
    for (uint64_t i = 0; i < 9; i++)
        check_entry(cache, i, sizes[i]);
    CHECK_EQ(info_of(cache).used, used);
    CHECK_EQ(info_of(cache).counters[SR_STORED_BYTES], used);
    CHECK_EQ(info_of(cache).entries, 9);
    sr_fill fill = claimed(cache, 9);
    sr_result result = {0};
    CHECK_OK(sr_cache_store(cache, &fill, &result, NULL, 0, NULL));
    CHECK_EQ(look(cache, 9), 0);
}

TEST(a_found_entry_is_read_only)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    CHECK_OK(make_entry(cache, 1, 8));
    pid_t pid = fork();
    if (pid == 0) {
        const char *payload;
        uint64_t bytes;
        sr_result result;
        signal(SIGSEGV, SIG_DFL);
        CHECK_OK(sr_cache_lookup(cache, 1, &payload, &bytes, &result));
        *(volatile char *)(uintptr_t)payload = 1;
        _exit(0);
    }
    int status = wait_for(pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    check_entry(cache, 1, 8);
}

static void refused(const sr_cache *cache)
{
    sr_cache *other = NULL;
    CHECK_EQ(sr_cache_attach(sr_cache_fd(cache), &other), -EPROTO);
    CHECK(other == NULL);
}

TEST(an_unsound_header_is_refused)
{
    sr_cache *cache SCOPED_CACHE = make_cache(MIB);
    sr_cache_header *h = cache->header;
    uint64_t *fields[] = {&h->magic, &h->n_keys, &h->counters_off, &h->fillers_off, &h->map_off, &h->index_off,
                          &h->data_off, &h->budget, &h->total};
    uint64_t values[] = {0, 1, SR_PAGE, SR_CACHE_KEYS * 2, SR_CACHE_LARGEST + 1, UINT64_MAX, UINT64_MAX - SR_PAGE};
    for (int i = 0; i < 9; i++) {
        uint64_t right = *fields[i];
        for (int v = 0; v < 9; v++) {
            *fields[i] = v < 7 ? values[v] : v == 7 ? right + SR_PAGE : right - SR_PAGE;
            if (*fields[i] != right)
                refused(cache);
        }
        *fields[i] = right;
    }
    h->version++;
    refused(cache);
    h->version--;
    h->n_keys = SR_CACHE_KEYS + 1; /* not a whole number of chunks */
    refused(cache);
    h->n_keys = SR_CACHE_KEYS;
    sr_cache *other = attached(cache);
    sr_cache_destroy(other);
    CHECK_OK(ftruncate(sr_cache_fd(cache), (off_t)h->total - 1));
    refused(cache);
}

TEST(other_files_are_refused)
{
    int ends[2], empty = memfd_create("empty", MFD_CLOEXEC), next;
    sr_cache *cache;
    CHECK_OK(pipe(ends));
    next = dup(0);
    close(next);
    CHECK_EQ(sr_cache_attach(ends[0], &cache), -EPROTO);
    CHECK_EQ(sr_cache_attach(empty, &cache), -EPROTO);
    CHECK_EQ(sr_cache_attach(-1, &cache), -EBADF);
    sr_ring *ring = make_ring(1, 2, 0);
    CHECK_EQ(sr_cache_attach(sr_fd(ring), &cache), -EPROTO);
    sr_destroy(ring);
    CHECK_EQ(dup(0), next); /* no descriptor is left open */
}

TEST(a_wrong_word_leads_nowhere)
{
    sr_cache *cache SCOPED_CACHE = make_cache(64 * MIB);
    CHECK_OK(make_entry(cache, 1, 1000));
    CHECK_OK(make_entry(cache, 2, 1000));
    struct stat file;
    uint64_t good = entry_word(cache, 1), committed = sr_load_relaxed(&cache->header->committed) / 64;
    uint64_t offsets[] = {1, 17, 18, committed, committed - 1, MIB - 1, MIB, UINT64_C(1) << 40, UINT64_MAX >> 8};
    for (int i = 0; i < 9; i++) {
        if (offsets[i] * 64 == 1088) /* the offset of the other entry */
            CHECK_EQ(look(cache, 2), 0);
        sr_store_relaxed(&cache->index[1], SR_ENTRY_READY | offsets[i] << SR_ENTRY_SHIFT);
        CHECK_EQ(look(cache, 1), -EPROTO);
    }
    CHECK_OK(fstat(sr_cache_fd(cache), &file));
    CHECK_EQ(file.st_blocks * 512, info_of(cache).committed); /* no lookup has taken memory */
    sr_store_relaxed(&cache->index[1], UINT64_MAX); /* an invalid state */
    CHECK_EQ(look(cache, 1), -EPROTO);
    CHECK_EQ(sr_cache_wait(cache, 1, 0), 0);
    sr_store_relaxed(&cache->index[1], SR_ENTRY_FILLING | UINT64_C(0xfff) << SR_OWNER_SHIFT); /* not a filler */
    CHECK_EQ(sr_cache_wait(cache, 1, SR_FOREVER), -ETIMEDOUT);
    sr_store_relaxed(&cache->index[1], good);
    check_entry(cache, 1, 1000);
}

TEST(a_wrong_record_is_not_believed)
{
    sr_cache *cache SCOPED_CACHE = make_cache(64 * MIB);
    CHECK_OK(make_entry(cache, 1, 1000));
    sr_entry *entry = (sr_entry *)(cache->base + cache->data_off);
    uint64_t room = sr_load_relaxed(&cache->header->committed) - sizeof *entry;
    uint64_t sizes[] = {room + 1, 64 * MIB, UINT64_MAX, UINT64_MAX - 63};
    for (int i = 0; i < 4; i++) {
        entry->bytes = sizes[i];
        CHECK_EQ(look(cache, 1), -EPROTO);
    }
    entry->bytes = 1000;
    entry->key = 2;
    CHECK_EQ(look(cache, 1), -EPROTO);
    entry->key = 1;
    check_entry(cache, 1, 1000);
    sr_store_relaxed(&cache->header->committed, 0); /* and not that it has memory */
    CHECK_EQ(look(cache, 1), -EPROTO);
}

TEST(a_cache_is_bound_to_one_dataset)
{
    sr_cache *cache = make_cache(MIB), *other = attached(cache);
    char mine[SR_CACHE_LABEL] = "images of cats", theirs[SR_CACHE_LABEL] = "dogs", whole[SR_CACHE_LABEL];
    CHECK_EQ(sr_cache_bind(cache, 0, 10, mine), -EINVAL);
    CHECK_EQ(sr_cache_bind(cache, 5, 10, NULL), -EINVAL);
    CHECK_OK(sr_cache_bind(cache, 5, 10, mine));
    CHECK_OK(sr_cache_bind(other, 5, 11, theirs)); /* the same */
    CHECK_EQ(info_of(other).samples, 10);
    CHECK(strcmp(theirs, "dogs") == 0);
    CHECK_EQ(sr_cache_bind(other, 6, 10, theirs), -EEXIST);
    CHECK(strcmp(theirs, "images of cats") == 0);
    sr_store_relaxed(&cache->header->labelled, 0); /* as if its writer had died meanwhile */
    CHECK_EQ(sr_cache_bind(other, 6, 10, theirs), -EEXIST);
    CHECK(strcmp(theirs, "") == 0);
    sr_store_relaxed(&cache->header->labelled, 1);
    memset(cache->header->label, 'x', SR_CACHE_LABEL); /* by a faulty process */
    memset(whole, 'y', sizeof whole);
    CHECK_EQ(sr_cache_bind(other, 6, 10, whole), -EEXIST);
    CHECK_EQ(strnlen(whole, sizeof whole), SR_CACHE_LABEL - 1);
    sr_cache_destroy(other);
    sr_cache_destroy(cache);
}

TEST(the_counts_of_all_processes_are_added)
{
    sr_cache *cache = make_cache(MIB), *other = attached(cache);
    for (unsigned what = 0; what < SR_N_COUNTERS; what++) {
        sr_cache_count(cache, what, what + 1);
        sr_cache_count(other, what, 100);
    }
    for (unsigned what = 0; what < SR_N_COUNTERS; what++)
        CHECK_EQ(info_of(cache).counters[what], what + 101);
    CHECK(sr_cache_may_report(other));
    CHECK(!sr_cache_may_report(cache));
    CHECK(!sr_cache_may_report(other));
    sr_cache_destroy(other);
    sr_cache_destroy(cache);
}

RUN_TESTS(30)
