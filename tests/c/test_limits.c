/* How much memory may still be committed, with fake /proc and /sys trees. */
#define _GNU_SOURCE
#include "tree.h"

#define MARGIN (16 * MIB)
/* How many of so many bytes of file pages count as free. */
#define DROPPED(bytes) ((bytes) - (bytes) / 16)

static void expect(uint64_t room, int which)
{
    int limit = -1;
    uint64_t got = sr_memory_available(-1, root, &limit, NULL);
    clean(); /* a failed CHECK does not return */
    CHECK_EQ(got, room);
    CHECK_EQ(limit, which);
}

TEST(without_groups_the_machine_decides)
{
    machine();
    expect(8 * GIB - MARGIN, SR_LIMIT_MEMORY);
}

TEST(an_empty_tree_limits_nothing)
{
    strcpy(root, "/tmp/slipring-test-XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    atexit(clean);
    expect(UINT64_MAX, SR_LIMIT_NONE);
}

TEST(a_v2_group_limits)
{
    machine();
    groups("0::/job\n", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" MOUNT_V2);
    group("/sys/fs/cgroup/job", true, GIB, 200 * MIB);
    expect(GIB - 200 * MIB - MARGIN, SR_LIMIT_CGROUP);
}

TEST(file_pages_that_can_be_dropped_do_not_count)
{
    machine();
    groups("0::/job\n", MOUNT_V2);
    group("/sys/fs/cgroup/job", true, GIB, 600 * MIB);
    put("/sys/fs/cgroup/job/memory.stat", "anon 1\nfile 2\nactive_file 104857600\ninactive_file 209715200\nslab 3\n");
    expect(GIB - 600 * MIB + DROPPED(300 * MIB) - MARGIN, SR_LIMIT_CGROUP);
}

/* Any program that reads files twice reaches this state. */
TEST(a_group_full_of_file_pages_in_use_has_room)
{
    machine();
    groups("5:memory:/job\n", "36 32 0:33 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n");
    group("/sys/fs/cgroup/memory/job", false, GIB, GIB);
    put("/sys/fs/cgroup/memory/job/memory.stat",
        "cache 1\nactive_file 1\ntotal_inactive_file 0\ntotal_active_file 838860800\n");
    expect(DROPPED(800 * MIB) - MARGIN, SR_LIMIT_CGROUP);
}

TEST(half_of_the_caches_of_names_counts_as_free)
{
    machine();
    groups("0::/job\n", MOUNT_V2);
    group("/sys/fs/cgroup/job", true, GIB, GIB);
    put("/sys/fs/cgroup/job/memory.stat", "slab_reclaimable 209715200\nslab_unreclaimable 1048576\n");
    expect(100 * MIB - MARGIN, SR_LIMIT_CGROUP);
}

TEST(the_narrowest_ancestor_decides)
{
    machine();
    groups("0::/a/b/c\n", MOUNT_V2);
    group("/sys/fs/cgroup/a", true, 2 * GIB, GIB + 900 * MIB); /* 124 MiB left */
    group("/sys/fs/cgroup/a/b", true, UINT64_MAX, GIB);
    group("/sys/fs/cgroup/a/b/c", true, GIB, 500 * MIB);
    expect(124 * MIB - MARGIN, SR_LIMIT_CGROUP);
}

TEST(a_group_over_its_limit_leaves_nothing)
{
    machine();
    groups("0::/job\n", MOUNT_V2);
    group("/sys/fs/cgroup/job", true, GIB, GIB + 1);
    expect(0, SR_LIMIT_CGROUP);
}

TEST(an_unlimited_group_limits_nothing)
{
    machine();
    groups("0::/job\n", MOUNT_V2);
    group("/sys/fs/cgroup/job", true, UINT64_MAX, GIB);
    expect(8 * GIB - MARGIN, SR_LIMIT_MEMORY);
}

TEST(a_v1_group_limits)
{
    machine();
    groups("12:cpu,cpuacct:/x\n5:memory:/job\n1:name=systemd:/y\n",
           "33 32 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
           "36 32 0:33 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n");
    group("/sys/fs/cgroup/memory/job", false, GIB, 700 * MIB);
    group("/sys/fs/cgroup/memory", false, UINT64_C(0x7FFFFFFFFFFFF000), 5 * GIB);
    put("/sys/fs/cgroup/memory/job/memory.stat", "cache 1\ninactive_file 1\ntotal_inactive_file 104857600\n");
    expect(GIB - 700 * MIB + DROPPED(100 * MIB) - MARGIN, SR_LIMIT_CGROUP);
}

TEST(a_v1_memory_controller_may_share_its_hierarchy)
{
    machine();
    groups("4:hugetlb,memory:/job\n",
           "36 32 0:33 / /sys/fs/cgroup/both rw,relatime - cgroup cgroup rw,hugetlb,memory\n");
    group("/sys/fs/cgroup/both/job", false, GIB, 0);
    expect(GIB - MARGIN, SR_LIMIT_CGROUP);
}

TEST(both_versions_are_looked_at)
{
    machine();
    groups("5:memory:/one\n0::/two\n",
           "36 32 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
           "37 32 0:34 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    group("/sys/fs/cgroup/memory/one", false, 2 * GIB, 0);
    group("/sys/fs/cgroup/unified/two", true, GIB, 0);
    expect(GIB - MARGIN, SR_LIMIT_CGROUP);
}

/* A container sees only its own group, mounted where the root of all groups usually is. */
TEST(a_container_that_sees_only_its_own_group_is_limited)
{
    machine();
    groups("0::/docker/abc\n", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    group("/sys/fs/cgroup", true, GIB, 100 * MIB);
    expect(GIB - 100 * MIB - MARGIN, SR_LIMIT_CGROUP);
}

TEST(a_group_below_the_containers_is_found)
{
    machine();
    groups("0::/docker/abc/worker\n", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    group("/sys/fs/cgroup", true, 4 * GIB, 100 * MIB);
    group("/sys/fs/cgroup/worker", true, GIB, 100 * MIB);
    expect(GIB - 100 * MIB - MARGIN, SR_LIMIT_CGROUP);
}

TEST(an_invisible_path_falls_back_to_its_visible_parent)
{
    machine();
    groups("0::/host/path/nobody/sees\n", MOUNT_V2);
    group("/sys/fs/cgroup", true, 3 * GIB, GIB);
    expect(2 * GIB - MARGIN, SR_LIMIT_CGROUP);
}

TEST(a_group_whose_name_begins_like_the_mounted_one_is_another)
{
    machine();
    groups("0::/docker/abcdef\n", "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    group("/sys/fs/cgroup", true, GIB, 0);
    expect(GIB - MARGIN, SR_LIMIT_CGROUP);
}

TEST(broken_files_limit_nothing)
{
    machine();
    groups("no colons here\n0:\n::\n\n0::/job", MOUNT_V2 "short line\n - cgroup2 \n");
    put("/sys/fs/cgroup/job/memory.max", "lots\n");
    put("/sys/fs/cgroup/job/memory.current", "");
    expect(8 * GIB - MARGIN, SR_LIMIT_MEMORY);
}

TEST(available_memory_is_reported_with_its_limit_and_file)
{
    sr_memory_info room;
    machine();
    groups("0::/a/b\n", MOUNT_V2);
    group("/sys/fs/cgroup/a", true, 2 * GIB, 900 * MIB);
    group("/sys/fs/cgroup/a/b", true, GIB, 800 * MIB);
    put("/sys/fs/cgroup/a/b/memory.stat", "anon 1\nfile 2\nactive_file 104857600\ninactive_file 209715200\n");
    CHECK_EQ(sr_process_memory_available(root, &room), 0);
    clean();
    CHECK_EQ(room.free, GIB - 800 * MIB + DROPPED(300 * MIB) - MARGIN);
    CHECK_EQ(room.size, GIB);
    CHECK_EQ(room.limit, SR_LIMIT_CGROUP);
    CHECK(strcmp(room.file, "/sys/fs/cgroup/a/b/memory.max") == 0);
}

TEST(the_file_with_the_limit_may_be_an_ancestors)
{
    sr_memory_info room;
    machine();
    groups("5:memory:/one/two\n", "36 32 0:33 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    group("/sys/fs/cgroup/memory/one", false, GIB, 700 * MIB);
    group("/sys/fs/cgroup/memory/one/two", false, 4 * GIB, 700 * MIB);
    put("/sys/fs/cgroup/memory/one/memory.stat", "total_inactive_file 1048576\ntotal_active_file 2097152\n");
    CHECK_EQ(sr_process_memory_available(root, &room), 0);
    clean();
    CHECK_EQ(room.free, GIB - 700 * MIB + DROPPED(3 * MIB) - MARGIN);
    CHECK_EQ(room.size, GIB);
    CHECK(strcmp(room.file, "/sys/fs/cgroup/memory/one/memory.limit_in_bytes") == 0);
}

TEST(without_groups_the_machines_memory_is_the_limit)
{
    sr_memory_info room;
    machine();
    CHECK_EQ(sr_process_memory_available(root, &room), 0);
    clean();
    CHECK_EQ(room.free, 8 * GIB - MARGIN);
    CHECK_EQ(room.size, 16 * GIB);
    CHECK_EQ(room.limit, SR_LIMIT_MEMORY);
    CHECK(strcmp(room.file, "/proc/meminfo") == 0);
}

TEST(unknown_limits_do_not_limit)
{
    sr_memory_info room;
    CHECK_EQ(sr_process_memory_available("/nonexistent", &room), 0);
    CHECK_EQ(room.free, UINT64_MAX);
    CHECK_EQ(room.limit, SR_LIMIT_NONE);
}

TEST(the_real_machine_has_some_room)
{
    int limit = -1;
    uint64_t room = sr_memory_available(-1, "", &limit, NULL);
    CHECK_OP(room, >, 0);
    CHECK_OP(limit, >=, SR_LIMIT_NONE);
    CHECK_EQ(sr_memory_available(-1, "", NULL, NULL) > 0, true);
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    CHECK_OP(sr_memory_available(sr_fd(ring), "", &limit, NULL), >, 0);
}

RUN_TESTS(20)
