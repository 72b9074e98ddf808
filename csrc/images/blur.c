/* blur.c - sharpness, and two kinds of Gaussian blur. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "smooth.h"

#define CHUNK 2048 /* values at a time, in a buffer on the stack */

#define LOOP static
#define NAMED(name) name##_c
#include "smooth_loops.h"
#undef LOOP
#undef NAMED
#ifdef __x86_64__
#define LOOP static __attribute__((target("avx2")))
#define NAMED(name) name##_avx2
#include "smooth_avx2.h"
#include "smooth_loops.h"
#endif

static const sr_smooth_loops *chosen(void)
{
#ifdef __x86_64__
    if (sr_use_vectors())
        return &loops_avx2;
#endif
    return &loops_c;
}

/* ---- sharpness --------------------------------------------------------------------------------------------------- */

/* Pillow's filter leaves the pixels at the border unchanged, and so does the blend. */
int sr_sharpen(sr_augmenter *a, const sr_op *op, sr_pixels *image)
{
    float factor = (float)op->v[0];
    int height = image->height, width = image->width;
    if (!isfinite(factor))
        return -EINVAL;
    if (factor == 1 || height < 3 || width < 3)
        return 0;
    size_t row = 3 * (size_t)width;
    uint8_t *to = sr_result(a, height, width);
    if (!to)
        return -ENOMEM;
    memcpy(to, image->data, row);
    for (int y = 1; y < height - 1; y++) {
        const uint8_t *from = image->data + (size_t)y * row;
        uint8_t *line = to + (size_t)y * row;
        memcpy(line, from, 3);
        chosen()->sharpen(from + 3, row, (int)row - 6, factor, line + 3);
        memcpy(line + row - 3, from + row - 3, 3);
    }
    memcpy(to + (size_t)(height - 1) * row, image->data + (size_t)(height - 1) * row, row);
    sr_take_result(a, image, height, width);
    return 0;
}

/* ---- torchvision's Gaussian blur --------------------------------------------------------------------------------- */

void sr_gaussian(double sigma, int radius, float *weights)
{
    double sum = 0;
    for (int i = radius; i >= 0; i--)
        sum += (i ? 2 : 1) * exp(-0.5 * (i / sigma) * (i / sigma));
    for (int i = 0; i <= radius; i++)
        weights[i] = (float)(exp(-0.5 * (i / sigma) * (i / sigma)) / sum);
}

/* Return the pixel, of `n`, that is seen at `i`, up to n - 1 pixels beyond a border: a mirror on the last pixel. */
static int mirrored(int i, int n) { return i < 0 ? -i : i < n ? i : 2 * n - 2 - i; }

/* Repeat a row of `pixels` pixels of `values` values each beyond both ends. */
#define MIRROR_ENDS(row, pixels, radius, values)                                                    \
    for (int i = 1; i <= (radius); i++)                                                             \
        for (int c = 0; c < (values); c++) {                                                        \
            (row)[(values) * -i + c] = (row)[(values) * i + c];                                     \
            (row)[(values) * ((pixels)-1 + i) + c] = (row)[(values) * ((pixels)-1 - i) + c];        \
        }

void sr_blur_plane(float *values, int height, int width, int radius, const float *weights[2], float *scratch)
{
    size_t n = (size_t)width;
    float *line = scratch + (size_t)height * n + radius;
    memset(scratch, 0, (size_t)height * n * sizeof *scratch);
    for (int y = 0; y < height; y++)
        for (int k = radius; k >= 0; k--)
            chosen()->add(values + (size_t)mirrored(y - k, height) * n, values + (size_t)mirrored(y + k, height) * n,
                          k ? weights[1][k] : weights[1][0] / 2, width, scratch + (size_t)y * n);
    memset(values, 0, (size_t)height * n * sizeof *values);
    for (int y = 0; y < height; y++) {
        memcpy(line, scratch + (size_t)y * n, n * sizeof *line);
        MIRROR_ENDS(line, width, radius, 1)
        for (int k = radius; k >= 0; k--)
            chosen()->add(line - k, line + k, k ? weights[0][k] : weights[0][0] / 2, width, values + (size_t)y * n);
    }
}

/* Wide kernels, in single precision. */
static int blur_wide(sr_augmenter *a, const sr_pixels *image, const int radius[2], uint8_t *to)
{
    int height = image->height, values = 3 * image->width, edge = 3 * radius[0];
    size_t weights_n = (size_t)radius[0] + (size_t)radius[1] + 2, n = (size_t)values;
    float *weights = sr_buffer_need(&a->work, 0);
    float *sum = weights + weights_n, *line = sum + n + edge;
    for (int y = 0; y < height; y++, to += n) {
        memset(line, 0, n * sizeof *line);
        for (int k = radius[1]; k >= 0; k--)
            chosen()->add_pixels(image->data + (size_t)mirrored(y - k, height) * n,
                                 image->data + (size_t)mirrored(y + k, height) * n,
                                 weights[radius[0] + 1 + k] * (k ? 1 : 0.5f), values, line);
        MIRROR_ENDS(line, image->width, radius[0], 3)
        memset(sum, 0, n * sizeof *sum);
        for (int k = radius[0]; k >= 0; k--)
            chosen()->add(line - 3 * k, line + 3 * k, weights[k] * (k ? 1 : 0.5f), values, sum);
        for (int i = 0; i < values; i++)
            to[i] = sr_level((int)lrintf(sum[i]));
    }
    return 0;
}

/* Narrow kernels, with weights and sums of 15 bits. A pair of taps at the same distance is one product. */
#define NARROW 32 /* the largest radius: the rounding errors of more products could reach a level */
#define PAIRS (NARROW + 1)

static void round_weights(const float *weights, int radius, int16_t *rounded)
{
    for (int k = 0; k <= radius; k++) {
        float exact = (k ? 65536 : 32768) * weights[k];
        rounded[k] = exact > 32767 ? 32767 : (int16_t)lrintf(exact);
    }
}

static void blur_narrow(sr_augmenter *a, const sr_pixels *image, const int radius[2], uint8_t *to)
{
    const uint8_t *rows[2 * PAIRS];
    int16_t across[PAIRS], down[PAIRS];
    int height = image->height, values = 3 * image->width;
    float *weights = sr_buffer_need(&a->work, 0);
    int16_t *line = (int16_t *)(weights + radius[0] + radius[1] + 2) + 3 * radius[0];
    round_weights(weights, radius[0], across);
    round_weights(weights + radius[0] + 1, radius[1], down);
    for (int y = 0; y < height; y++, to += values) {
        for (int k = 0; k <= radius[1]; k++) {
            rows[2 * k] = image->data + (size_t)mirrored(y - k, height) * (size_t)values;
            rows[2 * k + 1] = image->data + (size_t)mirrored(y + k, height) * (size_t)values;
        }
        chosen()->down(rows, down, radius[1] + 1, values, line);
        MIRROR_ENDS(line, image->width, radius[0], 3)
        chosen()->across(line, across, radius[0] + 1, values, to);
    }
}

int sr_gaussian_blur(sr_augmenter *a, const sr_op *op, sr_pixels *image)
{
    int radius[2] = {op->n[0] / 2, op->n[1] / 2}, height = image->height, width = image->width;
    for (int i = 0; i < 2; i++)
        if (op->n[i] < 1 || op->n[i] % 2 == 0 || !(op->v[i] > 0) || !isfinite(op->v[i]))
            return -EINVAL;
    if (radius[0] >= width || radius[1] >= height) /* a mirror shows each pixel once only */
        return -EINVAL;
    size_t floats = (size_t)radius[0] + (size_t)radius[1] + 2 + 6 * (size_t)(width + radius[0]) + 32;
    float *weights = sr_buffer_need(&a->work, floats * sizeof(float));
    uint8_t *to = sr_result(a, height, width);
    if (!weights || !to)
        return -ENOMEM;
    sr_gaussian(op->v[0], radius[0], weights);
    sr_gaussian(op->v[1], radius[1], weights + radius[0] + 1);
    if (radius[0] > NARROW || radius[1] > NARROW)
        blur_wide(a, image, radius, to);
    else
        blur_narrow(a, image, radius, to);
    sr_take_result(a, image, height, width);
    return 0;
}

/* ---- Pillow's Gaussian blur -------------------------------------------------------------------------------------- */

/* Three box blurs in each direction, each rounded to levels. A box has 2 x radius + 1 whole pixels, and a part of the
 * next pixel at either end. Beyond the border it sees the pixel at the border. */
typedef struct box {
    int radius;
    uint32_t whole, part; /* weights, with 24 bits */
} box;

/* In the precision of Pillow, which mixes double and single. */
static int box_of(double sigma, box *b)
{
    float radius = (float)sigma, variance = radius * radius / 3;
    float length = (float)sqrt(12.0 * variance + 1.0), whole = (float)floor((length - 1.0) / 2.0);
    float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
    part /= 6 * (variance - (whole + 1) * (whole + 1));
    float wide = whole + part;
    if (!(fabs(sigma) < 1 << 20) || !(wide >= 0))
        return -EINVAL;
    b->radius = (int)wide;
    b->whole = (uint32_t)((float)(1 << 24) / (wide * 2 + 1));
    b->part = ((1 << 24) - ((uint32_t)b->radius * 2 + 1) * b->whole) / 2;
    if (wide == 0)
        b->whole = 0;
    return 0;
}

static int within(int64_t i, int n) { return i < 0 ? 0 : i < n ? (int)i : n - 1; }

/* Blur `n` lines of values, `stride` apart; `values` of a line are next to each other. */
static void box_down(const box *b, const uint8_t *from, int n, size_t stride, int values, uint32_t *sums, uint8_t *to)
{
    int64_t r = b->radius;
    for (int i = 0; i < values; i++)
        sums[i] = (uint32_t)(r + 1) * from[i];
    int64_t inner = r < n ? r : n; /* of the lines 0 to r - 1, those that exist */
    for (int y = 0; y < inner; y++)
        for (int i = 0; i < values; i++)
            sums[i] += from[(size_t)y * stride + i];
    for (int i = 0; i < values; i++)
        sums[i] += (uint32_t)(r - inner) * from[(size_t)(n - 1) * stride + i];
    for (int y = 0; y < n; y++) {
        const uint8_t *left = from + (size_t)within(y - r - 1, n) * stride;
        chosen()->box(left, from + (size_t)within(y + r, n) * stride, left,
                      from + (size_t)within(y + r + 1, n) * stride, values, b->whole, b->part, sums,
                      to + (size_t)y * stride);
    }
}

/* Exchange rows and columns of pixels, in squares that fit in the cache. */
static void transpose(const uint8_t *from, int height, int width, uint8_t *to)
{
    for (int top = 0; top < height; top += 16)
        for (int x = 0; x < width; x++) {
            int bottom = top + 16 < height ? top + 16 : height;
            for (int y = top; y < bottom; y++)
                memcpy(to + 3 * ((size_t)x * (size_t)height + (size_t)y),
                       from + 3 * ((size_t)y * (size_t)width + (size_t)x), 3);
        }
}

static void three_boxes(const box *b, uint8_t *data, uint8_t *scratch, int height, int width, uint32_t *sums)
{
    size_t stride = 3 * (size_t)width;
    box_down(b, data, height, stride, (int)stride, sums, scratch);
    box_down(b, scratch, height, stride, (int)stride, sums, data);
    box_down(b, data, height, stride, (int)stride, sums, scratch);
}

int sr_pil_gaussian_blur(sr_augmenter *a, const sr_op *op, sr_pixels *image)
{
    box boxes[2];
    int height = image->height, width = image->width;
    if (box_of(op->v[0], &boxes[0]) || box_of(op->v[1], &boxes[1]))
        return -EINVAL;
    uint32_t *sums = sr_buffer_need(&a->work, 3 * (size_t)(height > width ? height : width) * sizeof *sums);
    uint8_t *to = sr_result(a, height, width);
    if (!sums || !to)
        return -ENOMEM;
    if (boxes[0].whole) { /* across: down in the transposed image */
        transpose(image->data, height, width, to);
        three_boxes(&boxes[0], to, image->data, width, height, sums);
        transpose(image->data, width, height, to);
        sr_take_result(a, image, height, width);
        to = sr_result(a, height, width);
    }
    if (boxes[1].whole) {
        three_boxes(&boxes[1], image->data, to, height, width, sums);
        sr_take_result(a, image, height, width);
    }
    return 0;
}
