/* stress_shared.h - the stress runs with readers: the consumer shares every batch, readers come and go. */

struct reading {
    sr_shared got;
    uint32_t rows;
};

static void look_at(const struct reading *r)
{
    if (!r->got.is_end)
        check_rows(sr_payload(ring, r->got.slot) + r->got.result.table_off, r->got.iteration, r->got.seq, 0, r->rows);
}

static void end_reading_of(uint32_t participant, struct reading *all, uint32_t *n, uint32_t which)
{
    struct reading r = all[which];
    all[which] = all[--*n];
    look_at(&r);
    CHECK_OK(sr_release_shared(ring, participant, r.got.slot, r.got.gen));
}

/* Read until the segment is closed; leave and come back now and then, with leases. */
static void shared_reader(uint32_t participant)
{
    struct chance c = {mix(participant) ^ sr_now()};
    struct reading all[MAX_SLOTS];
    uint32_t n = 0;
    uint64_t next = UINT64_MAX, last = 0;
    int rc;
    CHECK_OK(sr_begin_reading(ring, participant));
    while ((rc = sr_wait_shared(ring, participant, SR_FOREVER, -1)) == 0) {
        struct reading *r = &all[n++];
        CHECK_OK(sr_take_shared(ring, participant, &r->got));
        r->rows = r->got.result.n_leaves;
        mortal(&c);
        CHECK(next == UINT64_MAX ? r->got.number >= last : r->got.number == next);
        last = next = r->got.number + 1;
        if (!r->got.is_end)
            CHECK_EQ(r->got.result.def_hash, mix(r->got.iteration ^ r->got.seq));
        look_at(r);
        mortal(&c);
        if (roll(&c, 40) == 0) {
            CHECK_OK(sr_end_reading(ring, participant));
            mortal(&c);
            CHECK_OK(sr_begin_reading(ring, participant));
            next = UINT64_MAX;
        }
        while (n > roll(&c, plan.leases + 1))
            end_reading_of(participant, all, &n, (uint32_t)roll(&c, n));
    }
    CHECK_EQ(rc, -ESHUTDOWN);
    while (n)
        end_reading_of(participant, all, &n, 0);
    CHECK_OK(sr_end_reading(ring, participant));
}

static void share_end_mark(void)
{
    uint32_t slot;
    if (sr_pick_free(ring, &slot) == 0)
        CHECK_OK(sr_share_end(ring, slot, run_no, next_seq));
}

static void shared_main(void)
{
    struct chance c = {sr_now()};
    uint64_t end = stress_end(), ends = 0;
    n_waiting = n_leases = 0;
    for (uint32_t p = 1; p <= plan.workers + plan.readers; p++)
        start_worker(p);
    begin_epoch(&c);
    for (uint32_t p = 1; p <= plan.workers + plan.readers && !plan.kills; p++)
        CHECK_OK(sr_wait_serving(ring, p, SR_FOREVER));
    while (sr_now() < end || account->delivered == 0) {
        uint64_t deadline = plan.kills ? in_ms(2) : SR_FOREVER;
        uint32_t found, depth = 1 + (uint32_t)roll(&c, plan.depth);
        take_lives(&c);
        while (n_waiting < depth && send(&c))
            ;
        if (roll(&c, 50) == 0) {
            end_epoch(&c);
            share_end_mark();
            ends++;
            continue;
        }
        if (n_waiting == 0) { /* readers have all slots, or workers fill them for an old iteration */
            while (n_leases)
                end_lease(0);
            /* No wake-up announces the publish of a stale batch. */
            int rc = sr_wait_free(ring, ends ? in_ms(2) : deadline, -1, &found);
            CHECK(rc == 0 || rc == -ETIMEDOUT);
            continue;
        }
        int rc = sr_wait_ready(ring, waiting[0].slot, deadline, &found);
        if (rc == -ETIMEDOUT && plan.kills)
            continue;
        CHECK_OK(rc);
        receive(0);
        CHECK_OP(sr_share(ring, leases[n_leases - 1].of.slot, leases[n_leases - 1].of.gen), >=, 0);
        while (n_leases > roll(&c, plan.leases + 1))
            end_lease((uint32_t)roll(&c, n_leases));
    }
    end_epoch(&c);
    while (n_leases)
        end_lease(0);
    CHECK_OK(sr_close(ring));
    for (uint32_t p = 1; p <= plan.workers + plan.readers; p++)
        end_worker(p);
    printf("      %" PRIu64 " batches shared %" PRIu64 " times, %" PRIu64 " early ends, %" PRIu64 " deaths\n",
           account->delivered, sr_load_acquire(&ring->header->shared), ends, deaths);
}
