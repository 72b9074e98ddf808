/* limits.c - how much memory may still be committed.
 *
 * fallocate on a tmpfs does not fail in a memory cgroup that is full: the kernel kills. So the ring asks
 * before it commits. Looked at: the file system's free space, every memory cgroup from this process's up to
 * the root (v2 and v1), and MemAvailable.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "handle.h"

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

static uint64_t cgroup_room(const char *root, const char *dir, bool v2)
{
    char stat[8192];
    uint64_t limit = number(root, dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t usage = number(root, dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (limit == UINT64_MAX || usage == UINT64_MAX || limit >= UINT64_C(1) << 62)
        return UINT64_MAX;
    /* File pages that the kernel can drop do not count. */
    if (read_text(root, dir, "memory.stat", stat, sizeof stat) > 0) {
        uint64_t file = field(stat, v2 ? "inactive_file " : "total_inactive_file ");
        if (file != UINT64_MAX)
            usage = usage > file ? usage - file : 0;
    }
    uint64_t used = usage + MARGIN;
    return limit > used ? limit - used : 0;
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
static uint64_t hierarchy_room(const char *root, const char *mount, const char *top, char *path, bool v2)
{
    char dir[2 * PATH_MAX];
    size_t skip = strlen(top);
    uint64_t room = UINT64_MAX;

    /* In a container the path may be the host's, while only the container's own group is mounted. */
    if (skip > 1 && strncmp(path, top, skip) == 0 && (path[skip] == '/' || path[skip] == '\0'))
        memmove(path, path + skip, strlen(path + skip) + 1);
    for (;;) {
        size_t n = strlen(path);
        while (n > 0 && path[n - 1] == '/')
            path[--n] = '\0';
        snprintf(dir, sizeof dir, "%s%s", mount, path);
        uint64_t here = cgroup_room(root, dir, v2);
        if (here < room)
            room = here;
        char *cut = strrchr(path, '/');
        if (!cut)
            return room;
        *cut = '\0';
    }
}

static uint64_t cgroups_room(const char *root)
{
    char groups[8192], line[2 * PATH_MAX], path[PATH_MAX], top[PATH_MAX], mount[PATH_MAX], name[2 * PATH_MAX];
    uint64_t room = UINT64_MAX;

    if (read_text(root, "/proc/self/cgroup", "", groups, sizeof groups) <= 0)
        return room;
    snprintf(name, sizeof name, "%s/proc/self/mountinfo", root);
    FILE *mounts = fopen(name, "re");
    if (!mounts)
        return room;
    while (fgets(line, sizeof line, mounts)) {
        const char *tail = strstr(line, " - ");
        if (!tail || sscanf(line, "%*s %*s %*s %4095s %4095s", top, mount) != 2)
            continue;
        bool v2 = strncmp(tail, " - cgroup2 ", 11) == 0;
        bool v1 = strncmp(tail, " - cgroup ", 10) == 0 && strstr(tail, "memory");
        if ((v1 || v2) && own_path(groups, v2, path, sizeof path)) {
            uint64_t here = hierarchy_room(root, mount, top, path, v2);
            if (here < room)
                room = here;
        }
    }
    fclose(mounts);
    return room;
}

static uint64_t machine_room(const char *root)
{
    char text[4096];
    if (read_text(root, "/proc/meminfo", "", text, sizeof text) <= 0)
        return UINT64_MAX;
    uint64_t kib = field(text, "MemAvailable:");
    if (kib == UINT64_MAX)
        return UINT64_MAX;
    return kib * 1024 > MARGIN ? kib * 1024 - MARGIN : 0;
}

static void narrow(uint64_t *room, int *limit, uint64_t other, int kind)
{
    if (other < *room) {
        *room = other;
        if (limit)
            *limit = kind;
    }
}

uint64_t sr_headroom(int fd, const char *root, int *limit)
{
    struct statfs fs;
    uint64_t room = UINT64_MAX;

    if (limit)
        *limit = SR_LIMIT_NONE;
    /* A memfd lives on a mount without a size: it reports no blocks at all. */
    if (fd >= 0 && fstatfs(fd, &fs) == 0 && fs.f_blocks > 0)
        narrow(&room, limit, (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize, SR_LIMIT_FILESYSTEM);
    narrow(&room, limit, cgroups_room(root), SR_LIMIT_CGROUP);
    narrow(&room, limit, machine_room(root), SR_LIMIT_MEMORY);
    return room;
}
