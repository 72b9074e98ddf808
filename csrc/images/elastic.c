/* elastic.c - elastic transformation: torchvision's ElasticTransform.
 *
 * The noise comes from the seed as splitmix64 numbers: the displacements in x of all pixels, row by row, then those in
 * y. Each plane is blurred with torchvision's kernel of int(8 x sigma + 1) taps, one more if that is even. Like torch's
 * padding, the blur needs an image whose sides are longer than half of the kernel: -EINVAL for smaller images.
 *
 * torchvision takes the pixels with torch's grid_sample, also for PIL images. Beyond the border that sees zeros, which
 * the fill replaces in proportion. It rounds to the nearest level, and its cubic has a = -0.75. torchvision's bicubic
 * results wrap around below 0 and above 255; here they are clipped.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "sample.h"
#include "smooth.h"

/* Write displacements of one direction, in parts of half of the image: noise from -1 to 1, row by row, blurred. */
static void displace(float *to, int height, int width, uint64_t *state, int radius, const float *weights[2],
                     float *scratch, float alpha, int size)
{
    size_t n = (size_t)height * (size_t)width;
    for (size_t i = 0; i < n; i++)
        to[i] = (float)(2 * sr_uniform(state) - 1);
    if (radius >= 0)
        sr_blur_plane(to, height, width, radius, weights, scratch);
    for (size_t i = 0; i < n; i++)
        to[i] = to[i] * alpha / (float)size;
}

/* Return the centre of pixel `i` of `n`, where the image is from -1 to 1. Like torch.linspace, count from the nearer
 * end, and round once: torch multiplies and adds in one instruction. */
static float identity(int i, int n)
{
    float start = (float)(-n + 1) / (float)n, end = (float)(n - 1) / (float)n;
    double step = n > 1 ? (end - start) / (float)(n - 1) : 0;
    return (float)(i < n / 2 || n == 1 ? start + step * i : end - step * (n - 1 - i));
}

/* Return a coordinate between pixels: 0 is the centre of the first of `n` pixels. */
static float coordinate_of(float centre, float displacement, int n)
{
    return (float)((double)(centre + displacement + 1) * (n / 2.0) - 0.5);
}

static void cubic(float f, float w[4])
{
    const float a = -0.75f;
    float g = 1 - f, x = f + 1, y = g + 1;
    w[0] = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
    w[1] = ((a + 2) * f - (a + 3)) * f * f + 1;
    w[2] = ((a + 2) * g - (a + 3)) * g * g + 1;
    w[3] = ((a * y - 5 * a) * y + 8 * a) * y - 4 * a;
}

/* Take one pixel as torch does; x and y are 0 at the centre of the first pixel. */
static void take(const sr_sampler *s, float x, float y, const float fill[3], uint8_t *to)
{
    int taps = s->filter == SR_BICUBIC ? 4 : s->filter == SR_BILINEAR ? 2 : 1, before = taps / 4;
    float wx[4] = {1}, wy[4] = {1}, sums[3] = {0}, inside = 0;
    if (!(x > -3 && x < (float)s->width + 2 && y > -3 && y < (float)s->height + 2))
        taps = 0; /* far away, or not a number */
    float fx = taps == 1 ? nearbyintf(x) : floorf(x), fy = taps == 1 ? nearbyintf(y) : floorf(y);
    if (taps == 2)
        wx[0] = fx + 1 - x, wx[1] = x - fx, wy[0] = fy + 1 - y, wy[1] = y - fy;
    else if (taps == 4)
        cubic(x - fx, wx), cubic(y - fy, wy);
    for (int j = 0; j < taps; j++) {
        for (int i = 0; i < taps; i++) {
            int column = (int)fx - before + i, row = (int)fy - before + j;
            if (column < 0 || column >= s->width || row < 0 || row >= s->height)
                continue;
            const uint8_t *from = s->data + (uint32_t)row * (size_t)s->stride + 3 * (size_t)column;
            float weight = wx[i] * wy[j];
            inside += weight;
            for (int c = 0; c < 3; c++)
                sums[c] += from[c] * weight;
        }
    }
    for (int c = 0; c < 3; c++) {
        float value = taps < 2 ? (inside < 0.5f ? fill[c] : sums[c]) : (sums[c] - fill[c]) * inside + fill[c];
        to[c] = sr_level((int)nearbyintf(value));
    }
}

static bool has_all_taps(const sr_sampler *s, float x, float y)
{
    return x >= 0 && x <= (float)(s->width - 1) && y >= 0 && y <= (float)(s->height - 1);
}

static void take_rows(sr_sampler *s, const float *planes[2], const float fill[3], uint8_t *to)
{
    int width = s->width, height = s->height;
    for (int j = 0; j < height; j++, to += s->stride, planes[0] += width, planes[1] += width) {
        float row = identity(j, height);
        for (int i = 0; i < width; i++) {
            s->x[i] = coordinate_of(identity(i, width), planes[0][i], width);
            s->y[i] = coordinate_of(row, planes[1][i], height);
        }
        for (int first = 0, last; first < width; first = last) {
            for (last = first; s->filter == SR_BILINEAR && last < width
                               && has_all_taps(s, (float)s->x[last], (float)s->y[last]); last++) {
                s->x[last] += 0.5;
                s->y[last] += 0.5;
            }
            if (last > first)
                sr_sample(s, first, last, to);
            for (; last < width && !(s->filter == SR_BILINEAR
                                     && has_all_taps(s, (float)s->x[last], (float)s->y[last])); last++)
                take(s, (float)s->x[last], (float)s->y[last], fill, to + 3 * (size_t)last);
        }
    }
}

/* Make the moved pixels the image. The planes are displacements in x and in y, in parts of half of the image. */
static int move(sr_augmenter *a, sr_sampler *s, const float *planes[2], const double v[3], sr_pixels *image)
{
    uint8_t *to = sr_result(a, image->height, image->width);
    if (!to)
        return -ENOMEM;
    s->bias = 64;
    float fill[3];
    for (int c = 0; c < 3; c++)
        fill[c] = v[c] > 0 ? v[c] < 255 ? (float)v[c] : 255 : 0;
    take_rows(s, planes, fill, to);
    sr_take_result(a, image, image->height, image->width);
    return 0;
}

int sr_displace(sr_augmenter *a, int filter, const float *x, const float *y, const double fill[3], sr_pixels *image)
{
    sr_sampler s;
    int rc = sr_sampler_make(&s, a, image, filter, image->width);
    const float *planes[2] = {x, y};
    return rc ? rc : move(a, &s, planes, fill, image);
}

/* Return the radius of torchvision's kernel for a sigma; -1 for 0: no blur. */
static int radius_of(double sigma) { return sigma > 0 ? (int)(8 * sigma + 1) / 2 : -1; }

int sr_elastic(sr_augmenter *a, const sr_op *op, sr_pixels *image)
{
    const double *v = op->v;
    int height = image->height, width = image->width, least = height < width ? height : width;
    if (!sr_all_finite(v, 4) || v[2] < 0 || v[3] < 0 || (v[2] > 0) != (v[3] > 0) || v[2] > least || v[3] > least)
        return -EINVAL;
    int radii[2] = {radius_of(v[2]), radius_of(v[3])}, most = radii[0] > radii[1] ? radii[0] : radii[1];
    if (most >= least)
        return -EINVAL;
    sr_sampler s;
    int rc = sr_sampler_make(&s, a, image, op->n[0], width);
    if (rc)
        return rc;
    /* The sampler's arrays come first, then two planes, scratch memory for the blur, and weights. */
    size_t n = (size_t)height * (size_t)width, wide = (size_t)(most < 0 ? 0 : most);
    size_t at = ((size_t)width + 32) * 48, floats = 3 * n + (size_t)width + 4 * wide + 16;
    if (!sr_buffer_need(&a->work, at + floats * sizeof(float)))
        return -ENOMEM;
    sr_sampler_make(&s, a, image, op->n[0], width); /* the buffer may have moved */
    float *planes = (float *)(a->work.data + at), *scratch = planes + 2 * n;
    float *weights = scratch + n + (size_t)width + 2 * wide;
    uint64_t state = (uint32_t)op->n[1] | (uint64_t)(uint32_t)op->n[2] << 32;
    for (int i = 0; i < 2; i++) { /* first the displacements in x, then in y; the kernel's size is that of each */
        const float *kernels[2] = {weights, weights + wide + 1};
        for (int k = 0; k < 2 && radii[i] >= 0; k++)
            sr_gaussian(v[2 + k], radii[i], weights + (size_t)k * (wide + 1));
        displace(planes + (size_t)i * n, height, width, &state, radii[i], kernels, scratch, (float)v[i],
                 i ? height : width);
    }
    const float *both[2] = {planes, planes + n};
    return move(a, &s, both, v + 4, image);
}
