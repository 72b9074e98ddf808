/* smooth.h - Gaussian blur of values in floating point, and the loops of blur.c. Private to csrc/images. */
#ifndef SLIPRING_IMAGES_SMOOTH_H
#define SLIPRING_IMAGES_SMOOTH_H

#include "pixels.h"

/* Write the weights of a kernel with 2 x radius + 1 taps: of its centre, then of the taps on one side. */
void sr_gaussian(double sigma, int radius, float *weights);

/* Blur `height` rows of `width` values, which it reads and overwrites. `scratch` has room for as many values, and for
 * width + 2 x radius more. The radius must be below the height and the width; weights are for x and y. */
void sr_blur_plane(float *values, int height, int width, int radius, const float *weights[2], float *scratch);

typedef struct sr_smooth_loops {
    /* to += weight x (a + b) */
    void (*add)(const float *a, const float *b, float weight, int n, float *to);
    void (*add_pixels)(const uint8_t *a, const uint8_t *b, float weight, int n, float *to);
    /* Weighted sums of pairs of taps, the first of which is the centre with itself. Weights have 15 bits; rows between
     * the passes have 6 bits more than levels. Up to 31 values more are read and written. */
    void (*down)(const uint8_t *const *rows, const int16_t *weights, int pairs, int n, int16_t *to);
    void (*across)(const int16_t *row, const int16_t *weights, int pairs, int n, uint8_t *to);
    /* Writes up to 15 values more. */
    void (*sharpen)(const uint8_t *row, size_t stride, int n, float factor, uint8_t *to);
    /* One pass of a box blur over rows, see blur.c. */
    void (*box)(const uint8_t *leaving, const uint8_t *entering, const uint8_t *left, const uint8_t *right, int n,
                uint32_t whole, uint32_t part, uint32_t *sums, uint8_t *to);
} sr_smooth_loops;

#endif
