/* One commit at a time within a memory cgroup's limit, in fake /proc and /sys trees. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/file.h>

#include "tree.h"

#define HOUR (3600000 * MS)

/* Opens and locks a directory of the tree, as another process does; -1: it is locked. */
static int locked_by_another(const char *dir)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, dir);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK_OP(fd, >=, 0);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    CHECK_EQ(errno, EWOULDBLOCK);
    close(fd);
    return -1;
}

static bool is_locked(const char *dir)
{
    int fd = locked_by_another(dir);
    if (fd >= 0)
        close(fd);
    return fd < 0;
}

static sr_cgroup_locks lock_within(uint64_t patience)
{
    sr_cgroup_locks locks;
    (void)sr_memory_available(-1, root, NULL, &locks);
    sr_lock_cgroups(&locks, patience);
    return locks;
}

/* /top/job has no limit; the groups above and below it have one. */
static void three_groups(const char *mounts)
{
    machine();
    groups("0::/top/job/mine\n", mounts);
    group("/sys/fs/cgroup/top", true, 4 * GIB, MIB);
    group("/sys/fs/cgroup/top/job", true, UINT64_MAX, MIB);
    group("/sys/fs/cgroup/top/job/mine", true, GIB, MIB);
}

TEST(groups_with_a_limit_are_locked_each_once)
{
    three_groups(MOUNT_V2 MOUNT_V2); /* two mounts of one hierarchy */
    sr_cgroup_locks locks = lock_within(HOUR); /* a second lock on one of them would block forever */
    CHECK_EQ(locks.n, 2);
    CHECK(is_locked("/sys/fs/cgroup/top") && is_locked("/sys/fs/cgroup/top/job/mine"));
    CHECK(!is_locked("/sys/fs/cgroup/top/job") && !is_locked("/sys/fs/cgroup"));
    sr_unlock_cgroups(&locks);
    CHECK(!is_locked("/sys/fs/cgroup/top") && !is_locked("/sys/fs/cgroup/top/job/mine"));
    CHECK_EQ(locks.n, 0);
    clean();
}

TEST(no_descriptor_is_left_open)
{
    three_groups(MOUNT_V2 MOUNT_V2);
    int next = dup(0);
    close(next);
    sr_cgroup_locks locks = lock_within(HOUR);
    sr_unlock_cgroups(&locks);
    (void)sr_memory_available(-1, root, NULL, &locks);
    sr_unlock_cgroups(&locks); /* never locked */
    CHECK_EQ(dup(0), next);
    clean();
}

TEST(a_lock_is_waited_for)
{
    int said[2], status;
    char byte = 0;
    three_groups(MOUNT_V2);
    CHECK_OK(pipe(said));
    pid_t child = fork();
    if (child == 0) {
        int fd = locked_by_another("/sys/fs/cgroup/top");
        CHECK_EQ(write(said[1], "l", 1), 1);
        sleep_ms(100);
        CHECK_EQ(write(said[1], "u", 1), 1);
        close(fd);
        _exit(0);
    }
    CHECK_EQ(read(said[0], &byte, 1), 1);
    CHECK_OK(fcntl(said[0], F_SETFL, O_NONBLOCK));
    sr_cgroup_locks locks = lock_within(HOUR);
    CHECK_EQ(read(said[0], &byte, 1), 1); /* before it was unlocked */
    CHECK_EQ(byte, 'u');
    CHECK(is_locked("/sys/fs/cgroup/top"));
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    sr_unlock_cgroups(&locks);
    clean();
}

TEST(a_lock_that_is_never_free_is_waited_for_once)
{
    three_groups(MOUNT_V2);
    int other = locked_by_another("/sys/fs/cgroup/top");
    uint64_t deadline = in_ms(50);
    sr_cgroup_locks locks = lock_within(50 * MS);
    CHECK_OP(sr_now(), >=, deadline);
    CHECK(is_locked("/sys/fs/cgroup/top/job/mine")); /* every free lock is taken */
    sr_unlock_cgroups(&locks);
    CHECK(is_locked("/sys/fs/cgroup/top"));
    locks = lock_within(HOUR); /* more than that would be a hang */
    sr_unlock_cgroups(&locks);
    close(other);
    locks = lock_within(HOUR);
    CHECK(is_locked("/sys/fs/cgroup/top"));
    sr_unlock_cgroups(&locks);
    deadline = in_ms(50);
    other = locked_by_another("/sys/fs/cgroup/top"); /* from now on it waits again */
    locks = lock_within(50 * MS);
    CHECK_OP(sr_now(), >=, deadline);
    sr_unlock_cgroups(&locks);
    clean();
}

/* Make /top's memory.stat a pipe, and answer each look at it, in a child: `grows` of the looks find more shared memory
 * than the look before. Unlock `other`, if it is a descriptor, before the last answer. */
static pid_t answer_looks(int looks, int grows, int other)
{
    char stat[512], next[520];
    snprintf(stat, sizeof stat, "%s/sys/fs/cgroup/top/memory.stat", root);
    snprintf(next, sizeof next, "%s.next", stat);
    CHECK_OK(mkfifo(next, 0600));
    CHECK_OK(rename(next, stat));
    pid_t child = fork();
    if (child != 0)
        return child;
    for (int i = 0; i < looks; i++) {
        int fd = open(stat, O_WRONLY);
        CHECK_OP(fd, >=, 0);
        if (i == looks - 1) {
            CHECK_OK(unlink(stat));
            if (other >= 0)
                CHECK_OK(flock(other, LOCK_UN));
        } else { /* a pipe of its own for the next look */
            CHECK_OK(mkfifo(next, 0600));
            CHECK_OK(rename(next, stat));
        }
        CHECK_OP(dprintf(fd, "anon 5\nshmem %d\n", i < grows ? i + 1 : grows), >, 0);
        close(fd);
    }
    _exit(0);
}

TEST(a_slow_holder_of_a_lock_is_waited_for_while_it_gets_memory)
{
    int status;
    three_groups(MOUNT_V2);
    int other = locked_by_another("/sys/fs/cgroup/top");
    pid_t child = answer_looks(6, 6, other); /* one for the limit, one at first, and each time the patience is over */
    sr_cgroup_locks locks = lock_within(MS);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    close(other);
    CHECK(is_locked("/sys/fs/cgroup/top") && is_locked("/sys/fs/cgroup/top/job/mine"));
    sr_unlock_cgroups(&locks);
    clean();
}

TEST(a_holder_that_gets_no_more_memory_is_not_waited_for)
{
    int status;
    three_groups(MOUNT_V2);
    int other = locked_by_another("/sys/fs/cgroup/top");
    pid_t child = answer_looks(5, 4, -1);
    sr_cgroup_locks locks = lock_within(MS);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK(is_locked("/sys/fs/cgroup/top/job/mine"));
    sr_unlock_cgroups(&locks);
    CHECK(is_locked("/sys/fs/cgroup/top"));
    close(other);
    locks = lock_within(HOUR);
    CHECK(is_locked("/sys/fs/cgroup/top"));
    sr_unlock_cgroups(&locks);
    clean();
}

TEST(a_child_that_is_forked_meanwhile_does_not_keep_the_lock)
{
    three_groups(MOUNT_V2);
    sr_cgroup_locks locks = lock_within(HOUR);
    pid_t child = fork();
    if (child == 0) {
        sleep_ms(3600000);
        _exit(1);
    }
    sr_unlock_cgroups(&locks);
    CHECK(!is_locked("/sys/fs/cgroup/top") && !is_locked("/sys/fs/cgroup/top/job/mine"));
    CHECK_OK(kill(child, SIGKILL));
    CHECK_EQ(waitpid(child, NULL, 0), child);
    clean();
}

TEST(a_descriptor_that_the_program_has_closed_is_not_closed_again)
{
    three_groups(MOUNT_V2);
    sr_cgroup_locks locks = lock_within(HOUR);
    int number = locks.dirs[0].fd;
    CHECK_EQ(dup2(0, number), number);
    sr_unlock_cgroups(&locks);
    CHECK_OP(fcntl(number, F_GETFD), >=, 0);
    clean();
}

RUN_TESTS(20)
