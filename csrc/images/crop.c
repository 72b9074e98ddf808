/* crop.c - from a box of the displayed image to the stored pixels, and crops of pixels in memory. */
#include "crop.h"

#define AHEAD 8 /* rows of pixels in memory that are prefetched */

/* ---- from the displayed image to the stored image ---------------------------------------------------------------- */

static void exchange(int *a, int *b)
{
    int c = *a;
    *a = *b, *b = c;
}

/* EXIF's orientations exchange rows and columns, then turn the image upside down, then mirror it. The filters are
 * symmetric, so exchanged and negative strides of the target do all of it. */
static void orient(sr_settled_crop *settled, int orientation, int width, int height)
{
    sr_crop *c = &settled->crop;
    sr_target *to = &settled->target;
    if (c->flip) {
        to->data += (to->width - 1) * to->pixel;
        to->pixel = -to->pixel;
    }
    if (orientation >= 5) {
        exchange(&c->top, &c->left);
        exchange(&c->height, &c->width);
        exchange(&c->to_height, &c->to_width);
        exchange(&c->window_top, &c->window_left);
        exchange(&to->width, &to->height);
        int64_t row = to->row;
        to->row = to->pixel, to->pixel = row;
    }
    if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) {
        c->left = width - c->left - c->width;
        c->window_left = c->to_width - c->window_left - to->width;
        to->data += (to->width - 1) * to->pixel;
        to->pixel = -to->pixel;
    }
    if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) {
        c->top = height - c->top - c->height;
        c->window_top = c->to_height - c->window_top - to->height;
        to->data += (to->height - 1) * to->row;
        to->row = -to->row;
    }
    /* A mirrored row of plain bytes is faster to write forwards, with its filters in reverse order. */
    settled->mirrored = to->pixel == -3 && to->channel == 1 && to->bytes == 1 && !to->table;
    if (settled->mirrored) {
        to->data += (to->width - 1) * to->pixel;
        to->pixel = 3;
    }
}

int sr_crop_settle(sr_settled_crop *settled, const sr_crop *crop, const sr_target *target, int width, int height,
                   int orientation)
{
    settled->crop = *crop, settled->target = *target;
    settled->exchanged = orientation >= 5;
    int shown_height = settled->exchanged ? width : height, shown_width = settled->exchanged ? height : width;
    sr_crop *c = &settled->crop;
    if (c->width == 0)
        c->top = 0, c->left = 0, c->height = shown_height, c->width = shown_width;
    if (c->to_width == 0)
        c->to_height = target->height, c->to_width = target->width;
    if (c->top < 0 || c->left < 0 || c->height < 1 || c->width < 1 || c->height > shown_height - c->top
        || c->width > shown_width - c->left || c->window_top < 0 || c->window_left < 0
        || target->height > c->to_height - c->window_top || target->width > c->to_width - c->window_left)
        return SR_BAD_BOX;
    orient(settled, orientation, width, height);
    return 0;
}

/* One direction of a box of which every `halved`th pixel is present; *at receives the first of them. */
static sr_span span_of(int begin, int length, int halved, int to, int first, int count, int *at)
{
    int end = begin + length, last = (end + halved - 1) / halved;
    *at = begin / halved;
    return (sr_span){.start = (double)begin / halved - *at, .end = (double)end / halved - *at, .from = last - *at,
                     .to = to, .first = first, .count = count};
}

int sr_crop_plan(sr_plan *plan, const sr_settled_crop *settled, int halved, int *top, int *left, sr_scratch *scratch)
{
    const sr_crop *c = &settled->crop;
    sr_span x = span_of(c->left, c->width, halved, c->to_width, c->window_left, settled->target.width, left);
    sr_span y = span_of(c->top, c->height, halved, c->to_height, c->window_top, settled->target.height, top);
    x.mirrored = settled->mirrored;
    return sr_plan_make(plan, &x, &y, c->filter, settled->exchanged, scratch);
}

/* ---- pixels in memory -------------------------------------------------------------------------------------------- */

/* The pixels are not in a cache, and rows of a crop are too short for the hardware prefetcher. So each row is
 * prefetched before the resize reads it. */
typedef struct pixel_source {
    sr_source source;    /* first: the resize passes it to `prefetch` */
    int prefetched, end; /* rows */
    size_t length;       /* bytes of a row */
} pixel_source;

static int prefetch(sr_source *source, int first, int end)
{
    pixel_source *l = (pixel_source *)source;
    (void)first;
    for (; l->prefetched < l->end && l->prefetched < end + AHEAD; l->prefetched++) {
        const uint8_t *row = source->data + (size_t)(l->prefetched - source->origin) * source->stride;
        for (size_t i = 0; i < l->length; i += 64)
            __builtin_prefetch(row + i);
    }
    return 0;
}

int sr_crop_pixels(sr_scratch *scratch, const uint8_t *pixels, size_t stride, int width, int height,
                   const sr_crop *crop, const sr_target *target)
{
    sr_settled_crop settled;
    sr_plan plan;
    int orientation = crop->orientation ? crop->orientation : 1, top, left;
    int rc = sr_crop_settle(&settled, crop, target, width, height, orientation);
    if (rc)
        return rc;
    rc = sr_crop_plan(&plan, &settled, 1, &top, &left, scratch);
    if (rc)
        return rc;
    pixel_source l = {.prefetched = plan.y.begin, .end = plan.y.end, .length = 3 * (size_t)(plan.x.end - plan.x.begin)};
    l.source = (sr_source){.need = prefetch, .stride = stride,
                           .data = pixels + (size_t)top * stride + 3 * (size_t)(left + plan.x.begin)};
    return sr_resize(&plan, &l.source, &settled.target, scratch);
}
