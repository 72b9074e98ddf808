/* Observation from outside, also of damaged files; and the record file, which outlives its segment. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>

#include "needs.h"
#include "small.h"
#include "watching.h"

static sr_record_view seen[SR_RECORDS];

static int open_watch(int fd, bool copy, sr_watch **watch)
{
    uint32_t version;
    return sr_watch_open(fd, copy, watch, &version);
}

static void must_be_refused(int fd)
{
    sr_watch *watch;
    CHECK_EQ(open_watch(fd, false, &watch), -EPROTO);
    CHECK_EQ(open_watch(fd, true, &watch), -EPROTO);
}

TEST(another_file_is_not_watched)
{
    sr_watch *watch;
    int ends[2], file = memfd_create("x", MFD_CLOEXEC);
    CHECK_OK(pipe(ends));
    must_be_refused(file);
    must_be_refused(ends[0]);
    CHECK_OK(ftruncate(file, 1 << 20));
    must_be_refused(file);
    CHECK_EQ(open_watch(-1, false, &watch), -EBADF);
}

TEST(another_version_is_named)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    sr_watch *watch;
    uint32_t version = 0;
    ring->header->version = SR_VERSION + 1;
    CHECK_EQ(sr_watch_open(sr_fd(ring), false, &watch, &version), -EPROTONOSUPPORT);
    CHECK_EQ(version, SR_VERSION + 1);
}

TEST(every_inconsistent_header_is_refused)
{
    sr_ring *ring SCOPED = make_ring(2, 3, 0);
    sr_header kept = *ring->header;
    sr_watch *watch;
    static const uint64_t odd[] = {0, 1, 64, 4095, SR_PAGE, UINT32_MAX, UINT64_MAX, UINT64_MAX - 63,
                                   UINT64_MAX / 2};
    static const size_t fields[] = {offsetof(sr_header, participants_off), offsetof(sr_header, slots_off),
                                    offsetof(sr_header, records_off), offsetof(sr_header, data_off),
                                    offsetof(sr_header, n_records)};
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        for (size_t i = 0; i < 2 * sizeof odd / sizeof *odd; i++) {
            uint64_t *word = (uint64_t *)((char *)ring->header + fields[f]), was = *word;
            *word = i % 2 ? odd[i / 2] : was + odd[i / 2]; /* an odd value, or one near the right one */
            if (*word != was && !(fields[f] == offsetof(sr_header, records_off) && *word == 0))
                must_be_refused(sr_fd(ring));
            *word = was;
        }
    /* A sum that overflows to a valid next offset. */
    ring->header->records_off = 0 - (uint64_t)SR_LINE * 16;
    must_be_refused(sr_fd(ring));
    *ring->header = kept;
    static const uint32_t counts[] = {0, 1, 4, 65537, UINT32_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        ring->header->n_slots = counts[i];
        if (counts[i] != 1) /* with the same number of pages */
            must_be_refused(sr_fd(ring));
        *ring->header = kept;
        ring->header->n_participants = counts[i] == 4 ? 400 : counts[i];
        must_be_refused(sr_fd(ring));
        *ring->header = kept;
    }
    CHECK_OK(open_watch(sr_fd(ring), false, &watch));
    sr_watch_close(watch);
}

TEST(a_file_that_is_cut_short_is_refused)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    sr_watch *watch;
    uint64_t length = ring->data_off;
    char *bytes = malloc(length);
    memcpy(bytes, ring->base, length);
    int file = memfd_create("cut", MFD_CLOEXEC);
    CHECK_EQ(pwrite(file, bytes, length, 0), (int64_t)length);
    CHECK_OK(open_watch(file, true, &watch));
    CHECK_OK(ftruncate(file, 100)); /* copied values stay */
    sr_slot_view slot;
    CHECK_EQ(sr_watch_slot(watch, 0, &slot), -EAGAIN);
    CHECK_EQ(sr_watch_records(watch, 0, seen, SR_RECORDS), 0);
    sr_watch_close(watch);
    static const uint64_t lengths[] = {0, 1, 100, sizeof(sr_header), SR_PAGE};
    for (size_t i = 0; i <= sizeof lengths / sizeof *lengths; i++) {
        uint64_t cut = i < sizeof lengths / sizeof *lengths ? lengths[i] : length - 1;
        CHECK_OK(ftruncate(file, 0));
        CHECK_EQ(pwrite(file, bytes, cut, 0), (int64_t)cut);
        must_be_refused(file);
    }
    free(bytes);
}

/* Words that no writer of ours stores cause no wild access and no endless loop. */
TEST(damaged_words_do_no_harm)
{
    static const uint64_t odd[] = {0, UINT64_MAX, UINT64_MAX - 1, SR_RECORD_TORN, SR_RECORD_TORN - 1,
                                   0x0101010101010101};
    sr_ring *ring SCOPED = make_ring(3, 3, 0);
    for (uint64_t seq = 0; seq < 5; seq++)
        deliver_one(ring, seq);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        sr_watch *watch;
        sr_slot_view slot;
        sr_participant_view participant;
        sr_segment_info info;
        uint64_t sums[SR_SUMS];
        uint64_t *from = (uint64_t *)ring->base + offsetof(sr_header, iteration) / 8;
        uint64_t *upto = (uint64_t *)(ring->base + ring->data_off);
        for (; from < upto; from++)
            *from = odd[i];
        CHECK_OK(open_watch(sr_fd(ring), false, &watch));
        sr_watch_segment(watch, &info);
        CHECK_OP(info.high_water, <=, 3);
        CHECK_OP(strlen(info.label), <, SR_LABEL);
        CHECK_OP(sr_watch_records(watch, 0, seen, SR_RECORDS), <=, SR_RECORDS);
        CHECK_OP(sr_watch_records(watch, UINT64_MAX, seen, SR_RECORDS), <=, SR_RECORDS);
        CHECK_OP(sr_watch_slowest(watch, true, seen), <=, SR_SLOWEST);
        sr_watch_totals(watch, sums);
        for (uint32_t s = 0; s < 3; s++)
            if (sr_watch_slot(watch, s, &slot) == 0)
                CHECK_OP(sr_state_of(slot.state), <=, SR_TRIMMED);
        for (uint32_t p = 0; p < 3; p++)
            CHECK_OK(sr_watch_participant(watch, p, &participant));
        CHECK_EQ(sr_watch_slot(watch, 3, &slot), -EINVAL);
        CHECK_EQ(sr_watch_participant(watch, 3, &participant), -EINVAL);
        sr_watch_close(watch);
    }
}

TEST(a_slot_is_seen_in_every_state)
{
    sr_ring *ring SCOPED = make_ring(8, 3, 0);
    sr_watch *watch SCOPED_WATCH = watch_of(ring);
    sr_slot_view slot;
    CHECK_EQ(sr_watch_slot(watch, 0, &slot), -EAGAIN); /* not used yet */
    static const unsigned states[] = {SR_PARKED, SR_LEASED, SR_BROADCAST, SR_READY, SR_CLAIMED, SR_TASK};
    for (uint32_t i = 0; i < sizeof states / sizeof *states; i++) {
        uint64_t gen = bring_to(ring, i, states[i], 1, false);
        CHECK_OK(sr_watch_slot(watch, i, &slot));
        CHECK_EQ(sr_state_of(slot.state), states[i]);
        CHECK_EQ(slot.seen.seq, i);
        CHECK_EQ(slot.kind, states[i] < SR_READY ? 0 : SR_BATCH);
        CHECK_EQ(slot.seen.bytes, states[i] < SR_READY ? 0 : gen);
        CHECK_EQ(slot.seen.times[SR_T_CLAIMED] != 0, states[i] != SR_TASK);
        CHECK_EQ(slot.seen.times[SR_T_PUBLISHED] != 0, states[i] >= SR_READY);
        CHECK_EQ(slot.seen.times[SR_T_TAKEN] != 0, states[i] >= SR_LEASED);
        if (states[i] != SR_TASK)
            CHECK_EQ((uint32_t)slot.seen.publisher, 1);
        CHECK_EQ(slot.seen.number, 0);
        CHECK_EQ(slot.readers, states[i] == SR_BROADCAST); /* the consumer */
    }
    uint64_t gen;
    dispatch(ring, 6, 0, 0, 3); /* the lowest sequence number is claimed first */
    uint32_t range, at = claim(ring, 2, &range, &gen);
    CHECK_EQ(at, 6);
    CHECK_OK(sr_range_done(ring, 2, 6, range, gen, NULL));
    CHECK_OK(sr_watch_slot(watch, 6, &slot));
    CHECK_EQ(slot.n_ranges, 3);
    CHECK_EQ(slot.ranges_done, 1);
    CHECK_OK(sr_release(ring, 1, sr_gen_of(sr_load_acquire(&ring->slots[1].state))));
    CHECK_OK(sr_watch_slot(watch, 1, &slot)); /* FREE: its last batch */
    CHECK_EQ(sr_state_of(slot.state), SR_FREE);
    CHECK_EQ(slot.seen.seq, 1);
}

TEST(a_slot_of_a_queue_is_not_seen_while_it_is_reset)
{
    sr_ring *ring SCOPED = make_ring(1, 3, SR_SEG_QUEUE);
    sr_watch *watch SCOPED_WATCH = watch_of(ring);
    sr_slot_view slot;
    uint32_t at;
    uint64_t gen;
    put_one(ring, 1);
    CHECK_OK(sr_watch_slot(watch, 0, &slot));
    CHECK(whole(&slot.seen, true));
    uint64_t word = sr_load_acquire(&ring->slots[0].state);
    poke(ring, 0, sr_word(SR_CLAIMED, 3, sr_gen_of(word) + 1)); /* the producer has just claimed it */
    CHECK_EQ(sr_watch_slot(watch, 0, &slot), -EAGAIN);
    sr_save_record(ring, 0);
    sr_store_release(&ring->slots[0].times.claimed_at, 0);
    CHECK_EQ(sr_watch_slot(watch, 0, &slot), -EAGAIN);
    poke(ring, 0, word);
    CHECK_OK(sr_claim_free(ring, 2, 0, &at, &gen));
    CHECK_OK(sr_watch_slot(watch, 0, &slot));
    CHECK_EQ((uint32_t)slot.seen.publisher, 2);
    CHECK_EQ(slot.seen.times[SR_T_FETCH], 0);
}

TEST(a_watched_segment_is_read_only)
{
    sr_ring *ring SCOPED = make_ring(1, 2, 0);
    sr_watch *watch SCOPED_WATCH = watch_of(ring);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL); /* the sanitizers have a handler */
        *(volatile char *)watch->base = 1;
        _exit(0);
    }
    int status = wait_for(pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

/* ---- the record file ------------------------------------------------------------------------------------------- */

static char folder[64], path[80];

static void remove_folder(void)
{
    char name[100];
    unlink(path);
    for (int i = 2; i < 5; i++) {
        snprintf(name, sizeof name, "%s.%d", path, i);
        unlink(name);
    }
    rmdir(folder);
}

static void make_folder(void)
{
    strcpy(folder, "/tmp/slipring-test-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/record", folder);
    atexit(remove_folder);
}

static sr_ring *recorded_ring(uint32_t flags)
{
    sr_ring *ring = NULL;
    sr_options o = {.n_slots = 2, .n_participants = 4, .flags = flags, .backing = SR_BACKING_MEMFD,
                    .capacity = MIB, .task_capacity = 64 * KIB, .label = "what people know it by", .record = path};
    CHECK_OK(sr_create(&o, &ring, NULL));
    return ring;
}

static int info_of(const sr_ring *ring, uint32_t *number)
{
    sr_info info;
    CHECK_OK(sr_describe(ring, &info));
    *number = info.record_number;
    return info.record;
}

static off_t size_of(const char *name)
{
    struct stat st;
    return stat(name, &st) == 0 ? st.st_size : -1;
}

TEST(the_record_file_has_all_but_the_slots_and_outlives_the_segment)
{
    make_folder();
    sr_ring *ring = recorded_ring(0);
    uint32_t number;
    CHECK_OK(info_of(ring, &number));
    CHECK_EQ(number, 1);
    CHECK_EQ(size_of(path), (off_t)ring->data_off);
    struct stat st;
    CHECK_OK(stat(path, &st));
    CHECK_EQ(st.st_mode & 0777, 0600);
    CHECK(fcntl(sr_record_fd(ring), F_GETFD) & FD_CLOEXEC);
    for (uint64_t seq = 0; seq < 5; seq++)
        deliver_one(ring, seq);
    sr_destroy(ring);

    sr_watch *watch;
    sr_segment_info info;
    int fd = open(path, O_RDONLY);
    CHECK_OK(open_watch(fd, true, &watch));
    close(fd);
    CHECK_EQ(sr_watch_records(watch, 0, seen, SR_RECORDS), 4);
    for (int i = 0; i < 4; i++)
        CHECK(whole(&seen[i], false));
    sr_slot_view slot;
    CHECK_OK(sr_watch_slot(watch, 0, &slot)); /* the last one is in its slot */
    CHECK_EQ(slot.seen.seq, 4);
    sr_watch_segment(watch, &info);
    CHECK_EQ(strcmp(info.label, "what people know it by"), 0);
    CHECK(info.flags & SR_SEG_RECORDED);
    sr_watch_close(watch);
}

TEST(the_segments_own_file_says_that_there_is_a_record_file)
{
    make_folder();
    sr_ring *ring = recorded_ring(0);
    sr_watch *watch;
    CHECK_EQ(open_watch(sr_fd(ring), false, &watch), -ENOLINK);
    CHECK_EQ(open_watch(sr_fd(ring), true, &watch), -ENOLINK);
    sr_destroy(ring);
}

TEST(attach_needs_both_files)
{
    make_folder();
    sr_ring *ring = recorded_ring(0), *other, *plain = make_ring(2, 4, 0);
    CHECK_EQ(sr_record_fd(plain), -ENOENT);
    CHECK_EQ(sr_attach(sr_fd(ring), -1, &other), -EPROTO);
    CHECK_EQ(sr_attach(sr_fd(plain), sr_record_fd(ring), &other), -EPROTO);
    CHECK_EQ(sr_attach(sr_fd(plain), sr_fd(plain), &other), -EPROTO);
    CHECK_EQ(sr_attach(sr_fd(ring), 4000, &other), -EBADF);
    CHECK_OK(sr_attach(sr_fd(ring), sr_record_fd(ring), &other));
    dispatch(ring, 0, 3, 0, 0);
    uint64_t gen;
    CHECK_EQ(claim(other, 2, NULL, &gen), 0);
    sr_set_row(other, 2, 0, 5, 1);
    CHECK_EQ(sr_load_acquire(&ring->participants[2].at), 6);
    strcpy(sr_payload(other, 0), "written there");
    CHECK_EQ(strcmp(sr_payload(ring, 0), "written there"), 0);
    CHECK_OK(ftruncate(sr_record_fd(ring), SR_PAGE)); /* truncated: an access would be a SIGBUS */
    sr_ring *third;
    CHECK_EQ(sr_attach(sr_fd(ring), sr_record_fd(ring), &third), -EPROTO);
    CHECK_OK(ftruncate(sr_record_fd(ring), (off_t)ring->data_off));
    sr_destroy(other);
    sr_destroy(plain);
    sr_destroy(ring);
}

TEST(a_file_in_use_is_left_alone_and_the_next_name_taken)
{
    make_folder();
    sr_ring *first = recorded_ring(0), *second = recorded_ring(0), *again;
    uint32_t number;
    CHECK_OK(info_of(second, &number));
    CHECK_EQ(number, 2);
    deliver_one(first, 1);
    sr_destroy(first);
    again = recorded_ring(0); /* no process uses it any more */
    CHECK_OK(info_of(again, &number));
    CHECK_EQ(number, 1);
    sr_watch *watch = watch_of(again);
    sr_slot_view slot;
    CHECK_EQ(sr_watch_slot(watch, 0, &slot), -EAGAIN); /* no record of the first segment is left */
    sr_watch_close(watch);
    sr_destroy(second);
    sr_destroy(again);
}

TEST(a_worker_that_lives_keeps_the_file_in_use)
{
    make_folder();
    int ends[2];
    CHECK_OK(pipe2(ends, O_CLOEXEC));
    sr_ring *ring = recorded_ring(0), *next;
    int kept = fcntl(sr_record_fd(ring), F_DUPFD, 3); /* like a worker that has attached */
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char c;
        close(ends[1]);
        sr_destroy(ring);
        CHECK_EQ(read(ends[0], &c, 1), 0);
        _exit(0);
    }
    close(kept);
    sr_destroy(ring);
    uint32_t number;
    next = recorded_ring(0);
    CHECK_OK(info_of(next, &number));
    CHECK_EQ(number, 2);
    sr_destroy(next);
    close(ends[1]);
    CHECK_EQ(wait_for(pid), 0);
    next = recorded_ring(0);
    CHECK_OK(info_of(next, &number));
    CHECK_EQ(number, 1);
    sr_destroy(next);
}

/* A working segment without a record file. */
static void check_unrecorded(int why)
{
    uint32_t number;
    sr_ring *ring = recorded_ring(0);
    CHECK_EQ(info_of(ring, &number), why);
    CHECK_EQ(number, 0);
    CHECK_EQ(sr_record_fd(ring), -ENOENT);
    CHECK(!(ring->header->flags & SR_SEG_RECORDED));
    deliver_one(ring, 0);
    deliver_one(ring, 1);
    sr_watch *watch = watch_of(ring);
    CHECK_EQ(sr_watch_records(watch, 0, seen, SR_RECORDS), 1);
    sr_watch_close(watch);
    sr_destroy(ring);
}

TEST(files_of_others_are_left_alone)
{
    make_folder();
    static const char *const contents[] = {"mine", "something longer than a number"};
    for (int i = 0; i < 2; i++) {
        int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
        CHECK_EQ(write(fd, contents[i], strlen(contents[i])), (int64_t)strlen(contents[i]));
        close(fd);
        check_unrecorded(-EEXIST);
        CHECK_EQ(size_of(path), (off_t)strlen(contents[i]));
    }
    unlink(path);
    CHECK_OK(mkdir(path, 0700));
    check_unrecorded(-EISDIR);
    rmdir(path);
    CHECK_OK(mkfifo(path, 0600));
    check_unrecorded(-EINVAL);
    unlink(path);
    strcpy(path + strlen(path) - 6, "no/where");
    check_unrecorded(-ENOENT);
    snprintf(path, sizeof path, "%s/record", folder);
}

TEST(a_full_disk_costs_only_the_record)
{
    mount_small("64k");
    snprintf(path, sizeof path, "%s/record", mounted);
    check_unrecorded(-ENOSPC);
    CHECK_EQ(size_of(path), 0);
    unlink(path);
}

RUN_TESTS(60)
