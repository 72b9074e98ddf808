/* watch_handle.h - an observer's handle on a segment; for watch.c and the tests. */
#ifndef SLIPRING_WATCH_HANDLE_H
#define SLIPRING_WATCH_HANDLE_H

#include "watch.h"

struct sr_watch {
    char *base;
    size_t length;
    bool copied;
    const sr_header *header;
    const sr_participant *participants;
    const sr_slot *slots;
    const sr_totals *totals;
    const sr_record *records;
    uint32_t n_slots, n_participants, n_readers;
    uint64_t n_records;
};

#endif
