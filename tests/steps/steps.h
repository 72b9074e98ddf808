/* steps.h - stop points around each access of csrc that changes shared bytes. Only in builds with SR_STEPS.
 *
 * csrc/internal.h includes this header last. It redefines each store, compare-and-swap, futex call and fallocate: a
 * stop point comes before the access and, if other participants may act on it, another one after it. So a new access
 * has its points automatically. The linker collects all points in the section sr_steps. steps.c defines what a point
 * does.
 */
#ifndef SLIPRING_STEPS_H
#define SLIPRING_STEPS_H

typedef struct sr_step {
    const char *file, *function;
    const char *what; /* "before cas" */
    const char *word; /* "&s->state" */
    int line;
} sr_step;

void sr_step_here(const sr_step *const *point);
/* Set the participant that this process is from now on. */
void sr_step_as(uint32_t participant);

#define SR_STEP_AS(participant) sr_step_as(participant)
#define SR_STEP(what, word)                                                                                       \
    do {                                                                                                          \
        static const sr_step step_ = {__FILE__, __func__, what, word, __LINE__};                                  \
        static const sr_step *const point_ __attribute__((section("sr_steps"), used)) = &step_;                   \
        sr_step_here(&point_);                                                                                    \
    } while (0)
#define SR_BEFORE(what, word, call) ({ SR_STEP("before " what, word); call; })
#define SR_AROUND(what, word, call)                                                                               \
    ({                                                                                                            \
        SR_STEP("before " what, word);                                                                            \
        __auto_type outcome_ = (call);                                                                            \
        SR_STEP("after " what, word);                                                                             \
        outcome_;                                                                                                 \
    })

/* No point follows a relaxed store: nobody waits for it, and the next access has a point before it. */
#undef sr_store_relaxed
#undef sr_store_release
#undef sr_store_ordered
#undef sr_add_relaxed
#undef sr_add_ordered
#undef sr_sub_ordered
#define sr_store_relaxed(p, v) SR_BEFORE("store", #p, atomic_store_explicit((p), (v), memory_order_relaxed))
#define sr_store_release(p, v) SR_AROUND("store", #p, (atomic_store_explicit((p), (v), memory_order_release), 0))
#define sr_store_ordered(p, v) SR_AROUND("store", #p, (atomic_store_explicit((p), (v), memory_order_seq_cst), 0))
#define sr_add_relaxed(p, v) SR_BEFORE("add", #p, atomic_fetch_add_explicit((p), (v), memory_order_relaxed))
#define sr_add_ordered(p, v) SR_AROUND("add", #p, atomic_fetch_add_explicit((p), (v), memory_order_seq_cst))
#define sr_sub_ordered(p, v) SR_AROUND("sub", #p, atomic_fetch_sub_explicit((p), (v), memory_order_seq_cst))

#define sr_cas(p, from, to) SR_AROUND("cas", #p, sr_cas(p, from, to))
#define sr_cas32(p, from, to) SR_AROUND("cas", #p, sr_cas32(p, from, to))
#define sr_cas_relaxed(p, seen, to) SR_AROUND("cas", #p, sr_cas_relaxed(p, seen, to))
#define sr_raise(p, v) SR_AROUND("raise", #p, (sr_raise(p, v), 0))
#define sr_futex_wait(word, seen, deadline) SR_AROUND("wait", #word, sr_futex_wait(word, seen, deadline))
#define sr_futex_wake(word, count) SR_AROUND("wake", #word, sr_futex_wake(word, count))
#define sr_put_memory(fd, offset, length) SR_AROUND("fallocate", #offset, sr_put_memory(fd, offset, length))
#define sr_drop_memory(at, length) SR_AROUND("drop", #at, sr_drop_memory(at, length))

#endif
