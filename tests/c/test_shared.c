/* Shared batches: the consumer gives readers leases of the same slot, and the last release frees it. */
#define _GNU_SOURCE
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "fixture.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

enum { WORKER = 1, READER = 2, OTHER = 3 };

static sr_ring *make_shared(uint32_t slots, uint32_t readers)
{
    sr_ring *ring = make_ring_for(slots, 2 + readers, 0, readers);
    return ring;
}

/* Makes a batch in a FREE slot and takes it; returns its generation. */
static uint64_t lease(sr_ring *ring, uint64_t seq, uint32_t *slot, bool held)
{
    uint64_t gen;
    CHECK_OK(sr_pick_free(ring, slot));
    dispatch(ring, *slot, seq, WORKER, 0);
    CHECK_EQ(claim(ring, WORKER, NULL, &gen), *slot);
    *(uint64_t *)sr_payload(ring, *slot) = seq;
    CHECK_OK(publish(ring, WORKER, *slot, gen, held));
    CHECK_EQ(take(ring, *slot), gen);
    return gen;
}

/* Shares a new batch, whose consumer has released it if `ends`; returns its slot. */
static uint32_t share_new(sr_ring *ring, uint64_t seq, bool ends)
{
    uint32_t slot;
    uint64_t gen = lease(ring, seq, &slot, false);
    CHECK_OP(sr_share(ring, slot, gen), >=, 0);
    if (ends)
        CHECK_OK(sr_release(ring, slot, gen));
    return slot;
}

static sr_shared take_next(sr_ring *ring, uint32_t reader, uint64_t seq)
{
    sr_shared got;
    CHECK_OK(sr_wait_shared(ring, reader, 0, -1));
    CHECK_OK(sr_take_shared(ring, reader, &got));
    CHECK_EQ(got.seq, seq);
    CHECK(!got.is_end);
    CHECK_EQ(*(uint64_t *)sr_payload(ring, got.slot), seq);
    return got;
}

static void end_lease(sr_ring *ring, uint32_t reader, sr_shared got)
{
    CHECK_OK(sr_release_shared(ring, reader, got.slot, got.gen));
}

TEST(the_last_of_all_releases_frees_the_slot)
{
    uint32_t slot;
    for (int last = 0; last < 3; last++) {
        sr_ring *ring SCOPED = make_shared(2, 2);
        CHECK_OK(sr_begin_reading(ring, READER));
        CHECK_OK(sr_begin_reading(ring, OTHER));
        uint64_t gen = lease(ring, 5, &slot, false);
        CHECK_EQ(sr_share(ring, slot, gen), 2);
        CHECK_EQ(state_of(ring, slot), SR_BROADCAST);
        CHECK_EQ(owner_of(ring, slot), 0);
        CHECK_EQ(sr_circulating(ring, 9), 1);
        CHECK_EQ(sr_lent(ring), 0);
        sr_shared one = take_next(ring, READER, 5), two = take_next(ring, OTHER, 5);
        CHECK(one.slot == slot && one.gen == gen && one.number == 0 && one.result.bytes == gen && two.slot == slot);
        for (int i = 1; i <= 3; i++) {
            CHECK_EQ(state_of(ring, slot), SR_BROADCAST);
            uint32_t who = (uint32_t)(last + i) % 3;
            CHECK_OK(who == 0 ? sr_release(ring, slot, gen) : sr_release_shared(ring, WORKER + who, slot, gen));
            CHECK_EQ(who == 0 ? sr_release(ring, slot, gen) : sr_release_shared(ring, WORKER + who, slot, gen),
                     -ESTALE);
        }
        CHECK_EQ(state_of(ring, slot), SR_FREE);
        CHECK_EQ(sr_circulating(ring, 9), 2);
    }
}

TEST(each_reader_takes_all_batches_in_order_and_releases_them_in_any)
{
    sr_ring *ring SCOPED = make_shared(3, 2);
    sr_shared kept[3];
    CHECK_OK(sr_begin_reading(ring, READER));
    CHECK_OK(sr_begin_reading(ring, OTHER));
    for (uint64_t round = 0; round < 20; round++) {
        for (uint64_t i = 0; i < 3; i++) {
            share_new(ring, 3 * round + i, true);
            if (i != 1)
                end_lease(ring, OTHER, take_next(ring, OTHER, i ? 3 * round + 1 : 3 * round));
            if (i == 2)
                end_lease(ring, OTHER, take_next(ring, OTHER, 3 * round + 2));
        }
        uint32_t slot;
        CHECK_EQ(sr_pick_free(ring, &slot), -EAGAIN); /* the slow reader has them all */
        CHECK_EQ(sr_lent(ring), 3);
        CHECK_EQ(sr_wait_free(ring, in_ms(1), -1, &slot), -ETIMEDOUT);
        for (uint64_t i = 0; i < 3; i++)
            kept[i] = take_next(ring, READER, 3 * round + i);
        for (uint64_t i = 0; i < 3; i++)
            end_lease(ring, READER, kept[(i + round) % 3]);
        CHECK_OK(sr_wait_free(ring, 0, -1, &slot));
        CHECK_EQ(sr_wait_shared(ring, READER, 0, -1), -ETIMEDOUT);
        CHECK_EQ(sr_take_shared(ring, READER, kept), -EAGAIN);
    }
}

TEST(a_shared_slot_that_is_pinned_is_parked)
{
    sr_ring *ring SCOPED = make_shared(1, 1);
    uint32_t slot;
    CHECK_OK(sr_begin_reading(ring, READER));
    for (int unpin_first = 0; unpin_first < 2; unpin_first++) {
        uint64_t gen = lease(ring, 1, &slot, true);
        CHECK_EQ(sr_share(ring, slot, gen), 1);
        CHECK(sr_load_acquire(&ring->slots[slot].state) & SR_PINNED);
        if (unpin_first)
            CHECK_OK(sr_unpin(ring, WORKER, slot, gen));
        CHECK_OK(sr_release(ring, slot, gen));
        end_lease(ring, READER, take_next(ring, READER, 1));
        CHECK_EQ(state_of(ring, slot), unpin_first ? SR_FREE : SR_PARKED);
        if (!unpin_first)
            CHECK_OK(sr_unpin(ring, WORKER, slot, gen));
        CHECK_EQ(state_of(ring, slot), SR_FREE);
    }
}

TEST(a_reader_gets_what_is_shared_while_it_takes_part)
{
    sr_ring *ring SCOPED = make_shared(6, 2);
    share_new(ring, 0, true); /* for no reader */
    CHECK_EQ(sr_wait_shared(ring, READER, 0, -1), -ESTALE);
    CHECK_OK(sr_begin_reading(ring, READER));
    CHECK_EQ(sr_begin_reading(ring, READER), -EBUSY);
    CHECK_EQ(ring->participants[READER].pid, getpid());
    CHECK_EQ(sr_wait_shared(ring, READER, 0, -1), -ETIMEDOUT);
    share_new(ring, 1, true);
    sr_shared one = take_next(ring, READER, 1);
    CHECK_EQ(one.number, 1);
    uint32_t untaken = share_new(ring, 2, true);
    CHECK_OK(sr_end_reading(ring, READER));
    CHECK_EQ(sr_end_reading(ring, READER), -ESTALE);
    CHECK_EQ(state_of(ring, untaken), SR_FREE);
    CHECK_EQ(state_of(ring, one.slot), SR_BROADCAST); /* a lease outlives the membership */
    share_new(ring, 3, true);
    CHECK_OK(sr_begin_reading(ring, READER));
    CHECK_OK(sr_end_reading(ring, READER)); /* before the consumer has seen it */
    CHECK_EQ(state_of(ring, one.slot), SR_BROADCAST);
    CHECK_OK(sr_begin_reading(ring, READER));
    share_new(ring, 4, true);
    sr_shared four = take_next(ring, READER, 4);
    CHECK_EQ(four.number, 4);
    end_lease(ring, READER, one);
    end_lease(ring, READER, four);
    for (uint32_t i = 0; i < 6; i++)
        CHECK_EQ(state_of(ring, i), SR_FREE);
}

TEST(the_end_of_an_iteration_arrives_in_order)
{
    sr_ring *ring SCOPED = make_shared(2, 1);
    sr_shared got;
    uint32_t slot;
    CHECK_OK(sr_begin_iteration(ring, 7));
    CHECK_OK(sr_begin_reading(ring, READER));
    share_new(ring, 0, true);
    CHECK_OK(sr_pick_free(ring, &slot));
    CHECK_OK(sr_share_end(ring, slot, 7, 1));
    CHECK_EQ(sr_share_end(ring, slot, 7, 1), -EBUSY);
    CHECK_EQ(sr_pick_free(ring, &slot), -EAGAIN);
    got = take_next(ring, READER, 0);
    CHECK_EQ(got.iteration, 7);
    end_lease(ring, READER, got);
    CHECK_OK(sr_take_shared(ring, READER, &got));
    CHECK(got.is_end && got.iteration == 7 && got.seq == 1 && got.number == 1 && got.result.kind == SR_END);
    end_lease(ring, READER, got);
    CHECK(state_of(ring, 0) == SR_FREE && state_of(ring, 1) == SR_FREE);
    CHECK_OK(sr_end_reading(ring, READER));
    CHECK_OK(sr_share_end(ring, 0, 8, 0)); /* nobody reads: it is free at once */
    CHECK_EQ(state_of(ring, 0), SR_FREE);
}

TEST(a_dead_reader_has_no_share_and_may_be_replaced)
{
    sr_ring *ring SCOPED = make_shared(4, 2);
    CHECK_OK(sr_begin_reading(ring, READER));
    CHECK_OK(sr_begin_reading(ring, OTHER));
    uint32_t taken = share_new(ring, 0, true), not_taken = share_new(ring, 1, true);
    take_next(ring, READER, 0);
    for (int i = 0; i < 2; i++)
        end_lease(ring, OTHER, take_next(ring, OTHER, (uint64_t)i));
    CHECK_EQ(sr_recover(ring, READER), 0);
    CHECK(state_of(ring, taken) == SR_FREE && state_of(ring, not_taken) == SR_FREE);
    CHECK_EQ(sr_wait_shared(ring, READER, 0, -1), -ESTALE);
    share_new(ring, 2, true);
    CHECK_OK(sr_begin_reading(ring, READER));
    share_new(ring, 3, true);
    end_lease(ring, READER, take_next(ring, READER, 3));
}

TEST(a_slot_whose_last_reader_died_before_freeing_it_is_recovered)
{
    sr_ring *ring SCOPED = make_shared(1, 1);
    CHECK_OK(sr_begin_reading(ring, READER));
    uint32_t slot = share_new(ring, 0, true);
    sr_store_release(&ring->slots[slot].readers, ring->slots[slot].readers & ~SR_READERS_MASK);
    CHECK_EQ(sr_recover(ring, READER), 0);
    CHECK_EQ(state_of(ring, slot), SR_FREE);
}

TEST(numbers_that_are_no_readers_are_refused)
{
    sr_ring *ring SCOPED = make_shared(1, 1);
    sr_ring *without SCOPED = make_ring(1, 3, 0);
    sr_ring *queue SCOPED = make_ring(1, 3, SR_SEG_QUEUE);
    sr_shared got;
    uint32_t none[] = {SR_CONSUMER, WORKER, READER + 1};
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(sr_begin_reading(ring, none[i]), -EINVAL);
        CHECK_EQ(sr_end_reading(ring, none[i]), -EINVAL);
        CHECK_EQ(sr_wait_shared(ring, none[i], 0, -1), -EINVAL);
        CHECK_EQ(sr_take_shared(ring, none[i], &got), -EINVAL);
        CHECK_EQ(sr_release_shared(ring, none[i], 0, 0), none[i] == SR_CONSUMER ? -ESTALE : -EINVAL);
        CHECK_EQ(sr_begin_reading(without, none[i]), -EINVAL);
    }
    CHECK_EQ(sr_share(ring, 1, 0), -EINVAL);
    CHECK_EQ(sr_share(ring, 0, 0), -ESTALE);
    CHECK_EQ(sr_share_end(ring, 1, 0, 0), -EINVAL);
    CHECK_EQ(sr_share(queue, 0, 0), -EINVAL);
    CHECK_EQ(sr_share_end(queue, 0, 0, 0), -EINVAL);
    CHECK_EQ(sr_release_shared(ring, READER, 1, 0), -EINVAL);
}

TEST(a_segment_has_at_most_forty_readers_and_none_in_queue_mode)
{
    sr_ring *ring = NULL;
    sr_options o = {.n_slots = 1, .n_participants = 42, .n_readers = 41, .backing = SR_BACKING_MEMFD};
    CHECK_EQ(sr_create(&o, &ring, NULL), -EINVAL);
    o = (sr_options){.n_slots = 1, .n_participants = 2, .n_readers = 2, .backing = SR_BACKING_MEMFD};
    CHECK_EQ(sr_create(&o, &ring, NULL), -EINVAL);
    o = (sr_options){.n_slots = 1, .n_participants = 3, .n_readers = 1, .flags = SR_SEG_QUEUE,
                     .backing = SR_BACKING_MEMFD};
    CHECK_EQ(sr_create(&o, &ring, NULL), -EINVAL);
    sr_ring *most SCOPED = make_shared(1, SR_MAX_READERS);
    for (uint32_t p = READER; p < READER + SR_MAX_READERS; p++)
        CHECK_OK(sr_begin_reading(most, p));
    uint32_t slot = share_new(most, 1, true);
    for (uint32_t p = READER; p < READER + SR_MAX_READERS; p++) {
        CHECK_EQ(state_of(most, slot), SR_BROADCAST);
        end_lease(most, p, take_next(most, p, 1));
    }
    CHECK_EQ(state_of(most, slot), SR_FREE);
}

TEST(a_damaged_log_is_reported)
{
    sr_ring *ring SCOPED = make_shared(2, 1);
    sr_shared got;
    CHECK_OK(sr_begin_reading(ring, READER));
    share_new(ring, 0, true);
    uint64_t good = ring->slots[0].shared_log;
    static const uint64_t wrong[] = {UINT64_C(1) << 20, 0xffff, 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ring->slots[0].shared_log = good ^ wrong[i];
        CHECK_EQ(sr_take_shared(ring, READER, &got), -EPROTO);
    }
    ring->slots[0].shared_log = good;
    end_lease(ring, READER, take_next(ring, READER, 0));
}

TEST(after_a_close_shared_batches_can_still_be_taken)
{
    sr_ring *ring SCOPED = make_shared(2, 1);
    uint32_t slot;
    CHECK_OK(sr_begin_reading(ring, READER));
    share_new(ring, 0, true);
    CHECK_OK(sr_close(ring));
    CHECK_OK(sr_wait_shared(ring, READER, SR_FOREVER, -1));
    end_lease(ring, READER, take_next(ring, READER, 0));
    CHECK_EQ(sr_wait_shared(ring, READER, SR_FOREVER, -1), -ESHUTDOWN);
    CHECK_EQ(sr_wait_free(ring, SR_FOREVER, -1, &slot), -ESHUTDOWN);
    CHECK_OK(sr_end_reading(ring, READER));
    CHECK_OK(sr_release_free(ring, SR_CONSUMER));
    CHECK_EQ(sr_slot_committed(ring, 0), 0);
}

TEST(an_interrupt_ends_the_waits_of_this_process)
{
    sr_ring *ring SCOPED = make_shared(1, 1);
    uint32_t slot;
    CHECK_OK(sr_begin_reading(ring, READER));
    share_new(ring, 0, true);
    CHECK_OK(sr_interrupt(ring, true));
    CHECK_EQ(sr_wait_free(ring, SR_FOREVER, -1, &slot), -ECANCELED);
    sr_shared got = take_next(ring, READER, 0);
    CHECK_EQ(sr_wait_shared(ring, READER, SR_FOREVER, -1), -ECANCELED);
    CHECK_OK(sr_interrupt(ring, false));
    end_lease(ring, READER, got);
    CHECK_OK(sr_wait_free(ring, SR_FOREVER, -1, &slot));
}

/* ---- waits, in processes ---- */

struct orders {
    uint32_t reader;
    uint64_t batches;
    int death_fd;
};

static void read_all(sr_ring *ring, void *with)
{
    const struct orders *o = with;
    CHECK_OK(sr_begin_reading(ring, o->reader));
    for (uint64_t i = 0; i < o->batches; i++) {
        CHECK_OK(sr_wait_shared(ring, o->reader, SR_FOREVER, o->death_fd));
        end_lease(ring, o->reader, take_next(ring, o->reader, i));
    }
}

static void wait_for_reader(sr_ring *ring, uint32_t reader) { CHECK_OK(sr_wait_serving(ring, reader, SR_FOREVER)); }

static bool sleeping_readers(sr_ring *ring, uint32_t n) { return sr_load_ordered(&ring->header->share_waiters) == n; }

TEST(sleeping_readers_and_a_consumer_without_slots_wake_each_other)
{
    sr_ring *ring SCOPED = make_shared(2, 2);
    uint32_t slot;
    struct orders one = {READER, 3000, -1}, two = {OTHER, 3000, -1};
    pid_t pids[] = {in_child(read_all, ring, &one), in_child(read_all, ring, &two)};
    wait_for_reader(ring, READER);
    wait_for_reader(ring, OTHER);
    for (uint64_t i = 0; i < 3000; i++) {
        CHECK_OK(sr_wait_free(ring, SR_FOREVER, -1, &slot));
        share_new(ring, i, true);
    }
    CHECK(wait_for(pids[0]) == 0 && wait_for(pids[1]) == 0);
    CHECK(state_of(ring, 0) == SR_FREE && state_of(ring, 1) == SR_FREE);
}

static void sleep_in_wait(sr_ring *ring, void *with)
{
    struct orders *o = with;
    CHECK_OK(sr_begin_reading(ring, o->reader));
    int rc = sr_wait_shared(ring, o->reader, SR_FOREVER, o->death_fd);
    _exit(rc == -ESHUTDOWN ? 10 : rc == -EOWNERDEAD ? 20 : 30);
}

TEST(a_close_wakes_sleeping_readers)
{
    sr_ring *ring SCOPED = make_shared(2, 2);
    struct orders one = {READER, 0, -1}, two = {OTHER, 0, -1};
    pid_t pids[] = {in_child(sleep_in_wait, ring, &one), in_child(sleep_in_wait, ring, &two)};
    while (!sleeping_readers(ring, 2))
        sched_yield();
    CHECK_OK(sr_close(ring));
    for (int i = 0; i < 2; i++) {
        int status = wait_for(pids[i]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 10);
    }
}

TEST(a_reader_learns_that_the_consumer_died_after_it_has_taken_everything)
{
    sr_ring *ring SCOPED = make_shared(4, 1);
    int go[2];
    CHECK_OK(pipe(go));
    CHECK_OK(sr_begin_reading(ring, READER));
    pid_t consumer = fork();
    if (consumer == 0) {
        char byte;
        sr_after_fork(ring);
        share_new(ring, 0, true);
        share_new(ring, 1, false);
        CHECK_EQ(read(go[0], &byte, 1), 1);
        kill(getpid(), SIGKILL);
    }
    int fd = (int)syscall(SYS_pidfd_open, consumer, 0);
    if (fd < 0)
        SKIP("no pidfd");
    CHECK_OK(sr_wait_shared(ring, READER, SR_FOREVER, fd));
    sr_shared first = take_next(ring, READER, 0);
    CHECK_EQ(write(go[1], "x", 1), 1);
    struct pollfd look = {.fd = fd, .events = POLLIN};
    CHECK_EQ(poll(&look, 1, -1), 1);
    CHECK_OK(sr_wait_shared(ring, READER, SR_FOREVER, fd));
    sr_shared second = take_next(ring, READER, 1);
    CHECK_EQ(sr_wait_shared(ring, READER, SR_FOREVER, fd), -EOWNERDEAD);
    CHECK_EQ(*(uint64_t *)sr_payload(ring, first.slot), 0); /* its views stay valid */
    end_lease(ring, READER, first);
    end_lease(ring, READER, second);
    wait_for(consumer);
    close(fd);
}

TEST(a_consumer_that_waits_for_a_slot_learns_of_a_readers_death)
{
    sr_ring *ring SCOPED = make_shared(1, 1);
    struct orders o = {READER, 0, -1};
    uint32_t slot;
    pid_t pid = fork();
    if (pid == 0) {
        sr_after_fork(ring);
        read_all(ring, &o);
        pause();
    }
    wait_for_reader(ring, READER);
    share_new(ring, 0, true);
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        SKIP("no pidfd");
    CHECK_EQ(sr_wait_free(ring, in_ms(5), fd, &slot), -ETIMEDOUT);
    kill(pid, SIGKILL);
    CHECK_EQ(sr_wait_free(ring, SR_FOREVER, fd, &slot), -ETIMEDOUT);
    wait_for(pid);
    CHECK_EQ(sr_recover(ring, READER), 0);
    CHECK_OK(sr_wait_free(ring, SR_FOREVER, fd, &slot));
    close(fd);
}

TEST(without_sleeping_readers_a_share_wakes_nobody)
{
    sr_ring *ring SCOPED = make_shared(2, 1);
    CHECK_OK(sr_begin_reading(ring, READER));
    share_new(ring, 0, true);
    CHECK_EQ(ring->header->share_wake, 0);
}

TEST(a_worker_waits_for_the_memory_of_readers_that_work)
{
    sr_ring *ring SCOPED = make_shared(2, 1);
    CHECK(!sr_readers_work(ring));
    CHECK_OK(sr_begin_reading(ring, READER));
    CHECK(!sr_readers_work(ring));
    share_new(ring, 0, true);
    CHECK(sr_readers_work(ring));
    sr_add_ordered(&ring->header->share_waiters, 1); /* it sleeps with its lease */
    CHECK(!sr_readers_work(ring));
}

TEST(a_query_tells_who_reads_who_is_behind_and_what_is_kept)
{
    sr_reader_info info;
    sr_ring *ring SCOPED = make_shared(4, 2);
    CHECK_EQ(sr_reader_info_of(ring, WORKER, &info), -EINVAL);
    CHECK_OK(sr_reader_info_of(ring, READER, &info));
    CHECK(!info.takes_part && !info.serving && !info.incarnation);
    CHECK_EQ(sr_participant_ended(ring, READER), 0);
    share_new(ring, 0, true);
    CHECK_OK(sr_begin_reading(ring, READER));
    CHECK_OK(sr_begin_reading(ring, OTHER));
    for (uint64_t seq = 1; seq < 4; seq++)
        share_new(ring, seq, true);
    sr_shared kept = take_next(ring, READER, 1);
    end_lease(ring, READER, take_next(ring, READER, 2));
    CHECK_OK(sr_reader_info_of(ring, READER, &info));
    CHECK(info.takes_part && info.serving && (pid_t)(uint32_t)info.incarnation == getpid());
    CHECK_EQ(info.lag, 1);
    CHECK_EQ(info.leases, 1);
    CHECK_OK(sr_reader_info_of(ring, OTHER, &info));
    CHECK_EQ(info.lag, 3);
    CHECK_EQ(info.leases, 0);
    CHECK_EQ(sr_unkept(ring, 9), 3); /* all but the one that READER keeps */
    CHECK_EQ(sr_unkept(ring, 2), 2);
    CHECK_OK(sr_end_reading(ring, READER));
    CHECK_OK(sr_reader_info_of(ring, READER, &info));
    CHECK(!info.takes_part && !info.serving);
    CHECK_EQ(info.lag, 0);
    CHECK_EQ(info.leases, 1);
    end_lease(ring, READER, kept);
    CHECK_EQ(sr_unkept(ring, 9), 4);
    CHECK_EQ(sr_participant_ended(ring, READER), 0);
}

TEST(a_query_tells_that_a_readers_process_has_ended)
{
    sr_ring *ring SCOPED = make_shared(1, 1);
    pid_t pid = fork();
    if (pid == 0) {
        sr_after_fork(ring);
        _exit(sr_begin_reading(ring, READER) == 0 ? 0 : 1);
    }
    wait_for(pid);
    CHECK_EQ(sr_participant_ended(ring, READER), 1);
    CHECK_EQ(sr_participant_ended(ring, 99), -EINVAL);
}

RUN_TESTS(60)
