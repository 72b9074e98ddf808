/* smooth_loops.h - the loops of blur.c. It is included once for each kind of processor; see there. */

LOOP void NAMED(add)(const float *a, const float *b, float weight, int n, float *restrict to)
{
    for (int i = 0; i < n; i++)
        to[i] += weight * (a[i] + b[i]);
}

LOOP void NAMED(add_levels)(const uint8_t *a, const uint8_t *b, float weight, int n, float *restrict to)
{
    for (int i = 0; i < n; i++)
        to[i] += weight * (float)(a[i] + b[i]);
}

/* The product of 15-bit numbers, rounded: one instruction for 16-bit vectors. */
#define TIMES(a, b) ((int16_t)(((a) * (b) + (1 << 14)) >> 15))

LOOP void NAMED(pairs_of_levels)(const uint8_t *const rows[8], const int16_t weights[4], int n, int16_t *restrict to)
{
    const uint8_t *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
    const uint8_t *e = rows[4], *f = rows[5], *g = rows[6], *h = rows[7];
    int16_t w0 = weights[0], w1 = weights[1], w2 = weights[2], w3 = weights[3];
    for (int i = 0; i < n; i++) {
        int16_t ab = (int16_t)((a[i] + b[i]) << 6), cd = (int16_t)((c[i] + d[i]) << 6);
        int16_t ef = (int16_t)((e[i] + f[i]) << 6), gh = (int16_t)((g[i] + h[i]) << 6);
        to[i] = (int16_t)(to[i] + TIMES(ab, w0) + TIMES(cd, w1) + TIMES(ef, w2) + TIMES(gh, w3));
    }
}

LOOP void NAMED(pairs)(const int16_t *const rows[8], const int16_t weights[4], int n, int16_t *restrict to)
{
    const int16_t *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
    const int16_t *e = rows[4], *f = rows[5], *g = rows[6], *h = rows[7];
    int16_t w0 = weights[0], w1 = weights[1], w2 = weights[2], w3 = weights[3];
    for (int i = 0; i < n; i++) {
        int16_t ab = (int16_t)(a[i] + b[i]), cd = (int16_t)(c[i] + d[i]);
        int16_t ef = (int16_t)(e[i] + f[i]), gh = (int16_t)(g[i] + h[i]);
        to[i] = (int16_t)(to[i] + TIMES(ab, w0) + TIMES(cd, w1) + TIMES(ef, w2) + TIMES(gh, w3));
    }
}

#undef TIMES

LOOP void NAMED(halve)(const int16_t *restrict from, int n, int16_t *restrict to)
{
    for (int i = 0; i < n; i++)
        to[i] = (int16_t)((int16_t)(from[i] + 1) >> 1);
}

LOOP void NAMED(levels)(const int16_t *restrict from, int n, uint8_t *restrict to)
{
    for (int i = 0; i < n; i++)
        to[i] = sr_level((int16_t)(from[i] + 64) >> 7);
}

/* Blend a smoothed row and the row: in single precision, as Pillow does. x * 5042 >> 16 is x / 13 up to 3,321. */
LOOP void NAMED(sharpen)(const uint8_t *row, size_t stride, int n, float factor, uint8_t *restrict to)
{
    const uint8_t *above = row - stride, *below = row + stride;
    for (int i = 0; i < n; i++) {
        uint16_t sum = (uint16_t)(above[i - 3] + above[i] + above[i + 3] + row[i - 3] + 5 * row[i] + row[i + 3]
                                  + below[i - 3] + below[i] + below[i + 3] + 6);
        int smooth = (uint16_t)((uint32_t)sum * 5042 >> 16);
        float value = (float)smooth + factor * (float)(row[i] - smooth);
        value = value < 0 ? 0 : value, value = value > 255 ? 255 : value;
        to[i] = (uint8_t)(int)value;
    }
}

LOOP void NAMED(box)(const uint8_t *leaving, const uint8_t *entering, const uint8_t *left, const uint8_t *right, int n,
                     uint32_t whole, uint32_t part, uint32_t *restrict sums, uint8_t *restrict to)
{
    for (int i = 0; i < n; i++) {
        uint32_t sum = sums[i] + entering[i] - leaving[i], ends = (uint32_t)left[i] + right[i];
        sums[i] = sum;
        to[i] = (uint8_t)((sum * whole + ends * part + (1 << 23)) >> 24);
    }
}

static const sr_smooth_loops NAMED(loops) = {
    NAMED(add), NAMED(add_levels), NAMED(pairs_of_levels), NAMED(pairs), NAMED(halve),
    NAMED(levels), NAMED(sharpen), NAMED(box),
};
