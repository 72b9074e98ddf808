/* smooth_loops.h - the loops of blur.c. It is included once for each kind of processor; see there. */

LOOP void NAMED(add)(const float *a, const float *b, float weight, int n, float *restrict to)
{
    for (int i = 0; i < n; i++)
        to[i] += weight * (a[i] + b[i]);
}

LOOP void NAMED(add_pixels)(const uint8_t *a, const uint8_t *b, float weight, int n, float *restrict to)
{
    for (int i = 0; i < n; i++)
        to[i] += weight * (float)(a[i] + b[i]);
}

/* The product of 15-bit numbers, rounded: one instruction for 16-bit vectors. */
#define TIMES(a, b) ((int16_t)((((int16_t)(a) * (int16_t)(b) >> 14) + 1) >> 1))

#ifndef OWN_SUMS
LOOP void NAMED(down)(const uint8_t *const *rows, const int16_t *weights, int pairs, int n, int16_t *to)
{
    for (int i = 0; i < n; i += 16) {
        int16_t sums[16] = {0};
        for (int k = 0; k < pairs; k++) {
            const uint8_t *a = rows[2 * k] + i, *b = rows[2 * k + 1] + i;
            int16_t weight = weights[k];
#pragma GCC unroll 1
            for (int j = 0; j < 16; j++) { /* unrolled, it would not be vectorised */
                int16_t both = (int16_t)((a[j] + b[j]) << 6);
                sums[j] = (int16_t)(sums[j] + TIMES(both, weight));
            }
        }
        for (int j = 0; j < 16; j++)
            to[i + j] = (int16_t)((int16_t)(sums[j] + 1) >> 1);
    }
}

LOOP void NAMED(across)(const int16_t *row, const int16_t *weights, int pairs, int n, uint8_t *to)
{
    for (int i = 0; i < n; i += 16) {
        int16_t sums[16] = {0};
        for (int k = 0; k < pairs; k++) {
            const int16_t *a = row + i - 3 * k, *b = row + i + 3 * k;
            int16_t weight = weights[k];
#pragma GCC unroll 1
            for (int j = 0; j < 16; j++) { /* unrolled, it would not be vectorised */
                int16_t both = (int16_t)(a[j] + b[j]);
                sums[j] = (int16_t)(sums[j] + TIMES(both, weight));
            }
        }
        for (int j = 0; j < 16; j++)
            to[i + j] = sr_level((int16_t)(sums[j] + 64) >> 7);
    }
}
#endif

#undef TIMES

#ifndef OWN_SUMS
/* Blend a smoothed row and the row: in single precision, as Pillow does. x * 5042 >> 16 is x / 13 up to 3,321. */
LOOP void NAMED(blend)(const uint16_t *columns, const uint8_t *from, int n, float factor, uint8_t *restrict to)
{
    for (int i = 0; i < n; i++) {
        uint16_t sum = (uint16_t)(columns[i] + columns[i + 3] + columns[i + 6] + 4 * from[i] + 6);
        int smooth = (uint16_t)((uint32_t)sum * 5042 >> 16);
        float value = (float)smooth + factor * (float)(from[i] - smooth);
        value = value < 0 ? 0 : value, value = value > 255 ? 255 : value;
        to[i] = (uint8_t)(int)value;
    }
}
#endif

LOOP void NAMED(sharpen)(const uint8_t *row, size_t stride, int n, float factor, uint8_t *to)
{
    uint16_t columns[CHUNK + 32]; /* sums of three values, one above the other; vectors read a little further */
    for (int at = 0; at < n; at += CHUNK) {
        const uint8_t *from = row + at, *above = from - stride, *below = from + stride;
        int count = n - at < CHUNK ? n - at : CHUNK;
        for (int i = -3; i < count + 3; i++)
            columns[i + 3] = (uint16_t)(above[i] + from[i] + below[i]);
        memset(columns + count + 6, 0, 16 * sizeof *columns);
        NAMED(blend)(columns, from, count, factor, to + at);
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
    NAMED(add), NAMED(add_pixels), NAMED(down), NAMED(across), NAMED(sharpen), NAMED(box),
};
