/* limits.c - how much memory may still be committed.
 *
 * In a full memory cgroup, fallocate on a tmpfs does not fail: the kernel kills. So the ring checks before it commits:
 * the file system's free space, every memory cgroup from this process's own to the root (v2 and v1), and MemAvailable.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#include "system.h"

/* For everything else that allocates between this check and the kernel's accounting. */
#define MARGIN (UINT64_C(16) << 20)

/* Read a small file; return its length or -errno. */
static ssize_t read_text(const char *root, const char *dir, const char *name, char *text, size_t room)
{
    char path[2 * PATH_MAX];
    int n = snprintf(path, sizeof path, "%s%s%s%s", root, dir, name[0] ? "/" : "", name);
    if (n < 0 || (size_t)n >= sizeof path)
        return -ENAMETOOLONG;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    size_t used = 0;
    ssize_t got;
    while (used + 1 < room && (got = read(fd, text + used, room - 1 - used)) > 0)
        used += (size_t)got;
    close(fd);
    text[used] = '\0';
    return (ssize_t)used;
}

/* Return the number after `key` at the start of a line; UINT64_MAX: there is none. */
static uint64_t field(const char *text, const char *key)
{
    size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0)
            return strtoull(line + n, NULL, 10);
    }
    return UINT64_MAX;
}

/* Return the number that a file contains; UINT64_MAX: it contains none, or "max". */
static uint64_t number(const char *root, const char *dir, const char *name)
{
    char text[64];
    if (read_text(root, dir, name, text, sizeof text) <= 0 || text[0] < '0' || text[0] > '9')
        return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

/* A search for the lowest limit. If `locks` is not NULL, it also opens the cgroups that have a limit. */
struct search {
    const char *root;
    sr_memory_info *best;
    sr_cgroup_locks *locks;
};

static void narrow(sr_memory_info *best, uint64_t free, uint64_t size, int limit, const char *dir, const char *name)
{
    if (free >= best->free)
        return;
    best->free = free;
    best->size = size;
    best->limit = limit;
    int n = snprintf(best->file, sizeof best->file, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof best->file)
        best->file[0] = '\0'; /* a truncated name would be wrong */
}

static uint64_t less(uint64_t from, uint64_t by) { return from > by ? from - by : 0; }

/* Return how much of a group's usage the kernel drops before it kills. That is file pages (active or inactive, clean or
 * dirty, but not those of a tmpfs), and caches of names and inodes. The kernel frees those caches page by page, if at
 * all. A part is not counted: code that runs lies in file pages too, and the kernel needs some to choose from. */
static uint64_t droppable(const char *stat, bool v2)
{
    uint64_t inactive = field(stat, v2 ? "inactive_file " : "total_inactive_file ");
    uint64_t active = field(stat, v2 ? "active_file " : "total_active_file ");
    uint64_t names = v2 ? field(stat, "slab_reclaimable ") : UINT64_MAX; /* v1 does not report it */
    uint64_t pages = (inactive == UINT64_MAX ? 0 : inactive) + (active == UINT64_MAX ? 0 : active);
    return pages - pages / 16 + (names == UINT64_MAX ? 0 : names / 2);
}

static bool comes_before(const sr_file *a, const sr_file *b)
{
    return a->device != b->device ? a->device < b->device : a->inode < b->inode;
}

/* Open a group's directory, but only once: with two descriptors of one directory, a process would wait for itself. They
 * are sorted by device and inode, an order that all processes share, so that no two wait for each other. */
static void add_lock(const struct search *s, const char *dir)
{
    sr_cgroup_locks *locks = s->locks;
    sr_file file;
    char path[2 * PATH_MAX];
    int n = snprintf(path, sizeof path, "%s%s", s->root, dir);
    if (n < 0 || (size_t)n >= sizeof path || locks->n == SR_MAX_CGROUP_LOCKS)
        return;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (sr_identify_file(&file, fd) != 0) {
        close(fd);
        return;
    }
    uint32_t at = 0;
    while (at < locks->n && comes_before(&locks->dirs[at], &file))
        at++;
    if (at < locks->n && !comes_before(&file, &locks->dirs[at])) {
        close(fd);
        return;
    }
    memmove(&locks->dirs[at + 1], &locks->dirs[at], (locks->n - at) * sizeof file);
    locks->dirs[at] = file;
    locks->n++;
}

static void cgroup_available(const struct search *s, const char *dir, bool v2)
{
    char stat[8192];
    const char *name = v2 ? "memory.max" : "memory.limit_in_bytes";
    uint64_t limit = number(s->root, dir, name);
    uint64_t usage = number(s->root, dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (limit == UINT64_MAX || usage == UINT64_MAX || limit >= UINT64_C(1) << 62)
        return;
    if (s->locks)
        add_lock(s, dir);
    if (read_text(s->root, dir, "memory.stat", stat, sizeof stat) > 0)
        usage = less(usage, droppable(stat, v2));
    narrow(s->best, less(limit, usage + MARGIN), limit, SR_LIMIT_CGROUP, dir, name);
}

/* Return whether a list of controllers, such as "cpu,memory", includes memory. */
static bool names_memory(const char *at, const char *end)
{
    while (at < end) {
        size_t n = strcspn(at, ",:");
        if (n == strlen("memory") && strncmp(at, "memory", n) == 0)
            return true;
        at += n + 1;
    }
    return false;
}

/* Find this process's memory cgroup below the mount, in the text of /proc/self/cgroup. */
static bool own_path(const char *groups, bool v2, char *path, size_t room)
{
    for (const char *line = groups; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        const char *names = strchr(line, ':');
        const char *colon = names ? strchr(names + 1, ':') : NULL;
        if (!colon)
            continue;
        if (v2 ? colon == names + 1 : names_memory(names + 1, colon)) {
            size_t length = strcspn(colon + 1, "\n");
            if (length >= room)
                return false;
            memcpy(path, colon + 1, length);
            path[length] = '\0';
            return true;
        }
    }
    return false;
}

/* Apply the limits of one hierarchy. `mount`: its mount point; `top`: the group that is mounted there. */
static void hierarchy_available(const struct search *s, const char *mount, const char *top, char *path, bool v2)
{
    char dir[2 * PATH_MAX];
    size_t skip = strlen(top);

    /* In a container, the path may be the host's although only the container's own group is mounted. */
    if (skip > 1 && strncmp(path, top, skip) == 0 && (path[skip] == '/' || path[skip] == '\0'))
        memmove(path, path + skip, strlen(path + skip) + 1);
    for (;;) {
        size_t n = strlen(path);
        while (n > 0 && path[n - 1] == '/')
            path[--n] = '\0';
        snprintf(dir, sizeof dir, "%s%s", mount, path);
        cgroup_available(s, dir, v2);
        char *cut = strrchr(path, '/');
        if (!cut)
            return;
        *cut = '\0';
    }
}

static void cgroups_available(const struct search *s)
{
    char groups[8192], line[2 * PATH_MAX], path[PATH_MAX], top[PATH_MAX], mount[PATH_MAX], name[2 * PATH_MAX];

    if (read_text(s->root, "/proc/self/cgroup", "", groups, sizeof groups) <= 0)
        return;
    snprintf(name, sizeof name, "%s/proc/self/mountinfo", s->root);
    FILE *mounts = fopen(name, "re");
    if (!mounts)
        return;
    while (fgets(line, sizeof line, mounts)) {
        const char *tail = strstr(line, " - ");
        if (!tail || sscanf(line, "%*s %*s %*s %4095s %4095s", top, mount) != 2)
            continue;
        bool v2 = strncmp(tail, " - cgroup2 ", 11) == 0;
        bool v1 = strncmp(tail, " - cgroup ", 10) == 0 && strstr(tail, "memory");
        if ((v1 || v2) && own_path(groups, v2, path, sizeof path))
            hierarchy_available(s, mount, top, path, v2);
    }
    fclose(mounts);
}

static void machine_available(const struct search *s)
{
    char text[4096];
    if (read_text(s->root, "/proc/meminfo", "", text, sizeof text) <= 0)
        return;
    uint64_t kib = field(text, "MemAvailable:"), total = field(text, "MemTotal:");
    if (kib == UINT64_MAX)
        return;
    narrow(s->best, less(kib * 1024, MARGIN), total == UINT64_MAX ? 0 : total * 1024, SR_LIMIT_MEMORY, "/proc",
           "meminfo");
}

uint64_t sr_memory_available(int fd, const char *root, int *limit, sr_cgroup_locks *locks)
{
    struct statfs fs;
    sr_memory_info best = {.free = UINT64_MAX};

    if (locks)
        locks->n = 0;
    /* A memfd lies on a mount without a size, which reports no blocks at all. */
    if (fd >= 0 && fstatfs(fd, &fs) == 0 && fs.f_blocks > 0)
        narrow(&best, (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize, 0, SR_LIMIT_FILESYSTEM, "", "");
    cgroups_available(&(struct search){.root = root, .best = &best, .locks = locks});
    machine_available(&(struct search){.root = root, .best = &best});
    if (limit)
        *limit = best.limit;
    return best.free;
}

int sr_process_memory_available(const char *root, sr_memory_info *out)
{
    struct search search = {.root = root, .best = out};

    *out = (sr_memory_info){.free = UINT64_MAX};
    cgroups_available(&search);
    machine_available(&search);
    return 0;
}

/* Set after a lock was not free in time, because its holder is stopped or another program keeps it. Until this process
 * gets all locks again, it tries without waiting, so that it loses the time once and not with each growth. */
static _Atomic uint32_t in_vain;

#define MOST_WAIT_NS UINT64_C(60000000000) /* other programs' shared memory may grow for ever */

/* Return how much shared memory the processes of a group and of those below it have; 0 if the kernel does not say. */
static uint64_t shared_memory(int group)
{
    char dir[32], stat[8192];
    snprintf(dir, sizeof dir, "/proc/self/fd/%d", group);
    if (read_text("", dir, "memory.stat", stat, sizeof stat) <= 0)
        return 0;
    uint64_t v1 = field(stat, "total_shmem "), v2 = field(stat, "shmem ");
    return v1 != UINT64_MAX ? v1 : v2 != UINT64_MAX ? v2 : 0;
}

/* flock has no deadline, and the kernel reports no event when a lock is released. So try at growing intervals. While
 * the group's shared memory grows, its holder is only slow, and another commit before it has its memory could exceed
 * the limit. */
static bool lock_directory(int fd, uint64_t patience)
{
    struct timespec pause = {.tv_nsec = 50000};
    uint64_t began = sr_now(), deadline = began + patience, had = 0;
    for (bool first = true; flock(fd, LOCK_EX | LOCK_NB) != 0; first = false) {
        if (errno != EWOULDBLOCK)
            return true; /* no process can lock it */
        if (first && patience)
            had = shared_memory(fd);
        uint64_t now = sr_now();
        if (now >= deadline) {
            uint64_t has = patience && now - began < MOST_WAIT_NS ? shared_memory(fd) : 0;
            if (has <= had)
                return false;
            had = has;
            deadline = now + patience;
        }
        nanosleep(&pause, NULL); /* a signal ends it early, which costs one attempt */
        if (pause.tv_nsec < 2000000)
            pause.tv_nsec *= 2;
    }
    return true;
}

void sr_lock_cgroups(const sr_cgroup_locks *locks, uint64_t patience)
{
    bool all = true;
    if (locks->n == 0)
        return;
    if (atomic_load_explicit(&in_vain, memory_order_relaxed))
        patience = 0;
    for (uint32_t i = 0; i < locks->n; i++)
        all = lock_directory(locks->dirs[i].fd, patience) && all;
    atomic_store_explicit(&in_vain, !all, memory_order_relaxed);
}

void sr_unlock_cgroups(sr_cgroup_locks *locks)
{
    while (locks->n > 0) {
        int fd = sr_file_fd(&locks->dirs[--locks->n]);
        if (fd < 0) /* closed: another file may have its number */
            continue;
        /* close() would leave the lock to a child that was forked meanwhile. */
        (void)flock(fd, LOCK_UN);
        close(fd);
    }
}

uint64_t sr_address_space(void)
{
    /* The first thread's stack lies at the end of the address space, under all settings of the kernel. */
    uint64_t near_end = getauxval(AT_RANDOM);
    return near_end ? UINT64_C(1) << (64 - __builtin_clzll(near_end)) : UINT64_C(1) << 47;
}

uint64_t sr_mapped_bytes(void)
{
    char text[256];
    if (read_text("", "/proc/self/statm", "", text, sizeof text) <= 0)
        return 0;
    return strtoull(text, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}
