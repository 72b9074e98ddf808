/* watch.c - observe a segment from any process.
 *
 * The segment is trusted no more than a file: it may have another version, be truncated, or be overwritten by a faulty
 * program. This code never writes to it, and never uses a word of it as an address or a bound without a check.
 */
#define _GNU_SOURCE
#include "watch_handle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "atomics.h"

/* Return the state in a slot's state word, as in internal.h. */
static unsigned state_of(uint64_t word) { return (unsigned)(word & SR_STATE_MASK); }

/* ---- open -------------------------------------------------------------------------------------------------------- */

static uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

static int check_header(const sr_header *h, uint64_t file_bytes, uint32_t *version)
{
    if (h->magic != SR_MAGIC)
        return -EPROTO;
    *version = h->version;
    if (h->version != SR_VERSION)
        return -EPROTONOSUPPORT;
    if (h->n_slots == 0 || h->n_slots > SR_MAX_SLOTS || h->n_participants < 2 ||
        h->n_participants > SR_MAX_PARTICIPANTS || h->n_readers > SR_MAX_READERS || h->n_readers >= h->n_participants)
        return -EPROTO;
    if (h->records_off == 0)
        return -ENOLINK; /* everything except the slots is in the record file */
    /* All offsets follow from the counts, so no sum overflows and everything is aligned. */
    uint64_t slots = round_up(SR_PAGE + h->n_participants * sizeof(sr_participant), SR_PAGE);
    uint64_t records = round_up(slots + h->n_slots * sizeof(sr_slot), SR_PAGE);
    uint64_t end = round_up(records + sizeof(sr_totals) + SR_RECORDS * sizeof(sr_record), SR_PAGE);
    bool sound = h->participants_off == SR_PAGE && h->slots_off == slots && h->records_off == records &&
                 h->n_records == SR_RECORDS && h->data_off == end && end <= file_bytes;
    return sound ? 0 : -EPROTO;
}

static int read_all(int fd, char *to, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = pread(fd, to + done, length - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EPROTO;
        done += (size_t)n;
    }
    return 0;
}

int sr_watch_open(int fd, bool copy, sr_watch **out, uint32_t *version)
{
    sr_header h;
    struct stat st;
    *version = 0;
    if (fstat(fd, &st) != 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EPROTO;
    int rc = read_all(fd, (char *)&h, sizeof h);
    if (rc == 0)
        rc = check_header(&h, (uint64_t)st.st_size, version);
    if (rc != 0)
        return rc;
    sr_watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return -ENOMEM;
    watch->length = h.data_off;
    watch->copied = copy;
    watch->base = copy ? malloc(watch->length) : mmap(NULL, watch->length, PROT_READ, MAP_SHARED, fd, 0);
    if (watch->base == (copy ? NULL : MAP_FAILED)) {
        rc = copy ? -ENOMEM : -errno;
        free(watch);
        return rc;
    }
    rc = copy ? read_all(fd, watch->base, watch->length) : 0;
    if (rc != 0) {
        sr_watch_close(watch);
        return rc;
    }
    watch->header = (const sr_header *)watch->base;
    watch->participants = (const sr_participant *)(watch->base + h.participants_off);
    watch->slots = (const sr_slot *)(watch->base + h.slots_off);
    watch->totals = (const sr_totals *)(watch->base + h.records_off);
    watch->records = (const sr_record *)(watch->totals + 1);
    watch->n_slots = h.n_slots;
    watch->n_participants = h.n_participants;
    watch->n_readers = h.n_readers;
    watch->n_records = h.n_records;
    *out = watch;
    return 0;
}

void sr_watch_close(sr_watch *watch)
{
    if (!watch)
        return;
    if (watch->copied)
        free(watch->base);
    else
        (void)munmap(watch->base, watch->length);
    free(watch);
}

void sr_watch_segment(const sr_watch *watch, sr_segment_info *out)
{
    const sr_header *h = watch->header;
    uint32_t used = sr_load_relaxed(&h->high_water);
    *out = (sr_segment_info){
        .iteration = sr_load_relaxed(&h->iteration),
        .recorded = sr_load_acquire(&h->recorded),
        .folded = sr_load_acquire(&watch->totals->folded),
        .loop_steps = sr_load_relaxed(&h->loop_steps),
        .loop_wait_ns = sr_load_relaxed(&h->loop_wait_ns),
        .loop_ns = sr_load_relaxed(&h->loop_ns),
        .capacity = h->capacity,
        .task_capacity = h->task_capacity,
        .total = h->total,
        .data_off = h->data_off,
        .stride = h->stride,
        .pid_namespace = h->pid_namespace,
        .budget = sr_load_relaxed(&h->budget),
        .n_slots = watch->n_slots,
        .n_participants = watch->n_participants,
        .flags = h->flags,
        .closed = sr_load_relaxed(&h->closed),
        .high_water = used < watch->n_slots ? used : watch->n_slots,
        .ready_waiters = sr_load_relaxed(&h->ready_waiters),
        .n_readers = watch->n_readers,
        .share_waiters = sr_load_relaxed(&h->share_waiters),
        .shared = sr_load_relaxed(&h->shared),
    };
    for (uint32_t i = 0; i < SR_READ_COUNTS; i++)
        out->reads[i] = sr_load_relaxed(&h->reads[i]);
    memcpy(out->label, h->label, SR_LABEL);
    out->label[SR_LABEL - 1] = 0;
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

bool sr_read_record(const sr_record *r, sr_record_view *out)
{
    /* Only for loads; an atomic load of C11 accepts no pointer to const. */
    _Atomic uint64_t *words = &((sr_record *)(uintptr_t)r)->number;
    uint64_t number = sr_load_acquire(&words[0]); /* [J6] partner: [J5] */
    if (number == 0 || (number & SR_RECORD_TORN))
        return false;
    uint64_t *to = (uint64_t *)out;
    for (uint32_t i = 1; i < SR_RECORD_WORDS; i++)
        to[i] = sr_load_acquire(&words[i]); /* [J4] */
    out->number = number;
    return sr_load_relaxed(&words[0]) == number; /* [J3] */
}

uint32_t sr_watch_records(const sr_watch *watch, uint64_t from, sr_record_view *out, uint32_t room)
{
    uint64_t head = sr_load_acquire(&watch->header->recorded);
    uint32_t n = 0;
    if (from == 0)
        from = 1;
    if (head >= watch->n_records && from <= head - watch->n_records)
        from = head - watch->n_records + 1;
    uint64_t count = from <= head ? head - from + 1 : 0; /* bounded even if `recorded` is damaged */
    for (uint64_t number = from; count-- > 0 && n < room; number++)
        if (sr_read_record(&watch->records[(number - 1) % watch->n_records], &out[n]) && out[n].number == number)
            n++;
    return n;
}

uint32_t sr_watch_slowest(const sr_watch *watch, bool samples, sr_record_view *out)
{
    const sr_record *kept = samples ? watch->totals->slowest_samples : watch->totals->slowest;
    uint32_t n = 0;
    for (uint32_t i = 0; i < SR_SLOWEST; i++)
        n += sr_read_record(&kept[i], &out[n]);
    return n;
}

void sr_watch_totals(const sr_watch *watch, uint64_t *out)
{
    const sr_totals *t = watch->totals;
    const _Atomic uint64_t *first[] = {&t->batches, &t->bytes,     &t->rows,      &t->errors,     &t->folded,
                                       NULL,        &t->read_ns,   &t->decode_ns, &t->resize_ns,  &t->augment_ns,
                                       &t->user_ns, &t->hits,      &t->misses};
    for (uint32_t i = 0; i < sizeof first / sizeof *first; i++)
        *out++ = first[i] ? sr_load_relaxed(first[i]) : 0;
    for (uint32_t stage = 0; stage < SR_STAGES; stage++) {
        *out++ = sr_load_relaxed(&t->stages[stage].sum);
        *out++ = sr_load_relaxed(&t->stages[stage].most);
        for (uint32_t i = 0; i < SR_BUCKETS; i++)
            *out++ = sr_load_relaxed(&t->stages[stage].counts[i]);
    }
}

/* ---- slots and participants -------------------------------------------------------------------------------------- */

/* Task and result are plain words that their owner writes. A copy of them is valid only if no participant wrote to them
 * meanwhile, which the second checks below detect. So each word is read before those checks. */
#define PLAIN(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
__attribute__((no_sanitize("thread"))) static void copy_plain(const sr_slot *s, sr_slot_view *out)
{
    out->task_bytes = PLAIN(s->task.bytes);
    out->rows = PLAIN(s->task.rows);
    out->task_kind = PLAIN(s->task.kind);
    out->n_ranges = PLAIN(s->task.n_ranges);
    out->kind = PLAIN(s->result.kind);
    out->seen.epoch = PLAIN(s->task.epoch);
    out->seen.bytes = PLAIN(s->result.bytes);
}

/* Clear the results of an unfinished batch, which its owner may be about to write. */
static void forget_result(sr_slot_view *out)
{
    out->kind = 0;
    out->seen.bytes = 0;
    out->seen.times[SR_T_PUBLISHED] = out->seen.times[SR_T_TAKEN] = 0;
}

/* Every load here is an acquire, so the second checks come after it and see everything that was stored before its
 * value. */
int sr_watch_slot(const sr_watch *watch, uint32_t slot, sr_slot_view *out)
{
    if (slot >= watch->n_slots)
        return -EINVAL;
    sr_slot *s = (sr_slot *)(uintptr_t)&watch->slots[slot]; /* only for loads, as above */
    uint64_t word = sr_load_acquire(&s->state), owner = (word & SR_OWNER_MASK) >> SR_OWNER_SHIFT;
    unsigned state = state_of(word);
    bool queue_mode = watch->header->flags & SR_SEG_QUEUE;
    if (state > SR_BROADCAST)
        return -EPROTO;
    memset(out, 0, sizeof *out);
    out->state = word;
    copy_plain(s, out);
    out->committed = sr_load_acquire(&s->committed);
    out->skipped = sr_load_acquire(&s->skipped);
    out->seen.iteration = sr_load_acquire(&s->iteration);
    out->seen.seq = sr_load_acquire(&s->seq);
    out->seen.freed_at = sr_load_acquire(&s->freed_at);
    for (uint32_t i = 0; state == SR_SHARED && i < out->n_ranges && i < SR_MAX_RANGES; i++)
        out->ranges_done += (sr_load_acquire(&s->ranges[i].word) & 3) == SR_RANGE_DONE;
    if (state == SR_BROADCAST)
        out->readers = (uint32_t)__builtin_popcountll(sr_load_acquire(&s->readers) & SR_READERS_MASK);
    uint64_t publisher = state == SR_CLAIMED && owner ? owner - 1 : sr_load_acquire(&s->pinned_by);
    _Atomic uint64_t *times = &s->times.dispatched_at;
    for (uint32_t i = 0; i < SR_TIMES; i++)
        out->seen.times[i] = sr_load_acquire(&times[i]); /* [J7] partner: the releases in sr_reset_slot */
    uint64_t claimed_at = sr_load_acquire(&s->times.claimed_at); /* [J7] the second check */
    if (sr_load_acquire(&s->state) != word)
        return -EAGAIN;
    /* A loader segment's slot is reset while it is FREE. Until a worker claims it again, there is nothing to report. */
    if (state == SR_FREE && claimed_at == 0)
        return -EAGAIN;
    /* A queue segment's slot is reset by the producer that has claimed it. Until the reset is complete, claimed_at is 0
     * or older than freed_at. */
    bool reclaimed = claimed_at > out->seen.freed_at && claimed_at == out->seen.times[SR_T_CLAIMED];
    if (state == SR_CLAIMED && queue_mode && !reclaimed)
        return -EAGAIN;
    if (state == SR_TASK || state == SR_CLAIMED || state == SR_SHARED)
        forget_result(out);
    if (out->seen.times[SR_T_TAKEN] == 0) /* they belong to an earlier batch */
        out->seen.times[SR_T_WAITED] = out->seen.times[SR_T_STEP] = 0;
    out->seen.publisher = publisher | (uint64_t)out->rows << 32;
    out->seen.slot_kind = slot | (uint64_t)out->kind << 32;
    return 0;
}

/* Return how many shared batches a reader has not taken. The words may be of different moments. */
static uint32_t lag(const sr_watch *watch, const sr_participant *p)
{
    uint64_t membership = sr_load_acquire(&p->membership);
    if (!(membership & 1) || sr_load_acquire(&p->admitted) != membership)
        return 0;
    uint64_t next = sr_load_relaxed(&p->first_shared), taken = sr_load_relaxed(&p->batches);
    uint64_t shared = sr_load_relaxed(&watch->header->shared);
    if (next < taken)
        next = taken;
    return shared <= next ? 0 : shared - next < watch->n_slots ? (uint32_t)(shared - next) : watch->n_slots;
}

int sr_watch_participant(const sr_watch *watch, uint32_t participant, sr_participant_view *out)
{
    if (participant >= watch->n_participants)
        return -EINVAL;
    const sr_participant *p = &watch->participants[participant];
    uint64_t at = sr_load_acquire(&p->at); /* [J2] partner: [J1] */
    *out = (sr_participant_view){
        .started = sr_load_relaxed(&p->started),
        .batches = sr_load_relaxed(&p->batches),
        .bytes = sr_load_relaxed(&p->bytes),
        .fetch_ns = sr_load_relaxed(&p->fetch_ns),
        .collate_ns = sr_load_relaxed(&p->collate_ns),
        .idle_ns = sr_load_relaxed(&p->idle_ns),
        .at_since = sr_load_relaxed(&p->at_since),
        .cpu_ns = sr_load_relaxed(&p->cpu_ns),
        .queued_ns = sr_load_relaxed(&p->queued_ns),
        .reported_ns = sr_load_relaxed(&p->reported_ns),
        .pid = sr_load_relaxed(&p->pid),
        .status = sr_load_relaxed(&p->status),
        .waiting = sr_load_relaxed(&p->waiting),
        .at_slot = (uint32_t)at ? (uint32_t)(at >> 32) : SR_MAX_SLOTS,
        .at_row = (uint32_t)at ? (uint32_t)at - 1 : 0,
        .needs_memory_for = sr_load_relaxed(&p->needs_memory_for),
        .retiring = sr_load_relaxed(&p->retiring),
        .lag = participant >= watch->n_participants - watch->n_readers ? lag(watch, p) : 0,
    };
    return 0;
}
