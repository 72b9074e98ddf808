/* limits.c - how much memory may still be committed.
 *
 * fallocate on a tmpfs does not fail in a memory cgroup that is full: the kernel kills. So the ring asks
 * before it commits. Looked at: the file system's free space, every memory cgroup from this process's up to
 * the root (v2 and v1), and MemAvailable.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "system.h"

/* Left to everything else that allocates between our look and the kernel's accounting. */
#define MARGIN (UINT64_C(16) << 20)

/* Reads a small file; returns its length or -errno. */
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

/* The number behind `key` at a line's start; UINT64_MAX if there is none. */
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

/* A file that holds one number, or "max". */
static uint64_t number(const char *root, const char *dir, const char *name)
{
    char text[64];
    if (read_text(root, dir, name, text, sizeof text) <= 0 || text[0] < '0' || text[0] > '9')
        return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

/* What is looked for: the narrowest limit. */
struct search {
    const char *root;
    sr_room *best;
};

static void narrow(sr_room *best, uint64_t free, uint64_t size, int limit, const char *dir, const char *name)
{
    if (free >= best->free)
        return;
    best->free = free;
    best->size = size;
    best->limit = limit;
    int n = snprintf(best->file, sizeof best->file, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof best->file)
        best->file[0] = '\0'; /* half a name would be none */
}

static uint64_t less(uint64_t from, uint64_t by) { return from > by ? from - by : 0; }

/* What the kernel drops of a group's usage before it kills: file pages (used lately or not, to be written back or
 * not; those of a tmpfs are none of them), and caches of names and inodes, which it gives up page by page if
 * at all. A part stays: code that runs lies in file pages too, and the kernel wants some to choose from. */
static uint64_t droppable(const char *stat, bool v2)
{
    uint64_t inactive = field(stat, v2 ? "inactive_file " : "total_inactive_file ");
    uint64_t active = field(stat, v2 ? "active_file " : "total_active_file ");
    uint64_t names = v2 ? field(stat, "slab_reclaimable ") : UINT64_MAX; /* v1 does not tell */
    uint64_t pages = (inactive == UINT64_MAX ? 0 : inactive) + (active == UINT64_MAX ? 0 : active);
    return pages - pages / 16 + (names == UINT64_MAX ? 0 : names / 2);
}

static void cgroup_room(const struct search *s, const char *dir, bool v2)
{
    char stat[8192];
    const char *name = v2 ? "memory.max" : "memory.limit_in_bytes";
    uint64_t limit = number(s->root, dir, name);
    uint64_t usage = number(s->root, dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (limit == UINT64_MAX || usage == UINT64_MAX || limit >= UINT64_C(1) << 62)
        return;
    if (read_text(s->root, dir, "memory.stat", stat, sizeof stat) > 0)
        usage = less(usage, droppable(stat, v2));
    narrow(s->best, less(limit, usage + MARGIN), limit, SR_LIMIT_CGROUP, dir, name);
}

/* Whether a list of controllers, as "cpu,memory", has the one that counts. */
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

/* This process's memory cgroup below the mount, from /proc/self/cgroup. */
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

/* The narrowest of one hierarchy: `mount` is where it is mounted, `top` which of its groups is seen there. */
static void hierarchy_room(const struct search *s, const char *mount, const char *top, char *path, bool v2)
{
    char dir[2 * PATH_MAX];
    size_t skip = strlen(top);

    /* In a container the path may be the host's, while only the container's own group is mounted. */
    if (skip > 1 && strncmp(path, top, skip) == 0 && (path[skip] == '/' || path[skip] == '\0'))
        memmove(path, path + skip, strlen(path + skip) + 1);
    for (;;) {
        size_t n = strlen(path);
        while (n > 0 && path[n - 1] == '/')
            path[--n] = '\0';
        snprintf(dir, sizeof dir, "%s%s", mount, path);
        cgroup_room(s, dir, v2);
        char *cut = strrchr(path, '/');
        if (!cut)
            return;
        *cut = '\0';
    }
}

static void cgroups_room(const struct search *s)
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
            hierarchy_room(s, mount, top, path, v2);
    }
    fclose(mounts);
}

static void machine_room(const struct search *s)
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

uint64_t sr_headroom(int fd, const char *root, int *limit)
{
    struct statfs fs;
    sr_room best = {.free = UINT64_MAX};

    /* A memfd lives on a mount without a size: it reports no blocks at all. */
    if (fd >= 0 && fstatfs(fd, &fs) == 0 && fs.f_blocks > 0)
        narrow(&best, (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize, 0, SR_LIMIT_FILESYSTEM, "", "");
    cgroups_room(&(struct search){.root = root, .best = &best});
    machine_room(&(struct search){.root = root, .best = &best});
    if (limit)
        *limit = best.limit;
    return best.free;
}

int sr_room_left(const char *root, sr_room *out)
{
    struct search search = {.root = root, .best = out};

    *out = (sr_room){.free = UINT64_MAX};
    cgroups_room(&search);
    machine_room(&search);
    return 0;
}

uint64_t sr_address_space(void)
{
    /* The first thread's stack lies at its end, under any kernel's settings. */
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
