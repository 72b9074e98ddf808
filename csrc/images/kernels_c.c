/* kernels_c.c - the inner loops in plain C: the reference for the others, and the fallback without vectors. */
#include "kernels.h"

static inline int clip(int value, int most) { return value < 0 ? 0 : value > most ? most : value; }

#define HALF8 (1 << (SR_PRECISION - SR_EXTRA - 1)) /* for rounding: from a pixel value to a value between the passes */
#define HALF16 (1 << (SR_PRECISION + SR_EXTRA - 1)) /* and back to a pixel value */
static inline int16_t middle(int sum) { return (int16_t)clip(sum >> (SR_PRECISION - SR_EXTRA), SR_MIDDLE_MOST); }
static inline uint8_t level(int sum) { return (uint8_t)clip(sum >> (SR_PRECISION + SR_EXTRA), 255); }

static void down8(const uint8_t *rows, size_t stride, int values, const int16_t *weights, int taps, int16_t *to)
{
    for (int i = 0; i < values; i++) {
        int sum = HALF8;
        for (int t = 0; t < taps; t++)
            sum += weights[t] * rows[(size_t)t * stride + i];
        to[i] = middle(sum);
    }
}

static void down16(const int16_t *rows, size_t stride, int values, const int16_t *weights, int taps, uint8_t *to)
{
    for (int i = 0; i < values; i++) {
        int sum = HALF16;
        for (int t = 0; t < taps; t++)
            sum += weights[t] * rows[(size_t)t * stride + i];
        to[i] = level(sum);
    }
}

#define ACROSS(NAME, FROM, TO, HALF, ROUND)                                             \
    static void NAME##_row(const FROM *row, const sr_axis *axis, TO *to)                \
    {                                                                                   \
        for (int x = 0; x < axis->count; x++, to += 3) {                                \
            const FROM *from = row + 3 * (size_t)(axis->at[x] - axis->begin);           \
            const int16_t *weights = axis->weights + (size_t)x * (size_t)axis->taps;    \
            int r = HALF, g = HALF, b = HALF;                                           \
            for (int t = 0; t < axis->taps; t++, from += 3) {                           \
                r += weights[t] * from[0];                                              \
                g += weights[t] * from[1];                                              \
                b += weights[t] * from[2];                                              \
            }                                                                           \
            to[0] = ROUND(r);                                                           \
            to[1] = ROUND(g);                                                           \
            to[2] = ROUND(b);                                                           \
        }                                                                               \
    }                                                                                   \
    static void NAME(const FROM *a, const FROM *b, const sr_axis *axis, TO *to_a, TO *to_b) \
    {                                                                                   \
        NAME##_row(a, axis, to_a);                                                      \
        if (to_b != to_a)                                                               \
            NAME##_row(b, axis, to_b);                                                  \
    }
ACROSS(across8, uint8_t, int16_t, HALF8, middle)
ACROSS(across16, int16_t, uint8_t, HALF16, level)

static void planes(const uint8_t *from, int pixels, uint8_t *red, uint8_t *green, uint8_t *blue)
{
    for (int x = 0; x < pixels; x++, from += 3)
        red[x] = from[0], green[x] = from[1], blue[x] = from[2];
}

const sr_kernels sr_kernels_c = {"c", down8, down16, across8, across16, planes};
