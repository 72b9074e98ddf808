/* sample_loops.h - the loops of sample.c. It is included once for each kind of processor; see there. */

/* x + 0.5 is exact, and the order of the sums is Pillow's. */
LOOP void NAMED(affine)(double *to, int n, double step, double first, double row, double add)
{
    for (int i = 0; i < n; i++)
        to[i] = step * (first + i) + row + add;
}

LOOP void NAMED(perspective)(double *restrict x, double *restrict y, int n, const double v[8], double row)
{
    double a0 = v[0], a1 = v[1], a2 = v[2], a3 = v[3], a4 = v[4], a5 = v[5], a6 = v[6], a7 = v[7];
    for (int i = 0; i < n; i++) {
        double column = i + 0.5, divisor = a6 * column + a7 * row + 1;
        x[i] = (a0 * column + a1 * row + a2) / divisor;
        y[i] = (a3 * column + a4 * row + a5) / divisor;
    }
}

/* Copy four bytes for each pixel of three: the next pixel overwrites the fourth. */
LOOP void NAMED(copy)(const sr_sampler *s, int first, int n, uint8_t *to)
{
    const uint8_t *data = s->data;
    const uint32_t *at = s->at + first;
    for (int i = 0; i < n; i++)
        memcpy(to + 3 * (size_t)i, data + at[i], 4);
}

LOOP void NAMED(nearest)(sr_sampler *s, int first, int n)
{
    const double *restrict x = s->x + first, *restrict y = s->y + first;
    uint32_t *restrict at = s->at + first, stride = s->stride;
    for (int i = 0; i < n; i++)
        at[i] = (uint32_t)(int)y[i] * stride + 3 * (uint32_t)(int)x[i];
}

/* Steps of 16.16 fixed point. */
LOOP void NAMED(fixed)(sr_sampler *s, int n, uint32_t x, uint32_t y, uint32_t step_x, uint32_t step_y)
{
    uint32_t *restrict at = s->at, stride = s->stride;
    for (int i = 0; i < n; i++)
        at[i] = ((y + (uint32_t)i * step_y) >> 16) * stride + 3 * ((x + (uint32_t)i * step_x) >> 16);
}

/* The product of two 15-bit fractions, rounded: one instruction for 16-bit vectors. */
#define TIMES(a, b) ((int16_t)((((int16_t)(a) * (int16_t)(b) >> 14) + 1) >> 1))

/* The fractions are negative, because only -1 of the two whole numbers fits in 16 bits. */
LOOP void NAMED(bilinear_points)(sr_sampler *s, int first, int n)
{
    const double *restrict x = s->x + first, *restrict y = s->y + first;
    uint32_t *restrict at = s->at, stride = s->stride;
    int16_t *restrict wx = s->weights[0], *restrict wy = s->weights[1];
    double most_x = s->width - 1, most_y = s->height - 1;
    int last_x = s->width > 1 ? s->width - 2 : 0, last_y = s->height > 1 ? s->height - 2 : 0;
    for (int i = 0; i < n; i++) {
        double px = x[i] - 0.5, py = y[i] - 0.5;
        px = px < 0 ? 0 : px, px = px > most_x ? most_x : px;
        py = py < 0 ? 0 : py, py = py > most_y ? most_y : py;
        int ix = (int)px, iy = (int)py;
        ix = ix < last_x ? ix : last_x, iy = iy < last_y ? iy : last_y;
        wx[i] = (int16_t) - (int)((px - ix) * 32768 + 0.5), wy[i] = (int16_t) - (int)((py - iy) * 32768 + 0.5);
        at[i] = (uint32_t)iy * stride + 3 * (uint32_t)ix;
    }
}

#ifndef OWN_TAPS
LOOP void NAMED(bilinear_taps)(const sr_sampler *s, int n, uint8_t *restrict to)
{
    const uint32_t *at = s->at;
    const int16_t *wx = s->weights[0], *wy = s->weights[1];
    for (int i = 0; i < n; i++, to += 3) {
        const uint8_t *p = s->data + at[i], *q = p + s->steps[1];
        for (int c = 0; c < 3; c++) {
            int left = (p[c] << 7) - TIMES((q[c] - p[c]) * 128, wy[i]);
            int right = (p[c + 3] << 7) - TIMES((q[c + 3] - p[c + 3]) * 128, wy[i]);
            to[c] = (uint8_t)((left - TIMES(right - left, wx[i]) + s->bias) >> 7);
        }
    }
}
#endif

LOOP void NAMED(bilinear)(sr_sampler *s, int first, int n, uint8_t *to)
{
    NAMED(bilinear_points)(s, first, n);
    s->at[n] = 0; /* the second of the last pair, if the number is odd */
    NAMED(bilinear_taps)(s, n, to);
}

/* Weights for four pixels, with 14 bits; the fraction has as many. Two share a number, the first in its lower half. */
LOOP void NAMED(cubic)(const int *restrict fractions, int n, uint32_t *restrict outer, uint32_t *restrict inner)
{
    for (int i = 0; i < n; i++) {
        int f = fractions[i], f2 = f * f >> 14, f3 = f2 * f >> 14;
        int before = 2 * f2 - f - f3, second = f + f2 - f3, after = f3 - f2;
        outer[i] = (uint32_t)(before & 0xffff) | (uint32_t)((1 << 14) - before - second - after) << 16;
        inner[i] = (uint32_t)(second & 0xffff) | (uint32_t)after << 16;
    }
}

LOOP void NAMED(bicubic_points)(sr_sampler *s, int first, int n)
{
    const double *restrict x = s->x + first, *restrict y = s->y + first;
    uint32_t *restrict at = s->at, stride = s->stride;
    int *restrict fx = s->fractions[0], *restrict fy = s->fractions[1];
    int *restrict moved = s->moved;
    int last_x = s->width > 4 ? s->width - 4 : 0, last_y = s->height > 4 ? s->height - 4 : 0;
    for (int i = 0; i < n; i++) {
        double px = x[i] + 0.5, py = y[i] + 0.5; /* from the pixel before the first: never negative */
        int ix = (int)px, iy = (int)py;
        fx[i] = (int)((px - ix) * 16384), fy[i] = (int)((py - iy) * 16384);
        ix -= 2, iy -= 2;
        int jx = ix < 0 ? 0 : ix, jy = iy < 0 ? 0 : iy;
        jx = jx < last_x ? jx : last_x, jy = jy < last_y ? jy : last_y;
        at[i] = (uint32_t)jy * stride + 3 * (uint32_t)jx;
        moved[i] = (ix ^ jx) | (iy ^ jy);
    }
    NAMED(cubic)(fx, n, s->pairs_x[0], s->pairs_x[1]);
    NAMED(cubic)(fy, n, s->pairs_y[0], s->pairs_y[1]);
}

#ifndef OWN_TAPS
LOOP void NAMED(bicubic_taps)(const sr_sampler *s, int n, uint8_t *restrict to)
{
    for (int i = 0; i < n; i++, to += 3) {
        const uint8_t *p = s->data + s->at[i];
        const uint8_t *q = p + s->steps[1], *r = p + s->steps[2], *t = p + s->steps[3];
        int y0 = (int16_t)s->pairs_y[0][i], y1 = (int32_t)s->pairs_y[0][i] >> 16;
        int y2 = (int16_t)s->pairs_y[1][i], y3 = (int32_t)s->pairs_y[1][i] >> 16;
        int x0 = (int16_t)s->pairs_x[0][i], x1 = (int32_t)s->pairs_x[0][i] >> 16;
        int x2 = (int16_t)s->pairs_x[1][i], x3 = (int32_t)s->pairs_x[1][i] >> 16;
        int columns[12];
        for (int c = 0; c < 12; c++) /* 6 bits more than a level */
            columns[c] = (p[c] * y0 + q[c] * y1 + r[c] * y2 + t[c] * y3 + 128) >> 8;
        for (int c = 0; c < 3; c++)
            to[c] = sr_level((columns[c] * x0 + columns[c + 3] * x1 + columns[c + 6] * x2 + columns[c + 9] * x3) >> 20);
    }
}
#endif

LOOP void NAMED(bicubic)(sr_sampler *s, int first, int n, uint8_t *to)
{
    NAMED(bicubic_points)(s, first, n);
    fold_at_borders(s, first, n);
    NAMED(bicubic_taps)(s, n, to);
}

#ifndef OWN_TAPS
/* Interpolate between two rows of values; `fraction` is negative, with 15 bits. */
LOOP void NAMED(shift)(const uint8_t *restrict from, const uint8_t *restrict next, int values, int fraction,
                       uint8_t *restrict to)
{
    int16_t f = (int16_t)fraction;
    for (int i = 0; i < values; i++) {
        int16_t value = (int16_t)(from[i] << 7), step = (int16_t)((next[i] - from[i]) * 128);
        to[i] = (uint8_t)((int16_t)(value - TIMES(step, f)) >> 7);
    }
}
#endif

static const sr_sample_loops NAMED(loops) = {
    NAMED(affine), NAMED(perspective), NAMED(copy), NAMED(nearest),
    NAMED(fixed), NAMED(bilinear), NAMED(bicubic), NAMED(shift),
};

#undef TIMES
