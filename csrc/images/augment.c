/* augment.c - run a list of operations on an image, and write the result to its target. */
#include "augment.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "crop.h"
#include "pixels.h"

/* ---- a weighted sum of images ------------------------------------------------------------------------------------ */

/* The kept copy lies before the sum, which begins at a multiple of 64 bytes. */
static size_t copy_bytes(const sr_pixels *image)
{
    return (3 * (size_t)image->height * (size_t)image->width + 63) / 64 * 64;
}

static int sum_of(sr_augmenter *a, const sr_op *op, sr_pixels *image)
{
    size_t values = 3 * (size_t)image->height * (size_t)image->width, at = copy_bytes(image);
    if (op->code == SR_OP_KEEP) {
        char *memory = sr_buffer_need(&a->sum, at + values * sizeof(float));
        if (!memory)
            return -ENOMEM;
        memcpy(memory, image->data, values);
        memset(memory + at, 0, values * sizeof(float));
        return 0;
    }
    if (a->sum.capacity < at + values * sizeof(float)) /* nothing was kept, or an image of another size */
        return -EINVAL;
    float *sum = (float *)(a->sum.data + at);
    if (op->code == SR_OP_ADD_TO_SUM) {
        float weight = (float)op->v[0];
        for (size_t i = 0; i < values; i++)
            sum[i] += weight * image->data[i];
        memcpy(image->data, a->sum.data, values);
        return 0;
    }
    for (size_t i = 0; i < values; i++)
        image->data[i] = sr_level((int)nearbyintf(sum[i]));
    return 0;
}

/* ---- a list of operations ---------------------------------------------------------------------------------------- */

static sr_operation *const operations[] = {
    [SR_OP_SHARPNESS] = sr_sharpen,
    [SR_OP_GAUSSIAN_BLUR] = sr_gaussian_blur,
    [SR_OP_PIL_GAUSSIAN_BLUR] = sr_pil_gaussian_blur,
    [SR_OP_HORIZONTAL_FLIP] = sr_flip_horizontally,
    [SR_OP_VERTICAL_FLIP] = sr_flip_vertically,
    [SR_OP_CROP] = sr_crop_image,
    [SR_OP_PAD] = sr_pad,
    [SR_OP_RESIZE] = sr_resize_image,
    [SR_OP_AFFINE] = sr_affine,
    [SR_OP_PERSPECTIVE] = sr_perspective,
    [SR_OP_ELASTIC] = sr_elastic,
    [SR_OP_KEEP] = sum_of,
    [SR_OP_ADD_TO_SUM] = sum_of,
    [SR_OP_TAKE_SUM] = sum_of,
};

static bool is_color(const sr_op *op) { return op->code >= 0 && op->code < SR_OP_COLORS; }

int sr_augment(sr_augmenter *a, const sr_op *ops, int count, sr_pixels *image)
{
    for (int i = 0, rc, together; i < count; i += together) {
        for (together = 0; i + together < count && is_color(ops + i + together);)
            together++;
        if (together) {
            rc = sr_color(a, ops + i, together, image);
        } else {
            uint32_t code = (uint32_t)ops[i].code;
            sr_operation *apply = code < sizeof operations / sizeof *operations ? operations[code] : NULL;
            rc = apply ? apply(a, ops + i, image) : -EINVAL;
            together = 1;
        }
        if (rc)
            return rc;
    }
    return 0;
}

int sr_image_write(sr_augmenter *a, const sr_pixels *image, const sr_target *target)
{
    sr_crop whole = {.filter = SR_BILINEAR, .orientation = 1};
    if (image->height != target->height || image->width != target->width)
        return -EINVAL;
    return sr_crop_pixels(&a->resize, image->data, 3 * (size_t)image->width, image->width, image->height, &whole,
                          target);
}

/* ---- rectangles of the target ------------------------------------------------------------------------------------ */

static void put(char *to, int type, double value)
{
    if (type == SR_UINT8) {
        *(uint8_t *)to = sr_level((int)value);
    } else if (type == SR_FLOAT32) {
        float single = (float)value;
        memcpy(to, &single, sizeof single);
    } else {
        uint16_t bits = type == SR_FLOAT16 ? sr_half_of((float)value) : sr_bfloat16_of((float)value);
        memcpy(to, &bits, sizeof bits);
    }
}

/* Normal numbers come in pairs (Box and Muller); a rectangle uses them in the order of rows, columns, channels. */
typedef struct normals {
    uint64_t state;
    double second;
    bool has_second;
} normals;

static double normal(normals *n)
{
    if (n->has_second) {
        n->has_second = false;
        return n->second;
    }
    double radius = sqrt(-2 * log(1 - sr_uniform(&n->state))), angle = 2 * M_PI * sr_uniform(&n->state);
    n->second = radius * sin(angle);
    n->has_second = true;
    return radius * cos(angle);
}

void sr_erase(const sr_target *target, const sr_erasure *e)
{
    normals numbers = {.state = e->seed};
    for (int y = 0; y < e->height; y++) {
        char *row = target->data + (e->top + y) * target->row + e->left * target->pixel;
        for (int x = 0; x < e->width; x++, row += target->pixel)
            for (int c = 0; c < 3; c++)
                put(row + c * target->channel, e->type, e->noise ? normal(&numbers) : e->values[c]);
    }
}
