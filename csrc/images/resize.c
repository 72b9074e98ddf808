/* resize.c - plan a resize, and carry it out row by row. */
#include "resize.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

#define MOST_PIXELS (1 << 24) /* in one direction: their products with the offset of a weight stay far from overflow */
#define PADDING 64            /* bytes after a buffer that vector loads may read */

void *sr_buffer_need(sr_buffer *buffer, size_t bytes)
{
    if (buffer->capacity < bytes) {
        size_t capacity = (bytes + bytes / 4 + PADDING + 63) / 64 * 64;
        char *data = capacity < bytes ? NULL : aligned_alloc(64, capacity);
        if (!data)
            return NULL;
        free(buffer->data);
        memset(data, 0, capacity); /* vectors may read bytes that were never written: they must be the same each time */
        *buffer = (sr_buffer){data, capacity - PADDING};
    }
    return buffer->data;
}

void sr_scratch_free(sr_scratch *scratch)
{
    sr_buffer *all[] = {&scratch->axes[0], &scratch->axes[1], &scratch->rows, &scratch->middle, &scratch->line};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]->data);
        *all[i] = (sr_buffer){NULL, 0};
    }
}

/* ---- the filters ------------------------------------------------------------------------------------------------ */

static double triangle(double x) { return x < 1 ? 1 - x : 0; }

static double cubic(double x) /* a = -0.5 */
{
    if (x < 1)
        return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

/* Compute the weights of an output pixel, as integers with an exact sum: each is the increase of the rounded sum. */
static void weigh(double centre, double widening, int low, int n, enum sr_filter filter, double *exact, int16_t *to)
{
    double sum = 0, run = 0;
    for (int i = 0; i < n; i++) {
        double x = fabs((low + i - centre + 0.5) / widening);
        exact[i] = filter == SR_BICUBIC ? cubic(x) : triangle(x);
        sum += exact[i];
    }
    int before = 0;
    for (int i = 0; i < n; i++) {
        run += exact[i];
        int upto = i + 1 < n ? (int)lrint(run / sum * (1 << SR_PRECISION)) : 1 << SR_PRECISION;
        to[i] = (int16_t)(upto - before);
        before = upto;
    }
}

/* Find the source pixel of each output pixel. Like Pillow, add `scale` up, with the same rounding. */
static int nearest_make(sr_axis *axis, const sr_span *span, sr_buffer *buffer)
{
    int32_t *at = sr_buffer_need(buffer, (size_t)span->count * sizeof *at);
    if (!at)
        return -ENOMEM;
    double scale = (span->end - span->start) / span->to, centre = span->start + scale * 0.5;
    int begin = span->from, end = 0;
    for (int x = 0; x < span->first + span->count; x++, centre += scale) {
        if (x < span->first)
            continue;
        int pixel = (int)centre < span->from ? (int)centre : span->from - 1;
        at[span->mirrored ? span->first + span->count - 1 - x : x - span->first] = pixel;
        begin = pixel < begin ? pixel : begin;
        end = pixel + 1 > end ? pixel + 1 : end;
    }
    *axis = (sr_axis){.count = span->count, .taps = 1, .begin = begin, .end = end, .same = -1, .at = at};
    return 0;
}

static int axis_make(sr_axis *axis, const sr_span *span, enum sr_filter filter, sr_buffer *buffer)
{
    if (span->from < 1 || span->to < 1 || span->count < 1 || span->first < 0 || span->from > MOST_PIXELS
        || span->to > MOST_PIXELS || span->count > span->to - span->first || !(span->start >= 0)
        || !(span->end > span->start) || !(span->end <= span->from))
        return -EINVAL;
    if (filter == SR_NEAREST)
        return nearest_make(axis, span, buffer);
    double scale = (span->end - span->start) / span->to, widening = scale < 1 ? 1 : scale;
    double support = (filter == SR_BICUBIC ? 2.0 : 1.0) * widening;
    /* As many taps as any pixel can need: an even number, for two taps at a time, unless the box is narrower than
     * that. */
    int taps = 2 * (int)ceil(support) + 1;
    taps += taps & 1;
    if (taps > span->from)
        taps = span->from;
    size_t n = (size_t)span->count;
    size_t exact_at = (n * sizeof(int32_t) + 63) / 64 * 64, weights_at = exact_at + (size_t)taps * sizeof(double);
    char *memory = sr_buffer_need(buffer, weights_at + n * (size_t)taps * sizeof(int16_t));
    if (!memory)
        return -ENOMEM;
    int32_t *at = (int32_t *)memory;
    double *exact = (double *)(memory + exact_at);
    int16_t *weights = (int16_t *)(memory + weights_at);
    memset(weights, 0, n * (size_t)taps * sizeof(int16_t));
    int widest = 1;
    for (int x = 0; x < span->count; x++) {
        int i = span->mirrored ? span->count - 1 - x : x;
        double centre = span->start + (span->first + x + 0.5) * scale;
        int low = (int)(centre - support + 0.5), high = (int)(centre + support + 0.5);
        low = low < 0 ? 0 : low;
        high = high > span->from ? span->from : high;
        if (high - low > taps) /* only by a rounding error in the last bit */
            high = low + taps;
        at[i] = low;
        weigh(centre, widening, low, high - low, filter, exact, weights + (size_t)i * taps);
        int used = high - low;
        while (used > 1 && weights[(size_t)i * taps + used - 1] == 0)
            used--;
        widest = used > widest ? used : widest;
    }
    /* Most pixels have fewer taps than the maximum, so move them closer together. No tap is beyond the box. */
    int keep = widest + (widest & 1);
    if (keep > span->from)
        keep = span->from;
    int begin = span->from, end = 0;
    for (int i = 0; i < span->count; i++) {
        int16_t *to = weights + (size_t)i * keep;
        int shift = at[i] + keep > span->from ? at[i] + keep - span->from : 0;
        memmove(to, weights + (size_t)i * taps, (size_t)(keep - shift) * sizeof *to);
        if (shift) {
            memmove(to + shift, to, (size_t)(keep - shift) * sizeof *to);
            memset(to, 0, (size_t)shift * sizeof *to);
            at[i] -= shift;
        }
        begin = at[i] < begin ? at[i] : begin;
        end = at[i] + keep > end ? at[i] + keep : end;
    }
    bool same = scale == 1 && span->start == floor(span->start) && !span->mirrored;
    *axis = (sr_axis){span->count, keep, begin, end, same ? (int)span->start + span->first : -1, at, weights};
    return 0;
}

/* Whether Pillow 13 resizes rows before columns: it does so if it removes more than twice as many rows. */
static bool pillow_goes_down_first(const sr_span *x, const sr_span *y)
{
    double rows = y->end - y->start - y->to, columns = x->end - x->start - x->to;
    return rows > 0 && rows > 2 * columns;
}

/* The filter's values are clipped between the passes. Bicubic overshoots, so its order must be Pillow's; for bilinear,
 * fewer rows after the first pass leave less work for the second one. */
static bool goes_down_first(const sr_plan *plan, const sr_span *x, const sr_span *y, bool exchanged)
{
    if (plan->filter == SR_BILINEAR)
        return plan->y.end - plan->y.begin >= plan->y.count;
    return exchanged ? !pillow_goes_down_first(y, x) : pillow_goes_down_first(x, y);
}

int sr_plan_make(sr_plan *plan, const sr_span *x, const sr_span *y, enum sr_filter filter, bool exchanged,
                 sr_scratch *scratch)
{
    plan->filter = filter;
    int rc = axis_make(&plan->x, x, filter, &scratch->axes[0]);
    rc = rc == 0 ? axis_make(&plan->y, y, filter, &scratch->axes[1]) : rc;
    if (rc == 0)
        plan->down_first = goes_down_first(plan, x, y, exchanged);
    return rc;
}

/* ---- rows of the result ----------------------------------------------------------------------------------------- */

#define AT_ONCE 64 /* pixels that are separated into colours before they are written */

/* Write `count` values of one colour, `stride` bytes apart. The compiler knows the stride of the usual layouts. */
#define WRITE_VALUES(TYPE, STRIDE)                                                        \
    for (int x = 0; x < count; x++) {                                                     \
        TYPE value = values ? ((const TYPE *)values)[pixels[x]] : (TYPE)pixels[x];        \
        memcpy(to + x * (STRIDE), &value, sizeof value);                                  \
    }
#define WRITE_COLOUR(TYPE)                                                                \
    do {                                                                                  \
        if (stride == (int64_t)sizeof(TYPE))                                              \
            WRITE_VALUES(TYPE, (int64_t)sizeof(TYPE))                                     \
        else if (stride == 3 * (int64_t)sizeof(TYPE))                                     \
            WRITE_VALUES(TYPE, 3 * (int64_t)sizeof(TYPE))                                 \
        else                                                                              \
            WRITE_VALUES(TYPE, stride)                                                    \
    } while (0)

static void write_colour(char *restrict to, int64_t stride, const uint8_t *restrict pixels, int count, int bytes,
                         const void *restrict values)
{
    if (bytes == 1)
        WRITE_COLOUR(uint8_t);
    else if (bytes == 2)
        WRITE_COLOUR(uint16_t);
    else
        WRITE_COLOUR(uint32_t);
}

static void write_row(const sr_kernels *k, const sr_target *target, int y, const uint8_t *pixels)
{
    uint8_t colours[3][AT_ONCE];
    char *row = target->data + y * target->row;
    for (int x = 0; x < target->width; x += AT_ONCE, pixels += 3 * AT_ONCE, row += AT_ONCE * target->pixel) {
        int count = target->width - x < AT_ONCE ? target->width - x : AT_ONCE;
        k->planes(pixels, count, colours[0], colours[1], colours[2]);
        for (int c = 0; c < 3; c++)
            write_colour(row + c * target->channel, target->pixel, colours[c], count, target->bytes,
                         target->table ? (const char *)target->table + c * 256 * target->bytes : NULL);
    }
}

static bool is_plain(const sr_target *target)
{
    return target->bytes == 1 && !target->table && target->pixel == 3 && target->channel == 1;
}

/* Return where to write row `y`: the target itself if it takes plain pixel values. */
static uint8_t *row_at(const sr_target *target, int y, uint8_t *line)
{
    return line ? line : (uint8_t *)target->data + y * target->row;
}

/* ---- the two orders --------------------------------------------------------------------------------------------- */

/* Down first, then across: most of the work is on long runs of bytes. */
static int down_then_across(const sr_kernels *k, const sr_plan *plan, sr_source *source, const sr_target *target,
                            sr_scratch *scratch)
{
    const sr_axis *down = &plan->y;
    const sr_kernels *across = plan->x.taps & 1 ? &sr_kernels_c : k; /* a box narrower than two taps */
    int values = 3 * (plan->x.end - plan->x.begin);
    size_t stride = ((size_t)values + 63) / 32 * 32, line_stride = (size_t)target->width * 3 + 64;
    int16_t *middle = sr_buffer_need(&scratch->middle, 2 * stride * sizeof *middle);
    uint8_t *line = is_plain(target) ? NULL : sr_buffer_need(&scratch->line, 2 * line_stride);
    if (!middle || (!line && !is_plain(target)))
        return -ENOMEM;
    for (int y = 0; y < down->count; y += 2) {
        int pair = y + 1 < down->count ? 2 : 1;
        for (int i = 0; i < pair; i++) {
            int at = down->at[y + i];
            int rc = source->need(source, at, at + down->taps);
            if (rc)
                return rc;
            k->down8(source->data + (size_t)(at - source->origin) * source->stride, source->stride, values,
                     down->weights + (size_t)(y + i) * down->taps, down->taps, middle + (size_t)i * stride);
        }
        const int16_t *second = middle + (size_t)(pair - 1) * stride;
        uint8_t *to = row_at(target, y, line);
        uint8_t *to_second = row_at(target, y + pair - 1, line ? line + (size_t)(pair - 1) * line_stride : NULL);
        across->across16(middle, second, &plan->x, to, to_second);
        for (int i = 0; line && i < pair; i++)
            write_row(k, target, y + i, line + (size_t)i * line_stride);
    }
    return 0;
}

/* Across first, then down. */
static int across_then_down(const sr_kernels *k, const sr_plan *plan, sr_source *source, const sr_target *target,
                            sr_scratch *scratch)
{
    const sr_axis *down = &plan->y;
    const sr_kernels *across = plan->x.taps & 1 ? &sr_kernels_c : k;
    size_t stride = ((size_t)target->width * 3 + 63) / 32 * 32;
    size_t length = 3 * (size_t)(plan->x.end - plan->x.begin), padded = length + 64;
    int most = down->taps + 16; /* rows in the buffer; if it is full, the rows already used are dropped */
    int16_t *kept = sr_buffer_need(&scratch->middle, (size_t)most * stride * sizeof *kept);
    uint8_t *line = sr_buffer_need(&scratch->line, stride + 2 * padded), *copies = line + stride;
    if (!kept || !line)
        return -ENOMEM;
    int origin = down->begin, have = down->begin;
    for (int y = 0; y < down->count; y++) {
        int at = down->at[y], upto = at + down->taps;
        if (upto - origin > most) {
            int drop = at - origin;
            memmove(kept, kept + (size_t)drop * stride, (size_t)(have - at) * stride * sizeof *kept);
            origin = at;
        }
        while (have < upto) {
            int second = have + 1 < down->end && have + 2 - origin <= most ? have + 1 : have;
            int rc = source->need(source, have, second + 1);
            if (rc)
                return rc;
            const uint8_t *a = source->data + (size_t)(have - source->origin) * source->stride;
            const uint8_t *b = source->data + (size_t)(second - source->origin) * source->stride;
            if (!source->padded) {
                a = memcpy(copies, a, length);
                b = memcpy(copies + padded, b, length);
            }
            across->across8(a, b, &plan->x, kept + (size_t)(have - origin) * stride,
                            kept + (size_t)(second - origin) * stride);
            have = second + 1;
        }
        bool plain = is_plain(target);
        k->down16(kept + (size_t)(at - origin) * stride, stride, 3 * target->width,
                  down->weights + (size_t)y * down->taps, down->taps, row_at(target, y, plain ? NULL : line));
        if (!plain)
            write_row(k, target, y, line);
    }
    return 0;
}

/* Copy the rows: both passes would give the same pixel values. */
static int copy(const sr_kernels *k, const sr_plan *plan, sr_source *source, const sr_target *target)
{
    size_t lead = 3 * (size_t)(plan->x.same - plan->x.begin);
    for (int y = 0; y < plan->y.count; y++) {
        int at = plan->y.same + y, rc = source->need(source, at, at + 1);
        if (rc)
            return rc;
        const uint8_t *row = source->data + (size_t)(at - source->origin) * source->stride + lead;
        if (is_plain(target))
            memcpy(target->data + y * target->row, row, 3 * (size_t)target->width);
        else
            write_row(k, target, y, row);
    }
    return 0;
}

/* Take one source pixel for each pixel of the result. */
static int pick(const sr_kernels *k, const sr_plan *plan, sr_source *source, const sr_target *target,
                sr_scratch *scratch)
{
    uint8_t *line = is_plain(target) ? NULL : sr_buffer_need(&scratch->line, 3 * (size_t)target->width);
    if (!line && !is_plain(target))
        return -ENOMEM;
    for (int y = 0; y < plan->y.count; y++) {
        int at = plan->y.at[y], rc = source->need(source, at, at + 1);
        if (rc)
            return rc;
        const uint8_t *row = source->data + (size_t)(at - source->origin) * source->stride;
        uint8_t *to = row_at(target, y, line);
        for (int x = 0; x < plan->x.count; x++)
            memcpy(to + 3 * (size_t)x, row + 3 * (size_t)(plan->x.at[x] - plan->x.begin), 3);
        if (line)
            write_row(k, target, y, line);
    }
    return 0;
}

static const sr_kernels *fastest(void)
{
#if defined __x86_64__
    return sr_has_avx2() ? &sr_kernels_avx2 : &sr_kernels_c;
#elif defined __aarch64__
    return &sr_kernels_neon;
#else
    return &sr_kernels_c;
#endif
}

static const sr_kernels *chosen(void)
{
    static const sr_kernels *_Atomic kernels; /* the first caller decides, and every thread would decide the same */
    if (!kernels) {
        const char *forced = getenv("SLIPRING_IMAGES_KERNELS");
        kernels = forced && strcmp(forced, "c") == 0 ? &sr_kernels_c : fastest();
    }
    return kernels;
}

const char *sr_resize_kernels(void) { return chosen()->name; }
bool sr_use_vectors(void) { return chosen() != &sr_kernels_c; }

int sr_plan_window(const sr_plan *plan) { return plan->down_first ? plan->y.taps : 2; }

int sr_resize(const sr_plan *plan, sr_source *source, const sr_target *target, sr_scratch *scratch)
{
    if (plan->filter == SR_NEAREST)
        return pick(chosen(), plan, source, target, scratch);
    if (plan->x.same >= 0 && plan->y.same >= 0)
        return copy(chosen(), plan, source, target);
    return (plan->down_first ? down_then_across : across_then_down)(chosen(), plan, source, target, scratch);
}
