/* numa.c - place memory on a NUMA node, and find where it lies. The system calls are made directly, without libnuma. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

#define PREFERRED 1 /* MPOL_PREFERRED: another node if this one is full; it needs no capability */
#define NODES 1024  /* the most that Linux can have */
#define BITS (8 * sizeof(unsigned long))

int sr_prefer_node(char *base, uint64_t total, uint32_t node)
{
    unsigned long mask[NODES / BITS] = {0};
    if (node >= NODES)
        return -EINVAL;
    mask[node / BITS] = 1ul << node % BITS;
    /* The policy of a shared mapping belongs to the file: it holds for the fallocate of every process. */
    return syscall(SYS_mbind, base, total, PREFERRED, mask, (unsigned long)NODES + 1, 0) == 0 ? 0 : -errno;
}

int sr_slot_node(const sr_ring *ring, uint32_t slot)
{
    void *page = slot < ring->n_slots ? sr_payload(ring, slot) : NULL;
    int node = -EINVAL;
    /* Without target nodes, the call moves nothing: it reports the page's node. */
    if (page && syscall(SYS_move_pages, 0, 1ul, &page, NULL, &node, 0) != 0)
        node = -errno;
    return node;
}
