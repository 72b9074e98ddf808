/* moves.c - operations that move pixels: flips, crops, borders, resizing. */
#include <errno.h>
#include <string.h>

#include "crop.h"
#include "pixels.h"

static uint8_t *row_of(const sr_pixels *image, int y) { return image->data + 3 * (size_t)y * (size_t)image->width; }

int sr_flip_horizontally(sr_augmenter *a, const sr_op *op, sr_pixels *image)
{
    (void)op;
    size_t row = 3 * (size_t)image->width;
    uint8_t *copy = sr_buffer_need(&a->work, row);
    if (!copy)
        return -ENOMEM;
    for (int y = 0; y < image->height; y++) {
        uint8_t *to = row_of(image, y);
        const uint8_t *from = copy + row;
        memcpy(copy, to, row);
        for (int x = 0; x < image->width; x++) {
            from -= 3;
            memcpy(to + 3 * (size_t)x, from, 3);
        }
    }
    return 0;
}

int sr_flip_vertically(sr_augmenter *a, const sr_op *op, sr_pixels *image)
{
    (void)op;
    size_t row = 3 * (size_t)image->width;
    uint8_t *copy = sr_buffer_need(&a->work, row);
    if (!copy)
        return -ENOMEM;
    for (int y = 0; y < image->height / 2; y++) {
        uint8_t *upper = row_of(image, y), *lower = row_of(image, image->height - 1 - y);
        memcpy(copy, upper, row);
        memcpy(upper, lower, row);
        memcpy(lower, copy, row);
    }
    return 0;
}

int sr_crop_image(sr_augmenter *a, const sr_op *op, sr_pixels *image)
{
    int top = op->n[0], left = op->n[1], height = op->n[2], width = op->n[3];
    if (!sr_is_size(height, width) || top < -SR_MOST_SIDE || left < -SR_MOST_SIDE || top > SR_MOST_SIDE
        || left > SR_MOST_SIDE)
        return -EINVAL;
    uint8_t fill[3], *to = sr_result(a, height, width);
    if (!to)
        return -ENOMEM;
    sr_fill_of(op->v, fill);
    /* The columns of the result that lie in the image. */
    int first = left < 0 ? -left : 0, last = image->width - left < width ? image->width - left : width;
    if (first > width || last < first)
        first = last = width;
    for (int y = 0; y < height; y++, to += 3 * (size_t)width) {
        if (top + y < 0 || top + y >= image->height) {
            sr_fill_pixels(to, width, fill);
            continue;
        }
        sr_fill_pixels(to, first, fill);
        if (last > first)
            memcpy(to + 3 * (size_t)first, row_of(image, top + y) + 3 * (size_t)(left + first),
                   3 * (size_t)(last - first));
        sr_fill_pixels(to + 3 * (size_t)last, width - last, fill);
    }
    sr_take_result(a, image, height, width);
    return 0;
}

/* Return the row or column of the image, of `n`, that shows at position `i` of a border; it may be far outside. */
static int reflected(int i, int n, int mode)
{
    if (mode == SR_EDGE)
        return i < 0 ? 0 : i >= n ? n - 1 : i;
    int period = mode == SR_REFLECT ? 2 * n - 2 : 2 * n;
    if (period == 0)
        return 0;
    int at = i % period;
    at = at < 0 ? at + period : at;
    return at < n ? at : mode == SR_REFLECT ? period - at : period - 1 - at;
}

int sr_pad(sr_augmenter *a, const sr_op *op, sr_pixels *image)
{
    int left = op->n[0], top = op->n[1], right = op->n[2], bottom = op->n[3], mode = op->n[4];
    if (left < 0 || top < 0 || right < 0 || bottom < 0 || left > SR_MOST_SIDE || top > SR_MOST_SIDE
        || right > SR_MOST_SIDE || bottom > SR_MOST_SIDE || mode < SR_CONSTANT || mode > SR_SYMMETRIC)
        return -EINVAL;
    int height = top + image->height + bottom, width = left + image->width + right;
    if (mode == SR_CONSTANT) {
        sr_op box = {.code = SR_OP_CROP, .n = {-top, -left, height, width}, .v = {op->v[0], op->v[1], op->v[2]}};
        return sr_crop_image(a, &box, image);
    }
    if (!sr_is_size(height, width))
        return -EINVAL;
    uint8_t *to = sr_result(a, height, width);
    if (!to)
        return -ENOMEM;
    for (int y = 0; y < height; y++, to += 3 * (size_t)width) {
        const uint8_t *from = row_of(image, reflected(y - top, image->height, mode));
        for (int x = 0; x < left; x++)
            memcpy(to + 3 * (size_t)x, from + 3 * (size_t)reflected(x - left, image->width, mode), 3);
        memcpy(to + 3 * (size_t)left, from, 3 * (size_t)image->width);
        for (int x = left + image->width; x < width; x++)
            memcpy(to + 3 * (size_t)x, from + 3 * (size_t)reflected(x - left, image->width, mode), 3);
    }
    sr_take_result(a, image, height, width);
    return 0;
}

int sr_resize_image(sr_augmenter *a, const sr_op *op, sr_pixels *image)
{
    int height = op->n[0], width = op->n[1];
    if (!sr_is_size(height, width) || op->n[2] < SR_BILINEAR || op->n[2] > SR_NEAREST)
        return -EINVAL;
    uint8_t *to = sr_result(a, height, width);
    if (!to)
        return -ENOMEM;
    sr_crop whole = {.filter = (enum sr_filter)op->n[2], .orientation = 1};
    sr_target target = {.data = (char *)to, .row = 3 * (int64_t)width, .pixel = 3, .channel = 1, .width = width,
                        .height = height, .bytes = 1};
    int rc = sr_crop_pixels(&a->resize, image->data, 3 * (size_t)image->width, image->width, image->height, &whole,
                            &target);
    if (rc == 0)
        sr_take_result(a, image, height, width);
    return rc;
}
