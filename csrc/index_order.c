/* index_order.c - the index at a position of an order. */
#include "index_order.h"

#define LANES 4 /* positions that are permuted at once */
#define GOLDEN 0x9e3779b97f4a7c15ull /* steps of splitmix64: neighbouring positions are far apart */

/* The finalizer of splitmix64: G. L. Steele, D. Lea and C. H. Flood, Fast splittable pseudorandom number generators,
 * OOPSLA 2014. */
static inline uint64_t hashed(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Map 64 random bits to the numbers below m. */
static inline uint64_t below(uint64_t random, uint64_t m)
{
    return (uint64_t)(((unsigned __int128)random * m) >> 64);
}

/* Return the amount that a round adds to one half, from the other one. `below` uses the upper bits of the product. */
static inline uint64_t round_of(uint64_t half, uint64_t key, uint64_t m)
{
    uint64_t x = (half + key) * 0xbf58476d1ce4e5b9ull;
    return below((x ^ (x >> 32)) * 0x94d049bb133111ebull, m);
}

/* Return the least number whose square is at least n. */
static uint64_t root_of(uint64_t n)
{
    uint64_t root = 0;
    for (uint64_t bit = 1ull << 31; bit; bit >>= 1)
        root |= (root | bit) * (root | bit) < n ? bit : 0;
    return root + 1;
}

void sr_order_key(sr_index_order *order, uint64_t key)
{
    for (int i = 0; i < SR_SHUFFLE_ROUNDS; i++)
        order->keys[i] = hashed(key + GOLDEN * (uint64_t)(i + 1));
    order->rows = root_of(order->n);
    order->columns = (order->n + order->rows - 1) / order->rows;
}

/* Permute positions below rows x columns. Several at once are faster, because their multiplications overlap. */
static inline __attribute__((always_inline)) void permute(const sr_index_order *order, uint64_t *at, const int lanes)
{
    const uint64_t rows = order->rows, columns = order->columns;
    uint64_t row[LANES], column[LANES];
    for (int k = 0; k < lanes; k++) {
        row[k] = at[k] / columns;
        column[k] = at[k] % columns;
    }
#pragma GCC unroll 6
    for (int i = 0; i < SR_SHUFFLE_ROUNDS; i += 2) {
#pragma GCC unroll 4
        for (int k = 0; k < lanes; k++) {
            row[k] += round_of(column[k], order->keys[i], rows);
            row[k] -= row[k] >= rows ? rows : 0;
        }
#pragma GCC unroll 4
        for (int k = 0; k < lanes; k++) {
            column[k] += round_of(row[k], order->keys[i + 1], columns);
            column[k] -= column[k] >= columns ? columns : 0;
        }
    }
    for (int k = 0; k < lanes; k++)
        at[k] = row[k] * columns + column[k];
}

static void shuffle(const sr_index_order *order, uint64_t *at, uint64_t count)
{
    uint64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        permute(order, at + i, LANES);
    for (; i < count; i++)
        permute(order, at + i, 1);
    for (i = 0; i < count; i++)
        while (at[i] >= order->n)
            permute(order, at + i, 1);
}

/* Return the first index whose bound is above u < 1. An index without weight has the same bound as the one before. */
static inline uint64_t by_weight(const double *bounds, uint64_t n, double u)
{
    const double *base = bounds;
    while (n > 1) {
        uint64_t half = n / 2;
        base += base[half - 1] <= u ? half : 0;
        n -= half;
    }
    return (uint64_t)(base - bounds);
}

static inline uint64_t drawn(const sr_index_order *order, uint64_t at)
{
    const uint64_t random = hashed(order->keys[0] + GOLDEN * at);
    if (order->bounds)
        return by_weight(order->bounds, order->n, (double)(random >> 11) * 0x1p-53);
    return below(random, order->n);
}

void sr_order_write(const sr_index_order *order, uint64_t first, uint64_t step, uint64_t count, int64_t *out)
{
    const uint64_t length = order->length;
    uint64_t *positions = (uint64_t *)out, at = first % length;
    step %= length;
    for (uint64_t i = 0; i < count; i++) {
        positions[i] = at;
        at = step < length - at ? at + step : at - (length - step);
    }
    if (order->kind == SR_ORDER_STORED)
        for (uint64_t i = 0; i < count; i++)
            out[i] = order->stored[positions[i]];
    else if (order->kind == SR_ORDER_SHUFFLED)
        shuffle(order, positions, count);
    else if (order->kind == SR_ORDER_DRAWN)
        for (uint64_t i = 0; i < count; i++)
            out[i] = (int64_t)drawn(order, positions[i]);
}
