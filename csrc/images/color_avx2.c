/* color_avx2.c - the inner loops of the colour operations for processors with AVX2: compiled by attributes.
 *
 * Most loops work on whole vectors and also change bytes after the image, which are undefined anyway.
 */
#ifdef __x86_64__
#include <immintrin.h>
#include <string.h>

#include "color_loops.h"

#define AVX2 __attribute__((target("avx2")))
#define IN static inline __attribute__((always_inline, target("avx2")))

IN __m256i load(const void *at) { return _mm256_loadu_si256((const __m256i *)at); }
IN void store(void *at, __m256i v) { _mm256_storeu_si256((__m256i *)at, v); }
IN __m256i twice(const void *at) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)at)); }

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* A table of 256 values as 16 shuffles of 16 values, in two halves. Shuffle k adds (exclusive or) the difference
 * between the blocks k and k - 1, if the value lies in block k of its half or later. The sum is the value's entry. */
typedef struct lookup {
    __m256i block[16];
} lookup;

AVX2 static void make_lookup(lookup *l, const uint8_t table[256])
{
    for (int k = 0; k < 16; k++) {
        __m256i block = twice(table + 16 * k);
        l->block[k] = k % 8 ? _mm256_xor_si256(block, twice(table + 16 * (k - 1))) : block;
    }
}

/* Look up two vectors of values. A shuffle gives 0 for a negative number: `low` is negative from 128 on, `high` below
 * 128, and subtraction makes both negative after the value's own block. */
IN void look_up(const lookup *l, __m256i *a, __m256i *b)
{
    const __m256i next = _mm256_set1_epi8(16), half = _mm256_set1_epi8((char)128);
    __m256i low_a = *a, low_b = *b, high_a = _mm256_xor_si256(*a, half), high_b = _mm256_xor_si256(*b, half);
    __m256i sum_a = _mm256_setzero_si256(), sum_b = sum_a;
    for (int k = 0; k < 8; k++) {
        __m256i low = l->block[k], high = l->block[k + 8];
        sum_a = _mm256_xor_si256(sum_a, _mm256_shuffle_epi8(low, low_a));
        sum_b = _mm256_xor_si256(sum_b, _mm256_shuffle_epi8(low, low_b));
        sum_a = _mm256_xor_si256(sum_a, _mm256_shuffle_epi8(high, high_a));
        sum_b = _mm256_xor_si256(sum_b, _mm256_shuffle_epi8(high, high_b));
        low_a = _mm256_subs_epi8(low_a, next), low_b = _mm256_subs_epi8(low_b, next);
        high_a = _mm256_subs_epi8(high_a, next), high_b = _mm256_subs_epi8(high_b, next);
    }
    *a = sum_a, *b = sum_b;
}

AVX2 static void map_all(uint8_t *data, size_t values, const uint8_t table[256])
{
    lookup all;
    make_lookup(&all, table);
    for (size_t i = 0; i < values; i += 64) {
        __m256i a = load(data + i), b = load(data + i + 32);
        look_up(&all, &a, &b);
        store(data + i, a);
        store(data + i + 32, b);
    }
}

/* Masks of the bytes of three successive vectors that belong to one channel. */
typedef struct masks {
    __m256i first, second;
} masks;

AVX2 static masks third_bytes(void)
{
    uint8_t at[2][32];
    for (int i = 0; i < 32; i++)
        at[0][i] = i % 3 == 1 ? 255 : 0, at[1][i] = i % 3 == 2 ? 255 : 0;
    return (masks){load(at[0]), load(at[1])};
}

/* Take byte i from v[i % 3]. */
IN __m256i mixed(masks m, __m256i v0, __m256i v1, __m256i v2)
{
    return _mm256_blendv_epi8(_mm256_blendv_epi8(v0, v1, m.first), v2, m.second);
}

/* The values of a channel are exchanged in an order in which they need not move within their vectors. */
AVX2 static void map(uint8_t *data, size_t n, const uint8_t table[3][256])
{
    size_t values = 3 * n, i = 0;
    const uint8_t *first = table[0];
    if (memcmp(first, first + 256, 512) == 0) { /* all three are equal */
        map_all(data, values, table[0]);
        return;
    }
    lookup channels[3];
    for (int c = 0; c < 3; c++)
        make_lookup(&channels[c], table[c]);
    masks m = third_bytes();
    for (; i + 192 <= values; i += 192) {
        __m256i v[6];
        for (int k = 0; k < 6; k++)
            v[k] = load(data + i + 32 * k);
        __m256i r[2], g[2], b[2];
        for (int k = 0; k < 2; k++) {
            r[k] = mixed(m, v[3 * k], v[3 * k + 1], v[3 * k + 2]);
            g[k] = mixed(m, v[3 * k + 2], v[3 * k], v[3 * k + 1]);
            b[k] = mixed(m, v[3 * k + 1], v[3 * k + 2], v[3 * k]);
        }
        look_up(&channels[0], &r[0], &r[1]);
        look_up(&channels[1], &g[0], &g[1]);
        look_up(&channels[2], &b[0], &b[1]);
        for (int k = 0; k < 2; k++) {
            store(data + i + 96 * k, mixed(m, r[k], g[k], b[k]));
            store(data + i + 96 * k + 32, mixed(m, b[k], r[k], g[k]));
            store(data + i + 96 * k + 64, mixed(m, g[k], b[k], r[k]));
        }
    }
    for (; i < values; i++)
        data[i] = table[i % 3][data[i]];
}

AVX2 static void bits(uint8_t *data, size_t values, uint8_t threshold, uint8_t inverted, uint8_t mask)
{
    __m256i from = _mm256_set1_epi8((char)threshold), change = _mm256_set1_epi8((char)inverted);
    __m256i kept = _mm256_set1_epi8((char)mask);
    for (size_t i = 0; i < values; i += 32) {
        __m256i v = load(data + i), reached = _mm256_cmpeq_epi8(_mm256_max_epu8(v, from), v);
        store(data + i, _mm256_and_si256(_mm256_xor_si256(v, _mm256_and_si256(reached, change)), kept));
    }
}

AVX2 static void range(const uint8_t *data, size_t n, uint8_t least[3], uint8_t most[3])
{
    uint8_t low[96], high[96];
    size_t values = 3 * n, i = 0;
    __m256i l[3], h[3];
    for (int k = 0; k < 3; k++)
        l[k] = _mm256_set1_epi8((char)255), h[k] = _mm256_setzero_si256();
    for (; i + 96 <= values; i += 96)
        for (int k = 0; k < 3; k++) {
            __m256i v = load(data + i + 32 * k);
            l[k] = _mm256_min_epu8(l[k], v), h[k] = _mm256_max_epu8(h[k], v);
        }
    for (int k = 0; k < 3; k++)
        store(low + 32 * k, l[k]), store(high + 32 * k, h[k]);
    for (; i < values; i++) {
        low[i % 3] = data[i] < low[i % 3] ? data[i] : low[i % 3];
        high[i % 3] = data[i] > high[i % 3] ? data[i] : high[i % 3];
    }
    for (int k = 3; k < 96; k++) {
        low[k % 3] = low[k] < low[k % 3] ? low[k] : low[k % 3];
        high[k % 3] = high[k] > high[k % 3] ? high[k] : high[k % 3];
    }
    memcpy(least, low, 3);
    memcpy(most, high, 3);
}

/* ---- grey levels ------------------------------------------------------------------------------------------------- */

/* Load eight pixels, four in each half. Reads 28 bytes. */
IN __m256i eight(const uint8_t *at)
{
    __m256i first = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)at));
    return _mm256_inserti128_si256(first, _mm_loadu_si128((const __m128i *)(at + 12)), 1);
}

/* Store eight pixels; writes 28 bytes. */
IN void store_eight(uint8_t *at, __m256i v)
{
    _mm_storeu_si128((__m128i *)at, _mm256_castsi256_si128(v));
    _mm_storeu_si128((__m128i *)(at + 12), _mm256_extracti128_si256(v, 1));
}

#define REPEAT(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))

/* The grey levels of eight pixels in 16.16 fixed point. Green's weight is too large for a signed product, and is
 * divided among two. */
IN __m256i grays(__m256i v)
{
    const __m256i red_green = REPEAT(0, -1, 1, -1, 3, -1, 4, -1, 6, -1, 7, -1, 9, -1, 10, -1);
    const __m256i green_blue = REPEAT(1, -1, 2, -1, 4, -1, 5, -1, 7, -1, 8, -1, 10, -1, 11, -1);
    const __m256i first = _mm256_set1_epi32(SR_GRAY_RED | SR_GRAY_GREEN / 2 << 16);
    const __m256i second = _mm256_set1_epi32(SR_GRAY_GREEN / 2 | SR_GRAY_BLUE << 16);
    __m256i a = _mm256_madd_epi16(_mm256_shuffle_epi8(v, red_green), first);
    __m256i b = _mm256_madd_epi16(_mm256_shuffle_epi8(v, green_blue), second);
    return _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_set1_epi32(0x8000));
}

AVX2 static uint32_t gray_sum(const uint8_t *data, size_t n)
{
    uint32_t sums[8], sum = 0;
    __m256i all = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        all = _mm256_add_epi32(all, _mm256_srli_epi32(grays(eight(data + 3 * i)), 16));
    store(sums, all);
    if (i < n) {
        uint32_t last[8];
        store(last, _mm256_srli_epi32(grays(eight(data + 3 * i)), 16));
        for (size_t k = 0; k < n - i; k++)
            sum += last[k];
    }
    for (int k = 0; k < 8; k++)
        sum += sums[k];
    return sum;
}

/* A store of eight pixels reaches into the next ones, which are therefore loaded before. */
AVX2 static void grayscale(uint8_t *data, size_t n)
{
    const __m256i gray_order = REPEAT(2, 2, 2, 6, 6, 6, 10, 10, 10, 14, 14, 14, -1, -1, -1, -1);
    __m256i next = eight(data);
    for (size_t i = 0; i < n; i += 8, data += 24) {
        __m256i v = next;
        if (i + 8 < n)
            next = eight(data + 24);
        store_eight(data, _mm256_shuffle_epi8(grays(v), gray_order));
    }
}

/* Blend four values of each half with their grey levels. */
IN __m256i blend(__m256i v, __m256i gray, __m256i values, __m256i gray_order, __m256 factor)
{
    __m256i first = _mm256_shuffle_epi8(gray, gray_order), second = _mm256_shuffle_epi8(v, values);
    __m256 difference = _mm256_cvtepi32_ps(_mm256_sub_epi32(second, first));
    return _mm256_cvttps_epi32(_mm256_add_ps(_mm256_cvtepi32_ps(first), _mm256_mul_ps(factor, difference)));
}

AVX2 static void saturate(uint8_t *data, size_t n, float factor)
{
#define FOUR(a, b, c, d) REPEAT(a, -1, -1, -1, b, -1, -1, -1, c, -1, -1, -1, d, -1, -1, -1)
    const __m256i values[3] = {FOUR(0, 1, 2, 3), FOUR(4, 5, 6, 7), FOUR(8, 9, 10, 11)};
    const __m256i gray_order[3] = {FOUR(2, 2, 2, 6), FOUR(6, 6, 10, 10), FOUR(10, 14, 14, 14)};
    /* A larger factor gives no other result, because differences are whole numbers, and could not be converted. */
    const __m256 f = _mm256_set1_ps(factor > 1024 ? 1024 : factor < -1024 ? -1024 : factor);
    __m256i next = eight(data);
    for (size_t i = 0; i < n; i += 8, data += 24) {
        __m256i v = next, gray = grays(v);
        if (i + 8 < n)
            next = eight(data + 24);
        __m256i a = blend(v, gray, values[0], gray_order[0], f), b = blend(v, gray, values[1], gray_order[1], f);
        __m256i c = blend(v, gray, values[2], gray_order[2], f);
        store_eight(data, _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, c)));
    }
}

/* ---- hue --------------------------------------------------------------------------------------------------------- */

/* Of 16 pixels in each half, in three vectors: the bytes of one channel, in order, and back. */
static const int8_t SPLIT[3][16] = {
    {0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14, 1, 4, 7, 10, 13},
    {1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14},
    {2, 5, 8, 11, 14, 1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15},
};
static const int8_t JOIN[3][16] = {
    {0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10, 5},
    {5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10},
    {10, 5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15},
};

IN __m256i halves(const uint8_t *at)
{
    __m256i first = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)at));
    return _mm256_inserti128_si256(first, _mm_loadu_si128((const __m128i *)(at + 48)), 1);
}

IN void store_halves(uint8_t *at, __m256i v)
{
    _mm_storeu_si128((__m128i *)at, _mm256_castsi256_si128(v));
    _mm_storeu_si128((__m128i *)(at + 48), _mm256_extracti128_si256(v, 1));
}

IN __m256 floats(const uint8_t *at)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at)));
}

IN __m256i signs(const uint8_t *at) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)); }

/* Four vectors of 32-bit integers to one of bytes. */
IN __m256i packed(const __m256i v[4])
{
    __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Of 16 pixels: the sixth of the circle, and what `most` loses in the two other values. The arithmetic is that of
 * hue_planes in color_c.c. */
IN void losses(__m256i most, __m256i s, __m256i h, __m256i *sixth, __m256i *lost, __m256i *all)
{
    const __m256i one = _mm256_set1_epi16(1), full = _mm256_set1_epi16(85);
    __m256i product = _mm256_mullo_epi16(most, s);
    *sixth = _mm256_mulhi_epu16(h, _mm256_set1_epi16(1543));
    __m256i rest = _mm256_sub_epi16(_mm256_add_epi16(h, h), _mm256_mullo_epi16(*sixth, full));
    __m256i odd = _mm256_cmpeq_epi16(_mm256_and_si256(*sixth, one), one);
    __m256i part = _mm256_blendv_epi8(_mm256_sub_epi16(full, rest), rest, odd);
    /* product * part / 21675, rounded: 387 is 2^23 / 21675 rounded down, so the quotient may be too low by one. The low
     * 16 bits of the remainder show it. */
    __m256i quotient = _mm256_mulhi_epu16(product, _mm256_mullo_epi16(part, _mm256_set1_epi16(387)));
    quotient = _mm256_srli_epi16(_mm256_add_epi16(quotient, _mm256_set1_epi16(64)), 7);
    __m256i taken = _mm256_mullo_epi16(quotient, _mm256_set1_epi16(21675));
    __m256i remainder = _mm256_sub_epi16(_mm256_mullo_epi16(product, part), taken);
    *lost = _mm256_sub_epi16(quotient, _mm256_cmpgt_epi16(remainder, _mm256_set1_epi16(10837)));
    product = _mm256_add_epi16(product, _mm256_set1_epi16(128));
    *all = _mm256_srli_epi16(_mm256_add_epi16(product, _mm256_srli_epi16(product, 8)), 8);
}

/* The value of a channel: the largest, the one between or the lowest. Each table has 255 for its sixths. */
IN __m256i chosen(__m256i sixth, __m256i most, __m256i between, __m256i lowest, __m256i is_most, __m256i is_between)
{
    __m256i v = _mm256_blendv_epi8(lowest, between, _mm256_shuffle_epi8(is_between, sixth));
    return _mm256_blendv_epi8(v, most, _mm256_shuffle_epi8(is_most, sixth));
}

/* Values of the pixels between the three loops. Short loops overlap, and long chains of operations would not. */
#define HUE_PIXELS 512
typedef struct planes {
    uint8_t most[HUE_PIXELS], spread[HUE_PIXELS], part[HUE_PIXELS], corner[HUE_PIXELS], up[HUE_PIXELS];
    uint8_t hue[HUE_PIXELS], saturation[HUE_PIXELS];
} planes;

/* Of 32 pixels: the largest value, its distances to the smallest and to the middle one, and where on the circle they
 * lie. By red: 1 - part, or -1 + part if green is the smallest. By green: 1 + part, or 3 - part. By blue: 3 + part, or
 * 5 - part. Where two values are equal, part is 0 or 1, and both ways give the same. */
IN void measure(const uint8_t *data, masks m, planes *p, size_t i)
{
    const __m256i one = _mm256_set1_epi8(1), two = _mm256_set1_epi8(2);
    __m256i v0 = halves(data), v1 = halves(data + 16), v2 = halves(data + 32);
    __m256i r = _mm256_shuffle_epi8(mixed(m, v0, v2, v1), twice(SPLIT[0]));
    __m256i g = _mm256_shuffle_epi8(mixed(m, v1, v0, v2), twice(SPLIT[1]));
    __m256i b = _mm256_shuffle_epi8(mixed(m, v2, v1, v0), twice(SPLIT[2]));
    __m256i larger = _mm256_max_epu8(r, g), smaller = _mm256_min_epu8(r, g);
    __m256i most = _mm256_max_epu8(larger, b), least = _mm256_min_epu8(smaller, b);
    __m256i middle = _mm256_max_epu8(smaller, _mm256_min_epu8(larger, b));
    __m256i red = _mm256_cmpeq_epi8(r, most), green = _mm256_cmpeq_epi8(g, most);
    __m256i blue_is_least = _mm256_cmpeq_epi8(b, least), red_is_least = _mm256_cmpeq_epi8(r, least);
    __m256i up_red = _mm256_andnot_si256(blue_is_least, _mm256_set1_epi8(-1));
    __m256i up = _mm256_blendv_epi8(_mm256_blendv_epi8(red_is_least, blue_is_least, green), up_red, red);
    __m256i corner = _mm256_blendv_epi8(_mm256_set1_epi8(5), _mm256_set1_epi8(3), green);
    corner = _mm256_sub_epi8(_mm256_blendv_epi8(corner, one, red), _mm256_and_si256(up, two));
    store(p->most + i, most);
    store(p->spread + i, _mm256_sub_epi8(most, least));
    store(p->part + i, _mm256_sub_epi8(most, middle));
    store(p->corner + i, corner);
    store(p->up + i, up);
}

/* Hue and saturation of 32 pixels. */
IN void divide(planes *p, size_t i)
{
    const __m256 one = _mm256_set1_ps(1.0f), full = _mm256_set1_ps(255.0f);
    __m256i hues[4], saturations[4];
    for (int k = 0; k < 4; k++, i += 8) {
        __m256 spread = floats(p->spread + i), most = _mm256_max_ps(floats(p->most + i), one);
        __m256i corner = signs(p->corner + i);
        saturations[k] = _mm256_cvttps_epi32(_mm256_mul_ps(_mm256_div_ps(spread, most), full));
        __m256 part = _mm256_div_ps(floats(p->part + i), _mm256_max_ps(spread, one));
        __m256i minus = _mm256_andnot_si256(signs(p->up + i), _mm256_set1_epi32((int)0x80000000));
        __m256 hue = _mm256_add_ps(_mm256_cvtepi32_ps(corner), _mm256_xor_ps(part, _mm256_castsi256_ps(minus)));
        __m256 below = _mm256_and_ps(_mm256_castsi256_ps(_mm256_srai_epi32(corner, 31)), one);
        hue = _mm256_add_ps(_mm256_div_ps(hue, _mm256_set1_ps(6.0f)), below);
        hues[k] = _mm256_cvttps_epi32(_mm256_mul_ps(hue, full));
    }
    store(p->hue + i - 32, packed(hues));
    store(p->saturation + i - 32, packed(saturations));
}

/* The colours of 32 pixels. */
IN void back(uint8_t *data, masks m, const planes *p, size_t i, uint8_t shift)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i most = load(p->most + i), s = load(p->saturation + i), sixths[2], lost[2], all[2];
    __m256i h = _mm256_add_epi8(load(p->hue + i), _mm256_set1_epi8((char)shift));
    losses(_mm256_unpacklo_epi8(most, zero), _mm256_unpacklo_epi8(s, zero), _mm256_unpacklo_epi8(h, zero), &sixths[0],
           &lost[0], &all[0]);
    losses(_mm256_unpackhi_epi8(most, zero), _mm256_unpackhi_epi8(s, zero), _mm256_unpackhi_epi8(h, zero), &sixths[1],
           &lost[1], &all[1]);
    __m256i sixth = _mm256_packus_epi16(sixths[0], sixths[1]);
    __m256i between = _mm256_sub_epi8(most, _mm256_packus_epi16(lost[0], lost[1]));
    __m256i lowest = _mm256_sub_epi8(most, _mm256_packus_epi16(all[0], all[1]));
#define SIXTHS(a, b, c, d, e, f) REPEAT(-(a), -(b), -(c), -(d), -(e), -(f), -(a), 0, 0, 0, 0, 0, 0, 0, 0, 0)
    __m256i r = chosen(sixth, most, between, lowest, SIXTHS(1, 0, 0, 0, 0, 1), SIXTHS(0, 1, 0, 0, 1, 0));
    __m256i g = chosen(sixth, most, between, lowest, SIXTHS(0, 1, 1, 0, 0, 0), SIXTHS(1, 0, 0, 1, 0, 0));
    __m256i b = chosen(sixth, most, between, lowest, SIXTHS(0, 0, 0, 1, 1, 0), SIXTHS(0, 0, 1, 0, 0, 1));
    r = _mm256_shuffle_epi8(r, twice(JOIN[0]));
    g = _mm256_shuffle_epi8(g, twice(JOIN[1]));
    b = _mm256_shuffle_epi8(b, twice(JOIN[2]));
    store_halves(data, mixed(m, r, g, b));
    store_halves(data + 16, mixed(m, g, b, r));
    store_halves(data + 32, mixed(m, b, r, g));
}

/* At most HUE_PIXELS pixels, a multiple of 32. */
AVX2 static void hue_blocks(uint8_t *data, size_t n, uint8_t shift, masks m, planes *p)
{
    for (size_t i = 0; i < n; i += 32)
        measure(data + 3 * i, m, p, i);
    for (size_t i = 0; i < n; i += 32)
        divide(p, i);
    for (size_t i = 0; i < n; i += 32)
        back(data + 3 * i, m, p, i, shift);
}

AVX2 static void hue(uint8_t *data, size_t n, uint8_t shift)
{
    uint8_t last[96] = {0}, at[2][16];
    planes p;
    size_t whole = n / 32 * 32;
    for (int k = 0; k < 16; k++)
        at[0][k] = k % 3 == 1 ? 255 : 0, at[1][k] = k % 3 == 2 ? 255 : 0;
    masks m = {twice(at[0]), twice(at[1])};
    for (size_t i = 0; i < whole; i += HUE_PIXELS)
        hue_blocks(data + 3 * i, whole - i < HUE_PIXELS ? whole - i : HUE_PIXELS, shift, m, &p);
    memcpy(last, data + 3 * whole, 3 * (n - whole));
    hue_blocks(last, 32, shift, m, &p);
    memcpy(data + 3 * whole, last, 3 * (n - whole));
}

/* A vector has five pixels and one byte, which stays and belongs to the next vector. */
AVX2 static void permute(uint8_t *data, size_t n, const int32_t from[3])
{
    uint8_t shuffle[16];
    for (int i = 0; i < 15; i++)
        shuffle[i] = (uint8_t)(i / 3 * 3 + from[i % 3]);
    shuffle[15] = 15;
    __m128i order = _mm_loadu_si128((const __m128i *)shuffle);
    for (size_t i = 0; i < 3 * n; i += 15) {
        __m128i *at = (__m128i *)(data + i);
        _mm_storeu_si128(at, _mm_shuffle_epi8(_mm_loadu_si128(at), order));
    }
}

const sr_color_loops sr_color_loops_avx2 = {
    .map = map,
    .bits = bits,
    .range = range,
    .gray_sum = gray_sum,
    .grayscale = grayscale,
    .saturate = saturate,
    .hue = hue,
    .permute = permute,
};
#endif
