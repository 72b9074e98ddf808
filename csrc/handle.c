/* handle.c - query a handle: its descriptors, addresses and sizes. */
#include "internal.h"

int sr_fd(const sr_ring *ring) { return sr_file_fd(&ring->file); }

int sr_record_fd(const sr_ring *ring) { return ring->record.fd < 0 ? -ENOENT : sr_file_fd(&ring->record); }

int sr_describe(const sr_ring *ring, sr_info *info)
{
    *info = ring->info;
    info->copies = sr_load_relaxed(&ring->header->copies);
    for (uint32_t i = 0; i < SR_READ_COUNTS; i++)
        info->reads[i] = sr_load_relaxed(&ring->header->reads[i]);
    return 0;
}

sr_slot *sr_slot_at(const sr_ring *ring, uint32_t slot) { return sr_slot_checked(ring, slot); }

const sr_task *sr_task_of(const sr_ring *ring, uint32_t slot)
{
    return slot < ring->n_slots ? &ring->slots[slot].task : NULL;
}

const sr_result *sr_result_of(const sr_ring *ring, uint32_t slot, uint32_t range)
{
    if (slot >= ring->n_slots || (range != SR_WHOLE && range >= SR_MAX_RANGES))
        return NULL;
    return range == SR_WHOLE ? &ring->slots[slot].result : &ring->slots[slot].ranges[range].result;
}

uint64_t sr_slot_committed(const sr_ring *ring, uint32_t slot)
{
    return slot < ring->n_slots ? sr_load_acquire(&ring->slots[slot].committed) : 0;
}

char *sr_task_area(const sr_ring *ring, uint32_t slot)
{
    return slot < ring->n_slots ? ring->base + ring->data_off + slot * ring->stride : NULL;
}

char *sr_payload(const sr_ring *ring, uint32_t slot)
{
    char *task = sr_task_area(ring, slot);
    return task ? task + ring->task_capacity : NULL;
}

uint64_t sr_committed(const sr_ring *ring)
{
    uint64_t sum = ring->data_off;
    for (uint32_t i = 0; i < ring->n_slots; i++)
        sum += sr_load_relaxed(&ring->slots[i].committed) + sr_load_relaxed(&ring->slots[i].task_committed);
    return sum;
}
