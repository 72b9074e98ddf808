/* Threads with one mapping: the thread sanitizer then finds every race of plain accesses. */
#include "stress_body.h"

static void dynamic_pull_by_threads(void)
{
    stress((struct plan){.traffic = DYNAMIC, .threads = true, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

static void static_pull_by_threads(void)
{
    stress((struct plan){.traffic = STATIC, .threads = true, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

static void cooperative_pull_by_threads(void)
{
    stress((struct plan){.traffic = COOPERATIVE, .threads = true, .workers = 4, .slots = 8, .depth = 3, .leases = 1});
}

static void loader_by_completion_by_threads(void)
{
    stress((struct plan){.traffic = DYNAMIC, .threads = true, .by_completion = true, .workers = 4, .slots = 12,
                         .depth = 6,
                         .leases = 2});
}

static void queue_by_threads(void)
{
    stress((struct plan){.traffic = PUSH, .threads = true, .workers = 6, .slots = 8, .leases = 1});
}

/* One worker and one slot: a process that misses a wake-up sleeps for ever. */
static void loader_ping_pong_by_threads(void)
{
    stress((struct plan){.traffic = DYNAMIC, .threads = true, .workers = 1, .slots = 1, .depth = 1});
}

static void queue_ping_pong_by_threads(void)
{
    stress((struct plan){.traffic = PUSH, .threads = true, .workers = 2, .slots = 1, .leases = 1});
}

static const struct test tests[] = {
    T(dynamic_pull_by_threads),
    T(static_pull_by_threads),
    T(cooperative_pull_by_threads),
    T(loader_by_completion_by_threads),
    T(queue_by_threads),
    T(loader_ping_pong_by_threads),
    T(queue_ping_pong_by_threads),
};
RUN_TESTS(tests, stress_watchdog())
