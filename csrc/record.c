/* record.c - durations: of one batch, in the flight recorder, and summed over all records.
 *
 * The times of a batch lie in its slot, where the participant that takes a step writes them. When the slot is reused,
 * they are copied to the flight recorder, a ring of records in the segment. That is a few words of a slot that its user
 * has in its caches anyway. Readers may be in any process (watch.c), and writers never wait: each record is a sequence
 * lock (H.-J. Boehm, Can seqlocks get along with programming language memory models?, MSPC 2012), with its number as
 * the sequence.
 */
#include "internal.h"

/* ---- durations of a batch ---------------------------------------------------------------------------------------- */

int sr_add_times(sr_ring *ring, uint32_t slot, uint64_t fetch_ns, uint64_t collate_ns, uint64_t skipped)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    sr_add_relaxed(&s->times.fetch_ns, fetch_ns);
    sr_add_relaxed(&s->times.collate_ns, collate_ns);
    sr_add_relaxed(&s->skipped, skipped);
    uint32_t copies = sr_load_relaxed(&ring->header->copies);
    if (copies)
        sr_copy_choose(copies);
    else
        sr_copy_report(ring->header);
    sr_store_relaxed(&s->times.fetched_at, sr_now() - collate_ns);
    return 0;
}

int sr_add_parts(sr_ring *ring, uint32_t slot, const sr_parts *parts)
{
    sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    sr_add_relaxed(&s->times.read_ns, parts->read_ns);
    sr_add_relaxed(&s->times.decode_ns, parts->decode_ns);
    sr_add_relaxed(&s->times.resize_ns, parts->resize_ns);
    sr_add_relaxed(&s->times.augment_ns, parts->augment_ns);
    sr_add_relaxed(&s->times.user_ns, parts->user_ns);
    sr_add_relaxed(&s->times.lookups, parts->hits | (uint64_t)parts->misses << 32);
    uint64_t most = sr_load_relaxed(&s->times.slowest_ns);
    while (most < parts->slowest_ns && !sr_cas_relaxed(&s->times.slowest_ns, &most, parts->slowest_ns)) {
    }
    if (most < parts->slowest_ns) /* two ranges may race here: either index will do */
        sr_store_relaxed(&s->times.slowest_index, (uint64_t)parts->slowest_index);
    return 0;
}

uint64_t sr_add_read(sr_ring *ring, enum sr_read_count outcome, uint64_t bytes, uint64_t ns)
{
    _Atomic uint64_t *reads = ring->header->reads;
    uint64_t before = sr_add_relaxed(&reads[SR_READS], 1);
    if (outcome == SR_READS) {
        sr_add_relaxed(&reads[SR_READ_BYTES], bytes);
        sr_add_relaxed(&reads[SR_READ_NS], ns);
        return before;
    }
    sr_add_relaxed(&reads[SR_READ_LOST_NS], ns);
    return sr_add_relaxed(&reads[outcome], 1);
}

void sr_set_row(sr_ring *ring, uint32_t participant, uint32_t slot, uint32_t row, uint64_t since)
{
    sr_participant *me = &ring->participants[participant];
    sr_store_relaxed(&me->at_since, since);
    /* [J1] partner: [J2] in watch.c */
    sr_store_release(&me->at, row == SR_WHOLE ? 0 : (uint64_t)slot << 32 | (row + 1));
}

void sr_record_take(sr_ring *ring, uint32_t slot, uint64_t waited_ns, uint64_t before, sr_stamps *out)
{
    sr_slot *s = &ring->slots[slot];
    uint64_t taken_at = sr_load_relaxed(&s->times.taken_at);
    sr_store_relaxed(&s->times.waited_ns, waited_ns);
    sr_store_relaxed(&s->times.step_ns, before ? taken_at - before - waited_ns : 0);
    out->published_at = sr_load_relaxed(&s->times.published_at);
    out->taken_at = taken_at;
    out->fetch_ns = sr_load_relaxed(&s->times.fetch_ns);
    out->collate_ns = sr_load_relaxed(&s->times.collate_ns);
    out->idle_ns = sr_load_relaxed(&s->times.idle_ns);
    out->skipped = sr_load_relaxed(&s->skipped);
}

void sr_set_copy_time(sr_ring *ring, uint32_t slot, uint64_t copy_ns)
{
    if (slot < ring->n_slots)
        sr_store_relaxed(&ring->slots[slot].times.copy_ns, copy_ns);
}

/* Add to a word that only this participant writes. */
static void raise_own(_Atomic uint64_t *word, uint64_t by) { sr_store_relaxed(word, sr_load_relaxed(word) + by); }

void sr_add_loop_step(sr_ring *ring, uint64_t wait_ns, uint64_t step_ns)
{
    raise_own(&ring->header->loop_steps, 1);
    raise_own(&ring->header->loop_wait_ns, wait_ns);
    raise_own(&ring->header->loop_ns, step_ns);
}

/* The CPU time and queued time that this thread has last reported, and when. Reading them is a system call. */
static __thread uint64_t cpu_reported, queued_reported, cpu_reported_at, cpu_report_ns;
#define CPU_FIRST_NS UINT64_C(20000000) /* the first interval; it doubles up to CPU_MOST_NS */
#define CPU_MOST_NS UINT64_C(320000000)

static bool is_thread(const sr_ring *ring, uint32_t participant)
{
    const sr_participant *all = ring->participants;
    return sr_load_relaxed(&all[participant].pid) == sr_load_relaxed(&all[SR_CONSUMER].pid);
}

void sr_reset_stats(sr_participant *me)
{
    sr_store_relaxed(&me->batches, 0);
    sr_store_relaxed(&me->bytes, 0);
    sr_store_relaxed(&me->fetch_ns, 0);
    sr_store_relaxed(&me->collate_ns, 0);
    sr_store_relaxed(&me->idle_ns, 0);
    sr_store_relaxed(&me->at, 0);
    sr_store_relaxed(&me->at_since, sr_now());
    sr_store_relaxed(&me->cpu_ns, 0);
    sr_store_relaxed(&me->queued_ns, 0);
    sr_store_relaxed(&me->reported_ns, 0);
}

void sr_start_cpu_clock(const sr_ring *ring, uint32_t participant)
{
    cpu_reported = sr_cpu_time(is_thread(ring, participant));
    queued_reported = sr_queued_time();
    cpu_reported_at = sr_now();
    cpu_report_ns = CPU_FIRST_NS;
}

void sr_count_cpu(const sr_ring *ring, uint32_t participant)
{
    if (!ring->records)
        return;
    sr_participant *me = &ring->participants[participant];
    uint64_t cpu = sr_cpu_time(is_thread(ring, participant));
    raise_own(&me->cpu_ns, cpu - cpu_reported);
    sr_store_relaxed(&me->reported_ns, sr_load_relaxed(&me->fetch_ns) + sr_load_relaxed(&me->collate_ns));
    cpu_reported = cpu;
}

static void report_cpu(const sr_ring *ring, uint32_t participant, uint64_t now)
{
    sr_participant *me = &ring->participants[participant];
    uint64_t queued = sr_queued_time();
    sr_count_cpu(ring, participant);
    /* `queued` is 0 if it cannot be read, as without a free descriptor. The next report then includes this interval. */
    if (queued > queued_reported) {
        raise_own(&me->queued_ns, queued - queued_reported);
        queued_reported = queued;
    }
    cpu_reported_at = now;
    if (cpu_report_ns < CPU_MOST_NS)
        cpu_report_ns *= 2;
}

void sr_record_publish(sr_ring *ring, uint32_t participant, sr_slot *s)
{
    if (!ring->records)
        return;
    sr_participant *me = &ring->participants[participant];
    raise_own(&me->batches, 1);
    raise_own(&me->bytes, s->result.bytes);
    raise_own(&me->fetch_ns, sr_load_relaxed(&s->times.fetch_ns));
    raise_own(&me->collate_ns, sr_load_relaxed(&s->times.collate_ns));
    raise_own(&me->idle_ns, sr_load_relaxed(&s->times.idle_ns));
    uint64_t now = sr_load_relaxed(&s->times.published_at);
    if (cpu_reported_at && now - cpu_reported_at >= cpu_report_ns)
        report_cpu(ring, participant, now);
}

int sr_stamps_of(const sr_ring *ring, uint32_t slot, sr_stamps *out)
{
    const sr_slot *s = sr_slot_checked(ring, slot);
    if (!s)
        return -EINVAL;
    *out = (sr_stamps){
        .dispatched_at = sr_load_relaxed(&s->times.dispatched_at),
        .claimed_at = sr_load_relaxed(&s->times.claimed_at),
        .fetched_at = sr_load_relaxed(&s->times.fetched_at),
        .published_at = sr_load_relaxed(&s->times.published_at),
        .taken_at = sr_load_relaxed(&s->times.taken_at),
        .fetch_ns = sr_load_relaxed(&s->times.fetch_ns),
        .collate_ns = sr_load_relaxed(&s->times.collate_ns),
        .idle_ns = sr_load_relaxed(&s->times.idle_ns),
        .skipped = sr_load_relaxed(&s->skipped),
    };
    return 0;
}

/* ---- the flight recorder ----------------------------------------------------------------------------------------- */

/* Begin a record; false if this participant must not write it. In queue mode, a writer that was stopped within a
 * record may resume after the others have written a full round of the ring. The record is left to it and the newer
 * one is lost: a torn number is above all others. A writer that was stopped before it began finds a newer number, and
 * leaves that record. */
static bool begin_record(sr_record *r, uint64_t number)
{
    uint64_t seen = sr_load_relaxed(&r->number);
    return seen < number && sr_cas(&r->number, seen, number | SR_RECORD_TORN); /* [J3] */
}

static void add(const sr_ring *ring, _Atomic uint64_t *word, uint64_t by)
{
    if (ring->flags & SR_SEG_QUEUE)
        sr_add_relaxed(word, by);
    else
        raise_own(word, by);
}

static uint32_t bucket_of(uint64_t ns)
{
    if (ns < 256)
        return 0;
    uint32_t octave = 63u - (uint32_t)__builtin_clzll(ns);
    uint32_t bucket = (octave - 8) * 8 + (uint32_t)(ns >> (octave - 3) & 7);
    return bucket < SR_BUCKETS ? bucket : SR_BUCKETS - 1;
}

static void count(sr_ring *ring, uint32_t stage, uint64_t ns)
{
    sr_stage_totals *t = &ring->totals->stages[stage];
    add(ring, &t->sum, ns);
    add(ring, &t->counts[bucket_of(ns)], 1);
    if (sr_load_relaxed(&t->most) < ns)
        sr_store_relaxed(&t->most, ns);
}

static uint64_t between(uint64_t from, uint64_t to) { return from && to > from ? to - from : 0; }

static uint64_t cost_of(const sr_record_view *seen, bool sample)
{
    const uint64_t *times = seen->times;
    return sample ? times[SR_T_SLOWEST] : times[SR_T_FETCH] + times[SR_T_COLLATE];
}

/* Replace the kept record with the least cost, if this one costs more. The next record must cost more than the bar. */
static void keep_slowest(sr_record *kept, _Atomic uint64_t *bar, const sr_record_view *seen, bool sample)
{
    uint64_t cost = cost_of(seen, sample), least = UINT64_MAX, next = UINT64_MAX;
    uint32_t least_at = 0;
    sr_record_view other;
    if (cost <= sr_load_relaxed(bar))
        return;
    for (uint32_t i = 0; i < SR_SLOWEST; i++) {
        uint64_t its = sr_read_record(&kept[i], &other) ? cost_of(&other, sample) : 0;
        if (its < least) {
            next = least;
            least = its;
            least_at = i;
        } else if (its < next) {
            next = its;
        }
    }
    sr_record *r = &kept[least_at];
    if (!begin_record(r, seen->number))
        return;
    _Atomic uint64_t *words = &r->number;
    for (uint32_t i = 1; i < SR_RECORD_WORDS; i++)
        sr_store_release(&words[i], ((const uint64_t *)seen)[i]); /* [J4] */
    sr_store_release(&r->number, seen->number);                   /* [J5] */
    sr_store_relaxed(bar, cost < next ? cost : next);
}

/* Add the last records to the totals, all at once: between two batches the totals are evicted from the caches. */
__attribute__((noinline)) static void fold(sr_ring *ring, uint64_t upto)
{
    sr_totals *t = ring->totals;
    sr_record_view seen;
    for (uint64_t number = upto - SR_FOLD + 1; number <= upto; number++) {
        if (!sr_read_record(&ring->records[(number - 1) % SR_RECORDS], &seen) || seen.number != number)
            continue; /* queue mode: unfinished, or replaced by a newer one */
        const uint64_t *times = seen.times;
        if (seen.slot_kind >> 32 != SR_BATCH) {
            add(ring, &t->errors, 1);
            continue;
        }
        add(ring, &t->batches, 1);
        add(ring, &t->bytes, seen.bytes);
        add(ring, &t->rows, seen.publisher >> 32);
        add(ring, &t->read_ns, times[SR_T_READ]);
        add(ring, &t->decode_ns, times[SR_T_DECODE]);
        add(ring, &t->resize_ns, times[SR_T_RESIZE]);
        add(ring, &t->augment_ns, times[SR_T_AUGMENT]);
        add(ring, &t->user_ns, times[SR_T_USER]);
        add(ring, &t->hits, (uint32_t)times[SR_T_LOOKUPS]);
        add(ring, &t->misses, times[SR_T_LOOKUPS] >> 32);
        if (times[SR_T_DISPATCHED])
            count(ring, SR_QUEUED, between(times[SR_T_DISPATCHED], times[SR_T_CLAIMED]));
        count(ring, SR_FETCHED, times[SR_T_FETCH]);
        count(ring, SR_COLLATED, times[SR_T_COLLATE]);
        if (!times[SR_T_TAKEN])
            continue; /* no consumer has taken it */
        count(ring, SR_BUFFERED, between(times[SR_T_PUBLISHED], times[SR_T_TAKEN]));
        count(ring, SR_WAITED, times[SR_T_WAITED]);
        count(ring, SR_LEASE, between(times[SR_T_TAKEN], seen.freed_at));
        if (times[SR_T_STEP])
            count(ring, SR_STEPPED, times[SR_T_STEP]);
        if (times[SR_T_COPY])
            count(ring, SR_COPIED, times[SR_T_COPY]);
        /* With several writers, each bar would need a lock. */
        if (!(ring->flags & SR_SEG_QUEUE)) {
            keep_slowest(t->slowest, &t->batch_bar, &seen, false);
            keep_slowest(t->slowest_samples, &t->sample_bar, &seen, true);
        }
    }
    sr_raise(&t->folded, upto); /* queue mode: another writer may have been faster */
}

void sr_save_record(sr_ring *ring, uint32_t slot)
{
    sr_slot *s = &ring->slots[slot];
    bool delivered = s->result.kind != SR_END && s->result.kind != SR_EMPTY;
    if (!ring->records || sr_load_relaxed(&s->times.published_at) == 0 || !delivered)
        return;
    bool queue_mode = ring->flags & SR_SEG_QUEUE;
    uint64_t number = queue_mode ? sr_add_relaxed(&ring->header->recorded, 1) + 1
                           : sr_load_relaxed(&ring->header->recorded) + 1;
    sr_record *r = &ring->records[(number - 1) % SR_RECORDS];
    /* The consumer is the only writer. A CAS would wait for its stores to cache lines that workers have. */
    if (!queue_mode) {
        sr_store_relaxed(&ring->header->recorded, number);
        sr_store_release(&r->number, number | SR_RECORD_TORN); /* [J3] */
    } else if (!begin_record(r, number)) {
        return;
    }
    /* [J4] Each store is a release: a reader that sees one of them also sees that the record is being written. */
    sr_store_release(&r->iteration, sr_load_relaxed(&s->iteration));
    sr_store_release(&r->seq, sr_load_relaxed(&s->seq));
    sr_store_release(&r->epoch, s->task.epoch);
    sr_store_release(&r->bytes, s->result.bytes);
    sr_store_release(&r->freed_at, sr_load_relaxed(&s->freed_at));
    sr_store_release(&r->publisher, sr_load_relaxed(&s->pinned_by) | (uint64_t)s->task.rows << 32);
    sr_store_release(&r->slot_kind, slot | (uint64_t)s->result.kind << 32);
    _Atomic uint64_t *to = sr_words_of(&r->times), *from = sr_words_of(&s->times);
#pragma GCC unroll 20 /* runs once per batch in the training process */
    for (uint32_t i = 0; i < SR_TIMES; i++)
        sr_store_release(&to[i], sr_load_relaxed(&from[i]));
    sr_store_release(&r->number, number); /* [J5] partner: [J6] */
    if (number % SR_FOLD == 0)
        fold(ring, number);
}
