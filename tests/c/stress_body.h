/* stress_body.h - the body of all stress programs; stress_threads.c, stress_processes.c, stress_kills.c set the mode.
 *
 * Checked throughout: every sequence number arrives exactly once, in order if that is promised; every batch
 * has the contents of its task when it is taken and when its lease ends; an array that a worker keeps is not
 * overwritten; in the end every slot is free. Counters start near overflow, epochs end early, workers pause at odd
 * moments. No participant rescans (see the Makefile), so a lost wake-up is a hang, which the watchdog reports.
 */
#ifndef SLIPRING_STRESS_BODY_H
#define SLIPRING_STRESS_BODY_H

#include <sched.h>
#include <sys/mman.h>

#include "fixture.h"

enum traffic { DYNAMIC, STATIC, COOPERATIVE, PUSH };
enum { MAX_WORKERS = 8, MAX_SLOTS = 32, ROW = 24 /* words */, MAX_SEQ = 1 << 22 };

struct plan {
    enum traffic traffic;
    bool threads; /* otherwise processes */
    bool kills;   /* workers die at any moment and are replaced */
    bool by_completion;
    uint32_t workers, slots, depth, leases;
    uint32_t readers; /* of shared batches; their numbers follow the workers' */
};

/* The memory that a run's processes share, in addition to the segment. */
struct account {
    _Atomic uint64_t attempt[MAX_WORKERS + 1]; /* queue mode: the last number that a producer has started */
    _Atomic uint64_t delivered;
    _Atomic uint32_t stop;
    _Atomic uint8_t seen[MAX_WORKERS + 1][MAX_SEQ];
};

static struct plan plan;
static sr_ring *ring;
static struct account *account;

/* ---- chance ---- */

struct chance {
    uint64_t state;
};

static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t roll(struct chance *c, uint64_t sides) { return mix(c->state++) % sides; }

static void pause_a_little(struct chance *c)
{
    switch (roll(c, 16)) {
    case 0:
        usleep((useconds_t)roll(c, 100));
        break;
    case 1:
    case 2:
    case 3:
        sched_yield();
        break;
    default:
        break;
    }
}

/* A moment where a worker may kill itself, because a killer from outside rarely hits it. */
static void mortal(struct chance *c)
{
    pause_a_little(c);
    if (plan.kills && roll(c, 400) == 0)
        kill(getpid(), SIGKILL);
}

/* ---- content ---- */

static void write_rows(char *at, uint64_t run, uint64_t seq, uint32_t first, uint32_t rows)
{
    uint64_t *words = (uint64_t *)at;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < ROW; i++)
            *words++ = mix(mix(run ^ seq * 31) + (first + r) * ROW + i);
}

static void check_rows(const char *at, uint64_t run, uint64_t seq, uint32_t first, uint32_t rows)
{
    const uint64_t *words = (const uint64_t *)at;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < ROW; i++)
            CHECK_EQ(*words++, mix(mix(run ^ seq * 31) + (first + r) * ROW + i));
}

static uint64_t rows_bytes(uint32_t rows) { return (uint64_t)rows * ROW * 8; }

static uint64_t take_memory(uint32_t participant, uint32_t slot, uint32_t rows)
{
    uint64_t offset;
    CHECK_OK(sr_alloc(ring, participant, slot, rows_bytes(rows), SR_LEAF_ALIGN, &offset, NULL));
    return offset;
}

/* An array that a worker keeps after the publish. */
struct kept {
    bool any;
    uint32_t slot, rows;
    uint64_t gen, offset, iteration, seq;
};

static void release_slot(uint32_t participant, struct kept *k)
{
    if (k->any) {
        check_rows(sr_payload(ring, k->slot) + k->offset, k->iteration, k->seq, 0, k->rows);
        CHECK_OK(sr_unpin(ring, participant, k->slot, k->gen));
        k->any = false;
    }
}

/* With very few slots it must not sleep while it keeps one. */
static bool may_release(struct chance *c) { return plan.slots <= 2 || roll(c, 2); }

static void publish_rows(uint32_t participant, uint32_t slot, uint64_t gen, uint64_t run, uint64_t seq, uint32_t rows,
                         uint64_t offset, struct kept *keep, struct chance *c)
{
    sr_result result = {.kind = SR_BATCH, .table_off = offset, .bytes = offset + rows_bytes(rows),
                        .n_leaves = rows, .def_hash = mix(run ^ seq)};
    bool held = !keep->any && roll(c, 5) == 0;
    mortal(c);
    if (held)
        *keep = (struct kept){true, slot, rows, gen, offset, run, seq};
    CHECK_OK(sr_publish(ring, participant, slot, gen, &result, held));
    mortal(c);
}

/* ---- loader mode: the worker ---- */

static void fill_whole(uint32_t participant, uint32_t slot, uint64_t gen, struct kept *keep, struct chance *c)
{
    sr_task task = *sr_task_of(ring, slot);
    uint64_t offset = take_memory(participant, slot, task.rows);
    if (roll(c, 16) == 0) { /* a batch that failed in the middle and starts again */
        memset(sr_payload(ring, slot) + offset, 0xee, rows_bytes(task.rows));
        CHECK_OK(sr_rewind(ring, participant, slot, gen));
        offset = take_memory(participant, slot, task.rows);
    }
    mortal(c);
    write_rows(sr_payload(ring, slot) + offset, task.iteration, task.seq, 0, task.rows);
    publish_rows(participant, slot, gen, task.iteration, task.seq, task.rows, offset, keep, c);
}

static void finish(uint32_t participant, uint32_t slot, uint64_t gen, struct kept *keep, struct chance *c)
{
    sr_task task = *sr_task_of(ring, slot);
    int layout = sr_layout_propose(ring, participant, slot, gen, 0);
    uint64_t offset;
    mortal(c);
    if (layout == SR_LAYOUT_DIRECT) {
        offset = sr_result_of(ring, slot, SR_WHOLE)->table_off;
    } else {
        CHECK_EQ(layout, SR_LAYOUT_STAGED);
        offset = take_memory(participant, slot, task.rows);
        for (uint32_t r = 0; r < task.n_ranges; r++) {
            const sr_result *staged = sr_result_of(ring, slot, r);
            check_rows(sr_payload(ring, slot) + staged->table_off, task.iteration, task.seq, r * task.range_rows,
                       staged->n_leaves);
            memcpy(sr_payload(ring, slot) + offset + rows_bytes(r * task.range_rows),
                   sr_payload(ring, slot) + staged->table_off, rows_bytes(staged->n_leaves));
        }
    }
    publish_rows(participant, slot, gen, task.iteration, task.seq, task.rows, offset, keep, c);
}

static void fill_range(uint32_t participant, uint32_t slot, uint32_t range, uint64_t gen, struct kept *keep,
                       struct chance *c)
{
    sr_task task = *sr_task_of(ring, slot);
    uint32_t first = range * task.range_rows, left = task.rows - first;
    uint32_t rows = left < task.range_rows ? left : task.range_rows;
    sr_result staged = {.kind = SR_BATCH, .n_leaves = rows};
    mortal(c);
    int layout = sr_layout_propose(ring, participant, slot, gen, SR_FOREVER);
    if (layout == 0) {
        layout = roll(c, 3) ? SR_LAYOUT_DIRECT : SR_LAYOUT_STAGED;
        mortal(c);
        sr_result table = {.kind = SR_BATCH};
        if (layout == SR_LAYOUT_DIRECT)
            table.table_off = take_memory(participant, slot, task.rows);
        mortal(c);
        CHECK_OK(sr_layout_settle(ring, participant, slot, gen, layout, layout == SR_LAYOUT_DIRECT ? &table : NULL));
    }
    if (layout == SR_LAYOUT_DIRECT) {
        uint64_t at = sr_result_of(ring, slot, SR_WHOLE)->table_off + rows_bytes(first);
        write_rows(sr_payload(ring, slot) + at, task.iteration, task.seq, first, rows);
    } else if (layout == SR_LAYOUT_STAGED) {
        staged.table_off = take_memory(participant, slot, rows);
        write_rows(sr_payload(ring, slot) + staged.table_off, task.iteration, task.seq, first, rows);
    } else {
        CHECK_EQ(layout, -ESHUTDOWN);
    }
    mortal(c);
    int rc = sr_range_done(ring, participant, slot, range, gen, layout == SR_LAYOUT_STAGED ? &staged : NULL);
    if (rc == 1)
        finish(participant, slot, gen, keep, c);
    else
        CHECK_EQ(rc, 0);
}

static void loader_worker(uint32_t participant)
{
    struct chance c = {mix(participant) ^ sr_now()};
    struct kept keep = {0};
    uint32_t slot, range;
    uint64_t gen;
    CHECK_OK(sr_join(ring, participant));
    CHECK_OK(sr_serve(ring, participant));
    for (;;) {
        int rc = sr_claim(ring, participant, SR_FOREVER, &slot, &range, &gen);
        if (rc == -ESHUTDOWN)
            break;
        CHECK_OK(rc);
        CHECK_EQ(*(uint64_t *)sr_task_area(ring, slot), mix(sr_task_of(ring, slot)->seq));
        if (plan.traffic == STATIC)
            CHECK_EQ(sr_task_of(ring, slot)->addressee, participant + 1);
        mortal(&c);
        if (range == SR_WHOLE)
            fill_whole(participant, slot, gen, &keep, &c);
        else if (range == SR_FINISH)
            finish(participant, slot, gen, &keep, &c);
        else
            fill_range(participant, slot, range, gen, &keep, &c);
        if (keep.any && may_release(&c))
            release_slot(participant, &keep);
    }
    release_slot(participant, &keep);
}

/* ---- the workers' lives ---- */

static void queue_worker(uint32_t participant); /* stress_queue.h */
static void shared_reader(uint32_t participant); /* stress_shared.h */

static pthread_t threads[MAX_WORKERS + 1];
static pid_t pids[MAX_WORKERS + 1];
static uint64_t deaths;

static void *worker(void *number)
{
    uint32_t participant = (uint32_t)(uintptr_t)number;
    if (plan.traffic == PUSH)
        queue_worker(participant);
    else if (participant > plan.workers)
        shared_reader(participant);
    else
        loader_worker(participant);
    return NULL;
}

static void start_worker(uint32_t participant)
{
    if (plan.threads) {
        CHECK_OK(pthread_create(&threads[participant], NULL, worker, (void *)(uintptr_t)participant));
        return;
    }
    pids[participant] = fork();
    CHECK(pids[participant] >= 0);
    if (pids[participant] == 0) {
        sr_after_fork(ring);
        worker((void *)(uintptr_t)participant);
        _exit(0);
    }
}

static void end_worker(uint32_t participant)
{
    if (plan.threads) {
        pthread_join(threads[participant], NULL);
        return;
    }
    int status = wait_for(pids[participant]);
    if (plan.kills && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        CHECK_OP(sr_recover(ring, participant), >=, 0);
        deaths++;
    } else {
        CHECK_EQ(status, 0);
    }
}

/* Kills a worker every few milliseconds, and replaces dead ones. */
static void take_lives(struct chance *c)
{
    static uint64_t next;
    int status;
    if (!plan.kills)
        return;
    if (sr_now() >= next) {
        kill(pids[1 + roll(c, plan.workers + plan.readers)], SIGKILL);
        next = sr_now() + roll(c, 4 * MS);
    }
    for (uint32_t p = 1; p <= plan.workers + plan.readers; p++) {
        if (waitpid(pids[p], &status, WNOHANG) != pids[p])
            continue;
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        CHECK_OP(sr_recover(ring, p), >=, 0);
        deaths++;
        start_worker(p);
    }
}

/* ---- before and after ---- */

static uint64_t stress_end(void)
{
    const char *seconds = getenv("STRESS_SECONDS");
    return in_ms((uint64_t)(1000 * (seconds ? atof(seconds) : 1)));
}

/* A run may be slow with a sanitizer on a busy machine; a run that continues long after its time hangs. */
static unsigned stress_watchdog(void)
{
    return 60 + (unsigned)((stress_end() - sr_now()) / (1000 * MS));
}

static void begin(void)
{
    ring = make_ring_for(plan.slots, plan.workers + plan.readers + 1, plan.traffic == PUSH ? SR_SEG_QUEUE : 0,
                         plan.readers);
    account = mmap(NULL, sizeof *account, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(account != MAP_FAILED);
    for (uint32_t i = 0; i < plan.slots; i++)
        poke(ring, i, sr_word(SR_FREE, 0, LAST_GEN - i * 7));
    for (uint32_t i = 0; i <= plan.workers + plan.readers; i++)
        sr_store_release(&ring->participants[i].wake, UINT32_MAX - i);
    sr_store_release(&ring->header->ready, UINT32_MAX - 3);
    sr_store_release(&ring->header->freed, UINT32_MAX - 3);
    sr_store_release(&ring->header->share_wake, UINT32_MAX - 3);
    sr_store_release(&ring->header->order, UINT64_MAX - 40);
}

static void everything_is_free(void)
{
    uint32_t slot;
    CHECK_OK(sr_pick_free(ring, &slot)); /* discards the rest of old iterations */
    for (uint32_t i = 0; i < plan.slots; i++) {
        if (state_of(ring, i) != SR_FREE)
            fprintf(stderr, "slot %u\n", i);
        CHECK_EQ(state_of(ring, i), SR_FREE);
    }
    if (!plan.kills) {
        CHECK_EQ(sr_load_acquire(&ring->header->ready_waiters), 0);
        CHECK_EQ(sr_load_acquire(&ring->header->free_waiters), 0);
        CHECK_EQ(sr_load_acquire(&ring->header->share_waiters), 0);
    }
    munmap(account, sizeof *account);
    sr_destroy(ring);
}

#include "stress_loader.h"
#include "stress_queue.h"
#include "stress_shared.h"

static void stress(struct plan p)
{
    plan = p;
    begin();
    if (plan.traffic == PUSH)
        queue_main();
    else if (plan.readers)
        shared_main();
    else
        loader_main();
    everything_is_free();
}

#endif
