/* race.c - plain accesses: only the owner that the words name may make them (ground rule 4), and all are ordered.
 *
 * Each object (a slot's plain fields and payload; a range's share of them) has a few events: its last write, and each
 * participant's last read. books.knows contains the events that happened before the participant's next access.
 * books.hands_on contains the events that a release has published in a state, layout or range word. Other words publish
 * nothing here. This is stricter than C11: docs/protocol.md promises that these words suffice.
 */
#include "model.h"

enum { PER_OBJECT = 1 + MAX_PARTICIPANTS, PER_SLOT = 1 + MAX_RANGES };
_Static_assert(PER_OBJECT * PER_SLOT * 3 <= 64, "one bit per event");

static uint64_t bit(uint32_t slot, uint32_t object, uint32_t event)
{
    return UINT64_C(1) << ((slot * PER_SLOT + object) * PER_OBJECT + event);
}
static uint64_t written(uint32_t slot, uint32_t object) { return bit(slot, object, 0); }
static uint64_t read_by(uint32_t slot, uint32_t object,
                        uint32_t participant) { return bit(slot, object, 1 + participant); }

static void forget(uint64_t bits)
{
    for (uint32_t p = 0; p < MAX_PARTICIPANTS; p++)
        books.knows[p] &= ~bits;
    uint64_t *words = &books.hands_on[0][0];
    for (uint32_t i = 0; i < sizeof books.hands_on / sizeof *words; i++)
        words[i] &= ~bits;
}

static void learn(uint64_t bits)
{
    for (uint32_t p = 0; p < MAX_PARTICIPANTS; p++)
        books.knows[p] |= bits;
}

/* The running participant's number in the segment that has the slot; the consumer of another segment has none there. */
static uint32_t number_in(const sr_slot *s)
{
    bool second = s != ring->slots, alone = plan->pooled && !plan->together;
    if (alone && (self == SR_CONSUMER || self == plan->workers))
        return second == (self == plan->workers) ? SR_CONSUMER : MAX_PARTICIPANTS;
    return self;
}

/* Whether the words allow this access to the participant. */
static bool may(const sr_slot *s, uint32_t object, bool write)
{
    uint64_t w = s->state, me = books.number[self] ? books.number[self] : number_in(s) + 1, gen = sr_gen_of(w);
    unsigned state = sr_state_of(w);
    uint32_t owner = (uint32_t)sr_owner_of(w);
    /* The participant that recovers a dead one acts for it. */
    bool mine = owner == me ||
    (owner && owner <= plan->workers + 1 && books.unreaped[owner - 1] && self == SR_CONSUMER);
    if (state == SR_CLAIMED && mine)
        return true;
    if (state == SR_LEASED && mine && !write)
        return true;
    if (state == SR_BROADCAST && !write && s->readers >> (self ? self + 1 - sr_first_reader(ring) : 0) & 1)
        return true;
    if (!write && (w & SR_PINNED) && s->pinned_by == self) /* worker code reads the array that it pinned */
        return true;
    if (state == SR_FREE && number_in(s) == SR_CONSUMER && !(plan->flags & SR_SEG_QUEUE))
        return true;
    /* Recovery frees the ranges of a dead finisher one by one, then the slot. Until then the slot's word stays. */
    bool undone = state == SR_CLAIMED && owner && books.unreaped[owner - 1];
    if (state != SR_SHARED && !undone)
        return false;
    if (object < MAX_RANGES)
        return s->ranges[object].word == sr_word(SR_RANGE_CLAIMED, me, gen);
    if (write)
        return s->layout == sr_word(SR_LAYOUT_PROPOSING, me, gen);
    for (uint32_t i = 0; i < plan->ranges; i++)
        if (s->ranges[i].word == sr_word(SR_RANGE_CLAIMED, me, gen))
            return true;
    return false;
}

static void in_order(uint32_t slot, uint32_t object, bool write)
{
    uint64_t *mine = &books.knows[self], others = 0;
    if (!plan->races)
        return;
    for (uint32_t p = 0; p < MAX_PARTICIPANTS; p++)
        others |= p == self ? 0 : read_by(slot, object, p);
    if (!(*mine & written(slot, object)))
        violated("data race: %s slot %u (part %u) without having acquired the last write",
                 write ? "writes to" : "reads",
                 slot, object);
    if (write && (*mine & others) != others)
        violated("data race: writes to slot %u (part %u) without having acquired the last reads", slot, object);
    if (write) {
        forget(written(slot, object));
        *mine |= written(slot, object);
        learn(others | read_by(slot, object, self));
    } else {
        forget(read_by(slot, object, self));
        *mine |= read_by(slot, object, self);
    }
}

void race_object(uint32_t slot, uint32_t object, bool write)
{
    const sr_slot *s = &ring->slots[slot];
    if (!may(s, object, write))
        violated("%s slot %u (part %u), whose state word is %#llx: it is not this participant's",
                 write ? "writes to" : "reads",
                 slot, object, (unsigned long long)s->state);
    in_order(slot, object, write);
}

/* A cache's entry is only written until its word is READY, and only read after that. */
static void race_entry(uint32_t entry, bool write)
{
    if (cache_is_ready(entry) == write)
        violated("%s entry %u, which is%s READY", write ? "writes to" : "reads", entry, write ? "" : " not");
    in_order(entry / PER_SLOT, entry % PER_SLOT, write);
}

static int slot_of(const void *address, size_t *within)
{
    size_t at = (size_t)((const char *)address - (const char *)ring->slots);
    if (at >= sizeof(sr_slot) * plan->slots)
        return -1;
    *within = at % sizeof(sr_slot);
    return (int)(at / sizeof(sr_slot));
}

void race_plain(const void *address, bool write)
{
    size_t at;
    int slot = slot_of(address, &at);
    if (plan->caches && cache_entry_at(address) >= 0)
        race_entry((uint32_t)cache_entry_at(address), write);
    if (slot < 0)
        return; /* task areas and payloads: the scenarios report their accesses themselves */
    if (at >= offsetof(sr_slot, task) && at < offsetof(sr_slot, cursor)) {
        /* Only the dispatcher writes a task's fields, so it may read them at any time. */
        bool dispatched = number_in(&ring->slots[slot]) == SR_CONSUMER;
        if (at < offsetof(sr_slot, result) && !write && dispatched && !(plan->flags & SR_SEG_QUEUE))
            return;
        race_object((uint32_t)slot, WHOLE_OBJECT, write);
    } else if (at >= offsetof(sr_slot, ranges)) {
        race_object((uint32_t)slot, (uint32_t)((at - offsetof(sr_slot, ranges)) / sizeof(sr_range)), write);
    } else {
        violated("a plain access to a control word at offset %zu of a slot", at);
    }
}

static uint64_t *handed_on(const void *address)
{
    size_t at;
    int slot = slot_of(address, &at);
    if (plan->caches && cache_key_at(address) >= 0 && plan->races)
        return &books.hands_on[cache_key_at(address)][0];
    if (slot < 0 || !plan->races)
        return NULL;
    if (at == offsetof(sr_slot, state))
        return &books.hands_on[slot][0];
    if (at == offsetof(sr_slot, layout))
        return &books.hands_on[slot][1];
    if (at == offsetof(sr_slot, readers))
        return &books.hands_on[slot][2 + MAX_RANGES];
    if (at >= offsetof(sr_slot, ranges) && (at - offsetof(sr_slot, ranges)) % sizeof(sr_range) == 0)
        return &books.hands_on[slot][2 + (at - offsetof(sr_slot, ranges)) / sizeof(sr_range)];
    return NULL;
}

void race_acquire(const void *address)
{
    const uint64_t *word = handed_on(address);
    if (word)
        books.knows[self] |= *word;
}

void race_release(const void *address, bool release, bool rmw)
{
    uint64_t *word = handed_on(address);
    if (word)
        *word = (rmw ? *word : 0) | (release ? books.knows[self] : 0);
}
