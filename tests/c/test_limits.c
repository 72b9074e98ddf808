/* How much memory may still be committed, with fake /proc and /sys trees. */
#define _GNU_SOURCE
#include "tree.h"

#define MARGIN (16 * MIB)
/* How many of so many bytes of file pages count as free. */
#define DROPPED(bytes) ((bytes) - (bytes) / 16)

#define V1(at, of) "36 32 0:33 / /sys/fs/cgroup/" at " rw,relatime - cgroup cgroup rw," of "\n"
/* A container sees only its own group, mounted where the root of all groups usually is. */
#define IN_A_CONTAINER "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"

static const struct {
    const char *what, *cgroup, *mounts;
    struct {
        const char *dir;
        uint64_t limit, used;
        const char *stat;
    } groups[3];
    uint64_t room;
} rows[] = {
    {"version 2", "0::/job\n", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" MOUNT_V2,
     {{"/job", GIB, 200 * MIB, NULL}}, GIB - 200 * MIB - MARGIN},
    {"file pages that can be dropped", "0::/job\n", MOUNT_V2,
     {{"/job", GIB, 600 * MIB, "anon 1\nfile 2\nactive_file 104857600\ninactive_file 209715200\nslab 3\n"}},
     GIB - 600 * MIB + DROPPED(300 * MIB) - MARGIN},
    {"half of the caches of names", "0::/job\n", MOUNT_V2,
     {{"/job", GIB, GIB, "slab_reclaimable 209715200\nslab_unreclaimable 1048576\n"}}, 100 * MIB - MARGIN},
    {"the narrowest ancestor", "0::/a/b/c\n", MOUNT_V2,
     {{"/a", 2 * GIB, GIB + 900 * MIB, NULL}, {"/a/b", UINT64_MAX, GIB, NULL}, {"/a/b/c", GIB, 500 * MIB, NULL}},
     124 * MIB - MARGIN},
    {"more used than allowed", "0::/job\n", MOUNT_V2, {{"/job", GIB, GIB + 1, NULL}}, 0},
    /* Any program that reads files twice reaches this state. */
    {"version 1, full of file pages in use", "12:cpu,cpuacct:/x\n5:memory:/job\n1:name=systemd:/y\n",
     V1("cpu", "cpu,cpuacct") V1("memory", "memory"),
     {{"/memory/job", GIB, GIB, "cache 1\nactive_file 1\ntotal_inactive_file 104857600\ntotal_active_file 838860800\n"},
      {"/memory", UINT64_C(0x7FFFFFFFFFFFF000), 5 * GIB, NULL}},
     DROPPED(900 * MIB) - MARGIN},
    {"version 1, controllers share a hierarchy", "4:hugetlb,memory:/job\n", V1("memory", "hugetlb,memory"),
     {{"/memory/job", GIB, 0, NULL}}, GIB - MARGIN},
    {"both versions", "5:memory:/one\n0::/two\n",
     V1("memory", "memory") "37 32 0:34 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
     {{"/memory/one", 2 * GIB, 0, NULL}, {"/unified/two", GIB, 0, NULL}}, GIB - MARGIN},
    {"a container's own group", "0::/docker/abc\n", IN_A_CONTAINER, {{"", GIB, 100 * MIB, NULL}},
     GIB - 100 * MIB - MARGIN},
    {"a group below the container's", "0::/docker/abc/worker\n", IN_A_CONTAINER,
     {{"", 4 * GIB, 100 * MIB, NULL}, {"/worker", GIB, 100 * MIB, NULL}}, GIB - 100 * MIB - MARGIN},
    {"an invisible path with a visible parent", "0::/host/path/nobody/sees\n", MOUNT_V2, {{"", 3 * GIB, GIB, NULL}},
     2 * GIB - MARGIN},
    {"a name that begins like the mounted one", "0::/docker/abcdef\n", IN_A_CONTAINER, {{"", GIB, 0, NULL}},
     GIB - MARGIN},
};

TEST(the_narrowest_group_of_this_process_decides)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int limit = -1;
        machine();
        groups(rows[i].cgroup, rows[i].mounts);
        for (size_t g = 0; g < 3 && rows[i].groups[g].dir; g++) {
            char dir[64], stat[96];
            snprintf(dir, sizeof dir, "/sys/fs/cgroup%s", rows[i].groups[g].dir);
            snprintf(stat, sizeof stat, "%s/memory.stat", dir);
            bool v2 = strncmp(rows[i].groups[g].dir, "/memory", 7) != 0;
            group(dir, v2, rows[i].groups[g].limit, rows[i].groups[g].used);
            if (rows[i].groups[g].stat)
                put(stat, rows[i].groups[g].stat);
        }
        uint64_t got = sr_memory_available(-1, root, &limit, NULL);
        clean(); /* a failed CHECK does not return */
        if (got != rows[i].room)
            fprintf(stderr, "%s\n", rows[i].what);
        CHECK_EQ(got, rows[i].room);
        CHECK_EQ(limit, SR_LIMIT_CGROUP);
    }
}

TEST(broken_files_limit_nothing)
{
    int limit = -1;
    machine();
    groups("no colons here\n0:\n::\n\n0::/job", MOUNT_V2 "short line\n - cgroup2 \n");
    put("/sys/fs/cgroup/job/memory.max", "lots\n");
    put("/sys/fs/cgroup/job/memory.current", "");
    uint64_t got = sr_memory_available(-1, root, &limit, NULL);
    clean();
    CHECK_EQ(got, 8 * GIB - MARGIN);
    CHECK_EQ(limit, SR_LIMIT_MEMORY);
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
