/* Processes are killed with SIGKILL at any instant, confirmed dead, recovered and replaced. */
#include "stress_body.h"

static void dynamic_pull_with_deaths(void)
{
    stress((struct plan){.traffic = DYNAMIC, .kills = true, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

static void static_pull_with_deaths(void)
{
    stress((struct plan){.traffic = STATIC, .kills = true, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

static void cooperative_pull_with_deaths(void)
{
    stress((struct plan){.traffic = COOPERATIVE, .kills = true, .workers = 4, .slots = 8, .depth = 3, .leases = 1});
}

static void loader_by_completion_with_deaths(void)
{
    stress((struct plan){.traffic = DYNAMIC, .kills = true, .by_completion = true, .workers = 4, .slots = 12,
                         .depth = 6,
                         .leases = 2});
}

static void queue_with_deaths(void)
{
    stress((struct plan){.traffic = PUSH, .kills = true, .workers = 6, .slots = 16, .leases = 1});
}

static const struct test tests[] = {
    T(dynamic_pull_with_deaths),
    T(static_pull_with_deaths),
    T(cooperative_pull_with_deaths),
    T(loader_by_completion_with_deaths),
    T(queue_with_deaths),
};
RUN_TESTS(tests, stress_watchdog())
