/* color.c - runs of colour operations.
 *
 * Operations that exchange each value for another one are collected in a table, which is applied before the first
 * operation that needs pixels, or at the end. Brightness, contrast, autocontrast and equalize are such operations,
 * too, as soon as the mean, the range or the histogram is known.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "color_loops.h"
#include "kernels.h"
#include "pixels.h"

#define BAND ((size_t)1 << 24) /* pixels whose counts and grey levels are added up in 32 bits */

static const sr_color_loops *chosen(void)
{
#ifdef __x86_64__
    return sr_use_vectors() ? &sr_color_loops_avx2 : &sr_color_loops_c;
#else
    return &sr_color_loops_c; /* on arm64, NEON belongs to every processor */
#endif
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

typedef struct state {
    const sr_color_loops *loops;
    uint8_t *data;
    size_t pixels;
    uint8_t table[3][256]; /* what the operations so far do to the pixels in memory */
    bool pending;          /* the table is not the identity */
    bool counted;
    uint64_t counts[3][256]; /* if `counted`: of the pixels in memory */
} state;

static void clear_table(state *s)
{
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 256; i++)
            s->table[c][i] = (uint8_t)i;
    s->pending = false;
}

/* Apply a table to the results of the present one. */
static void add_table(state *s, int channel, const uint8_t next[256])
{
    for (int i = 0; i < 256; i++)
        s->table[channel][i] = next[s->table[channel][i]];
    s->pending = true;
}

static void add_table_to_all(state *s, const uint8_t next[256])
{
    for (int c = 0; c < 3; c++)
        add_table(s, c, next);
}

/* Whether the table is what `bits` does: invert from a threshold on, then clear bits. Solarize, posterize and invert
 * are, and need no look-up. */
static bool is_bits(const uint8_t table[256], int *threshold, uint8_t *mask)
{
    *mask = 0;
    for (int i = 0; i < 256; i++)
        *mask |= table[i];
    for (*threshold = 0; *threshold < 256 && table[*threshold] == (*threshold & *mask);)
        ++*threshold;
    for (int i = *threshold; i < 256; i++)
        if (table[i] != (~i & *mask))
            return false;
    return true;
}

static void apply_table(state *s)
{
    int threshold;
    uint8_t mask;
    const uint8_t *first = s->table[0];
    bool equal = memcmp(first, first + 256, 512) == 0; /* all three are */
    if (!s->pending)
        return;
    if (!equal || !is_bits(s->table[0], &threshold, &mask))
        s->loops->map(s->data, s->pixels, (const uint8_t(*)[256])s->table);
    else if (threshold < 256 || mask < 255)
        s->loops->bits(s->data, 3 * s->pixels, (uint8_t)threshold, threshold < 256 ? 255 : 0, mask);
    clear_table(s);
    s->counted = false;
}

/* The table and the counts belong to the channels, so they are exchanged with them. */
static void permute(state *s, const int32_t from[3])
{
    uint8_t table[3][256];
    uint64_t counts[3][256];
    memcpy(table, s->table, sizeof table);
    s->loops->permute(s->data, s->pixels, from);
    for (int c = 0; c < 3; c++)
        memcpy(s->table[c], table[from[c]], sizeof table[c]);
    if (!s->counted)
        return;
    memcpy(counts, s->counts, sizeof counts);
    for (int c = 0; c < 3; c++)
        memcpy(s->counts[c], counts[from[c]], sizeof counts[c]);
}

/* ---- measures of the image ----------------------------------------------------------------------------------- */

/* Equal neighbours would wait for each other's count, so that they are counted in different tables. */
static void count_band(const uint8_t *data, size_t n, uint64_t counts[3][256])
{
    uint32_t part[4][3][256] = {0};
    size_t i = 0;
    for (; i + 4 <= n; i += 4, data += 12)
        for (int k = 0; k < 4; k++)
            for (int c = 0; c < 3; c++)
                part[k][c][data[3 * k + c]]++;
    for (; i < n; i++, data += 3)
        for (int c = 0; c < 3; c++)
            part[0][c][data[c]]++;
    for (int c = 0; c < 3; c++)
        for (int j = 0; j < 256; j++)
            counts[c][j] += (uint64_t)part[0][c][j] + part[1][c][j] + part[2][c][j] + part[3][c][j];
}

/* Count the values of a channel as the table makes them. */
static void histogram(state *s, int channel, uint64_t counts[256])
{
    if (!s->counted) {
        memset(s->counts, 0, sizeof s->counts);
        for (size_t at = 0; at < s->pixels; at += BAND)
            count_band(s->data + 3 * at, s->pixels - at < BAND ? s->pixels - at : BAND, s->counts);
        s->counted = true;
    }
    memset(counts, 0, 256 * sizeof *counts);
    for (int i = 0; i < 256; i++)
        counts[s->table[channel][i]] += s->counts[channel][i];
}

/* Find the smallest and the largest value of each channel. */
static void find_range(state *s, uint8_t least[3], uint8_t most[3])
{
    if (!s->pending) {
        s->loops->range(s->data, s->pixels, least, most);
        return;
    }
    for (int c = 0; c < 3; c++) {
        uint64_t counts[256];
        int low = 0, high = 255;
        histogram(s, c, counts);
        while (low < 255 && !counts[low])
            low++;
        while (high > low && !counts[high])
            high--;
        least[c] = (uint8_t)low, most[c] = (uint8_t)high;
    }
}

static int mean_gray(state *s)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < s->pixels; at += BAND)
        sum += s->loops->gray_sum(s->data + 3 * at, s->pixels - at < BAND ? s->pixels - at : BAND);
    return (int)((double)sum / (double)s->pixels + 0.5);
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static void autocontrast(state *s)
{
    uint8_t least[3], most[3], next[256];
    find_range(s, least, most);
    for (int c = 0; c < 3; c++) {
        if (most[c] <= least[c])
            continue;
        double scale = 255.0 / (most[c] - least[c]), offset = -least[c] * scale;
        for (int i = 0; i < 256; i++)
            next[i] = sr_level((int)(i * scale + offset));
        add_table(s, c, next);
    }
}

static void equalize(state *s)
{
    for (int c = 0; c < 3; c++) {
        uint64_t counts[256], last = 0;
        uint8_t next[256];
        histogram(s, c, counts);
        for (int i = 0; i < 256; i++)
            last = counts[i] ? counts[i] : last;
        uint64_t step = (s->pixels - last) / 255, above = step / 2;
        if (!step)
            continue;
        for (int i = 0; i < 256; i++) {
            next[i] = above / step < 255 ? (uint8_t)(above / step) : 255;
            above += counts[i];
        }
        add_table(s, c, next);
    }
}

/* The table of an operation that needs no pixels. `mean` is the grey level from which contrast is counted. */
static void make_table(const sr_op *op, int mean, uint8_t next[256])
{
    int addend = op->n[0] < -255 ? -255 : op->n[0] > 255 ? 255 : op->n[0];
    for (int i = 0; i < 256; i++) {
        switch (op->code) {
        case SR_OP_BRIGHTNESS:
        case SR_OP_CONTRAST:
            next[i] = sr_blend(mean, i, (float)op->v[0]);
            break;
        case SR_OP_POSTERIZE:
            next[i] = (uint8_t)(i & ~((1 << (8 - op->n[0])) - 1));
            break;
        case SR_OP_SOLARIZE:
            next[i] = (uint8_t)(i < op->v[0] ? i : 255 - i);
            break;
        case SR_OP_SOLARIZE_ADD:
            next[i] = i < op->n[1] ? sr_level(i + addend) : (uint8_t)i;
            break;
        default: /* SR_OP_INVERT */
            next[i] = (uint8_t)(255 - i);
        }
    }
}

static bool is_valid(const sr_op *op)
{
    switch (op->code) {
    case SR_OP_BRIGHTNESS:
    case SR_OP_CONTRAST:
    case SR_OP_SATURATION:
        return isfinite((float)op->v[0]);
    case SR_OP_HUE:
        return op->v[0] >= -0.5 && op->v[0] <= 0.5;
    case SR_OP_POSTERIZE:
        return op->n[0] >= 0 && op->n[0] <= 8;
    case SR_OP_SOLARIZE:
        return !isnan(op->v[0]);
    case SR_OP_PERMUTE_CHANNELS: /* each number from 0 to 2, and all three of them */
        for (int c = 0; c < 3; c++)
            if (op->n[c] < 0 || op->n[c] > 2)
                return false;
        return (1 << op->n[0] | 1 << op->n[1] | 1 << op->n[2]) == 7;
    default:
        return op->code >= 0 && op->code < SR_OP_COLORS;
    }
}

int sr_color(sr_augmenter *a, const sr_op *ops, int count, sr_pixels *image)
{
    (void)a;
    for (int i = 0; i < count; i++)
        if (!is_valid(&ops[i]))
            return -EINVAL;
    state s = {.loops = chosen(), .data = image->data, .pixels = (size_t)image->height * (size_t)image->width};
    clear_table(&s);
    for (int i = 0; i < count; i++) {
        const sr_op *op = &ops[i];
        uint8_t next[256];
        bool needs_pixels = op->code == SR_OP_CONTRAST || op->code == SR_OP_SATURATION || op->code == SR_OP_HUE
                            || op->code == SR_OP_GRAYSCALE;
        if (needs_pixels)
            apply_table(&s);
        switch (op->code) {
        case SR_OP_SATURATION:
            s.loops->saturate(s.data, s.pixels, (float)op->v[0]);
            s.counted = false;
            break;
        case SR_OP_HUE:
            s.loops->hue(s.data, s.pixels, (uint8_t)(int)(op->v[0] * 255));
            s.counted = false;
            break;
        case SR_OP_GRAYSCALE:
            s.loops->grayscale(s.data, s.pixels);
            s.counted = false;
            break;
        case SR_OP_AUTOCONTRAST:
            autocontrast(&s);
            break;
        case SR_OP_EQUALIZE:
            equalize(&s);
            break;
        case SR_OP_PERMUTE_CHANNELS:
            permute(&s, op->n);
            break;
        default:
            make_table(op, op->code == SR_OP_CONTRAST ? mean_gray(&s) : 0, next);
            add_table_to_all(&s, next);
        }
    }
    apply_table(&s);
    return 0;
}
