/* A small file system, where memory runs out soon. */
#ifndef SMALL_H
#define SMALL_H

#include <sys/mount.h>

#include "fixture.h"

static char mounted[64];

static void unmount(void)
{
    umount2(mounted, MNT_DETACH);
    rmdir(mounted);
}

static void mount_small(const char *size)
{
    char options[32];
    strcpy(mounted, "/tmp/slipring-test-XXXXXX");
    CHECK(mkdtemp(mounted) != NULL);
    snprintf(options, sizeof options, "size=%s", size);
    if (mount("slipring-test", mounted, "tmpfs", 0, options) != 0) {
        rmdir(mounted);
        SKIP("mounting a tmpfs is not allowed here");
    }
    atexit(unmount);
    at_failure = unmount;
}

static inline sr_ring *small_ring(uint32_t n_participants)
{
    mount_small("8m");
    sr_ring *ring = NULL;
    sr_options o = {.n_slots = 4, .n_participants = n_participants, .backing = SR_BACKING_DIR, .dir = mounted,
                    .capacity = 64 * MIB, .task_capacity = 64 * KIB};
    CHECK(sr_create(&o, &ring, NULL) == 0);
    return ring;
}

#endif
