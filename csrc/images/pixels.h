/* pixels.h - what the files of operations share. Private to csrc/images. */
#ifndef SLIPRING_IMAGES_PIXELS_H
#define SLIPRING_IMAGES_PIXELS_H

#include "augment.h"

/* Return memory for a result, in the buffer that does not hold the image; NULL: there is none. */
uint8_t *sr_result(sr_augmenter *a, int height, int width);
/* Make the result the image. */
void sr_take_result(sr_augmenter *a, sr_pixels *image, int height, int width);

/* Each returns 0, -EINVAL or -ENOMEM, and leaves the image unchanged if it fails. */
int sr_color(sr_augmenter *a, const sr_op *ops, int count, sr_pixels *image); /* a run of colour operations */
int sr_neighbours(sr_augmenter *a, const sr_op *op, sr_pixels *image);
int sr_move(sr_augmenter *a, const sr_op *op, sr_pixels *image);
int sr_warp(sr_augmenter *a, const sr_op *op, sr_pixels *image);

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

#endif
