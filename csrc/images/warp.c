/* warp.c - affine and perspective transformations: Pillow's Image.transform.
 *
 * Pillow's Image.rotate, which torchvision calls, copies or transposes for 0, 90, 180 and 270 degrees if no centre is
 * given. The coefficients that it computes for other angles give the same bytes here, for every filter. There is one
 * exception: if a result is expanded by 90 or 270 degrees, the caller must pass a size of exactly width x height, and
 * move the centre for that size. The general rule of Image.rotate may give one row or column more.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "sample.h"

/* The image coordinate, in one direction, of the pixels of a row of the result. */
typedef struct line {
    double step, half, row, add;
} line;

/* Rounding never changes the order of two numbers, so this only grows, or only falls, with x. */
static double coordinate(const line *l, int x) { return l->step * (x + l->half) + l->row + l->add; }

static bool passed(const line *l, int x, double bound) { return (coordinate(l, x) >= bound) == (l->step >= 0); }

/* Return the first of `n` pixels whose coordinate has passed `bound`; `n` if there is none. */
static int crossing(const line *l, double bound, int n)
{
    double guess = l->step == 0 ? 0 : ceil((bound - l->add - l->row) / l->step - l->half);
    int low = 0, high = n, at = guess >= n ? n : guess > 0 ? (int)guess : 0;
    if (at > 0 && passed(l, at - 1, bound))
        high = at - 1;
    else if (low = at, at < n && passed(l, at, bound))
        high = at;
    while (low < high) { /* almost never */
        int middle = low + (high - low) / 2;
        if (passed(l, middle, bound))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Narrow a range of pixels to those whose coordinate is from 0 to `size` (exclusive). */
static void narrow(const line *l, double size, int n, int *first, int *last)
{
    int a = crossing(l, 0, n), b = crossing(l, size, n);
    int begin = a < b ? a : b, end = a < b ? b : a;
    *first = begin > *first ? begin : *first;
    *last = end < *last ? end : *last;
    if (*last < *first)
        *last = *first;
}

static void fill_ends(uint8_t *to, int first, int last, int width, const uint8_t fill[3])
{
    sr_fill_pixels(to, first, fill);
    sr_fill_pixels(to + 3 * (size_t)last, width - last, fill);
}

/* ---- nearest ----------------------------------------------------------------------------------------------------- */

/* Only scaled and moved. Like Pillow, add the steps up, with the same rounding. */
static void scale(sr_sampler *s, const double v[6], int height, int width, uint8_t *to)
{
    int first = width, last = 0, row_first = 0, row_last = -1;
    double x = v[2] + v[0] * 0.5, y = v[5] + v[4] * 0.5;
    for (int i = 0; i < width; i++, x += v[0]) {
        if (x >= 0 && x < s->width) {
            first = i < first ? i : first;
            last = i + 1;
            s->at[i] = 3 * (uint32_t)x;
        }
    }
    int n = last > first ? last - first : 0;
    first = n ? first : width, last = n ? last : width;
    if (n && v[0] == 1 && s->at[last - 1] - s->at[first] == 3 * (uint32_t)(n - 1)) /* a move */
        row_first = (int)s->at[first], row_last = row_first;
    const uint8_t *data = s->data;
    for (int i = 0; i < height; i++, y += v[4], to += 3 * (size_t)width) {
        if (!(y >= 0 && y < s->height)) {
            sr_fill_pixels(to, width, s->fill);
            continue;
        }
        s->data = data + (uint32_t)y * (size_t)s->stride;
        sr_fill_pixels(to, first, s->fill);
        if (row_last >= 0)
            memcpy(to + 3 * (size_t)first, s->data + row_first, 3 * (size_t)n);
        else
            sr_sample_loops_chosen()->copy(s, first, n, to + 3 * (size_t)first);
        sr_fill_pixels(to + 3 * (size_t)last, width - last, s->fill);
    }
}

/* Return whether Pillow uses 16.16 fixed point: if the corners of the result have coordinates below 32768. */
static bool is_fixed(const double v[6], int height, int width)
{
    for (int corner = 0; corner < 4; corner++) {
        int x = corner & 1 ? width : 0, y = corner & 2 ? height : 0;
        if (!(fabs(x * v[0] + y * v[1] + v[2]) < 32768) || !(fabs(x * v[3] + y * v[4] + v[5]) < 32768))
            return false;
    }
    return true;
}

static double fixed_of(double v) { return floor(v * 65536 + 0.5); }

static void fixed(sr_sampler *s, const double v[6], int height, int width, uint8_t *to)
{
    double step_x = fixed_of(v[0]), step_y = fixed_of(v[3]), row_x = fixed_of(v[1]), row_y = fixed_of(v[4]);
    double x = fixed_of(v[2] + v[0] * 0.5 + v[1] * 0.5), y = fixed_of(v[5] + v[3] * 0.5 + v[4] * 0.5);
    for (int i = 0; i < height; i++, to += 3 * (size_t)width, x += row_x, y += row_y) {
        line lx = {step_x, 0, 0, x}, ly = {step_y, 0, 0, y}; /* whole numbers, so nothing is rounded */
        int first = 0, last = width;
        narrow(&lx, s->width * 65536.0, width, &first, &last);
        narrow(&ly, s->height * 65536.0, width, &first, &last);
        if (last > first) {
            uint32_t from_x = (uint32_t)coordinate(&lx, first), from_y = (uint32_t)coordinate(&ly, first);
            sr_sample_loops_chosen()->fixed(s, last - first, from_x, from_y, (uint32_t)(int64_t)step_x,
                                            (uint32_t)(int64_t)step_y);
            sr_sample_loops_chosen()->copy(s, 0, last - first, to + 3 * (size_t)first);
        }
        fill_ends(to, first, last, width, s->fill);
    }
}

/* Images too large for fixed point. */
static void add_up(sr_sampler *s, const double v[6], int height, int width, uint8_t *to)
{
    double row_x = v[2] + v[1] * 0.5 + v[0] * 0.5, row_y = v[5] + v[4] * 0.5 + v[3] * 0.5;
    for (int i = 0; i < height; i++, to += 3 * (size_t)width, row_x += v[1], row_y += v[4]) {
        double x = row_x, y = row_y;
        for (int j = 0; j < width; j++, x += v[0], y += v[3])
            s->x[j] = x, s->y[j] = y;
        sr_sample_where_inside(s, width, to);
    }
}

/* ---- bilinear and bicubic ---------------------------------------------------------------------------------------- */

static bool is_whole(double v) { return fabs(v) < 1 << 24 && v == floor(v); }

/* Each row is moved to the side, by a number of pixels with a fraction. */
static void shear_rows(sr_sampler *s, const double v[6], int height, int width, uint8_t *to)
{
    const sr_sample_loops *loops = sr_sample_loops_chosen();
    int down = (int)v[5];
    for (int i = 0; i < height; i++, to += 3 * (size_t)width) {
        line lx = {1, 0.5, v[1] * (i + 0.5), v[2]};
        int y = i + down, first = 0, last = y >= 0 && y < s->height ? width : 0;
        narrow(&lx, s->width, width, &first, &last);
        if (last > first) {
            const uint8_t *from = s->data + (size_t)y * s->stride;
            double start = coordinate(&lx, first) - 0.5; /* of the first pixel: from -0.5 to the last pixel + 0.5 */
            int pixel = (int)(start + 1) - 1, fraction = -(int)((start - pixel) * 32768 + 0.5);
            int begin = first + (pixel < 0), end = last; /* the pixels that lie between two of the image */
            pixel = pixel < 0 ? 0 : pixel;
            end -= end > begin && pixel + end - begin > s->width - 1;
            loops->shift(from + 3 * (size_t)pixel, from + 3 * (size_t)pixel + 3, 3 * (end - begin), fraction,
                         to + 3 * (size_t)begin);
            if (begin > first)
                memcpy(to + 3 * (size_t)first, from, 3);
            if (end < last)
                memcpy(to + 3 * (size_t)end, from + s->stride - 3, 3);
        }
        fill_ends(to, first, last, width, s->fill);
    }
}

static void by_rows(sr_sampler *s, const double v[6], int height, int width, uint8_t *to)
{
    const sr_sample_loops *loops = sr_sample_loops_chosen();
    for (int i = 0; i < height; i++, to += 3 * (size_t)width) {
        line lx = {v[0], 0.5, v[1] * (i + 0.5), v[2]}, ly = {v[3], 0.5, v[4] * (i + 0.5), v[5]};
        int first = 0, last = width;
        narrow(&lx, s->width, width, &first, &last);
        narrow(&ly, s->height, width, &first, &last);
        if (last > first) {
            loops->affine(s->x + first, last - first, lx.step, first + lx.half, lx.row, lx.add);
            loops->affine(s->y + first, last - first, ly.step, first + ly.half, ly.row, ly.add);
            sr_sample(s, first, last, to);
        }
        fill_ends(to, first, last, width, s->fill);
    }
}

int sr_affine(sr_augmenter *a, const sr_op *op, sr_pixels *image)
{
    const double *v = op->v;
    int height = op->n[1], width = op->n[2];
    if (height < 1 || width < 1 || height > SR_MOST_SIDE || width > SR_MOST_SIDE || !sr_all_finite(v, 6))
        return -EINVAL;
    sr_sampler s;
    int rc = sr_sampler_make(&s, a, image, op->n[0], width);
    if (rc)
        return rc;
    uint8_t *to = sr_result(a, height, width);
    if (!to)
        return -ENOMEM;
    sr_fill_of(v + 6, s.fill);
    bool upright = v[1] == 0 && v[3] == 0;
    if (upright && (s.filter == SR_NEAREST || (v[0] == 1 && v[4] == 1 && is_whole(v[2]) && is_whole(v[5]))))
        scale(&s, v, height, width, to);
    else if (s.filter == SR_NEAREST && is_fixed(v, height, width))
        fixed(&s, v, height, width, to);
    else if (s.filter == SR_NEAREST)
        add_up(&s, v, height, width, to);
    else if (s.filter == SR_BILINEAR && v[0] == 1 && v[3] == 0 && v[4] == 1 && is_whole(v[5]))
        shear_rows(&s, v, height, width, to);
    else
        by_rows(&s, v, height, width, to);
    sr_take_result(a, image, height, width);
    return 0;
}

int sr_perspective(sr_augmenter *a, const sr_op *op, sr_pixels *image)
{
    if (!sr_all_finite(op->v, 8))
        return -EINVAL;
    sr_sampler s;
    int rc = sr_sampler_make(&s, a, image, op->n[0], image->width);
    if (rc)
        return rc;
    uint8_t *to = sr_result(a, image->height, image->width);
    if (!to)
        return -ENOMEM;
    sr_fill_of(op->v + 8, s.fill);
    for (int i = 0; i < image->height; i++, to += s.stride) {
        sr_sample_loops_chosen()->perspective(s.x, s.y, image->width, op->v, i + 0.5);
        sr_sample_where_inside(&s, image->width, to);
    }
    sr_take_result(a, image, image->height, image->width);
    return 0;
}
