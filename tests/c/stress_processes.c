/* Processes, each with its inherited mapping. */
#include "stress_body.h"

TEST(dynamic_pull_by_processes)
{
    stress((struct plan){.traffic = DYNAMIC, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

TEST(static_pull_by_processes)
{
    stress((struct plan){.traffic = STATIC, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

TEST(cooperative_pull_by_processes)
{
    stress((struct plan){.traffic = COOPERATIVE, .workers = 4, .slots = 8, .depth = 3, .leases = 1});
}

TEST(loader_by_completion_by_processes)
{
    stress((struct plan){.traffic = DYNAMIC, .by_completion = true, .workers = 4, .slots = 12, .depth = 6,
                         .leases = 2});
}

TEST(queue_by_processes)
{
    stress((struct plan){.traffic = PUSH, .workers = 6, .slots = 8, .leases = 1});
}

/* One worker and one slot: a process that misses a wake-up sleeps for ever. */
TEST(loader_ping_pong_by_processes)
{
    stress((struct plan){.traffic = DYNAMIC, .workers = 1, .slots = 1, .depth = 1});
}

TEST(queue_ping_pong_by_processes)
{
    stress((struct plan){.traffic = PUSH, .workers = 2, .slots = 1, .leases = 1});
}

RUN_TESTS(stress_watchdog())
