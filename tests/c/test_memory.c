/* Commits of memory: before it is written, and never beyond the limit. */
#define _GNU_SOURCE
#include <sys/stat.h>

#include "small.h"

TEST(commit_grows_and_never_shrinks)
{
    sr_ring *ring SCOPED = make_ring(2, 2, 0);
    CHECK_OK(sr_commit(ring, 1, 1, 100, NULL));
    CHECK_EQ(sr_slot_committed(ring, 1), SR_PAYLOAD_COMMIT);
    CHECK_OK(sr_commit(ring, 1, 1, 10000, NULL));
    uint64_t had = sr_slot_committed(ring, 1);
    CHECK_OP(had, >=, 10000);
    CHECK_OP(had, <=, 10000 + 64 * KIB);
    CHECK_OK(sr_commit(ring, 1, 1, 9000, NULL));
    CHECK_EQ(sr_slot_committed(ring, 1), had);
    CHECK_OK(sr_commit(ring, 1, 1, MIB, NULL));
    CHECK_EQ(sr_slot_committed(ring, 1), MIB);
    CHECK_EQ(sr_slot_committed(ring, 0), SR_PAYLOAD_COMMIT);
    memset(sr_payload(ring, 1), 7, MIB);
}

TEST(more_than_the_capacity_is_efbig_with_the_numbers)
{
    sr_ring *ring SCOPED = make_ring(2, 2, 0);
    sr_alloc_error why = {0};
    CHECK_EQ(sr_commit(ring, 0, 0, MIB + 1, &why), -EFBIG);
    CHECK_EQ(why.limit, SR_LIMIT_CAPACITY);
    CHECK_EQ(why.needed, MIB + 1);
    CHECK_EQ(why.free, MIB);
    CHECK_EQ(sr_commit(ring, 0, 0, UINT64_MAX, NULL), -EFBIG);
    CHECK_EQ(sr_commit_task(ring, 0, 0, 64 * KIB + 1, &why), -EFBIG);
    CHECK_EQ(why.free, 64 * KIB);
    CHECK_OK(sr_commit_task(ring, 0, 0, 64 * KIB, &why));
    memset(sr_task_area(ring, 0), 1, 64 * KIB);
    CHECK_EQ(sr_commit(ring, 0, 2, 1, NULL), -EINVAL);
    CHECK_EQ(sr_commit_task(ring, 0, 2, 1, NULL), -EINVAL);
}

TEST(alloc_aligns_and_does_not_overlap)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    uint64_t a, b, c;
    CHECK_OK(sr_alloc(ring, 1, 0, 3, 64, &a, NULL));
    CHECK_OK(sr_alloc(ring, 1, 0, 100000, 4096, &b, NULL));
    CHECK_OK(sr_alloc(ring, 1, 0, 1, 64, &c, NULL));
    CHECK_EQ(a, 0);
    CHECK_EQ(b, 4096);
    CHECK_EQ(c, (4096 + 100000 + 63) / 64 * 64);
    CHECK_OP(sr_slot_committed(ring, 0), >=, c + 1);
    CHECK_EQ(sr_alloc(ring, 1, 0, 8, 0, &a, NULL), -EINVAL);
    CHECK_EQ(sr_alloc(ring, 1, 0, 8, 3, &a, NULL), -EINVAL);
    CHECK_EQ(sr_alloc(ring, 1, 0, 8, 8192, &a, NULL), -EINVAL);
    CHECK_EQ(sr_alloc(ring, 1, 1, 8, 64, &a, NULL), -EINVAL);
}

TEST(a_refused_alloc_takes_nothing)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    sr_alloc_error why;
    uint64_t at;
    CHECK_OK(sr_alloc(ring, 1, 0, 100, 64, &at, NULL));
    CHECK_EQ(sr_alloc(ring, 1, 0, MIB, 64, &at, &why), -EFBIG);
    CHECK_EQ(why.limit, SR_LIMIT_CAPACITY);
    CHECK_EQ(why.needed, 128 + MIB);
    CHECK_EQ(why.free, MIB);
    CHECK_EQ(sr_alloc(ring, 1, 0, UINT64_MAX, 64, &at, &why), -EFBIG);
    CHECK_EQ(why.needed, UINT64_MAX);
    CHECK_OK(sr_alloc(ring, 1, 0, MIB - 128, 64, &at, NULL)); /* exactly the rest */
    CHECK_EQ(at, 128);
    CHECK_EQ(sr_alloc(ring, 1, 0, 1, 1, &at, NULL), -EFBIG);
    sr_store_relaxed(&ring->slots[0].cursor, UINT64_MAX - 3); /* only a faulty writer could leave this */
    CHECK_EQ(sr_alloc(ring, 1, 0, 64, 64, &at, NULL), -EFBIG);
}

TEST(populate_stops_at_the_committed_bytes)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    CHECK_EQ(sr_populate(ring, 0, SR_PAYLOAD_COMMIT + 1), -EINVAL);
    CHECK_OK(sr_populate(ring, 0, SR_PAYLOAD_COMMIT));
    CHECK_OK(sr_populate(ring, 0, 0));
    CHECK_EQ(sr_populate(ring, 1, 0), -EINVAL);
    CHECK_EQ(sr_load_relaxed(&ring->populated[0]), SR_PAYLOAD_COMMIT);
    CHECK_OK(sr_after_fork(ring));
    CHECK_EQ(sr_load_relaxed(&ring->populated[0]), 0);
}

/* ---- a file system that is too small ---- */

TEST(a_full_file_system_is_enospc_with_the_numbers)
{
    mount_small("8m");
    sr_ring *ring = NULL;
    sr_alloc_error why = {0};
    sr_options o = {.n_slots = 2, .n_participants = 2, .backing = SR_BACKING_DIR, .dir = mounted,
                    .capacity = 64 * MIB, .task_capacity = 64 * KIB};
    CHECK(sr_create(&o, &ring, &why) == 0);
    CHECK(sr_commit(ring, 0, 0, 4 * MIB, &why) == 0);
    CHECK(sr_commit(ring, 0, 1, 5 * MIB, &why) == -ENOSPC);
    CHECK(why.limit == SR_LIMIT_FILESYSTEM);
    CHECK(why.needed >= 5 * MIB - SR_PAYLOAD_COMMIT && why.needed <= 6 * MIB);
    CHECK(why.free > 3 * MIB && why.free < 4 * MIB);
    CHECK(sr_slot_committed(ring, 1) == SR_PAYLOAD_COMMIT);
    CHECK(sr_pages_of(sr_load_relaxed(&ring->participants[0].growing)) == 0);
    CHECK(sr_commit(ring, 0, 1, 3 * MIB, &why) == 0); /* a smaller commit still succeeds */
    memset(sr_payload(ring, 1), 1, 3 * MIB);
    sr_destroy(ring);
}

TEST(memory_that_others_are_committing_counts)
{
    sr_ring *ring SCOPED = small_ring(3);
    sr_alloc_error why = {0};
    sr_store_relaxed(&ring->participants[2].growing, 6 * MIB / SR_PAGE);
    CHECK(sr_commit(ring, 1, 0, 3 * MIB, &why) == -ENOSPC); /* it waits for them, but not forever */
    CHECK(why.limit == SR_LIMIT_FILESYSTEM && why.free < 2 * MIB);
    CHECK(sr_pages_of(sr_load_relaxed(&ring->participants[1].growing)) == 0);
    CHECK(sr_recover(ring, 2) == 0); /* it died in the middle */
    CHECK(sr_commit(ring, 1, 0, 3 * MIB, &why) == 0);
}

static sr_ring *small;

static _Atomic bool enough;

static void *asks_for_too_much(void *unused)
{
    (void)unused;
    while (!atomic_load(&enough))
        CHECK(sr_commit(small, 2, 3, 60 * MIB, NULL) == -ENOSPC);
    return NULL;
}

TEST(a_hopeless_request_is_refused_without_harm_to_others)
{
    pthread_t thread;
    small = small_ring(3);
    CHECK(pthread_create(&thread, NULL, asks_for_too_much, NULL) == 0);
    for (uint64_t kib = 64; kib <= 5 * 1024; kib += 64)
        CHECK(sr_commit(small, 1, kib % 3, kib * KIB / 3, NULL) == 0);
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    sr_destroy(small);
}

enum { MANY = 4, LAPS = 300 };

static void *commits_concurrently(void *number)
{
    /* Each round requests more than would fit if all other requests succeeded, too. */
    uint32_t me = (uint32_t)(uintptr_t)number;
    intptr_t refused = 0;
    for (int lap = 0; lap < LAPS && !refused; lap++)
        refused = sr_commit(small, me, me, sr_slot_committed(small, me) + SR_PAGE, NULL) != 0;
    return (void *)refused;
}

TEST(threads_that_grow_concurrently_take_all_memory)
{
    pthread_t threads[MANY];
    small = small_ring(MANY);
    for (uintptr_t i = 0; i < MANY; i++)
        CHECK(pthread_create(&threads[i], NULL, commits_concurrently, (void *)i) == 0);
    for (int i = 0; i < MANY; i++)
        pthread_join(threads[i], NULL);
    /* no request was refused while a page was free */
    CHECK(sr_memory_available(small->file.fd, "", NULL, NULL) < SR_PAGE);
    sr_destroy(small);
}

TEST(a_file_system_too_small_for_the_controls_is_enospc)
{
    mount_small("64k");
    sr_ring *ring = NULL;
    sr_alloc_error why = {0};
    sr_options o = {.n_slots = 64, .n_participants = 2, .backing = SR_BACKING_DIR, .dir = mounted, .capacity = MIB};
    CHECK(sr_create(&o, &ring, &why) == -ENOSPC);
    CHECK(why.limit == SR_LIMIT_FILESYSTEM);
    CHECK(why.needed > 64 * SR_PAGE && why.free <= 64 * KIB);
}

RUN_TESTS(20)
