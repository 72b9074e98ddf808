/* Readers in threads and in processes, while the recorder wraps: each accepted record is consistent. */
#include "watching.h"

#define READERS 2

static sr_ring *ring;
static bool queue_mode;
static _Atomic uint32_t over;

static unsigned seconds(void)
{
    const char *given = getenv("STRESS_SECONDS");
    return given ? (unsigned)atoi(given) : 1;
}

static void check_seen(const sr_record_view *seen)
{
    if (!whole(seen, queue_mode))
        fprintf(stderr, "torn: number %" PRIu64 ", task %" PRIu64 "\n", seen->number, seen->seq);
    CHECK(whole(seen, queue_mode));
}

/* Returns how many FREE slots could be observed. */
static uint64_t look_at_slots(const sr_watch *watch)
{
    uint64_t n = 0;
    sr_slot_view seen;
    for (uint32_t i = 0; i < ring->n_slots; i++) {
        int rc = sr_watch_slot(watch, i, &seen);
        if (rc != 0)
            CHECK_EQ(rc, -EAGAIN);
        else if (sr_state_of(seen.state) == SR_FREE)
            check_seen(&seen.seen), n++;
        else if (sr_state_of(seen.state) == SR_CLAIMED && queue_mode) {
            CHECK_EQ(seen.rows, 0);
            CHECK_EQ(seen.seen.times[SR_T_FETCH], 0);
            CHECK_OP(seen.seen.times[SR_T_CLAIMED], >, 100000);
        } else if (sr_state_of(seen.state) == SR_TASK) {
            CHECK_EQ(seen.rows, word_of(seen.seen.seq, 52));
            CHECK_EQ(seen.seen.epoch, word_of(seen.seen.seq, 51));
            CHECK_EQ(seen.seen.times[SR_T_READ], 0);
        }
    }
    return n;
}

static void look_on(uint64_t until_ns)
{
    static __thread sr_record_view seen[SR_RECORDS];
    sr_watch *watch = watch_of(ring);
    uint64_t n_records = 0, n_slots = 0;
    do { /* at least once, however late it starts */
        uint32_t n = sr_watch_records(watch, 0, seen, SR_RECORDS);
        for (uint32_t i = 0; i < n; i++) {
            check_seen(&seen[i]);
            CHECK(i == 0 || seen[i].number > seen[i - 1].number);
        }
        n_records += n;
        n = sr_watch_slowest(watch, n_records % 2, seen);
        for (uint32_t i = 0; i < n; i++)
            check_seen(&seen[i]);
        for (int i = 0; i < 100; i++)
            n_slots += look_at_slots(watch);
    } while (!sr_load_relaxed(&over) && sr_now() < until_ns);
    CHECK_OP(n_records, >, 0);
    CHECK_OP(n_slots, >, 0);
    sr_watch_close(watch);
}

static void *reader(void *nothing)
{
    look_on(UINT64_MAX);
    return nothing;
}

static void *producer(void *participant)
{
    while (!sr_load_relaxed(&over))
        put_one(ring, (uint32_t)(uintptr_t)participant);
    return NULL;
}

static void records(bool in_queue)
{
    pthread_t threads[READERS + 2];
    pid_t pids[READERS];
    uint64_t until = sr_now() + seconds() * UINT64_C(1000000000), seq = 0;
    queue_mode = in_queue;
    ring = make_ring(3, 4, queue_mode ? SR_SEG_QUEUE : 0);
    for (int i = 0; i < 3000; i++) /* readers find records from the start */
        queue_mode ? put_one(ring, 1) : (void)deliver_one(ring, seq++);
    for (int i = 0; i < READERS; i++) {
        fflush(NULL);
        if ((pids[i] = fork()) == 0) {
            look_on(until);
            _exit(0);
        }
    }
    for (int i = 0; i < READERS; i++)
        CHECK_OK(pthread_create(&threads[i], NULL, reader, NULL));
    for (int i = 0; queue_mode && i < 2; i++)
        CHECK_OK(pthread_create(&threads[READERS + i], NULL, producer, (void *)(uintptr_t)(2 + i)));
    while (sr_now() < until)
        queue_mode ? put_one(ring, 1) : (void)deliver_one(ring, seq++);
    sr_store_relaxed(&over, 1);
    for (int i = 0; i < (queue_mode ? READERS + 2 : READERS); i++)
        CHECK_OK(pthread_join(threads[i], NULL));
    for (int i = 0; i < READERS; i++)
        CHECK_EQ(wait_for(pids[i]), 0);
    CHECK_OP(sr_load_relaxed(&ring->header->recorded), >, 2 * SR_RECORDS);
    sr_destroy(ring);
}

TEST(observers_see_whole_records_while_a_consumer_records) { records(false); }
TEST(observers_see_whole_records_while_producers_record) { records(true); }

RUN_TESTS(60 + seconds())
