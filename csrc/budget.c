/* budget.c - the bytes that a segment may take: its part of the budget of all loaders of a pool.
 *
 * The process that divides the budget is the only one that writes the segment's part. Before it gives bytes to another
 * segment, it lowers this part and then reads how much is in use.
 */
#include "internal.h"

void sr_usage_of(const sr_ring *ring, sr_usage *out)
{
    *out = (sr_usage){.fixed = ring->data_off + ring->n_slots * SR_PAYLOAD_COMMIT};
    /* Announcements first: a participant raises its mark before it ends its announcement. */
    for (uint32_t i = 0; i < ring->n_participants; i++)
        out->used += (uint64_t)sr_pages_of(sr_load_ordered(&ring->participants[i].growing)) * SR_PAGE; /* [B2] */
    out->used += ring->data_off;
    for (uint32_t i = 0; i < ring->n_slots; i++) {
        uint64_t payload = sr_load_relaxed(&ring->slots[i].committed);
        uint64_t task = sr_load_relaxed(&ring->slots[i].task_committed);
        out->used += payload + task;
        out->fixed += task;
        out->largest = payload > out->largest ? payload : out->largest;
    }
}

uint64_t sr_budget(const sr_ring *ring) { return sr_load_relaxed(&ring->header->budget); }

void sr_set_budget(sr_ring *ring, uint32_t participant, uint64_t bytes, sr_usage *out)
{
    sr_store_ordered(&ring->header->budget, bytes); /* [B2] partner: [B1] */
    do
        sr_usage_of(ring, out);
    while (out->used > bytes && sr_trim_free(ring, participant));
}

int sr_fillable(const sr_ring *ring, int enough)
{
    uint64_t bytes = sr_budget(ring);
    if (bytes == 0)
        return sr_circulating(ring, enough);
    sr_usage usage;
    sr_usage_of(ring, &usage);
    int n = sr_circulating(ring, (int)ring->n_slots);
    if (usage.largest <= SR_PAYLOAD_COMMIT)
        return n;
    uint64_t fits = bytes > usage.fixed ? (bytes - usage.fixed) / (usage.largest - SR_PAYLOAD_COMMIT) : 0;
    if (fits < ring->n_slots)
        n -= (int)(ring->n_slots - fits);
    return n > 0 ? n : 0;
}
