/* resize.h - antialiased resizing of a box of RGB rows directly into a row of a batch.
 *
 * The filters are Pillow's: triangle, and cubic with a = -0.5, widened for shrinking and cut at the borders of the box.
 * They are in 14-bit fixed point, with 6 more bits between the two passes. A result differs from Pillow's, which rounds
 * to 8 bits there, by at most one. Every kernel exists as plain C, AVX2 and NEON, with the same integers, so that all
 * give the same bytes. Nearest takes the same pixels as Pillow, and needs no kernel.
 */
#ifndef SLIPRING_IMAGES_RESIZE_H
#define SLIPRING_IMAGES_RESIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sr_filter { SR_BILINEAR = 0, SR_BICUBIC = 1, SR_NEAREST = 2 };

/* Memory that is kept from one image to the next; one per thread. Zeroed at first. */
typedef struct sr_buffer {
    char *data;
    size_t capacity;
} sr_buffer;

typedef struct sr_scratch {
    sr_buffer axes[2], rows, middle, line;
} sr_scratch;

/* Return `bytes` of memory, 64-byte aligned, with space for a vector load past its end; NULL: there is none. */
void *sr_buffer_need(sr_buffer *buffer, size_t bytes);
void sr_scratch_free(sr_scratch *scratch);

/* One direction: `from` source pixels (the box) become `to`, and the result has `count` of them, from `first` on. */
typedef struct sr_span {
    double start, end; /* the scaled part of the box: 0 and `from`, unless the image was halved before */
    int from, to, first, count;
    bool mirrored; /* the pixels of the result are in reverse order */
} sr_span;

/* The memory of the result. Strides are in bytes and may be negative or exchanged: that mirrors and transposes. */
typedef struct sr_target {
    char *data;
    int64_t row, pixel, channel;
    int width, height;
    int bytes;         /* per value: 1, 2 or 4 */
    const void *table; /* 3 x 256 values for the pixel values of red, green and blue; NULL: no change */
} sr_target;

/* A source of the box's rows. `need` makes the rows `first` to `end` (exclusive) readable at data + (row - origin) *
 * stride; the numbers of its calls grow. It returns 0 or -errno. */
typedef struct sr_source {
    int (*need)(struct sr_source *, int first, int end);
    const uint8_t *data;
    size_t stride;
    int origin;
    bool padded; /* 16 bytes can be read past each row's last pixel */
} sr_source;

/* One direction of a planned resize: the source pixels that it reads. */
typedef struct sr_axis {
    int count, taps;
    int begin, end;   /* the source pixels with a weight */
    int same;         /* if nothing is scaled: the source pixel of the first pixel; the others follow. Else -1 */
    const int32_t *at; /* the first source pixel of each output pixel */
    const int16_t *weights; /* `taps` per output pixel, with the sum 1 << 14 */
} sr_axis;

typedef struct sr_plan {
    sr_axis x, y;
    enum sr_filter filter;
    bool down_first; /* rows are resized before columns */
} sr_plan;

/* Plan a resize. `exchanged`: the result has rows and columns exchanged, and the order of the passes is Pillow's for
 * that result. -EINVAL: a size below 1; -ENOMEM. */
int sr_plan_make(sr_plan *plan, const sr_span *x, const sr_span *y, enum sr_filter filter, bool exchanged,
                 sr_scratch *scratch);

/* The source's rows begin at the pixel plan->x.begin. */
int sr_resize(const sr_plan *plan, sr_source *source, const sr_target *target, sr_scratch *scratch);

/* Return the most source rows that sr_resize needs at a time. */
int sr_plan_window(const sr_plan *plan);

/* "avx2", "neon" or "c"; the first call decides. SLIPRING_IMAGES_KERNELS=c in the environment excludes vectors. */
const char *sr_resize_kernels(void);

#endif
