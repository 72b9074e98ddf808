/* budget.c - a segment's part of a pool's budget. The pool's process lowers the part and gives the free bytes to
 * another segment, while workers allocate memory for their slots.
 */
#include "model.h"

static bool to_recover(uint32_t p) { return books.life[p] == DEAD && books.number[p]; }

static bool workers_have_gone(void)
{
    for (uint32_t p = 1; p <= plan->workers; p++)
        if (!has_gone(p))
            return false;
    return true;
}

static bool there_is_news(uint32_t me)
{
    (void)me;
    bool news = workers_have_gone();
    for (uint32_t p = 1; p <= plan->workers; p++)
        news |= to_recover(p);
    return news;
}

static void worker(uint32_t me)
{
    uint32_t slot;
    uint64_t gen;
    sr_alloc_error why;
    books.number[me] = (uint8_t)(me + 1);
    MUST(sr_claim_free(ring, me, SR_FOREVER, &slot, &gen) == 0);
    int rc = sr_commit(ring, me, slot, SR_PAYLOAD_COMMIT + SR_PAGE, &why);
    MUST(rc == 0 || (rc == -ENOSPC && why.limit == SR_LIMIT_BUDGET));
    MUST(sr_abort(ring, me, slot, gen) == 0);
}

/* At first, the budget suffices for another page of each slot; then for one slot fewer. */
static void process(void)
{
    sr_usage usage;
    for (uint32_t i = 0; i < plan->slots; i++)
        ring->slots[i].committed = SR_PAYLOAD_COMMIT;
    uint64_t least = sr_committed(ring), lower = least + (plan->slots - 1) * SR_PAGE;
    ring->header->budget = lower + SR_PAGE;
    for (uint32_t p = 1; p <= plan->workers; p++)
        spawn(p);
    sr_set_budget(ring, 0, lower, &usage);
    uint64_t kept = usage.used > lower ? usage.used : lower;
    do {
        wait_until(there_is_news);
        for (uint32_t p = 1; p <= plan->workers; p++)
            if (to_recover(p)) {
                confirm_death(p);
                MUST(sr_recover(ring, p) >= 0);
                books.number[p] = 0;
            }
    } while (!workers_have_gone());
    MUST(sr_committed(ring) <= kept);
    for (uint32_t p = 0; p < ring->n_participants; p++)
        MUST(sr_pages_of(ring->participants[p].growing) == 0);
    for (uint32_t i = 0; i < plan->slots; i++)
        MUST(sr_state_of(ring->slots[i].state) == SR_FREE);
}

void budget(uint32_t me)
{
    if (me)
        worker(me);
    else
        process();
}
