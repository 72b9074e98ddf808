/* segment.c - create, attach and destroy a segment. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)
#define DEFAULT_CAPACITY (16 * GIB)
#define SMALLEST_CAPACITY (64 * UINT64_C(1024))
#define LARGEST_CAPACITY (UINT64_C(1) << 46) /* no sum over SR_MAX_SLOTS slots overflows */

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/* ---- geometry ---------------------------------------------------------------------------------------------------- */

static void lay_out(sr_header *h, const sr_options *o, uint64_t capacity)
{
    memset(h, 0, sizeof *h);
    h->version = SR_VERSION;
    h->flags = o->flags;
    h->n_slots = o->n_slots;
    h->n_participants = o->n_participants;
    h->n_readers = o->n_readers;
    h->participants_off = SR_PAGE;
    h->slots_off = round_up(h->participants_off + sizeof(sr_participant) * o->n_participants, SR_PAGE);
    h->records_off = round_up(h->slots_off + sizeof(sr_slot) * o->n_slots, SR_PAGE);
    h->n_records = SR_RECORDS;
    h->data_off = round_up(h->records_off + sizeof(sr_totals) + SR_RECORDS * sizeof(sr_record), SR_PAGE);
    h->task_capacity = round_up(o->task_capacity ? o->task_capacity : SR_TASK_DEFAULT, SR_PAGE);
    if (h->task_capacity > capacity && !o->task_capacity)
        h->task_capacity = round_up(capacity, SR_PAGE);
    if (h->task_capacity < SR_TASK_COMMIT)
        h->task_capacity = SR_TASK_COMMIT;
    h->capacity = round_up(capacity < SR_PAYLOAD_COMMIT ? SR_PAYLOAD_COMMIT : capacity, SR_PAGE);
    h->stride = h->task_capacity + h->capacity;
    h->total = h->data_off + h->stride * o->n_slots;
}

/* Participant 0 is no reader. */
static bool readers_fit(uint32_t n_readers, uint32_t n_participants, uint32_t flags)
{
    return n_readers <= ((flags & SR_SEG_QUEUE) ? 0 : SR_MAX_READERS) && n_readers < n_participants;
}

static bool header_is_sound(const sr_header *h, uint64_t file_bytes)
{
    if (h->magic != SR_MAGIC || h->version != SR_VERSION)
        return false;
    if ((h->flags & ~(SR_SEG_QUEUE | SR_SEG_RECORDED)) || h->n_slots == 0 || h->n_slots > SR_MAX_SLOTS ||
        h->n_participants < 2 || h->n_participants > SR_MAX_PARTICIPANTS ||
        !readers_fit(h->n_readers, h->n_participants, h->flags))
        return false;
    sr_options o = {.n_slots = h->n_slots, .n_participants = h->n_participants, .flags = h->flags,
                    .task_capacity = h->task_capacity};
    if (h->capacity == 0 || h->capacity > LARGEST_CAPACITY || h->task_capacity == 0 ||
        h->task_capacity > LARGEST_CAPACITY)
        return false;
    sr_header again;
    lay_out(&again, &o, h->capacity);
    return again.participants_off == h->participants_off && again.slots_off == h->slots_off &&
           again.data_off == h->data_off && again.records_off == h->records_off && again.n_records == h->n_records &&
           again.task_capacity == h->task_capacity &&
           again.capacity == h->capacity && again.stride == h->stride && again.total == h->total &&
           h->total <= file_bytes;
}

/* A limit on mappings: enum sr_limit, and its description. */
struct bound {
    int limit;
    const char *text;
    uint64_t free; /* bytes that it leaves; 0 also if it does not count bytes */
};

/* Return how many bytes of this process's address space a segment may reserve: half of the space, times the square of
 * the unused fraction. So another segment always fits, and the program always keeps some addresses. A third is the
 * maximum, because most programs have two loaders, and the second one's batches are no smaller. */
static uint64_t share_of_addresses(struct bound *why)
{
    uint64_t size = sr_address_space(), used = sr_mapped_bytes();
    struct rlimit space;

    *why = (struct bound){SR_LIMIT_MAPPED, "the address space that the process has left", 0};
    if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur < size) {
        size = space.rlim_cur;
        *why = (struct bound){SR_LIMIT_ADDRESS, "the limit on address space (RLIMIT_AS, ulimit -v)", 0};
    }
    double left = used < size ? (double)(size - used) : 0;
    uint64_t share = (uint64_t)(left * left / (double)size / 2);
    return why->free = share < size / 3 ? share : size / 3;
}

static const struct bound MAPPINGS = {SR_LIMIT_MAPPINGS, "the number of mappings (vm.max_map_count)", 0};
static const struct bound LOCKED = {SR_LIMIT_LOCKED, "the limit on locked memory (RLIMIT_MEMLOCK, ulimit -l)", 0};
static const struct bound FILE_SIZE = {SR_LIMIT_FILESIZE, "the limit on file size (RLIMIT_FSIZE, ulimit -f)", 0};
static const struct bound FILE_LENGTH = {SR_LIMIT_FILESYSTEM, "the file system's limit on a file's length", 0};

/* Return the capacity that fits, at most `capacity`, if `most` bytes may be reserved; 0: none fits. Tasks get an eighth
 * unless their capacity was requested: 64 MiB each would be most of a small reserve. */
static uint64_t fit(sr_options *o, const sr_header *h, uint64_t most, uint64_t capacity)
{
    uint64_t each = most > h->data_off ? (most - h->data_off) / o->n_slots / SR_PAGE * SR_PAGE : 0;
    if (!o->task_capacity && each / 8 < h->task_capacity)
        o->task_capacity = each / 8 < SR_TASK_COMMIT ? SR_TASK_COMMIT : each / 8;
    uint64_t tasks = round_up(o->task_capacity ? o->task_capacity : h->task_capacity, SR_PAGE);
    /* As in lay_out: the geometry that it makes of this must fit, or reserve() would never end. */
    if (tasks < SR_TASK_COMMIT)
        tasks = SR_TASK_COMMIT;
    uint64_t fits = each > tasks ? each - tasks : 0;
    return fits < capacity ? fits : capacity;
}

/* Reserve the file's length and its mapping: as much as known limits allow, then half as much each time that the system
 * refuses. *why receives the last limit. */
static int reserve(int fd, const sr_options *asked, sr_header *h, sr_info *info, char **base, struct bound *why)
{
    struct rlimit limit;
    struct bound addresses;
    sr_options o = *asked;
    uint64_t capacity = o.capacity ? o.capacity : DEFAULT_CAPACITY, most = share_of_addresses(&addresses);
    bool unlimited = getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
    int rc = -ENOMEM;

    info->wanted = capacity;
    do {
        lay_out(h, &o, capacity);
        /* Check instead of trying: ftruncate beyond the limit raises SIGXFSZ, which kills plain C programs. */
        if (!unlimited && h->total > limit.rlim_cur) {
            *why = FILE_SIZE;
            why->free = limit.rlim_cur;
            rc = -EFBIG;
            capacity = fit(&o, h, limit.rlim_cur, capacity);
        } else if (h->total > most) {
            *why = addresses;
            rc = -ENOMEM;
            capacity = fit(&o, h, most, capacity);
        } else if (ftruncate(fd, (off_t)h->total) != 0) {
            *why = FILE_LENGTH;
            rc = -errno;
            capacity /= 2;
        } else {
            rc = sr_map_file(fd, h->total, base);
            if (rc == 0)
                return 0;
            /* Enough addresses were free, so the limit is the number of mappings or the amount of locked memory. */
            *why = rc == -EAGAIN ? LOCKED : rc == -ENOMEM ? MAPPINGS : addresses;
            capacity /= 2;
        }
        info->limited_by = why->text;
    } while (capacity >= SMALLEST_CAPACITY);
    lay_out(h, &o, SMALLEST_CAPACITY); /* the error has the size of the smallest segment */
    return rc;
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

static int open_handle(int fd, int record, char *base, const sr_header *h, const sr_info *info, sr_ring **out)
{
    sr_ring *ring = calloc(1, sizeof *ring);
    if (!ring)
        return -ENOMEM;
    ring->populated = calloc(h->n_slots, sizeof *ring->populated);
    ring->refs = calloc(h->n_slots, sizeof *ring->refs);
    ring->dispatched = calloc(h->n_slots, sizeof *ring->dispatched);
    if (!ring->populated || !ring->refs || !ring->dispatched) {
        free((void *)ring->populated);
        free((void *)ring->refs);
        free(ring->dispatched);
        free(ring);
        return -ENOMEM;
    }
    int rc = sr_identify_file(&ring->file, fd);
    ring->record.fd = -1;
    if (rc == 0 && record >= 0)
        rc = sr_identify_file(&ring->record, record);
    if (rc != 0) {
        free(ring->dispatched);
        free((void *)ring->refs);
        free((void *)ring->populated);
        free(ring);
        return rc;
    }
    ring->base = base;
    ring->header = (sr_header *)base;
    ring->participants = (sr_participant *)(base + h->participants_off);
    ring->slots = (sr_slot *)(base + h->slots_off);
    ring->totals = (sr_totals *)(base + h->records_off);
    ring->records = (sr_record *)(ring->totals + 1);
    ring->n_slots = h->n_slots;
    ring->n_participants = h->n_participants;
    ring->flags = h->flags;
    ring->n_readers = h->n_readers;
    ring->data_off = h->data_off;
    ring->stride = h->stride;
    ring->task_capacity = h->task_capacity;
    ring->capacity = h->capacity;
    ring->total = h->total;
    ring->info = *info;
    ring->info.n_slots = h->n_slots;
    ring->info.n_participants = h->n_participants;
    ring->info.flags = h->flags;
    ring->info.n_readers = h->n_readers;
    ring->info.capacity = h->capacity;
    ring->info.total = h->total;
    /* A crashing worker must not spend minutes dumping the segment. A refusal is harmless. */
    (void)madvise(base, h->total, MADV_DONTDUMP);
    sr_enlist(ring);
    *out = ring;
    return 0;
}

/* Put everything except the slots into a separate file, which outlives the processes. To attach, a process needs both:
 * the header in memory shows that by naming no records. */
static int put_controls_in(const char *path, char *base, sr_header *h, sr_info *info, int *record)
{
    struct rlimit limit;
    int fd = sr_open_record(path, SR_MAGIC, &info->record_number);
    if (fd < 0)
        return fd;
    /* Check instead of trying, as in reserve. */
    int rc = getrlimit(RLIMIT_FSIZE, &limit) == 0 && h->data_off > limit.rlim_cur ? -EFBIG : 0;
    if (rc == 0 && ftruncate(fd, (off_t)h->data_off) != 0)
        rc = -errno;
    if (rc == 0)
        rc = -posix_fallocate(fd, 0, (off_t)h->data_off); /* otherwise a full disk raises SIGBUS later */
    if (rc == 0) {
        sr_header here = *h;
        here.flags |= SR_SEG_RECORDED;
        here.records_off = 0;
        memcpy(base, &here, offsetof(sr_header, iteration));
        if (mmap(base, h->data_off, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
            rc = -errno;
    }
    if (rc != 0) {
        info->record_number = 0;
        (void)ftruncate(fd, 0);
        close(fd);
        return rc;
    }
    h->flags |= SR_SEG_RECORDED;
    *record = fd;
    return 0;
}

static int commit_controls(int fd, const sr_header *h, sr_alloc_error *why)
{
    uint64_t need = h->data_off + h->n_slots * (SR_TASK_COMMIT + SR_PAYLOAD_COMMIT);
    sr_cgroup_locks locks;
    (void)sr_memory_available(-1, "", NULL, &locks); /* only for the locks */
    sr_lock_cgroups(&locks, SR_GROW_WAIT_NS);
    int rc = sr_check_memory(fd, need, why);
    if (rc == 0)
        rc = sr_put_memory(fd, 0, h->data_off);
    for (uint32_t i = 0; rc == 0 && i < h->n_slots; i++) {
        uint64_t at = h->data_off + i * h->stride;
        rc = sr_put_memory(fd, at, SR_TASK_COMMIT);
        if (rc == 0)
            rc = sr_put_memory(fd, at + h->task_capacity, SR_PAYLOAD_COMMIT);
    }
    sr_unlock_cgroups(&locks);
    if (rc == -ENOSPC && why && why->limit == SR_LIMIT_NONE)
        *why = (sr_alloc_error){.limit = SR_LIMIT_FILESYSTEM, .needed = need,
                             .free = sr_memory_available(fd, "", NULL, NULL)};
    return rc;
}

int sr_create(const sr_options *o, sr_ring **out, sr_alloc_error *why)
{
    sr_header h;
    sr_info info = {0};
    char *base = NULL;
    struct bound bound = {0};
    int record = -1;

    if (why)
        *why = (sr_alloc_error){0};
    if (!o || !out || o->n_slots == 0 || o->n_slots > SR_MAX_SLOTS || o->n_participants < 2 ||
        o->n_participants > SR_MAX_PARTICIPANTS || !readers_fit(o->n_readers, o->n_participants, o->flags) ||
        (o->flags & ~SR_SEG_QUEUE) || o->capacity > LARGEST_CAPACITY || o->task_capacity > LARGEST_CAPACITY)
        return -EINVAL;
    int fd = sr_open_memory(o->backing, o->dir, &info.backing, &info.reason);
    if (fd < 0)
        return fd;
    int rc = reserve(fd, o, &h, &info, &base, &bound);
    if (rc == 0) {
        if (o->node) /* before any memory is committed; without it the job continues */
            info.node = sr_prefer_node(base, h.total, o->node - 1);
        rc = commit_controls(fd, &h, why);
        if (rc == 0) {
            h.magic = SR_MAGIC;
            h.pid_namespace = sr_pid_namespace();
            if (o->label)
                strncpy(h.label, o->label, SR_LABEL - 1);
            if (o->record) /* without it the job continues */
                info.record = put_controls_in(o->record, base, &h, &info, &record);
            memcpy(base, &h, offsetof(sr_header, iteration));
            memcpy(base + offsetof(sr_header, label), h.label, SR_LABEL);
            rc = open_handle(fd, record, base, &h, &info, out);
        }
        if (rc != 0)
            munmap(base, h.total);
    } else if (why) {
        *why = (sr_alloc_error){.limit = bound.limit, .needed = h.total, .free = bound.free};
    }
    if (rc != 0) {
        if (record >= 0)
            close(record);
        close(fd);
        return rc;
    }
    for (uint32_t i = 0; i < h.n_slots; i++) {
        sr_store_relaxed(&(*out)->slots[i].task_committed, SR_TASK_COMMIT);
        sr_store_relaxed(&(*out)->slots[i].committed, SR_PAYLOAD_COMMIT);
    }
    /* sr_join fails only for numbers that are too large. */
    return sr_join(*out, SR_CONSUMER);
}

/* Return whether the header in memory refers to a record file, and `controls` can be that file's header. */
static bool has_controls_elsewhere(int fd, const sr_header *controls)
{
    sr_header h;
    return pread(fd, &h, sizeof h, 0) == (ssize_t)sizeof h && h.magic == SR_MAGIC && (h.flags & SR_SEG_RECORDED) &&
           h.records_off == 0 && h.n_slots == controls->n_slots && h.n_participants == controls->n_participants &&
           h.n_readers == controls->n_readers &&
           h.stride == controls->stride && h.total == controls->total;
}

/* Duplicate a descriptor; -1 stays -1. */
static int duplicate(int fd) { return fd < 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 3); }

int sr_attach(int given, int given_record, sr_ring **out)
{
    sr_header h;
    struct stat st, controls;
    sr_info info = {.backing = SR_BACKING_AUTO, .reason = "attached"};

    int fd = fcntl(given, F_DUPFD_CLOEXEC, 3), record = duplicate(given_record);
    int rc = fd < 0 || (record < 0 && given_record >= 0) ? -errno : -EPROTO;
    if (rc == -EPROTO && fstat(fd, &st) == 0 && fstat(record < 0 ? fd : record, &controls) == 0 &&
        pread(record < 0 ? fd : record, &h, sizeof h, 0) == (ssize_t)sizeof h &&
        header_is_sound(&h, (uint64_t)st.st_size) && !(h.flags & SR_SEG_RECORDED) == (record < 0) &&
        h.data_off <= (uint64_t)controls.st_size && (record < 0 || has_controls_elsewhere(fd, &h))) {
        char *base;
        rc = sr_map_file(fd, h.total, &base);
        if (rc == 0) {
            if (record >= 0 &&
                mmap(base, h.data_off, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, record, 0) == MAP_FAILED)
                rc = -errno;
            if (rc == 0)
                rc = open_handle(fd, record, base, &h, &info, out);
            if (rc != 0)
                munmap(base, h.total);
        }
    }
    if (rc != 0 && fd >= 0)
        close(fd);
    if (rc != 0 && record >= 0)
        close(record);
    return rc;
}

int sr_after_fork(sr_ring *ring)
{
    /* A fork does not copy the page tables of a shared mapping, so this process has touched nothing yet. */
    for (uint32_t i = 0; i < ring->n_slots; i++)
        sr_store_relaxed(&ring->populated[i], 0);
    sr_store_relaxed(&ring->interrupted, 0);
    return sr_move_from_copies(ring);
}

int sr_destroy(sr_ring *ring)
{
    if (!ring)
        return -EINVAL;
    sr_delist(ring);
    int rc = munmap(ring->base, ring->total) == 0 ? 0 : -errno;
    int forgotten = sr_forget_wake_file(ring);
    rc = rc == 0 ? forgotten : rc;
    if (ring->inherited && munmap(ring->inherited, ring->total) != 0 && rc == 0)
        rc = -errno;
    int fd = sr_fd(ring), record = sr_record_fd(ring);
    if (fd >= 0 && close(fd) != 0 && rc == 0)
        rc = -errno;
    if (record >= 0 && close(record) != 0 && rc == 0)
        rc = -errno;
    free(ring->dispatched);
    free((void *)ring->populated);
    free((void *)ring->refs);
    free(ring);
    return rc;
}

