/* pixels.h - what the files of operations share. Private to csrc/images. */
#ifndef SLIPRING_IMAGES_PIXELS_H
#define SLIPRING_IMAGES_PIXELS_H

#include <string.h>

#include "augment.h"

/* Return memory for a result, in the buffer that does not hold the image; NULL: there is none. */
uint8_t *sr_result(sr_augmenter *a, int height, int width);
/* Make the result the image. */
void sr_take_result(sr_augmenter *a, sr_pixels *image, int height, int width);

void sr_fill_pixels(uint8_t *to, int pixels, const uint8_t fill[3]);

/* Each returns 0, -EINVAL or -ENOMEM, and leaves the image unchanged if it fails. */
int sr_color(sr_augmenter *a, const sr_op *ops, int count, sr_pixels *image); /* a run of colour operations */
typedef int sr_operation(sr_augmenter *a, const sr_op *op, sr_pixels *image); /* 0, -EINVAL or -ENOMEM */
sr_operation sr_sharpen, sr_gaussian_blur, sr_pil_gaussian_blur, sr_flip_horizontally, sr_flip_vertically,
    sr_crop_image, sr_pad, sr_resize_image, sr_affine, sr_perspective, sr_elastic;

static inline bool sr_is_size(int height, int width)
{
    return height > 0 && width > 0 && height <= SR_MOST_SIDE && width <= SR_MOST_SIDE
           && (int64_t)height * width <= SR_MOST_PIXELS;
}

static inline uint8_t sr_level(int value) { return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value; }

/* A fill as pixel values. */
static inline void sr_fill_of(const double v[3], uint8_t fill[3])
{
    for (int c = 0; c < 3; c++)
        fill[c] = v[c] <= 0 ? 0 : v[c] >= 255 ? 255 : (uint8_t)v[c];
}

/* Random numbers from a seed: splitmix64, as the transforms draw. */
static inline uint64_t sr_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}
static inline double sr_uniform(uint64_t *state) { return (double)(sr_bits(state) >> 11) * 0x1p-53; } /* [0, 1) */

/* ---- floating-point values of 16 bits ---- */

static inline uint16_t sr_half_of(float value) /* rounded to even */
{
    uint32_t bits, sign, tail;
    memcpy(&bits, &value, sizeof bits);
    sign = bits >> 16 & 0x8000, bits &= 0x7fffffff;
    if (bits >= 0x47800000) /* 65536 and more: infinity, or not a number */
        return (uint16_t)(sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (bits < 0x33000000) /* less than half of the smallest half */
        return (uint16_t)sign;
    int shift = bits < 0x38800000 ? 126 - (int)(bits >> 23) : 13; /* subnormal halves lose more bits */
    uint32_t digits = bits < 0x38800000 ? (bits & 0x7fffff) | 0x800000 : bits - 0x38000000;
    tail = digits & ((1u << shift) - 1), digits >>= shift;
    digits += tail > 1u << (shift - 1) || (tail == 1u << (shift - 1) && (digits & 1));
    return (uint16_t)(sign | digits);
}

static inline uint16_t sr_bfloat16_of(float value) /* rounded to even */
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline float sr_of_bfloat16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float sr_of_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff, bits;
    float value;
    if (rest >= 0x7c00) /* infinity, or not a number */
        bits = 0x7f800000 | (rest & 0x3ff) << 13;
    else if (rest >= 0x400)
        bits = (rest << 13) + 0x38000000;
    else { /* subnormal: a multiple of 2^-24 */
        value = (float)rest * 0x1p-24f;
        return sign ? -value : value;
    }
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
