/* smooth.h - Gaussian blur of values in floating point, and the loops of blur.c. Private to csrc/images. */
#ifndef SLIPRING_IMAGES_SMOOTH_H
#define SLIPRING_IMAGES_SMOOTH_H

#include "pixels.h"

/* Write the weights of a kernel with 2 x radius + 1 taps: of its centre, then of the taps on one side. */
void sr_gaussian(double sigma, int radius, float *weights);

/* Blur `height` rows of `width` values, which it reads and overwrites. `room` has room for as many values, and for
 * width + 2 x radius more. The radius must be below the height and the width; weights are for x and y. */
void sr_blur_plane(float *values, int height, int width, int radius, const float *weights[2], float *room);

typedef struct sr_smooth_loops {
    /* to += weight x (a + b) */
    void (*add)(const float *a, const float *b, float weight, int n, float *to);
    void (*add_levels)(const uint8_t *a, const uint8_t *b, float weight, int n, float *to);
    /* Four pairs of rows at a time; weights of 15 bits. Levels get 6 bits on the way, which sums of rows have, and
     * sums get one more. */
    void (*pairs_of_levels)(const uint8_t *const rows[8], const int16_t weights[4], int n, int16_t *to);
    void (*pairs)(const int16_t *const rows[8], const int16_t weights[4], int n, int16_t *to);
    void (*halve)(const int16_t *from, int n, int16_t *to);
    void (*levels)(const int16_t *from, int n, uint8_t *to);
    void (*sharpen)(const uint8_t *row, size_t stride, int n, float factor, uint8_t *to);
    /* One pass of a box blur over rows, see blur.c. */
    void (*box)(const uint8_t *leaving, const uint8_t *entering, const uint8_t *left, const uint8_t *right, int n,
                uint32_t whole, uint32_t part, uint32_t *sums, uint8_t *to);
} sr_smooth_loops;

#endif
