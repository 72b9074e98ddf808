/* stress_loader.h - the consumer of the stress runs: dispatches, takes in order, ends epochs early. */

struct outstanding {
    uint32_t slot, rows;
    uint64_t gen, seq;
};

struct lease {
    struct outstanding of;
    uint64_t iteration, offset;
};

static struct outstanding waiting[MAX_SLOTS];
static struct lease leases[MAX_SLOTS];
static uint32_t n_waiting, n_leases;
static uint64_t run_no, next_seq;

static void end_lease(uint32_t which)
{
    struct lease l = leases[which];
    leases[which] = leases[--n_leases];
    check_rows(sr_payload(ring, l.of.slot) + l.offset, l.iteration, l.of.seq, 0, l.of.rows);
    CHECK_OK(sr_release(ring, l.of.slot, l.of.gen));
}

static void begin_epoch(struct chance *c)
{
    CHECK_OK(sr_begin_iteration(ring, ++run_no));
    next_seq = roll(c, 2) ? 0 : UINT64_MAX - roll(c, 20);
}

/* The epoch ends with tasks in every state. */
static void end_epoch(struct chance *c)
{
    bool first = roll(c, 2);
    if (first)
        begin_epoch(c);
    for (uint32_t i = 0; i < n_waiting; i++) {
        int rc = sr_cancel(ring, waiting[i].slot, waiting[i].gen);
        CHECK(rc == 0 || rc == -EBUSY || rc == -ESTALE);
    }
    n_waiting = 0;
    if (!first)
        begin_epoch(c);
}

static bool send(struct chance *c)
{
    struct outstanding *o = &waiting[n_waiting];
    sr_task task = {.iteration = run_no, .seq = next_seq, .kind = SR_TASK_NEXT, .rows = 1 + (uint32_t)roll(c, 12)};
    if (sr_pick_free(ring, &o->slot) != 0)
        return false;
    if (plan.traffic == STATIC)
        task.addressee = 2 + (uint32_t)(next_seq % plan.workers);
    if (plan.traffic == COOPERATIVE && roll(c, 8)) {
        task.range_rows = 1 + (uint32_t)roll(c, 4);
        task.n_ranges = (task.rows + task.range_rows - 1) / task.range_rows;
    }
    *(uint64_t *)sr_task_area(ring, o->slot) = mix(next_seq);
    o->seq = next_seq++;
    o->rows = task.rows;
    CHECK_OK(sr_dispatch(ring, o->slot, &task, &o->gen));
    n_waiting++;
    return true;
}

static void receive(uint32_t which)
{
    struct outstanding o = waiting[which];
    struct lease *l = &leases[n_leases++];
    uint64_t gen;
    sr_result result;
    CHECK_OK(sr_take(ring, SR_CONSUMER, o.slot, &gen, &result));
    CHECK_EQ(gen, o.gen);
    CHECK_EQ(sr_task_of(ring, o.slot)->seq, o.seq);
    CHECK_EQ(result.kind, SR_BATCH);
    CHECK_EQ(result.n_leaves, o.rows);
    CHECK_EQ(result.def_hash, mix(run_no ^ o.seq));
    *l = (struct lease){o, run_no, result.table_off};
    check_rows(sr_payload(ring, o.slot) + l->offset, l->iteration, o.seq, 0, o.rows);
    memmove(&waiting[which], &waiting[which + 1], (--n_waiting - which) * sizeof *waiting);
    account->delivered++;
}

static void loader_main(void)
{
    struct chance c = {sr_now()};
    uint64_t end = stress_end(), epochs = 0;
    n_waiting = n_leases = 0;
    for (uint32_t p = 1; p <= plan.workers; p++)
        start_worker(p);
    begin_epoch(&c);
    for (uint32_t p = 1; p <= plan.workers && !plan.kills; p++)
        CHECK_OK(sr_wait_serving(ring, p, SR_FOREVER));
    while (sr_now() < end || account->delivered == 0) { /* a slow machine needs longer to make progress */
        uint32_t found;
        take_lives(&c);
        uint32_t depth = 1 + (uint32_t)roll(&c, plan.depth);
        while (n_waiting < depth && send(&c))
            ;
        if (roll(&c, 50) == 0) {
            end_epoch(&c);
            epochs++;
            continue;
        }
        if (n_waiting == 0) { /* every slot is leased, pinned by a worker, or in progress for an old iteration */
            while (n_leases)
                end_lease(0);
            sched_yield();
            continue;
        }
        uint64_t deadline = plan.kills ? in_ms(2) : SR_FOREVER;
        int rc = sr_wait_ready(ring, plan.by_completion ? SR_ANY : waiting[0].slot, deadline, &found);
        if (rc == -ETIMEDOUT && plan.kills)
            continue;
        CHECK_OK(rc);
        uint32_t which = 0;
        while (which < n_waiting && waiting[which].slot != found)
            which++;
        CHECK_OP(which, <, n_waiting); /* otherwise it was delivered before, or cancelled */
        receive(which);
        while (n_leases > roll(&c, plan.leases + 1))
            end_lease((uint32_t)roll(&c, n_leases));
    }
    end_epoch(&c);
    while (n_leases)
        end_lease(0);
    CHECK_OK(sr_close(ring));
    for (uint32_t p = 1; p <= plan.workers; p++)
        end_worker(p);
    printf("      %" PRIu64 " batches, %" PRIu64 " early ends, %" PRIu64 " deaths\n", account->delivered, epochs,
           deaths);
    CHECK_OP(account->delivered, >, 0);
}
