/* fork.c - the two sides of a fork: which one is this, and what a child sees of the slots that its parent has.
 *
 * The slots are shared memory, and a child is no party: as soon as its parent lets go of a slot, the next batch is
 * written there. So what this process has views of is copied just before a fork, to private memory that parent and
 * child share as any other until one of them goes on; the child moves its part of it over the slots' addresses, the
 * parent drops its own. Nobody waits for anybody, and a child may be stopped, die or become another program at once.
 * docs/architecture.md says why.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "handle.h"

#define STAYS UINT32_C(0x80000000) /* in_use: a child has views of the slot, and there was no memory for a copy */
#define JUST UINT32_C(0x40000000)  /* the same by the fork that is under way: there may be no child in the end */

/* One slot's bytes; they begin a page behind this record. */
typedef struct copy {
    struct copy *next;
    sr_ring *ring;
    char *at;
    size_t bytes;
} copy;

_Atomic uint64_t sr_forks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list of handles; a fork holds it */
static sr_ring *handles;
static copy *copies;
static size_t page;
static __thread bool of_a_worker;
static bool some_stay;        /* this fork: a slot could not be copied */
static int tie[2] = {-1, -1}; /* then a pipe, if one was to be had */

/* This process's own words, and none of the verbs for shared ones: nobody else sees a step of theirs. */
#define load(p) atomic_load_explicit((p), memory_order_relaxed)
#define store(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)
#define add(p, v) atomic_fetch_add_explicit((p), (v), memory_order_relaxed)

void sr_enlist(sr_ring *ring)
{
    pthread_mutex_lock(&lock);
    ring->next = handles;
    handles = ring;
    pthread_mutex_unlock(&lock);
}

void sr_delist(sr_ring *ring)
{
    pthread_mutex_lock(&lock);
    sr_ring **at = &handles;
    while (*at && *at != ring)
        at = &(*at)->next;
    if (*at)
        *at = ring->next;
    pthread_mutex_unlock(&lock);
}

void sr_use(sr_ring *ring, uint32_t slot) { add(&ring->in_use[slot], 1); }

bool sr_stays(const sr_ring *ring, uint32_t slot) { return load(&ring->in_use[slot]) & STAYS; }

/* The same when another thread's fork has come to its end. Apart: sr_unuse runs once per batch, and saves no registers. */
__attribute__((noinline)) static bool stays_in_the_end(sr_ring *ring, uint32_t slot)
{
    pthread_mutex_lock(&lock);
    bool stays = sr_stays(ring, slot);
    pthread_mutex_unlock(&lock);
    return stays;
}

bool sr_unuse(sr_ring *ring, uint32_t slot)
{
    uint32_t had = add(&ring->in_use[slot], UINT32_MAX);
    if (!(had & (STAYS | JUST)))
        return true;
    return had & JUST ? !stays_in_the_end(ring, slot) : false;
}

void sr_fork_of_worker(bool on) { of_a_worker = on; }

/* How much of a payload this process can have views of: what it has mapped and what is there, if the shared words are
 * wrong. */
static uint64_t bytes_in(const sr_ring *ring, uint32_t slot)
{
    const sr_slot *s = &ring->slots[slot];
    uint64_t used = sr_load_relaxed(&s->cursor), most = load(&ring->populated[slot]);
    uint64_t there = sr_load_acquire(&s->committed); /* less than was mapped, if it has been given back since */
    if (most > there)
        most = there;
    if (used < s->result.bytes)
        used = s->result.bytes;
    return used < most ? used : most;
}

/* False if the kernel refuses it. */
static bool make_copy(sr_ring *ring, uint32_t slot)
{
    char *payload = sr_payload(ring, slot);
    char *at = payload - (uintptr_t)payload % page, *end = payload + bytes_in(ring, slot);
    size_t bytes = ((size_t)(end - at) + page - 1) / page * page;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_POPULATE;
    copy *made = mmap(NULL, page + bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (made == MAP_FAILED)
        return false;
    (void)madvise(made, page + bytes, MADV_DONTDUMP);
    memcpy((char *)made + page + (payload - at), payload, (size_t)(end - payload));
    *made = (copy){.next = copies, .ring = ring, .at = at, .bytes = bytes};
    copies = made;
    return true;
}

static uint64_t to_copy(const sr_ring *ring, uint32_t slot)
{
    return load(&ring->in_use[slot]) & ~STAYS ? bytes_in(ring, slot) : 0;
}

static void before_fork(void)
{
    uint64_t need = 0;
    sr_room room;
    pthread_mutex_lock(&lock);
    if (of_a_worker)
        return;
    for (sr_ring *ring = handles; ring; ring = ring->next)
        for (uint32_t i = 0; i < ring->n_slots; i++)
            need += to_copy(ring, i);
    if (!need)
        return;
    bool fits = sr_room_left("", &room) != 0 || need <= room.free;
    for (sr_ring *ring = handles; ring; ring = ring->next)
        for (uint32_t i = 0; i < ring->n_slots; i++)
            if (to_copy(ring, i) && !(fits && make_copy(ring, i)) && !sr_stays(ring, i)) {
                add(&ring->in_use[i], STAYS | JUST);
                some_stay = true;
            }
    if (some_stay && pipe2(tie, O_CLOEXEC | O_NONBLOCK) != 0)
        tie[0] = tie[1] = -1;
}

static void untie(void)
{
    for (int i = 0; i < 2; i++)
        if (tie[i] >= 0)
            (void)close(tie[i]);
    tie[0] = tie[1] = -1;
    some_stay = false;
}

/* Whether there is no child. No handler is told, and errno may be that of another library's handler, which ran before.
 * But a child has the pipe's other end until it has written a byte; without both it has never come to life, or is dead.
 * Where no pipe was to be had there may be one: then the slot stays. */
static bool has_failed(void)
{
    char byte;
    if (tie[0] < 0)
        return false;
    (void)close(tie[1]);
    tie[1] = -1;
    return read(tie[0], &byte, 1) == 0;
}

static void settle_what_stays(bool failed)
{
    for (sr_ring *ring = handles; ring; ring = ring->next)
        for (uint32_t i = 0; i < ring->n_slots; i++)
            if (load(&ring->in_use[i]) & JUST)
                add(&ring->in_use[i], UINT32_C(0) - JUST - (failed ? STAYS : 0));
}

static void in_parent(void)
{
    int before = errno; /* of the fork, if that has failed */
    if (some_stay)
        settle_what_stays(has_failed());
    untie();
    while (copies) {
        copy *c = copies;
        copies = c->next;
        (void)munmap(c, page + c->bytes);
    }
    pthread_mutex_unlock(&lock);
    errno = before;
}

/* The kernel has no room for another mapping. To read another batch without a word would be worse. */
static void give_up(void)
{
    static const char text[] = "slipring: a forked child cannot map its own copy of the batches that it inherits "
                               "(vm.max_map_count is too small?); it ends\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(1);
}

/* Only system calls: any lock of the parent's may be closed for ever. */
static void in_child(void)
{
    add(&sr_forks, 1);
    if (tie[1] >= 0)
        (void)!write(tie[1], "", 1); /* its own other end is open: no SIGPIPE */
    untie();
    of_a_worker = false;
    for (sr_ring *ring = handles; ring; ring = ring->next)
        for (uint32_t i = 0; i < ring->n_slots; i++)
            store(&ring->in_use[i], 0); /* the leases and holds are the parent's */
    while (copies) {
        copy *c = copies;
        copies = c->next;
        if (mremap((char *)c + page, c->bytes, c->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, c->at) == MAP_FAILED)
            give_up();
        c->ring->has_copies = true;
        (void)munmap(c, page);
    }
    pthread_mutex_unlock(&lock);
}

/* Runs when the library is loaded, so that a fork can never come before it. */
__attribute__((constructor)) static void watch_forks(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    pthread_atfork(before_fork, in_parent, in_child);
}

int sr_move_from_copies(sr_ring *ring)
{
    if (!ring->has_copies)
        return 0;
    /* The same pages once more, at another address: a length of 0 asks for that. In two parts, which may be of two
     * files (SR_SEG_RECORDED). */
    char *base = mmap(NULL, ring->total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return -errno;
    uint64_t ends[] = {0, ring->data_off, ring->total};
    for (int i = 0; i < 2; i++)
        if (mremap(ring->base + ends[i], 0, ends[i + 1] - ends[i], MREMAP_MAYMOVE | MREMAP_FIXED, base + ends[i]) ==
            MAP_FAILED) {
            int rc = -errno;
            (void)munmap(base, ring->total);
            return rc;
        }
    if (!ring->inherited) /* else a grandparent's, and the parent's stays until this process ends */
        ring->inherited = ring->base;
    ring->parties = (sr_party *)(base + ((char *)ring->parties - ring->base));
    ring->slots = (sr_slot *)(base + ((char *)ring->slots - ring->base));
    ring->totals = (sr_totals *)(base + ((char *)ring->totals - ring->base));
    ring->records = (sr_record *)(ring->totals + 1);
    ring->header = (sr_header *)base;
    ring->base = base;
    ring->has_copies = false;
    return 0;
}
