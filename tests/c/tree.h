/* tree.h - fake /proc and /sys trees, for tests of limits. */
#ifndef SLIPRING_TREE_H
#define SLIPRING_TREE_H

#include <ftw.h>
#include <sys/stat.h>

#include "fixture.h"

#define GIB (UINT64_C(1) << 30)
#define MOUNT_V2 "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"

static char root[64];

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

static inline void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    CHECK(f != NULL);
    fputs(text, f);
    fclose(f);
}

static inline void put_number(const char *dir, const char *name, uint64_t value)
{
    char path[256], text[32];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    snprintf(text, sizeof text, "%" PRIu64 "\n", value);
    put(path, text);
}

static inline void clean(void) { nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

/* A machine with 8 GiB available and without groups. */
static inline void machine(void)
{
    strcpy(root, "/tmp/slipring-test-XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    atexit(clean);
    put("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n");
}

static inline void groups(const char *cgroup, const char *mountinfo)
{
    put("/proc/self/cgroup", cgroup);
    put("/proc/self/mountinfo", mountinfo);
}

static inline void group(const char *dir, bool v2, uint64_t limit, uint64_t used)
{
    if (limit == UINT64_MAX && v2) {
        char path[256];
        snprintf(path, sizeof path, "%s/memory.max", dir);
        put(path, "max\n");
    } else {
        put_number(dir, v2 ? "memory.max" : "memory.limit_in_bytes", limit);
    }
    put_number(dir, v2 ? "memory.current" : "memory.usage_in_bytes", used);
}

#endif
