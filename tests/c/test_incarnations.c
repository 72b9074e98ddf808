/* Participant numbers of a queue segment: taking and freeing one, and the slots of dead processes. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "fixture.h"

static void *mmap_shared(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static uint32_t enter(sr_ring *ring)
{
    uint32_t participant = UINT32_MAX;
    CHECK_OK(sr_enter(ring, &participant));
    return participant;
}

static uint32_t claim_slot(sr_ring *ring, uint32_t participant, uint64_t *gen)
{
    uint32_t slot = UINT32_MAX;
    CHECK_OK(sr_claim_free(ring, participant, 0, &slot, gen));
    return slot;
}

/* A child that takes a number, runs `body`, and is killed. */
static void dead(sr_ring *ring, void (*body)(sr_ring *, void *), void *with)
{
    CHECK_EQ(WTERMSIG(wait_for(in_child(body, ring, with))), SIGKILL);
}

static void claims(sr_ring *ring, void *out)
{
    uint64_t gen;
    *(uint32_t *)out = enter(ring);
    claim_slot(ring, *(uint32_t *)out, &gen);
    raise(SIGKILL);
}

static void only_enters(sr_ring *ring, void *with)
{
    (void)with;
    enter(ring);
    raise(SIGKILL);
}

TEST(every_process_takes_a_number_of_its_own)
{
    sr_ring *ring SCOPED = make_ring(1, 4, SR_SEG_QUEUE);
    CHECK_EQ(enter(ring), 1); /* the creator has 0 */
    CHECK_EQ(enter(ring), 2); /* a second handle of the same process */
    CHECK_OK(sr_leave(ring, 1));
    CHECK_EQ(enter(ring), 1);
    CHECK_EQ(sr_leave(ring, 3), -ESTALE);
    CHECK_EQ(sr_leave(ring, 4), -EINVAL);
}

TEST(living_processes_may_have_all_numbers)
{
    sr_ring *ring SCOPED = make_ring(1, 2, SR_SEG_QUEUE);
    uint32_t participant;
    CHECK_EQ(enter(ring), 1);
    CHECK_EQ(sr_enter(ring, &participant), -EUSERS);
    CHECK_OK(sr_leave(ring, 0));
    CHECK_EQ(enter(ring), 0); /* all numbers are equal */
}

TEST(loader_segments_have_no_incarnations)
{
    sr_ring *ring SCOPED = make_ring(1, 3, 0);
    uint32_t participant;
    CHECK_EQ(sr_enter(ring, &participant), -EINVAL);
    CHECK_EQ(sr_leave(ring, 0), -EINVAL);
    CHECK_EQ(sr_recover_dead(ring, true), -EINVAL);
}

TEST(another_pid_namespace_is_refused)
{
    sr_ring *ring SCOPED = make_ring(1, 3, SR_SEG_QUEUE);
    uint32_t participant;
    CHECK_EQ(ring->header->pid_namespace, sr_pid_namespace());
    ring->header->pid_namespace++;
    CHECK_EQ(sr_enter(ring, &participant), -EXDEV);
}

#ifndef SYS_clone3
#define SYS_clone3 435
#endif

/* Like fork(), with the same number in this namespace and in the outer one; < 0: not possible here. */
static pid_t fork_with_one_number(void)
{
    for (pid_t number = 30000; number > 20000; number--) {
        pid_t numbers[] = {number, number};
        /* struct clone_args of Linux 5.5, which older headers lack. */
        uint64_t how[10] = {[4] = SIGCHLD, [8] = (uint64_t)(uintptr_t)numbers, [9] = 2};
        long pid = syscall(SYS_clone3, how, sizeof how);
        if (pid >= 0 || errno != EEXIST)
            return (pid_t)pid;
    }
    return -1;
}

/* Its /proc/self is its own pid; all other entries are other processes. */
static void with_one_number(void)
{
    char self[24] = "";
    CHECK_OP(readlink("/proc/self", self, sizeof self - 1), >, 0);
    CHECK_EQ(strtol(self, NULL, 10), getpid());
    CHECK_EQ(sr_start_time(1), 0);
    CHECK_EQ(sr_start_time((int)getpid()), 0);
    sr_ring *ring SCOPED = make_ring(2, 3, SR_SEG_QUEUE);
    sr_store_release(&ring->participants[1].incarnation, 1 | UINT64_C(4711) << 32); /* as its own /proc says */
    CHECK_EQ(sr_recover_dead(ring, true), 0);
}

static void begins_one_with_one_number(sr_ring *ring, void *unused)
{
    (void)ring, (void)unused;
    CHECK_EQ(getpid(), 1);
    fflush(NULL);
    pid_t pid = fork_with_one_number();
    if (pid < 0)
        _exit(SKIPPED);
    if (pid == 0) {
        with_one_number();
        _exit(0);
    }
    CHECK_EQ(wait_for(pid), 0);
}

static void in_another_pid_namespace(sr_ring *ring, void *unused)
{
    (void)unused;
    if (unshare(CLONE_NEWPID) != 0)
        _exit(SKIPPED);
    int status = wait_for(in_child(begins_one_with_one_number, ring, NULL));
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

TEST(another_namespaces_proc_is_not_believed_for_one_equal_number)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    int status = wait_for(in_child(in_another_pid_namespace, ring, NULL));
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED)
        SKIP("a PID namespace, or a process of a chosen number, cannot be made here");
    CHECK_EQ(status, 0);
}

TEST(a_process_that_owns_a_slot_keeps_its_number)
{
    sr_ring *ring SCOPED = make_ring(2, 3, SR_SEG_QUEUE);
    uint32_t me = enter(ring), slot;
    uint64_t gen;
    sr_result result;
    slot = claim_slot(ring, me, &gen);
    CHECK_EQ(sr_leave(ring, me), -EBUSY);
    CHECK_OK(publish(ring, me, slot, gen, true));
    CHECK_EQ(sr_leave(ring, me), -EBUSY); /* its code keeps an array */
    CHECK_OK(sr_unpin(ring, me, slot, gen));
    CHECK_OK(sr_leave(ring, me));
    me = enter(ring);
    CHECK_OK(sr_take(ring, me, slot, &gen, &result));
    CHECK_EQ(sr_leave(ring, me), -EBUSY);
    CHECK_OK(sr_release(ring, slot, gen));
    CHECK_OK(sr_leave(ring, me));
}

TEST(slots_of_dead_processes_are_found_without_a_report)
{
    sr_ring *ring SCOPED = make_ring(2, 4, SR_SEG_QUEUE);
    uint32_t *participant = mmap_shared(sizeof *participant);
    dead(ring, only_enters, NULL);
    CHECK_EQ(sr_recover_dead(ring, false), 0); /* it owns nothing: no check is necessary */
    dead(ring, claims, participant);
    CHECK_EQ(*participant, 2);
    CHECK_EQ(owner_of(ring, 0), 3);
    CHECK_EQ(sr_recover_dead(ring, false), 1);
    CHECK_EQ(state_of(ring, 0), SR_FREE);
    CHECK_EQ(sr_recover_dead(ring, true), 1);
    CHECK_EQ(sr_recover_dead(ring, true), 0);
    CHECK_EQ(sr_load_relaxed(&ring->participants[1].incarnation), 0);
    CHECK_EQ(sr_load_relaxed(&ring->participants[2].incarnation), 0);
}

TEST(a_zombie_is_dead_and_a_stopped_process_is_not)
{
    sr_ring *ring SCOPED = make_ring(2, 4, SR_SEG_QUEUE);
    uint32_t *participant = mmap_shared(sizeof *participant);
    int status;
    *participant = UINT32_MAX;
    pid_t pid = in_child(claims, ring, participant);
    siginfo_t info;
    CHECK_OK(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT));
    CHECK_EQ(sr_recover_dead(ring, false), 1);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    pid = fork();
    if (pid == 0) {
        uint64_t gen;
        sr_after_fork(ring);
        claim_slot(ring, enter(ring), &gen);
        raise(SIGSTOP);
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    CHECK_EQ(sr_recover_dead(ring, true), 0);
    CHECK_EQ(state_of(ring, 0), SR_CLAIMED);
    kill(pid, SIGKILL);
    wait_for(pid);
    CHECK_EQ(sr_recover_dead(ring, false), 1);
    CHECK_EQ(state_of(ring, 0), SR_FREE);
}

TEST(a_number_taken_by_another_process_names_the_first_one_dead)
{
    sr_ring *ring SCOPED = make_ring(1, 3, SR_SEG_QUEUE);
    uint32_t me = enter(ring);
    uint64_t gen;
    claim_slot(ring, me, &gen);
    /* This pid, but another start time. */
    sr_store_relaxed(&ring->participants[me].incarnation, sr_incarnation_of((int)getpid()) + (UINT64_C(1) << 32));
    CHECK_EQ(sr_recover_dead(ring, false), 1);
    CHECK_EQ(state_of(ring, 0), SR_FREE);
}

TEST(a_parked_slot_waits_for_the_array_in_it)
{
    sr_ring *ring SCOPED = make_ring(1, 3, SR_SEG_QUEUE);
    uint64_t gen;
    uint32_t slot = claim_slot(ring, 1, &gen), other;
    CHECK_EQ(sr_park(ring, 2, slot, gen), -ESTALE);
    CHECK_OK(sr_park(ring, 1, slot, gen));
    CHECK_EQ(state_of(ring, slot), SR_PARKED);
    CHECK_EQ(sr_park(ring, 1, slot, gen), -ESTALE);
    CHECK_EQ(sr_claim_free(ring, 2, 0, &other, &gen), -ETIMEDOUT);
    CHECK_OK(sr_unpin(ring, 1, slot, gen));
    CHECK_EQ(state_of(ring, slot), SR_FREE);
    CHECK_OK(sr_claim_free(ring, 1, 0, &slot, &gen));
    CHECK_OK(sr_park(ring, 1, slot, gen));
    CHECK_OK(sr_recover(ring, 1));
    CHECK_EQ(state_of(ring, slot), SR_FREE);
}

TEST(slots_are_counted_and_cold_ones_taken_last)
{
    sr_ring *ring SCOPED = make_ring(4, 3, SR_SEG_QUEUE);
    uint32_t ready, free_slots;
    uint64_t gen;
    CHECK_EQ(claim_slot(ring, 1, &gen), 0);
    CHECK_EQ(claim_slot(ring, 1, &gen), 1);
    CHECK_OK(publish(ring, 1, 1, gen, false));
    CHECK_OK(sr_count(ring, &ready, &free_slots));
    CHECK_EQ(ready, 1);
    CHECK_EQ(free_slots, 2);
    CHECK_OK(sr_discard(ring, 1));
    CHECK_EQ(claim_slot(ring, 1, &gen), 1); /* it is warm */
    CHECK_EQ(claim_slot(ring, 1, &gen), 2);
    CHECK_EQ(claim_slot(ring, 1, &gen), 3);
    CHECK_EQ(sr_claim_free(ring, 1, 0, &ready, &gen), -ETIMEDOUT);
}

TEST(a_segment_reports_that_it_is_polled)
{
    sr_ring *ring SCOPED = make_ring(1, 3, SR_SEG_QUEUE);
    CHECK(!sr_polled(ring));
    CHECK_OK(sr_set_polled(ring));
    CHECK(sr_polled(ring));
}

RUN_TESTS(30)
