/* A forked child has its own copies of its parent's slots as long as it lives. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "fixture.h"
#include "needs.h"

#define USED (3 * SR_PAGE + 100)

static bool all(const char *at, uint64_t bytes, int value)
{
    for (uint64_t i = 0; i < bytes; i++)
        if ((unsigned char)at[i] != value)
            return false;
    return true;
}

/* Fills a slot and takes it; then this process uses it. */
static uint64_t lease(sr_ring *ring, uint32_t slot, int value)
{
    uint64_t gen = bring_to(ring, slot, SR_CLAIMED, 1, false), offset;
    CHECK_OK(sr_alloc(ring, 1, slot, USED, 64, &offset, NULL));
    memset(sr_payload(ring, slot), value, USED);
    sr_result result = {.kind = SR_BATCH, .bytes = USED};
    CHECK_OK(sr_publish(ring, 1, slot, gen, &result, false));
    CHECK_EQ(take(ring, slot), gen);
    CHECK_OK(sr_populate(ring, slot, USED));
    sr_ref(ring, slot);
    return gen;
}

static int go[2];

/* A child that waits for its parent's word, and exits with 0 if its slot is unchanged. */
static pid_t watcher(char *at, int value, bool (*more)(void))
{
    CHECK_OK(pipe(go));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char c;
        close(go[1]);
        CHECK_EQ(read(go[0], &c, 1), 0);
        CHECK(all(at, USED, value));
        memset(at, value + 1, USED); /* the parent does not see it */
        CHECK(!more || more());
        _exit(0);
    }
    close(go[0]);
    return pid;
}

static void end_well(pid_t pid)
{
    close(go[1]);
    CHECK_EQ(wait_for(pid), 0);
}

TEST(a_childs_slot_stays_as_it_was_when_its_parent_releases_it)
{
    sr_ring *ring SCOPED = make_ring(2, 2, 0);
    uint64_t gen = lease(ring, 0, 11);
    pid_t pid = watcher(sr_payload(ring, 0), 11, NULL);
    CHECK(sr_unref(ring, 0));
    CHECK_OK(sr_release(ring, 0, gen));
    gen = lease(ring, 0, 22);
    end_well(pid);
    CHECK(all(sr_payload(ring, 0), USED, 22));
}

static sr_ring *tried;

static bool forks_once_more(void)
{
    fflush(NULL);
    char *at = sr_payload(tried, 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(!all(at, USED, 12));
    memset(at, 55, USED);
    return wait_for(pid) == 0;
}

TEST(a_grandchild_has_its_parents_copy)
{
    sr_ring *ring = tried = make_ring(2, 2, 0);
    uint64_t gen = lease(ring, 0, 11);
    pid_t pid = watcher(sr_payload(ring, 0), 11, forks_once_more);
    CHECK_OK(sr_release(ring, 0, gen));
    lease(ring, 0, 22);
    end_well(pid);
    sr_destroy(ring);
}

/* A child that continues as a participant: taken slots are the segment's, inherited ones are its own copies. */
static bool takes_part(void)
{
    char *inherited = sr_payload(tried, 0);
    uint64_t gen;
    sr_result result;
    CHECK_OK(sr_after_fork(tried));
    CHECK(sr_payload(tried, 0) != inherited);
    CHECK_OK(sr_take(tried, SR_CONSUMER, 0, &gen, &result));
    CHECK(all(sr_payload(tried, 0), USED, 22));
    CHECK(all(inherited, USED, 12));
    memset(sr_payload(tried, 0), 44, USED); /* the parent sees this */
    CHECK_OK(sr_after_fork(tried));         /* again: nothing changes */
    CHECK(all(sr_payload(tried, 0), USED, 44));
    CHECK_OK(sr_destroy(tried));
    return true;
}

TEST(a_child_that_takes_part_has_the_segment_at_another_address)
{
    needs_second_mappings();
    sr_ring *ring = tried = make_ring(2, 2, 0);
    uint64_t gen = lease(ring, 0, 11), offset;
    pid_t pid = watcher(sr_payload(ring, 0), 11, takes_part);
    CHECK_OK(sr_release(ring, 0, gen));
    gen = bring_to(ring, 0, SR_CLAIMED, 1, false);
    CHECK_OK(sr_alloc(ring, 1, 0, USED, 64, &offset, NULL));
    memset(sr_payload(ring, 0), 22, USED);
    CHECK_OK(publish(ring, 1, 0, gen, false));
    end_well(pid);
    CHECK(all(sr_payload(ring, 0), USED, 44));
    sr_destroy(ring);
}

TEST(an_unpinned_slot_is_shared_with_a_child)
{
    sr_ring *ring SCOPED = make_ring(2, 2, 0);
    uint64_t gen = lease(ring, 0, 11);
    CHECK(sr_unref(ring, 0));
    CHECK_OK(sr_release(ring, 0, gen));
    pid_t pid = watcher(sr_payload(ring, 0), 22, NULL);
    lease(ring, 0, 22);
    end_well(pid);
    CHECK(all(sr_payload(ring, 0), USED, 23));
}

TEST(a_workers_fork_copies_nothing_and_its_own_children_have_copies)
{
    sr_ring *ring SCOPED = make_ring(2, 2, 0);
    lease(ring, 0, 11);
    sr_fork_of_worker(true);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char *at = sr_payload(ring, 0);
        sr_ref(ring, 0);
        memset(at, 22, USED);
        pid_t own = fork();
        if (own == 0) {
            memset(at, 33, USED);
            _exit(0);
        }
        CHECK_EQ(wait_for(own), 0);
        _exit(0);
    }
    sr_fork_of_worker(false);
    CHECK_EQ(wait_for(pid), 0);
    CHECK(all(sr_payload(ring, 0), USED, 22));
}

/* Another library's handlers. They run before the ring's, because they were registered earlier. */
static int left_in_errno;
static void leave_errno(void)
{
    if (left_in_errno)
        errno = left_in_errno;
}
__attribute__((constructor(101))) static void register_first(void) { pthread_atfork(NULL, leave_errno, NULL); }

static int lowest_descriptor(void)
{
    int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

static void slot_stays_with_its_parent(void)
{
    struct rlimit had, none;
    needs_limits_on_addresses();
    sr_ring *ring SCOPED = make_ring(2, 2, 0);
    lease(ring, 0, 11);
    int lowest = lowest_descriptor();
    CHECK_OK(getrlimit(RLIMIT_AS, &had));
    none = had;
    none.rlim_cur = 0;
    fflush(NULL);
    CHECK_OK(setrlimit(RLIMIT_AS, &none));
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    CHECK_OK(setrlimit(RLIMIT_AS, &had));
    CHECK_EQ(wait_for(pid), 0);
    CHECK(sr_pinned_after_fork(ring, 0));
    CHECK(!sr_unref(ring, 0)); /* the caller does not release it */
    CHECK(!sr_pinned_after_fork(ring, 1));
    CHECK_EQ(lowest_descriptor(), lowest); /* no descriptor is left open */
}

TEST(a_slot_that_cannot_be_copied_stays_with_its_parent) { slot_stays_with_its_parent(); }

TEST(a_slot_that_cannot_be_copied_stays_whatever_other_handlers_leave_in_errno)
{
    left_in_errno = EAGAIN;
    slot_stays_with_its_parent();
}

/* From now on this process cannot fork, but it can still start threads. */
static bool forbid_forks(void)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
#ifdef SYS_fork
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fork, 3, 0),
#else
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 0),
#endif
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

static void slot_circulates_again(int dispatched)
{
    struct rlimit had, none;
    sr_ring *ring = make_ring(2, 2, 0);
    uint64_t gen = lease(ring, 0, 11);
    if (!forbid_forks())
        SKIP("no filter of system calls can be set here");
    CHECK_OK(getrlimit(RLIMIT_AS, &had));
    none = had;
    none.rlim_cur = 0;
    fflush(NULL);
    CHECK_OK(setrlimit(RLIMIT_AS, &none));
    errno = EINVAL;
    CHECK_EQ(fork(), -1);
    CHECK_EQ(errno, dispatched);
    CHECK_OK(setrlimit(RLIMIT_AS, &had));
    CHECK(!sr_pinned_after_fork(ring, 0));
    CHECK(sr_unref(ring, 0));
    CHECK_OK(sr_release(ring, 0, gen));
    sr_destroy(ring);
    _exit(0); /* not exit(): the leak checker would need a child, which cannot be made any more */
}

TEST(a_slot_circulates_again_when_a_fork_has_failed) { slot_circulates_again(EAGAIN); }

TEST(a_slot_circulates_again_after_a_failed_fork_whatever_other_handlers_leave_in_errno)
{
    left_in_errno = EINVAL;
    slot_circulates_again(EAGAIN);
}

TEST(a_destroyed_ring_has_no_part_in_later_forks)
{
    sr_ring *first = make_ring(2, 2, 0), *second = make_ring(2, 2, 0), *third = make_ring(2, 2, 0);
    lease(first, 0, 1);
    lease(second, 0, 2);
    lease(third, 0, 3);
    sr_destroy(second);
    pid_t pid = watcher(sr_payload(first, 0), 1, NULL);
    memset(sr_payload(first, 0), 9, USED);
    end_well(pid);
    pid = watcher(sr_payload(third, 0), 3, NULL);
    memset(sr_payload(third, 0), 9, USED);
    sr_destroy(first);
    sr_destroy(third);
    end_well(pid);
}

/* ---- a thread that takes and releases while another forks ---- */

static _Atomic uint64_t stop;

static void *user(void *ring)
{
    while (!sr_load_acquire(&stop)) {
        sr_ref(ring, 1);
        sr_unref(ring, 1);
    }
    return NULL;
}

TEST(forks_and_leases_of_two_threads_do_not_meet)
{
    pthread_t thread;
    sr_ring *ring SCOPED = make_ring(2, 2, 0);
    lease(ring, 0, 11);
    CHECK_OK(pthread_create(&thread, NULL, user, ring));
    for (uint64_t end = in_ms(500); sr_now() < end;) {
        sr_ring *other = make_ring(1, 2, 0);
        pid_t pid = watcher(sr_payload(ring, 0), 11, NULL);
        sr_destroy(other);
        end_well(pid);
    }
    sr_store_release(&stop, 1);
    pthread_join(thread, NULL);
    CHECK(!sr_pinned_after_fork(ring, 1));
}

RUN_TESTS(30)
