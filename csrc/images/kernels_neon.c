/* kernels_neon.c - the inner loops for arm64, where every processor has NEON. */
#ifdef __aarch64__
#include <arm_neon.h>
#include <string.h>

#include "kernels.h"

#define SHIFT8 (SR_PRECISION - SR_EXTRA)
#define SHIFT16 (SR_PRECISION + SR_EXTRA)
#define INLINE static inline __attribute__((always_inline))

/* Most images become at most twice smaller. With a constant number of taps, the compiler unrolls the loop over them. */
#define BY_TAPS(OF, TAPS, ...) \
    ((TAPS) == 2 ? OF(__VA_ARGS__, 2) : (TAPS) == 4 ? OF(__VA_ARGS__, 4) : OF(__VA_ARGS__, TAPS))

/* Sums begin with a half, as in C, so that these shifts round; they also clip at 0. */
INLINE int16x8_t middles(int32x4_t low, int32x4_t high)
{
    uint16x8_t both = vqshrun_high_n_s32(vqshrun_n_s32(low, SHIFT8), high, SHIFT8);
    return vreinterpretq_s16_u16(vminq_u16(both, vdupq_n_u16(SR_MIDDLE_MOST)));
}

/* No narrowing shift is wide enough, so there are two: one clips at 0, the other at 255. */
INLINE uint8x8_t pixel_values(int32x4_t low, int32x4_t high)
{
    return vqshrn_n_u16(vqshrun_high_n_s32(vqshrun_n_s32(low, 16), high, 16), SHIFT16 - 16);
}

/* 16 values of one row between the passes. */
INLINE void down8_block(const uint8_t *rows, size_t stride, const int16_t *weights, int taps, int16_t *to)
{
    int32x4_t s0 = vdupq_n_s32(1 << (SHIFT8 - 1)), s1 = s0, s2 = s0, s3 = s0;
    for (int t = 0; t < taps; t++) {
        uint8x16_t row = vld1q_u8(rows + (size_t)t * stride);
        int16x8_t w = vdupq_n_s16(weights[t]), low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(row)));
        int16x8_t high = vreinterpretq_s16_u16(vmovl_high_u8(row));
        s0 = vmlal_s16(s0, vget_low_s16(low), vget_low_s16(w));
        s1 = vmlal_high_s16(s1, low, w);
        s2 = vmlal_s16(s2, vget_low_s16(high), vget_low_s16(w));
        s3 = vmlal_high_s16(s3, high, w);
    }
    vst1q_s16(to, middles(s0, s1));
    vst1q_s16(to + 8, middles(s2, s3));
}

INLINE void down16_block(const int16_t *rows, size_t stride, const int16_t *weights, int taps, uint8_t *to)
{
    int32x4_t s0 = vdupq_n_s32(1 << (SHIFT16 - 1)), s1 = s0, s2 = s0, s3 = s0;
    for (int t = 0; t < taps; t++) {
        const int16_t *row = rows + (size_t)t * stride;
        int16x8_t w = vdupq_n_s16(weights[t]), low = vld1q_s16(row), high = vld1q_s16(row + 8);
        s0 = vmlal_s16(s0, vget_low_s16(low), vget_low_s16(w));
        s1 = vmlal_high_s16(s1, low, w);
        s2 = vmlal_s16(s2, vget_low_s16(high), vget_low_s16(w));
        s3 = vmlal_high_s16(s3, high, w);
    }
    vst1q_u8(to, vcombine_u8(pixel_values(s0, s1), pixel_values(s2, s3)));
}

/* The last 16 values overlap the previous ones, so that nothing after the row is read or written. A few weights are
 * copied: no store can then change them, so they stay in registers. */
#define DOWN(NAME, FROM, TO)                                                                                       \
    INLINE void NAME##_of(const FROM *rows, size_t stride, size_t n, const int16_t *weights, TO *to, int taps)     \
    {                                                                                                              \
        int16_t own[4];                                                                                            \
        if (taps == 2 || taps == 4)                                                                                \
            weights = memcpy(own, weights, (size_t)taps * sizeof *own);                                            \
        size_t i = 0;                                                                                              \
        for (; i + 16 <= n; i += 16)                                                                               \
            NAME##_block(rows + i, stride, weights, taps, to + i);                                                 \
        if (i < n)                                                                                                 \
            NAME##_block(rows + n - 16, stride, weights, taps, to + n - 16);                                       \
    }                                                                                                              \
    static void NAME(const FROM *rows, size_t stride, int values, const int16_t *weights, int taps, TO *to)        \
    {                                                                                                              \
        if (values < 16)                                                                                           \
            sr_kernels_c.NAME(rows, stride, values, weights, taps, to);                                            \
        else                                                                                                       \
            BY_TAPS(NAME##_of, taps, rows, stride, (size_t)values, weights, to);                                   \
    }
DOWN(down8, uint8_t, int16_t)
DOWN(down16, int16_t, uint8_t)

/* r, g, b of a pixel (the fourth lane is useless) for two rows. */
INLINE void sum8(const uint8_t *a, const uint8_t *b, const int16_t *weights, int taps, int32x4_t *to_a, int32x4_t *to_b)
{
    const uint8x16_t order = {0, 255, 1, 255, 2, 255, 255, 255, 3, 255, 4, 255, 5, 255, 255, 255};
    int32x4_t sum_a = vdupq_n_s32(1 << (SHIFT8 - 1)), sum_b = sum_a;
    for (int t = 0; t < taps; t += 2) {
        int16x8_t two_a = vreinterpretq_s16_u8(vqtbl1q_u8(vld1q_u8(a + 3 * t), order));
        int16x8_t two_b = vreinterpretq_s16_u8(vqtbl1q_u8(vld1q_u8(b + 3 * t), order));
        sum_a = vmlal_n_s16(sum_a, vget_low_s16(two_a), weights[t]);
        sum_b = vmlal_n_s16(sum_b, vget_low_s16(two_b), weights[t]);
        sum_a = vmlal_high_n_s16(sum_a, two_a, weights[t + 1]);
        sum_b = vmlal_high_n_s16(sum_b, two_b, weights[t + 1]);
    }
    *to_a = sum_a;
    *to_b = sum_b;
}

INLINE void sum16(const int16_t *a, const int16_t *b, const int16_t *weights, int taps, int32x4_t *to_a,
                  int32x4_t *to_b)
{
    int32x4_t sum_a = vdupq_n_s32(1 << (SHIFT16 - 1)), sum_b = sum_a;
    for (int t = 0; t < taps; t++) {
        sum_a = vmlal_n_s16(sum_a, vld1_s16(a + 3 * t), weights[t]);
        sum_b = vmlal_n_s16(sum_b, vld1_s16(b + 3 * t), weights[t]);
    }
    *to_a = sum_a;
    *to_b = sum_b;
}

INLINE void across8_of(const uint8_t *a, const uint8_t *b, const sr_axis *axis, int16_t *to_a, int16_t *to_b, int taps)
{
    const int16_t *weights = axis->weights;
    for (int x = 0; x < axis->count; x++, to_a += 3, to_b += 3, weights += taps) {
        size_t at = 3 * (size_t)(axis->at[x] - axis->begin);
        int32x4_t sum_a, sum_b;
        sum8(a + at, b + at, weights, taps, &sum_a, &sum_b);
        int16x8_t both = middles(sum_a, sum_b);
        if (x + 1 < axis->count) { /* one value too many, which the next pixel overwrites */
            vst1_s16(to_a, vget_low_s16(both));
            vst1_s16(to_b, vget_high_s16(both));
        } else {
            int16_t last[8];
            vst1q_s16(last, both);
            memcpy(to_a, last, 6);
            memcpy(to_b, last + 4, 6);
        }
    }
}

INLINE void across16_of(const int16_t *a, const int16_t *b, const sr_axis *axis, uint8_t *to_a, uint8_t *to_b, int taps)
{
    const uint8x16_t close = {0, 1, 2, 4, 5, 6, 255, 255, 8, 9, 10, 12, 13, 14, 255, 255};
    const int16_t *weights = axis->weights;
    int32x4_t a0, a1, b0, b1;
    int x = 0;
    for (; x + 3 <= axis->count; x += 2, to_a += 6, to_b += 6, weights += 2 * taps) {
        size_t first = 3 * (size_t)(axis->at[x] - axis->begin), second = 3 * (size_t)(axis->at[x + 1] - axis->begin);
        sum16(a + first, b + first, weights, taps, &a0, &b0);
        sum16(a + second, b + second, weights + taps, taps, &a1, &b1);
        uint8x16_t both = vqtbl1q_u8(vcombine_u8(pixel_values(a0, a1), pixel_values(b0, b1)), close);
        vst1_u8(to_a, vget_low_u8(both)); /* two bytes too many, as above */
        vst1_u8(to_b, vget_high_u8(both));
    }
    for (; x < axis->count; x++, to_a += 3, to_b += 3, weights += taps) {
        size_t at = 3 * (size_t)(axis->at[x] - axis->begin);
        uint8_t last[8];
        sum16(a + at, b + at, weights, taps, &a0, &b0);
        vst1_u8(last, pixel_values(a0, b0));
        memcpy(to_a, last, 3);
        memcpy(to_b, last + 4, 3);
    }
}

/* The number of taps across is even: resize.c uses plain C for odd ones. */
static void across8(const uint8_t *a, const uint8_t *b, const sr_axis *axis, int16_t *to_a, int16_t *to_b)
{
    BY_TAPS(across8_of, axis->taps, a, b, axis, to_a, to_b);
}

static void across16(const int16_t *a, const int16_t *b, const sr_axis *axis, uint8_t *to_a, uint8_t *to_b)
{
    BY_TAPS(across16_of, axis->taps, a, b, axis, to_a, to_b);
}

static void planes(const uint8_t *from, int pixels, uint8_t *red, uint8_t *green, uint8_t *blue)
{
    int x = 0;
    for (; x + 16 <= pixels; x += 16, from += 48) {
        uint8x16x3_t all = vld3q_u8(from);
        vst1q_u8(red + x, all.val[0]);
        vst1q_u8(green + x, all.val[1]);
        vst1q_u8(blue + x, all.val[2]);
    }
    sr_kernels_c.planes(from, pixels - x, red + x, green + x, blue + x);
}

const sr_kernels sr_kernels_neon = {"neon", down8, down16, across8, across16, planes};
#endif
