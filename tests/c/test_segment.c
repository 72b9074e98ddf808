/* Making a segment, sharing it, and the effects of a broken header or a low limit. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "fixture.h"
#include "needs.h"

static const sr_options small = {.n_slots = 4, .n_participants = 3, .backing = SR_BACKING_MEMFD, .capacity = MIB};

static sr_ring *made(const sr_options *options, sr_info *info)
{
    sr_ring *ring = NULL;
    CHECK_OK(sr_create(options, &ring, NULL));
    CHECK_OK(sr_describe(ring, info));
    return ring;
}

static int entries_of(const char *dir)
{
    int n = 0;
    DIR *d = opendir(dir);
    CHECK(d != NULL);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void check_backing(int backing, const char *dir, int becomes)
{
    sr_ring *ring, *other;
    sr_info info;
    struct stat st;
    sr_options o = small;
    o.backing = backing;
    o.dir = dir;
    int before = entries_of("/dev/shm");
    CHECK_OK(sr_create(&o, &ring, NULL));
    CHECK_OK(sr_describe(ring, &info));
    if (becomes >= 0)
        CHECK_EQ(info.backing, becomes);
    CHECK(info.reason != NULL && info.reason[0]);
    CHECK_EQ(entries_of("/dev/shm"), before);
    CHECK_OK(fstat(sr_fd(ring), &st));
    CHECK_EQ(st.st_nlink, 0);
    CHECK_EQ(st.st_mode & 0777, 0600);
    CHECK(fcntl(sr_fd(ring), F_GETFD) & FD_CLOEXEC);

    CHECK_OK(sr_attach(sr_fd(ring), -1, &other));
    CHECK(sr_fd(other) != sr_fd(ring));
    CHECK(fcntl(sr_fd(other), F_GETFD) & FD_CLOEXEC);
    CHECK_OK(sr_commit(ring, 0, 3, 100000, NULL));
    strcpy(sr_payload(ring, 3) + 99000, "seen by both");
    CHECK(strcmp(sr_payload(other, 3) + 99000, "seen by both") == 0);
    CHECK_OK(sr_destroy(ring));
    CHECK(strcmp(sr_payload(other, 3) + 99000, "seen by both") == 0);
    CHECK_OK(sr_destroy(other));
}

TEST(automatic_backing_says_why) { check_backing(SR_BACKING_AUTO, NULL, -1); }
TEST(shm_leaves_no_name) { check_backing(SR_BACKING_SHM, NULL, SR_BACKING_SHM); }
TEST(memfd_works) { check_backing(SR_BACKING_MEMFD, NULL, SR_BACKING_MEMFD); }
TEST(a_directory_on_a_tmpfs_works) { check_backing(SR_BACKING_DIR, "/dev/shm", SR_BACKING_DIR); }

TEST(a_nameless_file_cannot_be_given_a_name)
{
    char path[64];
    sr_ring *ring;
    sr_options o = small;
    o.backing = SR_BACKING_SHM;
    CHECK_OK(sr_create(&o, &ring, NULL));
    snprintf(path, sizeof path, "/proc/self/fd/%d", sr_fd(ring));
    CHECK_EQ(linkat(AT_FDCWD, path, AT_FDCWD, "/dev/shm/slipring-test-link", AT_SYMLINK_FOLLOW), -1);
    sr_destroy(ring);
}

TEST(bad_options_are_refused)
{
    sr_ring *ring;
    sr_options o = small;
#define REFUSED(field, value)                                                                                   \
    do {                                                                                                        \
        o = small;                                                                                              \
        o.field = (value);                                                                                      \
        CHECK_EQ(sr_create(&o, &ring, NULL), -EINVAL);                                                          \
    } while (0)
    REFUSED(n_slots, 0);
    REFUSED(n_slots, SR_MAX_SLOTS + 1);
    REFUSED(n_participants, 0);
    REFUSED(n_participants, 1);
    REFUSED(n_participants, SR_MAX_PARTICIPANTS + 1);
    REFUSED(n_readers, small.n_participants);
    REFUSED(flags, 2);
    REFUSED(backing, 9);
    REFUSED(backing, SR_BACKING_DIR); /* without a directory */
    REFUSED(capacity, (UINT64_C(1) << 46) + 1);
    REFUSED(task_capacity, UINT64_MAX);
    CHECK_EQ(sr_create(NULL, &ring, NULL), -EINVAL);
    CHECK_EQ(sr_create(&small, NULL, NULL), -EINVAL);
    o = small;
    o.backing = SR_BACKING_DIR;
    o.dir = "/nowhere";
    CHECK_EQ(sr_create(&o, &ring, NULL), -ENOENT);
}

TEST(payloads_lie_on_pages_and_do_not_overlap)
{
    sr_info info;
    sr_options o = small;
    o.capacity = 10001;
    o.task_capacity = 1;
    sr_ring *ring SCOPED = made(&o, &info);
    CHECK_OP(info.capacity, >=, 10001);
    for (uint32_t i = 0; i < info.n_slots; i++) {
        CHECK_EQ((uintptr_t)sr_payload(ring, i) % SR_PAGE, 0);
        CHECK_OP(sr_payload(ring, i) - sr_task_area(ring, i), >=, SR_TASK_COMMIT);
        if (i)
            CHECK_OP(sr_task_area(ring, i) - sr_payload(ring, i - 1), >=, info.capacity);
    }
    CHECK_EQ(sr_payload(ring, 3) + info.capacity - ring->base, info.total);
    CHECK(sr_slot_at(ring, 4) == NULL && sr_payload(ring, 4) == NULL && sr_task_area(ring, UINT32_MAX) == NULL);
}

TEST(the_first_bytes_of_each_area_are_committed_at_once)
{
    sr_ring *ring SCOPED = make_ring(3, 2, 0);
    struct stat st;
    CHECK_OK(fstat(sr_fd(ring), &st));
    CHECK_OP(st.st_blocks * 512, >=, ring->data_off + 3 * (SR_TASK_COMMIT + SR_PAYLOAD_COMMIT));
    CHECK_EQ(sr_committed(ring), ring->data_off + 3 * (SR_TASK_COMMIT + SR_PAYLOAD_COMMIT));
    CHECK_OP(st.st_blocks * 512, <, MIB); /* and no more */
    CHECK_EQ(sr_slot_committed(ring, 2), SR_PAYLOAD_COMMIT);
    CHECK_EQ(sr_slot_committed(ring, 3), 0);
}

static void limit(int which, rlim_t value)
{
    struct rlimit l = {.rlim_cur = value, .rlim_max = value};
    CHECK_OK(setrlimit(which, &l));
}

TEST(a_small_limit_on_file_size_is_reserved_whole)
{
    sr_info info;
    sr_options o = small;
    o.capacity = 64 * MIB;
    o.task_capacity = MIB;
    limit(RLIMIT_FSIZE, 100 * MIB);
    sr_ring *ring SCOPED = made(&o, &info);
    CHECK_EQ(info.wanted, 64 * MIB);
    CHECK_OP(info.total, <=, 100 * MIB);
    CHECK_OP(info.total, >, 99 * MIB);
    CHECK_OP(info.capacity, >, 23 * MIB);
    CHECK(strstr(info.limited_by, "RLIMIT_FSIZE"));
    CHECK_OK(sr_commit(ring, 0, 3, 23 * MIB, NULL));
}

TEST(a_limit_on_file_size_counts_the_least_that_a_task_takes)
{
    sr_info info;
    sr_options o = small;
    o.capacity = 0;
    o.task_capacity = 1; /* as in a queue: SR_TASK_COMMIT bytes */
    limit(RLIMIT_FSIZE, 100 * MIB);
    sr_ring *ring SCOPED = made(&o, &info);
    CHECK_OP(info.total, <=, 100 * MIB);
    CHECK_OP(info.total, >, 99 * MIB);
}

TEST(a_tiny_limit_on_file_size_is_an_error_and_no_signal)
{
    sr_ring *ring;
    sr_alloc_error why;
    limit(RLIMIT_FSIZE, 100 * KIB);
    CHECK_EQ(sr_create(&small, &ring, &why), -EFBIG);
    CHECK_EQ(why.limit, SR_LIMIT_FILESIZE);
}

TEST(a_third_of_a_small_address_space_is_reserved)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("the sanitizer itself needs more address space than any limit leaves");
#endif
    needs_limits_on_addresses();
    sr_info info;
    sr_options o = small;
    o.capacity = 0; /* 16 GiB */
    limit(RLIMIT_AS, 8192 * MIB);
    sr_ring *ring SCOPED = made(&o, &info);
    CHECK_EQ(info.wanted, 16384 * MIB);
    /* The process keeps two thirds; tasks get at most an eighth of the rest. */
    CHECK_OP(info.total, <=, 8192 * MIB / 3);
    CHECK_OP(info.total, >, 8192 * MIB / 3 - MIB);
    CHECK_OP(info.capacity * o.n_slots, >=, info.total / 8 * 7 - MIB);
    CHECK(strstr(info.limited_by, "RLIMIT_AS"));
}

TEST(many_segments_leave_addresses_to_the_program)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("the sanitizer itself takes most of the address space");
#endif
    sr_ring *ring;
    sr_info info;
    sr_options o = small;
    o.n_slots = 2;
    o.capacity = UINT64_C(4) << 40; /* sixteen of these would fill x86-64's address space */
    for (int i = 0; i < 200; i++)
        CHECK_OK(sr_create(&o, &ring, NULL));
    CHECK_OK(sr_describe(ring, &info));
    CHECK(strstr(info.limited_by, "the address space that the process has left"));
    CHECK_OP(info.capacity, >=, 1024 * MIB);
    CHECK(mmap(NULL, UINT64_C(1) << 39, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED);
}

TEST(a_process_that_locks_its_memory_allocates_no_reserve)
{
    sr_ring *ring, *other;
    struct stat file;
    sr_options o = small;
    o.capacity = 256 * MIB;
    if (mlockall(MCL_FUTURE) != 0)
        SKIP("memory may not be locked here");
    int rc = sr_create(&o, &ring, NULL);
    if (rc == 0)
        rc = sr_attach(sr_fd(ring), -1, &other);
    CHECK_OK(munlockall());
    CHECK_OK(rc);
    CHECK_OK(fstat(sr_fd(ring), &file));
    CHECK_EQ((uint64_t)file.st_blocks * 512, sr_committed(ring));
    CHECK_OK(sr_commit(ring, 0, 0, MIB, NULL));
    memset(sr_payload(other, 0), 1, MIB);
    sr_destroy(other);
    sr_destroy(ring);
}

TEST(a_limit_on_locked_memory_is_named)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("the sanitizer lets nobody lock memory");
#else
    sr_ring *ring;
    sr_alloc_error why = {0};
    sr_options o = small;
    if (getuid() == 0 && setuid(65534) != 0)
        SKIP("root may lock all memory");
    needs_limits_on_addresses(); /* otherwise the limit applies to an emulator's own memory, too */
    limit(RLIMIT_MEMLOCK, 4096);
    if (mlockall(MCL_FUTURE) != 0)
        SKIP("memory may not be locked here");
    int rc = sr_create(&o, &ring, &why);
    CHECK_OK(munlockall());
    CHECK_EQ(rc, -EAGAIN);
    CHECK_EQ(why.limit, SR_LIMIT_LOCKED);
#endif
}

TEST(running_out_of_descriptors_is_an_error)
{
    sr_ring *ring, *other;
    CHECK_OK(sr_create(&small, &ring, NULL));
    struct rlimit usual, few;
    CHECK_OK(getrlimit(RLIMIT_NOFILE, &usual));
    few = (struct rlimit){.rlim_cur = 3, .rlim_max = usual.rlim_max};
    CHECK_OK(setrlimit(RLIMIT_NOFILE, &few));
    CHECK_EQ(sr_create(&small, &other, NULL), -EMFILE);
    CHECK_OP(sr_attach(sr_fd(ring), -1, &other), <, 0);
    CHECK_OK(setrlimit(RLIMIT_NOFILE, &usual));
    sr_destroy(ring);
}

/* Writes `value` over `size` bytes at `offset` of the header, and expects attach to refuse it. */
static void spoil(sr_ring *ring, size_t offset, uint64_t value, size_t size)
{
    sr_ring *other = NULL;
    char kept[8];
    memcpy(kept, ring->base + offset, size);
    memcpy(ring->base + offset, &value, size);
    int rc = sr_attach(sr_fd(ring), -1, &other);
    if (rc != -EPROTO)
        fprintf(stderr, "header offset %zu, value 0x%" PRIx64 ": %d\n", offset, value, rc);
    CHECK_EQ(rc, -EPROTO);
    memcpy(ring->base + offset, kept, size);
}

TEST(every_inconsistent_header_is_refused)
{
    sr_ring *ring = make_ring(4, 3, 0), *other;
#define SPOIL(field, value) spoil(ring, offsetof(sr_header, field), (uint64_t)(value), sizeof ring->header->field)
    SPOIL(magic, SR_MAGIC ^ 1);
    SPOIL(version, SR_VERSION + 1);
    SPOIL(flags, 0x80);
    SPOIL(n_readers, 3); /* as many as participants */
    SPOIL(n_readers, SR_MAX_READERS + 1);
    static const uint64_t odd[] = {0, 1, 5, 4095, 8193, 65537, UINT64_C(1) << 32, UINT64_C(1) << 47,
                                   UINT64_C(1) << 62, UINT64_C(1) << 63, UINT64_MAX - 4095, UINT64_MAX};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        SPOIL(n_slots, odd[i]);
        SPOIL(n_participants, (uint32_t)odd[i] % 4096 == 0 || odd[i] == 1 ? odd[i] : SR_MAX_PARTICIPANTS + 1);
        SPOIL(participants_off, odd[i]);
        SPOIL(slots_off, odd[i]);
        SPOIL(data_off, odd[i]);
        SPOIL(stride, odd[i]);
        SPOIL(task_capacity, odd[i]);
        SPOIL(capacity, odd[i]);
        SPOIL(total, odd[i]);
    }
    CHECK_OK(sr_attach(sr_fd(ring), -1, &other));
    sr_destroy(other);

    /* Two capacities whose sum over all slots overflows to something small. */
    sr_header *h = ring->header;
    h->task_capacity = UINT64_C(1) << 62;
    h->capacity = (UINT64_C(1) << 62) - 4096;
    h->stride = h->task_capacity + h->capacity;
    h->n_slots = 2;
    h->total = h->data_off + h->stride * 2;
    CHECK_OP(h->total, <, MIB);
    CHECK_EQ(sr_attach(sr_fd(ring), -1, &other), -EPROTO);
    sr_destroy(ring);
}

TEST(another_file_is_refused)
{
    sr_ring *ring = make_ring(2, 2, 0), *other;
    int ends[2], empty = (int)memfd_create("empty", MFD_CLOEXEC);
    CHECK_OK(pipe(ends));
    CHECK_EQ(sr_attach(empty, -1, &other), -EPROTO);
    CHECK_EQ(sr_attach(ends[0], -1, &other), -EPROTO);
    CHECK_EQ(sr_attach(-1, -1, &other), -EBADF);
    CHECK_OK(ftruncate(sr_fd(ring), (off_t)ring->total - 4096)); /* shorter than its header says */
    CHECK_EQ(sr_attach(sr_fd(ring), -1, &other), -EPROTO);
    sr_destroy(ring);
}

/* Return whether /proc/self/numa_maps names the policy `text` for a mapping that begins at `base`. */
static bool has_policy(const char *base, const char *text)
{
    char line[1024], start[64];
    bool found = false;
    FILE *maps = fopen("/proc/self/numa_maps", "r");
    if (!maps)
        SKIP("this kernel has no NUMA");
    snprintf(start, sizeof start, "%lx %s ", (unsigned long)base, text);
    while (!found && fgets(line, sizeof line, maps))
        found = strncmp(line, start, strlen(start)) == 0;
    fclose(maps);
    return found;
}

TEST(memory_of_a_segment_is_taken_from_the_requested_node)
{
    sr_info info;
    sr_options o = small;
    o.node = 1 + 0;
    sr_ring *ring = made(&o, &info);
    if (info.node == -EPERM || info.node == -ENOSYS)
        SKIP("mbind is refused here");
    CHECK_OK(info.node);
    CHECK(has_policy(ring->base, "prefer:0"));
    CHECK_EQ(sr_slot_node(ring, 2), -ENOENT);
    CHECK_OK(sr_commit(ring, 0, 2, 100000, NULL));
    sr_payload(ring, 2)[0] = 1; /* older kernels do not map what they commit */
    CHECK_EQ(sr_slot_node(ring, 2), 0);
    CHECK_EQ(sr_slot_node(ring, 4), -EINVAL);
    sr_destroy(ring);
}

TEST(without_a_node_that_can_be_used_the_kernel_chooses)
{
    sr_info info;
    sr_options o = small;
    sr_ring *ring = made(&o, &info);
    CHECK_OK(info.node);
    CHECK(has_policy(ring->base, "default"));
    sr_destroy(ring);
    for (uint32_t node = 1023; node <= 1024; node++) { /* no machine has the first one, and Linux not the second */
        o.node = 1 + node;
        ring = made(&o, &info);
        CHECK(info.node < 0);
        CHECK_OK(sr_commit(ring, 0, 2, 100000, NULL));
        sr_destroy(ring);
    }
}

RUN_TESTS(20)
