/* atomics.h - every atomic access of the ring, by the order it needs.
 *
 * No stand-alone fences: ThreadSanitizer does not model them, and every order the ring needs can be
 * said on the access itself. Labels in the .c files ([A1], [B2], ...) name an access's partner;
 * docs/protocol.md lists the pairs.
 */
#ifndef SLIPRING_ATOMICS_H
#define SLIPRING_ATOMICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define sr_load_relaxed(p) atomic_load_explicit((p), memory_order_relaxed)
#define sr_load_acquire(p) atomic_load_explicit((p), memory_order_acquire)
/* The seq_cst accesses form the store-then-look pairs of sleepers and wakers: each side writes its own
 * word, then reads the other's; at least one of them sees the other. That is how Dekker's algorithm begins, and
 * what store buffers break (the litmus test SB): release and acquire do not suffice for it, on x86 neither. */
#define sr_load_ordered(p) atomic_load_explicit((p), memory_order_seq_cst)

#define sr_store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)
#define sr_store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)
#define sr_store_ordered(p, v) atomic_store_explicit((p), (v), memory_order_seq_cst)

#define sr_add_relaxed(p, v) atomic_fetch_add_explicit((p), (v), memory_order_relaxed)
#define sr_add_ordered(p, v) atomic_fetch_add_explicit((p), (v), memory_order_seq_cst)
#define sr_sub_ordered(p, v) atomic_fetch_sub_explicit((p), (v), memory_order_seq_cst)

/* Changes *p from `expected` to `desired`; true if it did. Acquires what the last writer released,
 * releases what this party wrote, and takes part in the order of sleepers and wakers. */
static inline bool sr_cas(_Atomic uint64_t *p, uint64_t expected, uint64_t desired)
{
    return atomic_compare_exchange_strong_explicit(p, &expected, desired, memory_order_seq_cst,
                                                   memory_order_acquire);
}

static inline bool sr_cas32(_Atomic uint32_t *p, uint32_t expected, uint32_t desired)
{
    return atomic_compare_exchange_strong_explicit(p, &expected, desired, memory_order_seq_cst,
                                                   memory_order_acquire);
}

/* Orders nothing, and may fail for no reason; then what it found is in *seen. For loops. */
static inline bool sr_cas_relaxed(_Atomic uint64_t *p, uint64_t *seen, uint64_t desired)
{
    return atomic_compare_exchange_weak_explicit(p, seen, desired, memory_order_relaxed, memory_order_relaxed);
}

/* Copies plain words for somebody who looks on: none is seen before what was stored earlier. x86 sees to that itself. */
static inline void sr_copy_after(void *to, const void *from, size_t bytes)
{
#if defined(__x86_64__)
    __asm__ volatile("" ::: "memory");
    memcpy(to, from, bytes);
    __asm__ volatile("" ::: "memory");
#else
    typedef uint64_t __attribute__((may_alias)) word;
    for (size_t i = 0; i < bytes / sizeof(word); i++)
        __atomic_store_n((word *)to + i, ((const word *)from)[i], __ATOMIC_RELEASE);
#endif
}

/* Raises *p to at least v. */
static inline void sr_raise(_Atomic uint64_t *p, uint64_t v)
{
    uint64_t seen = sr_load_relaxed(p);
    while (seen < v && !atomic_compare_exchange_weak_explicit(p, &seen, v, memory_order_acq_rel,
                                                              memory_order_relaxed)) {
    }
}

#endif
