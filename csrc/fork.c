/* fork.c - forks: the fork generation, and a child's view of the slots that its parent uses.
 *
 * The slots are shared memory, and a forked child is not a participant: as soon as its parent releases a slot, the next
 * batch overwrites it. So just before a fork, this process copies the slots that it has views of to private memory,
 * which parent and child share copy-on-write. The child moves its copies to the slots' addresses; the parent unmaps its
 * own. Neither waits for the other, and a child may be stopped, die or call exec at any moment. docs/architecture.md
 * explains why.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#define PINNED UINT32_C(0x80000000) /* in refs: a child sees the slot, because there was no memory for a copy */
#define JUST UINT32_C(0x40000000)   /* in refs: the fork in progress has set PINNED, and may still fail */

/* A copy of one slot's bytes, which begin one page after this record. */
typedef struct copy {
    struct copy *next;
    sr_ring *ring;
    char *at;
    size_t bytes;
} copy;

_Atomic uint64_t sr_forks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the list of handles; locked during a fork */
static sr_ring *handles;
static copy *copies;
static size_t page;
static __thread bool of_a_worker;
static bool some_stay;        /* this fork: a slot could not be copied */
static int tie[2] = {-1, -1}; /* then a pipe, unless the kernel refused it */

/* Private words of this process. The accesses of atomics.h are for words that other processes see. */
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

void sr_ref(sr_ring *ring, uint32_t slot) { add(&ring->refs[slot], 1); }

bool sr_pinned_after_fork(const sr_ring *ring, uint32_t slot) { return load(&ring->refs[slot]) & PINNED; }

/* Like sr_pinned_after_fork, after another thread's fork has ended. Not inlined: sr_unref runs once per batch, and so
 * it saves no registers. */
__attribute__((noinline)) static bool pinned_in_the_end(sr_ring *ring, uint32_t slot)
{
    pthread_mutex_lock(&lock);
    bool pinned = sr_pinned_after_fork(ring, slot);
    pthread_mutex_unlock(&lock);
    return pinned;
}

bool sr_unref(sr_ring *ring, uint32_t slot)
{
    uint32_t had = add(&ring->refs[slot], UINT32_MAX);
    if (!(had & (PINNED | JUST)))
        return true;
    return had & JUST ? !pinned_in_the_end(ring, slot) : false;
}

void sr_fork_of_worker(bool on) { of_a_worker = on; }

/* Return how many bytes of the slot's payload a view in this process can cover: at most those that are mapped and
 * committed, even if the shared words are damaged. */
static uint64_t bytes_in(const sr_ring *ring, uint32_t slot)
{
    const sr_slot *s = &ring->slots[slot];
    uint64_t used = sr_load_relaxed(&s->cursor), most = load(&ring->populated[slot]);
    uint64_t there = sr_load_acquire(&s->committed); /* less than is mapped, if memory was released since */
    if (most > there)
        most = there;
    if (used < s->result.bytes)
        used = s->result.bytes;
    return used < most ? used : most;
}

/* Copy a slot to private memory; false if the kernel refuses. */
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
    return load(&ring->refs[slot]) & ~PINNED ? bytes_in(ring, slot) : 0;
}

static void before_fork(void)
{
    uint64_t need = 0;
    sr_memory_info available;
    pthread_mutex_lock(&lock);
    if (of_a_worker)
        return;
    for (sr_ring *ring = handles; ring; ring = ring->next)
        for (uint32_t i = 0; i < ring->n_slots; i++)
            need += to_copy(ring, i);
    if (!need)
        return;
    bool fits = sr_process_memory_available("", &available) != 0 || need <= available.free;
    for (sr_ring *ring = handles; ring; ring = ring->next)
        for (uint32_t i = 0; i < ring->n_slots; i++)
            if (to_copy(ring, i) && !(fits && make_copy(ring, i)) && !sr_pinned_after_fork(ring, i)) {
                add(&ring->refs[i], PINNED | JUST);
                some_stay = true;
            }
    if (some_stay && pipe2(tie, O_CLOEXEC | O_NONBLOCK) != 0)
        tie[0] = tie[1] = -1;
}

static void detach_copies(void)
{
    for (int i = 0; i < 2; i++)
        if (tie[i] >= 0)
            (void)close(tie[i]);
    tie[0] = tie[1] = -1;
    some_stay = false;
}

/* Return whether the fork failed. No handler learns that, and errno may come from another library's handler that ran
 * before. But a child has the other end of the pipe open until it has written a byte. If that end is closed and there
 * is no byte, the child never started or is dead. Without a pipe, there may be a child: then the slot stays pinned. */
static bool has_failed(void)
{
    char byte;
    if (tie[0] < 0)
        return false;
    (void)close(tie[1]);
    tie[1] = -1;
    return read(tie[0], &byte, 1) == 0;
}

static void mark_pinned_after_fork(bool failed)
{
    for (sr_ring *ring = handles; ring; ring = ring->next)
        for (uint32_t i = 0; i < ring->n_slots; i++)
            if (load(&ring->refs[i]) & JUST)
                add(&ring->refs[i], UINT32_C(0) - JUST - (failed ? PINNED : 0));
}

static void in_parent(void)
{
    int before = errno; /* of the fork, if it failed */
    if (some_stay)
        mark_pinned_after_fork(has_failed());
    detach_copies();
    while (copies) {
        copy *c = copies;
        copies = c->next;
        (void)munmap(c, page + c->bytes);
    }
    pthread_mutex_unlock(&lock);
    errno = before;
}

/* The kernel refuses another mapping. Ending the child is better than letting it read another batch unnoticed. */
static void give_up(void)
{
    static const char text[] = "slipring: a forked child cannot map its own copy of the batches that it inherits "
                               "(vm.max_map_count is too small?); it ends\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(1);
}

/* Make only system calls: another thread of the parent may have held any lock, and no thread of the child releases
 * it. */
static void in_child(void)
{
    add(&sr_forks, 1);
    if (tie[1] >= 0)
        (void)!write(tie[1], "", 1); /* it has the other end open: no SIGPIPE */
    detach_copies();
    of_a_worker = false;
    for (sr_ring *ring = handles; ring; ring = ring->next)
        for (uint32_t i = 0; i < ring->n_slots; i++)
            store(&ring->refs[i], 0); /* the leases and pins are the parent's */
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

/* Register the handlers when the library is loaded, before any fork. */
__attribute__((constructor)) static void watch_forks(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    pthread_atfork(before_fork, in_parent, in_child);
}

int sr_move_from_copies(sr_ring *ring)
{
    if (!ring->has_copies)
        return 0;
    /* Map the same pages again at another address: mremap with an old length of 0 does that. Map them in two parts,
     * which may belong to two files (SR_SEG_RECORDED). */
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
    /* If it is set, it is the grandparent's mapping; then the parent's stays mapped until this process ends. */
    if (!ring->inherited)
        ring->inherited = ring->base;
    ring->participants = (sr_participant *)(base + ((char *)ring->participants - ring->base));
    ring->slots = (sr_slot *)(base + ((char *)ring->slots - ring->base));
    ring->totals = (sr_totals *)(base + ((char *)ring->totals - ring->base));
    ring->records = (sr_record *)(ring->totals + 1);
    ring->header = (sr_header *)base;
    ring->base = base;
    ring->has_copies = false;
    return 0;
}
