/* Threads with one mapping: the thread sanitizer then finds every race of plain accesses. */
#include "stress_body.h"

TEST(dynamic_pull_by_threads)
{
    stress((struct plan){.traffic = DYNAMIC, .threads = true, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

TEST(static_pull_by_threads)
{
    stress((struct plan){.traffic = STATIC, .threads = true, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

TEST(cooperative_pull_by_threads)
{
    stress((struct plan){.traffic = COOPERATIVE, .threads = true, .workers = 4, .slots = 8, .depth = 3, .leases = 1});
}

TEST(loader_by_completion_by_threads)
{
    stress((struct plan){.traffic = DYNAMIC, .threads = true, .by_completion = true, .workers = 4, .slots = 12,
                         .depth = 6,
                         .leases = 2});
}

TEST(queue_by_threads)
{
    stress((struct plan){.traffic = PUSH, .threads = true, .workers = 6, .slots = 8, .leases = 1});
}

/* One worker and one slot: a process that misses a wake-up sleeps for ever. */
TEST(loader_ping_pong_by_threads)
{
    stress((struct plan){.traffic = DYNAMIC, .threads = true, .workers = 1, .slots = 1, .depth = 1});
}

TEST(queue_ping_pong_by_threads)
{
    stress((struct plan){.traffic = PUSH, .threads = true, .workers = 2, .slots = 1, .leases = 1});
}

RUN_TESTS(stress_watchdog())
