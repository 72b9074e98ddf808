/* resize.h - antialiased resizing of a box of RGB rows straight into a row of a batch.
 *
 * The filters are Pillow's (triangle and cubic with a = -0.5, widened when shrinking, cut at the box's borders), in
 * 14-bit fixed point with 6 more bits between the two passes: at most one level from Pillow, which rounds to 8 bits
 * there. Every kernel exists as plain C, as AVX2 and as NEON, with the same integers, so that both give the same bytes.
 * Nearest takes the pixels that Pillow takes, and needs no kernel.
 */
#ifndef SLIPRING_IMAGES_RESIZE_H
#define SLIPRING_IMAGES_RESIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sr_filter { SR_BILINEAR = 0, SR_BICUBIC = 1, SR_NEAREST = 2 };

/* Memory that is kept from one image to the next; one per thread. Zeroed to begin with. */
typedef struct sr_buffer {
    char *data;
    size_t capacity;
} sr_buffer;

typedef struct sr_scratch {
    sr_buffer axes[2], rows, middle, line;
} sr_scratch;

/* `bytes` of memory, 64-byte aligned, with room to read a vector past its end; NULL: there is none. */
void *sr_buffer_need(sr_buffer *buffer, size_t bytes);
void sr_scratch_free(sr_scratch *scratch);

/* One direction: `from` source pixels (the box) become `to`; of these `count` are wanted, from `first` on. */
typedef struct sr_span {
    double start, end; /* the part of the box that is scaled, 0 and `from` unless pixels were halved before */
    int from, to, first, count;
    bool mirrored; /* the wanted pixels come out in reverse order */
} sr_span;

/* Where the result goes. Strides are in bytes and may be negative or exchanged: that mirrors and transposes. */
typedef struct sr_target {
    char *data;
    int64_t row, pixel, channel;
    int width, height;
    int bytes;         /* of one value: 1, 2 or 4 */
    const void *table; /* 3 x 256 values that stand for the levels of red, green and blue; NULL: the levels */
} sr_target;

/* Gives the rows of the box. `need` makes the rows `first` to `end` (not included) readable at
 * data + (row - origin) * stride; it is called with growing numbers. Returns 0 or -errno. */
typedef struct sr_source {
    int (*need)(struct sr_source *, int first, int end);
    const uint8_t *data;
    size_t stride;
    int origin;
    bool padded; /* 16 bytes can be read past each row's last pixel */
} sr_source;

/* A resize that has been planned: which source pixels it will read. */
typedef struct sr_axis {
    int count, taps;
    int begin, end;   /* the source pixels that have a weight */
    int same;         /* where nothing is scaled: the source pixel of the first; the others follow. -1: otherwise */
    const int32_t *at; /* the first source pixel of each output pixel */
    const int16_t *weights; /* `taps` of each output pixel; their sum is 1 << 14 */
} sr_axis;

typedef struct sr_plan {
    sr_axis x, y;
    enum sr_filter filter;
} sr_plan;

/* -EINVAL: a size below 1; -ENOMEM. */
int sr_plan_make(sr_plan *plan, const sr_span *x, const sr_span *y, enum sr_filter filter, sr_scratch *scratch);

/* Rows of the source lie from plan->x.begin on: their first pixel is that one. */
int sr_resize(const sr_plan *plan, sr_source *source, const sr_target *target, sr_scratch *scratch);

/* How many source rows sr_resize wants at a time, at most. */
int sr_plan_window(const sr_plan *plan);

/* "avx2", "neon" or "c"; the first call decides, SLIPRING_IMAGES_KERNELS=c in the environment forbids vectors. */
const char *sr_resize_kernels(void);

#endif
