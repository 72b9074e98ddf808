/* color_loops.h - the inner loops of the colour operations. Private to csrc/images.
 *
 * They exist as plain C, which compilers turn into vectors for NEON, and for AVX2. All round in the same places, so
 * they give the same bytes. `n` counts pixels, `values` counts single values. A loop may read and write SR_SLACK bytes
 * after the pixels.
 */
#ifndef SLIPRING_IMAGES_COLOR_LOOPS_H
#define SLIPRING_IMAGES_COLOR_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sr_color_loops {
    /* Exchange each value for that in the table of its channel. */
    void (*map)(uint8_t *data, size_t n, const uint8_t table[3][256]);
    /* Exclusive or with `inverted` from `threshold` on, then clear the bits that `mask` lacks. */
    void (*bits)(uint8_t *data, size_t values, uint8_t threshold, uint8_t inverted, uint8_t mask);
    /* Find the smallest and the largest value of each channel. */
    void (*range)(const uint8_t *data, size_t n, uint8_t least[3], uint8_t most[3]);
    /* Return the sum of the grey levels of at most 2^24 pixels. */
    uint32_t (*gray_sum)(const uint8_t *data, size_t n);
    void (*grayscale)(uint8_t *data, size_t n);
    /* Blend each pixel with its grey level. */
    void (*saturate)(uint8_t *data, size_t n, float factor);
    /* Convert to Pillow's 8-bit HSV, add `shift` to the hue, and convert back. */
    void (*hue)(uint8_t *data, size_t n, uint8_t shift);
    /* Exchange channels: channel c gets the values of channel from[c]. */
    void (*permute)(uint8_t *data, size_t n, const int32_t from[3]);
} sr_color_loops;

extern const sr_color_loops sr_color_loops_c;
#ifdef __x86_64__
extern const sr_color_loops sr_color_loops_avx2;
#endif

/* Weights of Pillow's grey level, with the sum 1 << 16. */
enum { SR_GRAY_RED = 19595, SR_GRAY_GREEN = 38470, SR_GRAY_BLUE = 7471 };

/* Pillow's blend of two values; outside of 0 to 1, the factor extrapolates. */
static inline uint8_t sr_blend(int first, int second, float factor)
{
    float level = (float)first + factor * (float)(second - first);
    return (uint8_t)(int)(level < 0.0f ? 0.0f : level > 255.0f ? 255.0f : level);
}

#endif
