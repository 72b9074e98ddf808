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
#define TIMES(a, b) ((int16_t)(((a) * (b) + (1 << 14)) >> 15))

/* The fractions are negative, because only -1 of the two whole numbers fits in 16 bits. */
LOOP void NAMED(bilinear_places)(sr_sampler *s, int first, int n)
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

LOOP void NAMED(bilinear)(sr_sampler *s, int first, int n, uint8_t *to)
{
    NAMED(bilinear_places)(s, first, n);
    NAMED(bilinear_taps)(s, n, to);
}

/* Four weights with the sum 1 << 14, from a fraction of 14 bits. */
static inline void NAMED(cubic)(int f, int16_t w[4])
{
    int f2 = f * f >> 14, f3 = f2 * f >> 14;
    w[0] = (int16_t)(2 * f2 - f - f3);
    w[2] = (int16_t)(f + f2 - f3);
    w[3] = (int16_t)(f3 - f2);
    w[1] = (int16_t)((1 << 14) - w[0] - w[2] - w[3]);
}

LOOP void NAMED(bicubic_places)(sr_sampler *s, int first, int n)
{
    const double *restrict x = s->x + first, *restrict y = s->y + first;
    uint32_t *restrict at = s->at, stride = s->stride;
    int16_t *restrict wx = s->weights[0], *restrict wy = s->weights[1];
    int last_x = s->width > 4 ? s->width - 4 : 0, last_y = s->height > 4 ? s->height - 4 : 0;
    for (int i = 0; i < n; i++) {
        double px = x[i] + 0.5, py = y[i] + 0.5; /* from the pixel before the first: never negative */
        int ix = (int)px, iy = (int)py;
        NAMED(cubic)((int)((px - ix) * 16384), wx + 4 * (size_t)i);
        NAMED(cubic)((int)((py - iy) * 16384), wy + 4 * (size_t)i);
        ix -= 2, iy -= 2;
        int jx = ix < 0 ? 0 : ix < last_x ? ix : last_x, jy = iy < 0 ? 0 : iy < last_y ? iy : last_y;
        at[i] = (uint32_t)jy * stride + 3 * (uint32_t)jx;
        if (jx != ix || s->width < 4)
            fold(wx + 4 * (size_t)i, ix, jx, s->width);
        if (jy != iy || s->height < 4)
            fold(wy + 4 * (size_t)i, iy, jy, s->height);
    }
}

LOOP void NAMED(bicubic_taps)(const sr_sampler *s, int n, uint8_t *restrict to)
{
    const uint32_t *at = s->at;
    const int16_t *wx = s->weights[0], *wy = s->weights[1];
    for (int i = 0; i < n; i++, to += 3, wx += 4, wy += 4) {
        const uint8_t *p = s->data + at[i];
        const uint8_t *q = p + s->steps[1], *r = p + s->steps[2], *t = p + s->steps[3];
        int columns[12];
        for (int c = 0; c < 12; c++) /* 6 bits more than a level */
            columns[c] = (p[c] * wy[0] + q[c] * wy[1] + r[c] * wy[2] + t[c] * wy[3] + 128) >> 8;
        for (int c = 0; c < 3; c++)
            to[c] = sr_level((columns[c] * wx[0] + columns[c + 3] * wx[1] + columns[c + 6] * wx[2]
                              + columns[c + 9] * wx[3]) >> 20);
    }
}

LOOP void NAMED(bicubic)(sr_sampler *s, int first, int n, uint8_t *to)
{
    NAMED(bicubic_places)(s, first, n);
    NAMED(bicubic_taps)(s, n, to);
}

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

static const sr_sample_loops NAMED(loops) = {
    NAMED(affine), NAMED(perspective), NAMED(copy), NAMED(nearest),
    NAMED(fixed), NAMED(bilinear), NAMED(bicubic), NAMED(shift),
};

#undef TIMES
