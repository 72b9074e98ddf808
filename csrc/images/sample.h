/* sample.h - take pixels at arbitrary points of an image, row by row. Private to csrc/images.
 *
 * A point is in Pillow's coordinates: the pixel in column x reaches from x to x + 1. Bilinear and bicubic interpolation
 * are Pillow's: beyond the border they see the nearest pixel of the image, and the cubic has a = -1. Points and weights
 * are rounded to 15 and 14 bits, so a result differs from Pillow's double precision by at most one level.
 */
#ifndef SLIPRING_IMAGES_SAMPLE_H
#define SLIPRING_IMAGES_SAMPLE_H

#include "pixels.h"

/* Where the points of a row are, and what the loops need to take pixels there. */
typedef struct sr_sampler {
    const uint8_t *data; /* the image */
    uint32_t stride;     /* bytes from a row to the next */
    int height, width;
    enum sr_filter filter;
    int bias;            /* bilinear: 0 rounds down, as Pillow does; 64 rounds to the nearest level */
    uint32_t steps[4];   /* from the first row of a neighbourhood to each of its rows */
    double *x, *y;       /* the points of one row */
    uint32_t *at;        /* the first byte of each neighbourhood */
    int16_t *weights[2]; /* bilinear: minus the fraction in x and y */
    uint32_t *pairs_x[2], *pairs_y[2]; /* bicubic: two pairs of weights in each direction */
    int *fractions[2], *moved;         /* bicubic: whether a neighbourhood reaches beyond the border */
    uint8_t fill[3];
} sr_sampler;

/* Prepare to take rows of `count` pixels from the image. It needs a->work. -EINVAL: an image of 4 GiB; -ENOMEM. */
int sr_sampler_make(sr_sampler *s, sr_augmenter *a, const sr_pixels *image, int filter, int count);

/* Write the pixels at the points `first` to `last` (exclusive), which must lie in the image, to the row `to`. It writes
 * up to four bytes more. */
void sr_sample(sr_sampler *s, int first, int last, uint8_t *to);

/* Write the row: pixels at the points that lie in the image, and the fill elsewhere. */
void sr_sample_where_inside(sr_sampler *s, int count, uint8_t *to);

/* The loops over a row. */
typedef struct sr_sample_loops {
    void (*affine)(double *to, int n, double step, double first, double row, double add);
    void (*perspective)(double *x, double *y, int n, const double v[8], double row);
    void (*copy)(const sr_sampler *s, int first, int n, uint8_t *to);
    void (*nearest)(sr_sampler *s, int first, int n);
    void (*fixed)(sr_sampler *s, int n, uint32_t x, uint32_t y, uint32_t step_x, uint32_t step_y);
    void (*bilinear)(sr_sampler *s, int first, int n, uint8_t *to);
    void (*bicubic)(sr_sampler *s, int first, int n, uint8_t *to);
    /* Writes up to 15 bytes more. */
    void (*shift)(const uint8_t *from, const uint8_t *next, int values, int fraction, uint8_t *to);
} sr_sample_loops;
const sr_sample_loops *sr_sample_loops_chosen(void);

bool sr_all_finite(const double *v, int n); /* and small enough that no sum or product overflows: below 1e100 */


#endif
