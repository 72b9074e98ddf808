/* Processes, each with its inherited mapping. */
#include "stress_body.h"

static void dynamic_pull_by_processes(void)
{
    stress((struct plan){.traffic = DYNAMIC, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

static void static_pull_by_processes(void)
{
    stress((struct plan){.traffic = STATIC, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

static void cooperative_pull_by_processes(void)
{
    stress((struct plan){.traffic = COOPERATIVE, .workers = 4, .slots = 8, .depth = 3, .leases = 1});
}

static void loader_by_completion_by_processes(void)
{
    stress((struct plan){.traffic = DYNAMIC, .by_completion = true, .workers = 4, .slots = 12, .depth = 6,
                         .leases = 2});
}

static void queue_by_processes(void)
{
    stress((struct plan){.traffic = PUSH, .workers = 6, .slots = 8, .leases = 1});
}

/* One worker and one slot: a process that misses a wake-up sleeps for ever. */
static void loader_ping_pong_by_processes(void)
{
    stress((struct plan){.traffic = DYNAMIC, .workers = 1, .slots = 1, .depth = 1});
}

static void queue_ping_pong_by_processes(void)
{
    stress((struct plan){.traffic = PUSH, .workers = 2, .slots = 1, .leases = 1});
}

static const struct test tests[] = {
    T(dynamic_pull_by_processes),
    T(static_pull_by_processes),
    T(cooperative_pull_by_processes),
    T(loader_by_completion_by_processes),
    T(queue_by_processes),
    T(loader_ping_pong_by_processes),
    T(queue_ping_pong_by_processes),
};
RUN_TESTS(tests, stress_watchdog())
