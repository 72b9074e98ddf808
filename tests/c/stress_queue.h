/* stress_queue.h - queue mode: odd participants produce, even ones consume. */

static bool produces(uint32_t participant) { return participant % 2 == 1; }

/* A producer's message: its number, a sequence number, rows of both. */
static void producer(uint32_t participant, struct chance *c)
{
    struct kept keep = {0};
    while (!sr_load_relaxed(&account->stop)) {
        uint32_t slot, rows = 1 + (uint32_t)roll(c, 12);
        uint64_t gen, seq = sr_add_relaxed(&account->attempt[participant], 1) + 1;
        CHECK_OP(seq, <, MAX_SEQ);
        int rc = sr_claim_free(ring, participant, SR_FOREVER, &slot, &gen);
        CHECK_OK(rc);
        mortal(c);
        uint64_t offset = take_memory(participant, slot, rows);
        write_rows(sr_payload(ring, slot) + offset, participant, seq, 0, rows);
        sr_result result = {.kind = SR_BATCH, .table_off = offset, .n_leaves = rows, .def_off = participant,
                            .def_hash = seq, .bytes = offset + rows_bytes(rows)};
        bool held = !keep.any && roll(c, 5) == 0;
        if (held)
            keep = (struct kept){true, slot, rows, gen, offset, participant, seq};
        mortal(c);
        CHECK_OK(sr_publish(ring, participant, slot, gen, &result, held));
        mortal(c);
        if (keep.any && may_release(c))
            release_slot(participant, &keep);
    }
    release_slot(participant, &keep);
}

struct queue_lease {
    uint32_t slot;
    uint64_t gen;
    sr_result is;
};

static void end_queue_lease(struct queue_lease *l)
{
    check_rows(sr_payload(ring, l->slot) + l->is.table_off, l->is.def_off, l->is.def_hash, 0, l->is.n_leaves);
    CHECK_OK(sr_release(ring, l->slot, l->gen));
}

static void consumer(uint32_t participant, struct chance *c)
{
    struct queue_lease mine[2];
    uint64_t last[MAX_WORKERS + 1] = {0};
    uint32_t n = 0, limit = plan.leases < 2 ? plan.leases : 2;
    for (;;) {
        struct queue_lease l;
        int rc = sr_wait_ready(ring, SR_ANY, SR_FOREVER, &l.slot);
        if (rc == -ESHUTDOWN)
            break;
        CHECK_OK(rc);
        mortal(c);
        rc = sr_take(ring, participant, l.slot, &l.gen, &l.is);
        if (rc == -EBUSY) /* another consumer was faster */
            continue;
        CHECK_OK(rc);
        uint64_t from = l.is.def_off, seq = l.is.def_hash;
        CHECK(from <= plan.workers && produces((uint32_t)from));
        CHECK_OP(seq, <=, sr_load_relaxed(&account->attempt[from]));
        check_rows(sr_payload(ring, l.slot) + l.is.table_off, from, seq, 0, l.is.n_leaves);
        CHECK_OP(last[from], <, seq); /* each consumer sees each producer's batches in order */
        last[from] = seq;
        CHECK_EQ(atomic_fetch_add(&account->seen[from][seq], 1), 0);
        sr_add_relaxed(&account->delivered, 1);
        mine[n++] = l;
        mortal(c);
        while (n > roll(c, limit)) {
            struct queue_lease *old = &mine[roll(c, n)];
            end_queue_lease(old);
            *old = mine[--n];
        }
    }
    while (n)
        end_queue_lease(&mine[--n]);
}

static void queue_worker(uint32_t participant)
{
    struct chance c = {mix(participant) ^ sr_now()};
    CHECK_OK(sr_join(ring, participant));
    CHECK_OK(sr_serve(ring, participant));
    if (produces(participant))
        producer(participant, &c);
    else
        consumer(participant, &c);
}

static bool something_is_under_way(void)
{
    for (uint32_t i = 0; i < plan.slots; i++)
        if (state_of(ring, i) == SR_READY || state_of(ring, i) == SR_CLAIMED)
            return true;
    return false;
}

static void queue_main(void)
{
    struct chance c = {sr_now()};
    uint64_t end = stress_end(), attempts = 0, missing = 0;
    for (uint32_t p = 1; p <= plan.workers; p++)
        start_worker(p);
    while (sr_now() < end) {
        take_lives(&c);
        usleep(300);
    }
    sr_store_relaxed(&account->stop, 1);
    for (uint32_t p = 1; p <= plan.workers; p++)
        if (produces(p))
            end_worker(p);
    /* Consumers take the remaining messages. In the kill runs one may just have died: replace it. */
    while (something_is_under_way()) {
        for (uint32_t p = 2; plan.kills && p <= plan.workers; p += 2)
            if (waitpid(pids[p], NULL, WNOHANG) == pids[p]) {
                CHECK_OP(sr_recover(ring, p), >=, 0);
                deaths++;
                start_worker(p);
            }
        usleep(300);
    }
    CHECK_OK(sr_close(ring));
    for (uint32_t p = 2; p <= plan.workers; p += 2)
        end_worker(p);
    for (uint32_t p = 1; p <= plan.workers; p += 2) {
        uint64_t last = account->attempt[p];
        attempts += last;
        for (uint64_t seq = 1; seq <= last; seq++)
            missing += account->seen[p][seq] == 0;
    }
    printf("      %" PRIu64 " batches, %" PRIu64 " lost with %" PRIu64 " deaths\n", account->delivered, missing,
           deaths);
    /* A death loses at most the one batch that the process was making or had just taken. */
    CHECK_OP(missing, <=, deaths);
    CHECK(plan.kills || account->delivered == attempts - missing); /* a process may die before it counts a batch */
}
