/* Participants: start times, joining, serving, and workers after the consumer's death. */
#define _GNU_SOURCE
#include <sys/prctl.h>

#include "fixture.h"

TEST(a_start_time_is_one_processs_own)
{
    uint64_t mine = sr_start_time((int)getpid());
    CHECK_OP(mine, >, 0);
    CHECK_EQ(sr_start_time((int)getpid()), mine);
    CHECK_OP(sr_start_time(1), <=, mine);
    CHECK_EQ(sr_start_time(0x7ffffffe), 0);
    CHECK_EQ(sr_start_time(-1), 0);
}

TEST(odd_process_names_do_not_confuse_the_start_time)
{
    static const char *const names[] = {"a) b (c", ") 1 2 3", "((((", "))))", " ", ")) R 1 1 1 1", "x\ny) S 2"};
    uint64_t plain = sr_start_time((int)getpid());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK_OK(prctl(PR_SET_NAME, names[i]));
        CHECK_EQ(sr_start_time((int)getpid()), plain);
    }
}

TEST(the_creator_is_the_consumer)
{
    sr_ring *ring SCOPED = make_ring(1, 3, 0);
    int pid;
    uint32_t status;
    CHECK_OK(sr_participant_info(ring, SR_CONSUMER, &pid, &status));
    CHECK_EQ(pid, getpid());
    CHECK_EQ(status, SR_PARTICIPANT_JOINED);
    CHECK_EQ(sr_load_relaxed(&ring->participants[0].started), sr_start_time((int)getpid()));
    CHECK_OK(sr_participant_info(ring, 1, &pid, &status));
    CHECK_EQ(status, SR_PARTICIPANT_NONE);
    CHECK_EQ(sr_participant_info(ring, 3, &pid, &status), -EINVAL);
    CHECK_EQ(sr_join(ring, 3), -EINVAL);
    CHECK_EQ(sr_serve(ring, 3), -EINVAL);
    CHECK_EQ(sr_wait_serving(ring, 3, 0), -EINVAL);
}

static void serve(sr_ring *ring, void *arg)
{
    (void)arg;
    sleep_ms(30);
    CHECK_OK(sr_join(ring, 2));
    CHECK_OK(sr_serve(ring, 2));
}

TEST(a_worker_that_serves_is_reported)
{
    sr_ring *ring SCOPED = make_ring(1, 3, 0);
    int pid;
    uint32_t status;
    pid_t child = in_child(serve, ring, NULL);
    CHECK_EQ(sr_wait_serving(ring, 1, in_ms(10)), -ETIMEDOUT);
    CHECK_OK(sr_wait_serving(ring, 2, SR_FOREVER));
    CHECK_OK(sr_participant_info(ring, 2, &pid, &status));
    CHECK_EQ(pid, child);
    CHECK_EQ(status, SR_PARTICIPANT_SERVING);
    CHECK_EQ(wait_for(child), 0);
    CHECK_OK(sr_recover(ring, 2));
    CHECK_EQ(sr_wait_serving(ring, 2, in_ms(10)), -ETIMEDOUT); /* its replacement does not serve yet */
}

/* ---- the consumer's death ---- */

/* The worker: sleeps in a claim; the open write end of the pipe shows that it lives. */
static void watched_worker(sr_ring *ring)
{
    uint32_t slot, range;
    uint64_t gen;
    CHECK_OK(sr_join(ring, 1));
    CHECK_OK(sr_watch_consumer(ring));
    CHECK_OK(sr_serve(ring, 1));
    while (sr_claim(ring, 1, SR_FOREVER, &slot, &range, &gen) != 0)
        ;
    pause();
}

TEST(a_worker_ends_when_the_consumer_is_killed)
{
    int alive[2];
    char byte;
    CHECK_OK(pipe(alive));
    pid_t consumer = fork();
    if (consumer == 0) {
        sr_ring *ring = make_ring(1, 2, 0);
        if (fork() == 0) {
            sr_after_fork(ring);
            watched_worker(ring);
            _exit(0);
        }
        close(alive[1]);
        CHECK_OK(sr_wait_serving(ring, 1, SR_FOREVER));
        kill(getpid(), SIGKILL);
    }
    close(alive[1]);
    int status = wait_for(consumer);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK_EQ(read(alive[0], &byte, 1), 0); /* its last writer, the worker, is gone; else the watchdog says so */
    close(alive[0]);
}

static void *fork_a_worker(void *ring)
{
    pid_t pid = fork();
    if (pid == 0) {
        sr_after_fork(ring);
        watched_worker(ring);
        _exit(0);
    }
    return (void *)(intptr_t)pid;
}

TEST(a_worker_outlives_the_thread_that_forked_it)
{
    /* What PR_SET_PDEATHSIG gets wrong: the watcher waits for the process, not for a thread of it. */
#ifdef __SANITIZE_THREAD__
    SKIP("the thread sanitizer does not allow threads in the child of a process with several");
#endif
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    pthread_t thread;
    void *pid;
    CHECK_OK(pthread_create(&thread, NULL, fork_a_worker, ring));
    pthread_join(thread, &pid);
    pid_t worker = (pid_t)(intptr_t)pid;
    CHECK_OK(sr_wait_serving(ring, 1, SR_FOREVER));
    sleep_ms(100);
    CHECK_EQ(waitpid(worker, NULL, WNOHANG), 0);
    kill(worker, SIGKILL);
    wait_for(worker);
}

static void watch_a_consumer_that_is_gone(sr_ring *ring, void *incarnation)
{
    if (incarnation)
        sr_store_relaxed(&ring->participants[0].incarnation, *(uint64_t *)incarnation);
    else
        sr_store_relaxed(&ring->participants[0].program, ring->participants[0].program ^ 2); /* another program */
    sr_watch_consumer(ring);
    _exit(0);
}

TEST(a_worker_that_starts_too_late_ends_at_once)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    uint64_t nobody = 0x7ffffffe, me = ring->participants[0].incarnation, another = me + (UINT64_C(1) << 32);
    uint64_t *gone[] = {&nobody, &another, NULL};
    for (int i = 0; i < 3; i++) {
        int status = wait_for(in_child(watch_a_consumer_that_is_gone, ring, gone[i]));
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        CHECK_OK(sr_join(ring, SR_CONSUMER));
    }
    CHECK_EQ(ring->participants[0].incarnation, me);
    int status = wait_for(in_child(watch_a_consumer_that_is_gone, ring, &me));
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

RUN_TESTS(30)
