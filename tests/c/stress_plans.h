/* stress_plans.h - the runs of stress_threads and stress_processes, which differ in the kind of their workers. */
#include "stress_body.h"

TEST(dynamic_loader)
{
    stress((struct plan){.traffic = DYNAMIC, .threads = THREADS, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

TEST(static_loader)
{
    stress((struct plan){.traffic = STATIC, .threads = THREADS, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

TEST(cooperative_loader)
{
    stress((struct plan){.traffic = COOPERATIVE, .threads = THREADS, .workers = 4, .slots = 8, .depth = 3,
                         .leases = 1});
}

TEST(loader_by_completion)
{
    stress((struct plan){.traffic = DYNAMIC, .threads = THREADS, .by_completion = true, .workers = 4, .slots = 12,
                         .depth = 6, .leases = 2});
}

TEST(queue)
{
    stress((struct plan){.traffic = PUSH, .threads = THREADS, .workers = 6, .slots = 8, .leases = 1});
}

TEST(shared_batches)
{
    stress((struct plan){.traffic = DYNAMIC, .threads = THREADS, .workers = 2, .readers = 3, .slots = 16, .depth = 6,
                         .leases = 2});
}

TEST(shared_ping_pong)
{
    stress((struct plan){.traffic = DYNAMIC, .threads = THREADS, .workers = 1, .readers = 2, .slots = 1, .depth = 1});
}

/* One worker and one slot: a worker that misses a wake-up sleeps forever. */
TEST(loader_ping_pong)
{
    stress((struct plan){.traffic = DYNAMIC, .threads = THREADS, .workers = 1, .slots = 1, .depth = 1});
}

TEST(queue_ping_pong)
{
    stress((struct plan){.traffic = PUSH, .threads = THREADS, .workers = 2, .slots = 1, .leases = 1});
}

RUN_TESTS(stress_watchdog())
