/* The flight recorder: the records of past batches, and what the records show together. */
#include <sys/resource.h>

#include "watching.h"

static sr_record_view seen[SR_RECORDS];
static uint64_t sums[SR_SUMS];

enum { BATCHES, BYTES, ROWS, ERRORS, FOLDED, UNUSED_SUM, READ_NS, DECODE_NS, RESIZE_NS, AUGMENT_NS, USER_NS,
       HITS, MISSES, FIRST_STAGE };

static const uint64_t *stage(enum sr_stage of) { return &sums[FIRST_STAGE + of * (2 + SR_BUCKETS)]; }

static uint32_t records_of(const sr_ring *ring, uint64_t from)
{
    sr_watch *watch = watch_of(ring);
    uint32_t n = sr_watch_records(watch, from, seen, SR_RECORDS);
    sr_watch_totals(watch, sums);
    sr_watch_close(watch);
    return n;
}

/* Reuses a slot, so that its last batch is recorded; the task of the reuse leaves no record. */
static void use_again(sr_ring *ring, uint32_t slot)
{
    dispatch(ring, slot, 999999, 0, 0);
    CHECK_OK(sr_cancel(ring, slot, sr_gen_of(sr_load_acquire(&ring->slots[slot].state))));
}

TEST(a_record_holds_the_facts_of_dispatch_publish_and_take)
{
    sr_ring *ring SCOPED = make_ring(2, 3, 0);
    uint64_t before = sr_now(), gen;
    int64_t *indices = (int64_t *)sr_task_area(ring, 0);
    CHECK_OK(sr_begin_iteration(ring, 7));
    indices[0] = -5;
    sr_task task = {.iteration = 7, .seq = 40, .epoch = 3, .kind = SR_TASK_INDICES, .rows = 4, .bytes = 32};
    CHECK_OK(sr_dispatch(ring, 0, &task, &gen));
    CHECK_EQ(claim(ring, 2, NULL, &gen), 0);
    CHECK_OK(sr_add_times(ring, 0, 1000, 200, 0));
    sr_parts parts = {.read_ns = 1, .decode_ns = 2, .resize_ns = 3, .augment_ns = 6, .user_ns = 7, .hits = 4,
                      .misses = 5, .slowest_ns = 600, .slowest_index = 77};
    CHECK_OK(sr_add_parts(ring, 0, &parts));
    sr_result result = {.kind = SR_BATCH, .bytes = 12345};
    CHECK_OK(sr_publish(ring, 2, 0, gen, &result, false));
    take(ring, 0);
    sr_stamps stamps;
    uint64_t taken_at = sr_load_relaxed(&ring->slots[0].times.taken_at);
    sr_record_take(ring, 0, 11, taken_at - 33, &stamps); /* the last batch was taken so long ago */
    CHECK_EQ(stamps.taken_at, taken_at);
    CHECK_EQ(stamps.fetch_ns, 1000);
    CHECK_EQ(sr_load_relaxed(&ring->slots[0].times.step_ns), 22);
    sr_record_take(ring, 0, 11, 0, &stamps);
    CHECK_EQ(sr_load_relaxed(&ring->slots[0].times.step_ns), 0); /* there was no step */
    sr_record_take(ring, 0, 11, taken_at - 33, &stamps);
    sr_set_copy_time(ring, 0, 33);
    sr_set_copy_time(ring, 2, 33); /* no such slot */
    CHECK_EQ(records_of(ring, 0), 0); /* it is still in its slot */
    CHECK_OK(sr_release(ring, 0, gen));
    use_again(ring, 0);
    CHECK_EQ(records_of(ring, 0), 1);
    const uint64_t *times = seen[0].times;
    CHECK_EQ(seen[0].number, 1);
    CHECK_EQ(seen[0].iteration, 7);
    CHECK_EQ(seen[0].seq, 40);
    CHECK_EQ(seen[0].epoch, 3);
    CHECK_EQ(seen[0].bytes, 12345);
    CHECK_EQ(seen[0].publisher, 2 | UINT64_C(4) << 32);
    CHECK_EQ(seen[0].slot_kind, 0 | (uint64_t)SR_BATCH << 32);
    CHECK_OP(times[SR_T_DISPATCHED], >=, before);
    for (uint32_t i = SR_T_DISPATCHED; i < SR_T_TAKEN; i++)
        CHECK(i == SR_T_FETCHED - 1 || times[i] <= times[i + 1]);
    CHECK_OP(seen[0].freed_at, >=, times[SR_T_TAKEN]);
    CHECK_EQ(times[SR_T_FETCH], 1000);
    CHECK_EQ(times[SR_T_COLLATE], 200);
    CHECK_EQ(times[SR_T_WAITED], 11);
    CHECK_EQ(times[SR_T_STEP], 22);
    CHECK_EQ(times[SR_T_COPY], 33);
    CHECK_EQ((int64_t)times[SR_T_FIRST], -5);
    CHECK_EQ(times[SR_T_READ], 1);
    CHECK_EQ(times[SR_T_DECODE], 2);
    CHECK_EQ(times[SR_T_RESIZE], 3);
    CHECK_EQ(times[SR_T_AUGMENT], 6);
    CHECK_EQ(times[SR_T_USER], 7);
    CHECK_EQ(times[SR_T_LOOKUPS], 4 | UINT64_C(5) << 32);
    CHECK_EQ(times[SR_T_SLOWEST], 600);
    CHECK_EQ(times[SR_T_SLOWEST_INDEX], 77);
}

TEST(times_of_ranges_are_added_up)
{
    sr_ring *ring SCOPED = make_ring(1, 3, 0);
    uint64_t gen;
    uint32_t range;
    dispatch(ring, 0, 1, 0, 2);
    for (uint32_t i = 0; i < 2; i++) {
        sr_parts parts = {.read_ns = 10, .augment_ns = 20, .user_ns = 30, .hits = 1, .misses = 2,
                          .slowest_ns = 500 - i * 100, .slowest_index = i};
        claim(ring, 1 + i, &range, &gen);
        CHECK_EQ(range, i);
        CHECK_OK(sr_add_times(ring, 0, 100, 1, 0));
        CHECK_OK(sr_add_parts(ring, 0, &parts));
    }
    sr_stamps stamps;
    CHECK_OK(sr_stamps_of(ring, 0, &stamps));
    CHECK_EQ(stamps.fetch_ns, 200);
    const sr_times *times = &ring->slots[0].times;
    CHECK_EQ(sr_load_relaxed(&times->read_ns), 20);
    CHECK_EQ(sr_load_relaxed(&times->augment_ns), 40);
    CHECK_EQ(sr_load_relaxed(&times->user_ns), 60);
    CHECK_EQ(sr_load_relaxed(&times->lookups), 2 | UINT64_C(4) << 32);
    CHECK_EQ(sr_load_relaxed(&times->slowest_ns), 500);
    CHECK_EQ(sr_load_relaxed(&times->slowest_index), 0);
    CHECK_EQ(sr_add_parts(ring, 1, &(sr_parts){0}), -EINVAL);
}

TEST(the_recorder_keeps_the_newest_records)
{
    sr_ring *ring SCOPED = make_ring(2, 2, 0);
    for (uint64_t seq = 0; seq < 2 * SR_RECORDS + 10; seq++)
        deliver_one(ring, seq);
    uint64_t head = sr_load_relaxed(&ring->header->recorded);
    uint32_t n = records_of(ring, 0);
    CHECK_EQ(n, SR_RECORDS);
    for (uint32_t i = 0; i < n; i++) {
        CHECK_EQ(seen[i].number, head - n + 1 + i);
        CHECK(whole(&seen[i], false));
    }
    CHECK_EQ(records_of(ring, head - 2), 3);
    CHECK_EQ(records_of(ring, head), 1);
    CHECK_EQ(records_of(ring, head + 1), 0);
    CHECK_EQ(records_of(ring, UINT64_MAX), 0);
}

/* For a queue segment, which has several writers; a loader segment's only writer is its consumer. */
TEST(a_record_that_is_being_written_is_passed_over)
{
    sr_ring *ring SCOPED = make_ring(1, 2, SR_SEG_QUEUE);
    for (uint64_t seq = 0; seq < 6; seq++)
        put_one(ring, 1);
    CHECK_EQ(records_of(ring, 0), 5);
    sr_store_release(&ring->records[2].number, 3 | SR_RECORD_TORN); /* its writer has died */
    CHECK_EQ(records_of(ring, 0), 4);
    CHECK_EQ(seen[2].number, 4);
    for (uint64_t seq = 6; seq < SR_RECORDS + 6; seq++)
        put_one(ring, 1);
    CHECK_EQ(sr_load_relaxed(&ring->records[2].number), 3 | SR_RECORD_TORN);
    CHECK_EQ(records_of(ring, 0), SR_RECORDS - 1);
}

TEST(a_process_stopped_before_its_record_leaves_a_newer_one)
{
    sr_ring *ring SCOPED = make_ring(1, 2, SR_SEG_QUEUE);
    put_one(ring, 1);
    sr_store_release(&ring->records[0].number, 1 + SR_RECORDS); /* the other records have wrapped */
    put_one(ring, 1);
    CHECK_EQ(sr_load_relaxed(&ring->header->recorded), 1);
    CHECK_EQ(sr_load_relaxed(&ring->records[0].number), 1 + SR_RECORDS);
    CHECK_EQ(sr_load_relaxed(&ring->records[0].bytes), 0);
}

TEST(batches_are_added_to_the_totals)
{
    sr_ring *ring SCOPED = make_ring(2, 2, 0);
    uint64_t bytes = 0, rows = 0, read_ns = 0, augment_ns = 0, user_ns = 0, fetch_ns = 0, hits = 0, most = 0;
    for (uint64_t seq = 0; seq < 3 * SR_FOLD + 1; seq++) /* the last one is in its slot */
        deliver_one(ring, seq);
    uint32_t n = records_of(ring, 0);
    CHECK_EQ(n, 3 * SR_FOLD);
    for (uint32_t i = 0; i < n; i++) {
        bytes += seen[i].bytes;
        rows += seen[i].publisher >> 32;
        read_ns += seen[i].times[SR_T_READ];
        augment_ns += seen[i].times[SR_T_AUGMENT];
        user_ns += seen[i].times[SR_T_USER];
        fetch_ns += seen[i].times[SR_T_FETCH];
        hits += (uint32_t)seen[i].times[SR_T_LOOKUPS];
        most = most < seen[i].times[SR_T_FETCH] ? seen[i].times[SR_T_FETCH] : most;
    }
    CHECK_EQ(sums[FOLDED], n);
    CHECK_EQ(sums[BATCHES], n);
    CHECK_EQ(sums[BYTES], bytes);
    CHECK_EQ(sums[ROWS], rows);
    CHECK_EQ(sums[ERRORS], 0);
    CHECK_EQ(sums[READ_NS], read_ns);
    CHECK_EQ(sums[AUGMENT_NS], augment_ns);
    CHECK_EQ(sums[USER_NS], user_ns);
    CHECK_EQ(sums[HITS], hits);
    CHECK_EQ(stage(SR_FETCHED)[0], fetch_ns);
    CHECK_EQ(stage(SR_FETCHED)[1], most);
    uint64_t counted = 0;
    for (uint32_t i = 0; i < SR_BUCKETS; i++)
        counted += stage(SR_FETCHED)[2 + i];
    CHECK_EQ(counted, n);
}

/* Records a batch that took so long to fetch. */
static void record_one(sr_ring *ring, uint64_t seq, uint64_t fetch_ns, uint64_t sample_ns)
{
    uint32_t slot = deliver_one(ring, seq);
    sr_store_relaxed(&ring->slots[slot].times.fetch_ns, fetch_ns);
    sr_store_relaxed(&ring->slots[slot].times.collate_ns, 0);
    sr_store_relaxed(&ring->slots[slot].times.slowest_ns, sample_ns);
}

TEST(durations_are_counted_eight_to_a_power_of_two)
{
    static const uint64_t longest[] = {0,   255, 256, 287, 288, 511, 512, 575, 576, UINT64_C(1) << 39,
                                       (UINT64_C(1) << 40) - 1, UINT64_C(1) << 40, UINT64_MAX >> 1};
    static const uint32_t bucket[] = {0, 0, 0, 0, 1, 7, 8, 8, 9, 248, 255, 255, 255};
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    uint32_t expected[SR_BUCKETS] = {0};
    for (uint32_t i = 0; i <= SR_FOLD; i++) {
        uint32_t which = i % (uint32_t)(sizeof bucket / sizeof *bucket);
        record_one(ring, i, longest[which], 0);
        expected[bucket[which]] += i < SR_FOLD;
    }
    CHECK_EQ(records_of(ring, 0), SR_FOLD);
    for (uint32_t i = 0; i < SR_BUCKETS; i++)
        CHECK_EQ(stage(SR_FETCHED)[2 + i], expected[i]);
    CHECK_EQ(stage(SR_FETCHED)[1], UINT64_MAX >> 1);
}

static int falling(const void *a, const void *b)
{
    const sr_record_view *x = a, *y = b;
    return x->times[SR_T_FETCH] < y->times[SR_T_FETCH] ? 1 : -1;
}

TEST(the_slowest_are_kept_for_good)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    for (uint32_t i = 0; i <= 8 * SR_FOLD; i++) /* in an order without relation between neighbours */
        record_one(ring, i, 1000 + i * 37 % 512, 1000 + i * 101 % 512);
    sr_watch *watch SCOPED_WATCH = watch_of(ring);
    for (int samples = 0; samples < 2; samples++) {
        CHECK_EQ(sr_watch_slowest(watch, samples, seen), SR_SLOWEST);
        for (uint32_t i = 0; samples && i < SR_SLOWEST; i++)
            seen[i].times[SR_T_FETCH] = seen[i].times[SR_T_SLOWEST];
        qsort(seen, SR_SLOWEST, sizeof *seen, falling);
        for (uint32_t i = 0; i < SR_SLOWEST; i++)
            CHECK_EQ(seen[i].times[SR_T_FETCH], 1511 - i);
    }
}

TEST(errors_are_counted_apart)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    sr_result error = {.kind = SR_ERROR, .bytes = 10}, out;
    uint64_t gen;
    for (uint32_t i = 0; i <= SR_FOLD; i++) {
        dispatch(ring, 0, i, 0, 0);
        claim(ring, 1, NULL, &gen);
        CHECK_OK(sr_publish(ring, 1, 0, gen, &error, false));
        CHECK_OK(sr_take(ring, SR_CONSUMER, 0, &gen, &out));
        CHECK_OK(sr_release(ring, 0, gen));
    }
    CHECK_EQ(records_of(ring, 0), SR_FOLD);
    CHECK_EQ(seen[0].slot_kind >> 32, SR_ERROR);
    CHECK_EQ(sums[ERRORS], SR_FOLD);
    CHECK_EQ(sums[BATCHES], 0);
    CHECK_EQ(sums[BYTES], 0);
}

TEST(an_unpublished_batch_is_not_recorded)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    uint64_t gen;
    use_again(ring, 0); /* cancelled */
    use_again(ring, 0);
    dispatch(ring, 0, 1, 0, 0);
    claim(ring, 1, NULL, &gen);
    CHECK_OK(sr_abort(ring, 1, 0, gen));
    use_again(ring, 0);
    for (uint16_t kind = SR_END; kind <= SR_EMPTY; kind++) { /* the end of a stream; no sample is left */
        dispatch(ring, 0, kind, 0, 0);
        claim(ring, 1, NULL, &gen);
        sr_result nothing = {.kind = kind};
        CHECK_OK(sr_publish(ring, 1, 0, gen, &nothing, false));
        CHECK_OK(sr_release(ring, 0, take(ring, 0)));
        use_again(ring, 0);
    }
    CHECK_EQ(records_of(ring, 0), 0);
    CHECK_EQ(sr_load_relaxed(&ring->header->recorded), 0);
}

TEST(a_discarded_batch_is_recorded_as_not_taken)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    for (uint32_t i = 0; i <= SR_FOLD; i++) {
        bring_to(ring, 0, SR_READY, 1, false);
        CHECK_OK(sr_discard(ring, 0));
    }
    CHECK_EQ(records_of(ring, 0), SR_FOLD);
    CHECK_EQ(seen[0].times[SR_T_TAKEN], 0);
    CHECK_OP(seen[0].times[SR_T_PUBLISHED], >, 0);
    CHECK_EQ(sums[BATCHES], SR_FOLD);
    for (uint32_t i = 0; i < SR_BUCKETS; i++)
        CHECK_EQ(stage(SR_WAITED)[2 + i], 0);
}

TEST(a_batch_is_recorded_once_although_its_slot_is_taken_away_for_a_moment)
{
    /* The dispatch resets the slot, and its swap fails because memory is released meanwhile. Then it starts again. */
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    deliver_one(ring, 0);
    sr_save_record(ring, 0);
    sr_reset_slot(&ring->slots[0], &(sr_task){.seq = 1});
    use_again(ring, 0);
    CHECK_EQ(records_of(ring, 0), 1);
}

TEST(a_message_is_recorded_when_its_slot_is_used_again)
{
    sr_ring *ring SCOPED = make_ring(1, 4, SR_SEG_QUEUE);
    for (uint32_t i = 0; i < 3; i++)
        put_one(ring, 1 + i);
    CHECK_EQ(records_of(ring, 0), 2);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK(whole(&seen[i], true));
        CHECK_EQ(seen[i].seq, i);
        CHECK_EQ((uint32_t)seen[i].publisher, 1 + i);
    }
    for (uint32_t i = 0; i < 2 * SR_FOLD; i++)
        put_one(ring, 1);
    records_of(ring, 0);
    CHECK_EQ(sums[FOLDED], 2 * SR_FOLD);
    CHECK_EQ(sums[BATCHES], 2 * SR_FOLD);
    sr_watch *watch SCOPED_WATCH = watch_of(ring);
    CHECK_EQ(sr_watch_slowest(watch, false, seen), 0); /* each threshold would need a lock */
}

TEST(a_participant_reports_its_row_and_its_totals)
{
    sr_ring *ring SCOPED = make_ring(2, 3, 0);
    sr_watch *watch SCOPED_WATCH = watch_of(ring);
    sr_participant_view participant;
    uint64_t gen;
    CHECK_OK(sr_join(ring, 1));
    CHECK_OK(sr_serve(ring, 1));
    dispatch(ring, 1, 0, 0, 0);
    claim(ring, 1, NULL, &gen);
    CHECK_OK(sr_watch_participant(watch, 1, &participant));
    CHECK_EQ(participant.at_slot, SR_MAX_SLOTS);
    CHECK_EQ(participant.pid, getpid());
    CHECK_EQ(participant.status, SR_PARTICIPANT_SERVING);
    sr_set_row(ring, 1, 1, 0, 4711);
    CHECK_OK(sr_watch_participant(watch, 1, &participant));
    CHECK_EQ(participant.at_slot, 1);
    CHECK_EQ(participant.at_row, 0);
    CHECK_EQ(participant.at_since, 4711);
    sr_set_row(ring, 1, 1, SR_WHOLE, 0);
    CHECK_OK(sr_watch_participant(watch, 1, &participant));
    CHECK_EQ(participant.at_slot, SR_MAX_SLOTS);
    CHECK_OK(sr_add_times(ring, 1, 300, 40, 0));
    sr_result result = {.kind = SR_BATCH, .bytes = 99};
    CHECK_OK(sr_publish(ring, 1, 1, gen, &result, false));
    CHECK_OK(sr_watch_participant(watch, 1, &participant));
    CHECK_EQ(participant.batches, 1);
    CHECK_EQ(participant.bytes, 99);
    CHECK_EQ(participant.fetch_ns, 300);
    CHECK_EQ(participant.collate_ns, 40);
    CHECK_EQ(sr_watch_participant(watch, 3, &participant), -EINVAL);
    sr_add_loop_step(ring, 5, 6);
    sr_add_loop_step(ring, 5, 6);
    sr_segment_info info;
    sr_watch_segment(watch, &info);
    CHECK_EQ(info.loop_steps, 2);
    CHECK_EQ(info.loop_wait_ns, 10);
    CHECK_EQ(info.loop_ns, 12);
}

static void make_batches_for(sr_ring *ring, uint64_t ns)
{
    for (uint64_t seq = 0, begun = sr_now(); sr_now() < begun + ns; seq++) {
        uint64_t gen;
        sr_result result = {.kind = SR_BATCH}, out;
        dispatch(ring, 0, seq, 0, 0);
        claim(ring, 1, NULL, &gen);
        CHECK_OK(sr_publish(ring, 1, 0, gen, &result, false));
        CHECK_OK(sr_take(ring, SR_CONSUMER, 0, &gen, &out));
        CHECK_OK(sr_release(ring, 0, gen));
    }
}

TEST(a_participant_without_descriptors_reports_no_wrong_time)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    sr_watch *watch SCOPED_WATCH = watch_of(ring);
    sr_participant_view participant;
    struct rlimit limit, none;
    CHECK_OK(sr_join(ring, 1));
    CHECK_OK(sr_serve(ring, 1));
    make_batches_for(ring, 50000000); /* it measures after 20 ms of batches, then after twice that time */
    CHECK_OK(getrlimit(RLIMIT_NOFILE, &limit));
    none = (struct rlimit){0, limit.rlim_max};
    CHECK_OK(setrlimit(RLIMIT_NOFILE, &none));
    make_batches_for(ring, 100000000);
    CHECK_OK(setrlimit(RLIMIT_NOFILE, &limit));
    CHECK_OK(sr_watch_participant(watch, 1, &participant));
    CHECK_OP(participant.cpu_ns, >, 0);
    CHECK(participant.queued_ns < UINT64_C(60000000000));
}

TEST(remote_reads_of_all_processes_are_counted_for_good)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    sr_watch *watch SCOPED_WATCH = watch_of(ring);
    sr_segment_info seen;
    sr_info info;
    CHECK_EQ(sr_add_read(ring, SR_READS, 1000, 5), 0);
    for (uint64_t before = 0; before < 3; before++)
        CHECK_EQ(sr_add_read(ring, SR_READ_REFUSED, 0, 7), before);
    CHECK_OK(sr_join(ring, 1)); /* a new worker replaces a dead one */
    CHECK_EQ(sr_add_read(ring, SR_READ_TIMEOUTS, 0, 11), 0);
    sr_watch_segment(watch, &seen);
    CHECK_OK(sr_describe(ring, &info));
    static const uint64_t expected[SR_READ_COUNTS] = {5, 1, 0, 3, 0, 1000, 5, 32};
    for (uint32_t i = 0; i < SR_READ_COUNTS; i++) {
        CHECK_EQ(seen.reads[i], expected[i]);
        CHECK_EQ(info.reads[i], expected[i]);
    }
}

RUN_TESTS(60)
