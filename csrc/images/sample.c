/* sample.c - take pixels at arbitrary points of an image. */
#include "sample.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels.h"

/* Move the weights of four neighbours from `from` on to four neighbours from `to` on, which lie in the image of `size`
 * pixels: the weight of a pixel beyond the border goes to the pixel at the border. */
static void fold(int16_t w[4], int from, int to, int size)
{
    int16_t moved[4] = {0};
    for (int k = 0; k < 4; k++) {
        int pixel = from + k < 0 ? 0 : from + k < size ? from + k : size - 1;
        moved[pixel - to] = (int16_t)(moved[pixel - to] + w[k]);
    }
    memcpy(w, moved, sizeof moved);
}

static void fold_pairs(uint32_t *pairs[2], int i, int from, int last, int size)
{
    int16_t w[4];
    memcpy(w, pairs[0] + i, 4), memcpy(w + 2, pairs[1] + i, 4);
    fold(w, from, from < 0 ? 0 : from < last ? from : last, size);
    memcpy(pairs[0] + i, w, 4), memcpy(pairs[1] + i, w + 2, 4);
}

static void fold_at_borders(sr_sampler *s, int first, int n)
{
    int last_x = s->width > 4 ? s->width - 4 : 0, last_y = s->height > 4 ? s->height - 4 : 0;
    bool always = s->width < 4 || s->height < 4;
    for (int i = 0; i < n; i++) {
        if (s->moved[i] || always) {
            fold_pairs(s->pairs_x, i, (int)(s->x[first + i] + 0.5) - 2, last_x, s->width);
            fold_pairs(s->pairs_y, i, (int)(s->y[first + i] + 0.5) - 2, last_y, s->height);
        }
    }
}

/* The same loops for every processor of the kind, and on x86-64 for AVX2, too. */
#define LOOP static
#define NAMED(name) name##_c
#include "sample_loops.h"
#undef LOOP
#undef NAMED
#ifdef __x86_64__
#define LOOP static __attribute__((target("avx2")))
#define NAMED(name) name##_avx2
#include "sample_avx2.h"
#include "sample_loops.h"
#endif

const sr_sample_loops *sr_sample_loops_chosen(void)
{
#ifdef __x86_64__
    if (sr_use_vectors())
        return &loops_avx2;
#endif
    return &loops_c;
}

bool sr_all_finite(const double *v, int n)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(v[i]) < 1e100))
            return false;
    return true;
}

int sr_sampler_make(sr_sampler *s, sr_augmenter *a, const sr_pixels *image, int filter, int count)
{
    uint64_t bytes = 3 * (uint64_t)image->height * (uint64_t)image->width;
    if (filter < SR_BILINEAR || filter > SR_NEAREST || bytes > UINT32_MAX)
        return -EINVAL;
    size_t n = ((size_t)count + 17) / 16 * 16; /* pixels may be taken in pairs */
    size_t numbers = filter == SR_BICUBIC ? 8 : 2;
    char *memory = sr_buffer_need(&a->work, n * (2 * sizeof(double) + numbers * sizeof(uint32_t)));
    if (!memory)
        return -ENOMEM;
    uint32_t stride = 3 * (uint32_t)image->width;
    *s = (sr_sampler){.data = image->data, .stride = stride, .height = image->height, .width = image->width,
                      .filter = (enum sr_filter)filter, .x = (double *)memory};
    for (int k = 1; k < 4; k++) /* the last row stands for the rows after it: their weights are 0 */
        s->steps[k] = stride * (uint32_t)(k < image->height ? k : image->height - 1);
    s->y = s->x + n, s->at = (uint32_t *)(s->y + n);
    if (filter == SR_BICUBIC) {
        for (int i = 0; i < 2; i++) {
            s->pairs_x[i] = s->at + (size_t)(1 + i) * n;
            s->pairs_y[i] = s->at + (size_t)(3 + i) * n;
            s->fractions[i] = (int *)s->at + (size_t)(5 + i) * n;
        }
        s->moved = (int *)s->at + 7 * n;
    } else {
        s->weights[0] = (int16_t *)(s->at + n), s->weights[1] = s->weights[0] + n;
    }
    return 0;
}

void sr_sample(sr_sampler *s, int first, int last, uint8_t *to)
{
    const sr_sample_loops *loops = sr_sample_loops_chosen();
    to += 3 * (size_t)first;
    if (s->filter == SR_BILINEAR) {
        loops->bilinear(s, first, last - first, to);
    } else if (s->filter == SR_BICUBIC) {
        loops->bicubic(s, first, last - first, to);
    } else {
        loops->nearest(s, first, last - first);
        loops->copy(s, first, last - first, to);
    }
}

static bool is_inside(const sr_sampler *s, int i) /* also false for a point that is not a number */
{
    return s->x[i] >= 0 && s->x[i] < s->width && s->y[i] >= 0 && s->y[i] < s->height;
}

void sr_sample_where_inside(sr_sampler *s, int count, uint8_t *to)
{
    for (int first = 0, last; first < count; first = last) {
        for (last = first; last < count && is_inside(s, last);)
            last++;
        if (last > first)
            sr_sample(s, first, last, to);
        for (first = last; last < count && !is_inside(s, last);)
            last++;
        sr_fill_pixels(to + 3 * (size_t)first, last - first, s->fill);
    }
}
