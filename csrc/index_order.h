/* index_order.h - orders of indices that are computed, not stored: of any length, in constant memory,
 * with random access. Nothing here touches a segment.
 *
 * A shuffle is a Feistel network over the numbers below n = rows x columns (a little more than n: a number outside is
 * permuted again). Halves of any size with modular addition: J. Black and P. Rogaway, Ciphers with arbitrary finite
 * domains, CT-RSA 2002. As a shuffle of a dataset: tf.random_index_shuffle, and Grain's index_shuffle.
 */
#ifndef SLIPRING_INDEX_ORDER_H
#define SLIPRING_INDEX_ORDER_H

#include <stdint.h>

#define SR_SHUFFLE_ROUNDS 6

enum sr_order_kind {
    SR_ORDER_ASCENDING = 0, /* position k has index k */
    SR_ORDER_STORED = 1,    /* the indices are in an array */
    SR_ORDER_SHUFFLED = 2,  /* a permutation of the numbers below n */
    SR_ORDER_DRAWN = 3,     /* each position has one of the numbers below n, with replacement */
};

typedef struct sr_index_order {
    enum sr_order_kind kind;
    uint64_t n;             /* indices are below n */
    uint64_t length;        /* positions */
    const int64_t *stored;  /* `length` indices */
    const double *bounds;   /* drawn by weight: the n cumulative weights, the last one is 1. NULL: all alike */
    uint64_t rows, columns; /* shuffled */
    uint64_t keys[SR_SHUFFLE_ROUNDS]; /* drawn: only the first */
} sr_index_order;

/* Fill in rows, columns and keys. */
void sr_order_key(sr_index_order *order, uint64_t key);

/* Write the indices at positions first, first + step, ...: `count` of them. After the last position,
 * the first one follows. The order has at least one position. */
void sr_order_write(const sr_index_order *order, uint64_t first, uint64_t step, uint64_t count, int64_t *out);

#endif
