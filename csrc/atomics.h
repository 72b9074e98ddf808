/* atomics.h - every atomic access of the ring, by the memory order that it needs.
 *
 * There are no stand-alone fences: ThreadSanitizer does not model them, and the access itself can state every order
 * that the ring needs. A label in the .c files, a letter and a digit in brackets, names an access and its partner;
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
/* The seq_cst accesses are for participants that sleep and wake each other: each side writes its own word, then reads
 * the other's, and at least one of them sees the other. Dekker's algorithm begins like that, and store buffers break it
 * (the litmus test SB): acquire and release do not suffice, not even on x86. */
#define sr_load_ordered(p) atomic_load_explicit((p), memory_order_seq_cst)

#define sr_store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)
#define sr_store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)
#define sr_store_ordered(p, v) atomic_store_explicit((p), (v), memory_order_seq_cst)

#define sr_add_relaxed(p, v) atomic_fetch_add_explicit((p), (v), memory_order_relaxed)
#define sr_add_ordered(p, v) atomic_fetch_add_explicit((p), (v), memory_order_seq_cst)
#define sr_sub_ordered(p, v) atomic_fetch_sub_explicit((p), (v), memory_order_seq_cst)

/* Change *p from `expected` to `desired`; return whether it did. It acquires the stores that the last writer released,
 * releases those of this participant, and is part of the seq_cst order of sleeping and waking. */
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

/* Without any order; may fail spuriously, and then *seen receives the current value. For loops. */
static inline bool sr_cas_relaxed(_Atomic uint64_t *p, uint64_t *seen, uint64_t desired)
{
    return atomic_compare_exchange_weak_explicit(p, seen, desired, memory_order_relaxed, memory_order_relaxed);
}

/* Copy plain words with release stores: an observer that sees a copied word also sees all earlier stores. x86 keeps
 * stores in order, so memcpy suffices there. */
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

/* Raise *p to at least v. */
static inline void sr_raise(_Atomic uint64_t *p, uint64_t v)
{
    uint64_t seen = sr_load_relaxed(p);
    while (seen < v && !atomic_compare_exchange_weak_explicit(p, &seen, v, memory_order_acq_rel,
                                                              memory_order_relaxed)) {
    }
}

#endif
