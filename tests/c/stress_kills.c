/* Processes are killed with SIGKILL at any instant, confirmed dead, recovered and replaced. */
#include "stress_body.h"

TEST(dynamic_loader_with_deaths)
{
    stress((struct plan){.traffic = DYNAMIC, .kills = true, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

TEST(static_loader_with_deaths)
{
    stress((struct plan){.traffic = STATIC, .kills = true, .workers = 3, .slots = 8, .depth = 4, .leases = 2});
}

TEST(cooperative_loader_with_deaths)
{
    stress((struct plan){.traffic = COOPERATIVE, .kills = true, .workers = 4, .slots = 8, .depth = 3, .leases = 1});
}

TEST(loader_by_completion_with_deaths)
{
    stress((struct plan){.traffic = DYNAMIC, .kills = true, .by_completion = true, .workers = 4, .slots = 12,
                         .depth = 6,
                         .leases = 2});
}

TEST(shared_batches_with_deaths)
{
    stress((struct plan){.traffic = DYNAMIC, .kills = true, .workers = 2, .readers = 3, .slots = 16, .depth = 6,
                         .leases = 2});
}

TEST(queue_with_deaths)
{
    stress((struct plan){.traffic = PUSH, .kills = true, .workers = 6, .slots = 16, .leases = 1});
}

RUN_TESTS(stress_watchdog())
