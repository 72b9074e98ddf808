/* kernels_avx2.c - the inner loops for processors with AVX2: compiled by attributes, and chosen at run time. */
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#include <string.h>

#include "kernels.h"

#define AVX2 __attribute__((target("avx2")))

/* Weights of two taps next to each other, as vpmaddwd needs them. */
static inline int32_t pair(const int16_t *weights, int t, int taps)
{
    int32_t both = (uint16_t)weights[t];
    return t + 1 < taps ? both | (int32_t)((uint32_t)(uint16_t)weights[t + 1] << 16) : both;
}

AVX2 static inline __m256i load(const void *at) { return _mm256_loadu_si256((const __m256i *)at); }

/* 32 values of one row between the passes, from column `i` on. */
AVX2 static inline void down8_block(const uint8_t *rows, size_t stride, size_t i, const int16_t *weights, int taps,
                                    int16_t *to)
{
    const __m256i zero = _mm256_setzero_si256(), most = _mm256_set1_epi16(SR_MIDDLE_MOST);
    const int shift = SR_PRECISION - SR_EXTRA;
    __m256i s0 = _mm256_set1_epi32(1 << (shift - 1)), s1 = s0, s2 = s0, s3 = s0;
    for (int t = 0; t < taps; t += 2) {
        const uint8_t *row = rows + (size_t)t * stride + i;
        __m256i a = load(row), b = t + 1 < taps ? load(row + stride) : zero;
        __m256i w = _mm256_set1_epi32(pair(weights, t, taps));
        __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
        s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), w));
        s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), w));
        s2 = _mm256_add_epi32(s2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), w));
        s3 = _mm256_add_epi32(s3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), w));
    }
    __m256i u = _mm256_packs_epi32(_mm256_srai_epi32(s0, shift), _mm256_srai_epi32(s1, shift));
    __m256i v = _mm256_packs_epi32(_mm256_srai_epi32(s2, shift), _mm256_srai_epi32(s3, shift));
    u = _mm256_min_epi16(_mm256_max_epi16(u, zero), most);
    v = _mm256_min_epi16(_mm256_max_epi16(v, zero), most);
    /* Unpacking works within halves of a register, so the halves belong together crosswise. */
    _mm256_storeu_si256((__m256i *)(to + i), _mm256_permute2x128_si256(u, v, 0x20));
    _mm256_storeu_si256((__m256i *)(to + i + 16), _mm256_permute2x128_si256(u, v, 0x31));
}

AVX2 static inline void down8_of(const uint8_t *rows, size_t stride, size_t n, const int16_t *weights, int taps,
                                 int16_t *to)
{
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        down8_block(rows, stride, i, weights, taps, to);
    if (i < n) /* the last 32 overlap the previous ones: no read past the row */
        down8_block(rows, stride, n - 32, weights, taps, to);
}

/* Most images become at most twice smaller. With a constant number of taps, the compiler unrolls the loop over them. */
AVX2 static void down8(const uint8_t *rows, size_t stride, int values, const int16_t *weights, int taps, int16_t *to)
{
    size_t n = (size_t)values;
    if (n < 32)
        sr_kernels_c.down8(rows, stride, values, weights, taps, to);
    else if (taps == 2)
        down8_of(rows, stride, n, weights, 2, to);
    else if (taps == 4)
        down8_of(rows, stride, n, weights, 4, to);
    else
        down8_of(rows, stride, n, weights, taps, to);
}

AVX2 static void down16(const int16_t *rows, size_t stride, int values, const int16_t *weights, int taps, uint8_t *to)
{
    const int shift = SR_PRECISION + SR_EXTRA;
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1)), zero = _mm256_setzero_si256();
    for (int i = 0; i < values; i += 16) {
        __m256i s0 = half, s1 = half;
        for (int t = 0; t < taps; t += 2) {
            const int16_t *row = rows + (size_t)t * stride + i;
            __m256i a = load(row), b = t + 1 < taps ? load(row + stride) : zero;
            __m256i w = _mm256_set1_epi32(pair(weights, t, taps));
            s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), w));
            s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), w));
        }
        __m256i u = _mm256_packs_epi32(_mm256_srai_epi32(s0, shift), _mm256_srai_epi32(s1, shift));
        u = _mm256_permute4x64_epi64(_mm256_packus_epi16(u, u), 0xd8);
        __m128i pixels = _mm256_castsi256_si128(u);
        if (values - i >= 16) {
            _mm_storeu_si128((__m128i *)(to + i), pixels);
        } else {
            uint8_t last[16];
            _mm_storeu_si128((__m128i *)last, pixels);
            memcpy(to + i, last, (size_t)(values - i));
        }
    }
}

/* Two pixels of each of two rows: one row in each half. */
AVX2 static inline __m256i two16(const int16_t *a, const int16_t *b)
{
    __m256i both = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a));
    return _mm256_inserti128_si256(both, _mm_loadu_si128((const __m128i *)b), 1);
}
AVX2 static inline __m256i two8(const uint8_t *a, const uint8_t *b)
{
    __m256i both = _mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)a));
    return _mm256_inserti128_si256(both, _mm_loadl_epi64((const __m128i *)b), 1);
}

/* r, g, b of a pixel (the fourth lane is unused), for two rows at once. */
AVX2 static inline __m256i sum16(const int16_t *a, const int16_t *b, const int16_t *weights, int taps)
{
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1));
    __m256i sum = _mm256_set1_epi32(1 << (SR_PRECISION + SR_EXTRA - 1));
    for (int t = 0; t < taps; t += 2) {
        int32_t w;
        memcpy(&w, weights + t, sizeof w);
        __m256i pixels = _mm256_shuffle_epi8(two16(a + 3 * t, b + 3 * t), order);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pixels, _mm256_set1_epi32(w)));
    }
    return _mm256_srai_epi32(sum, SR_PRECISION + SR_EXTRA);
}

AVX2 static inline void across16_of(const int16_t *a, const int16_t *b, const sr_axis *axis, int taps, uint8_t *to_a,
                                    uint8_t *to_b)
{
    const __m256i close = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    const int16_t *weights = axis->weights;
    int x = 0;
    for (; x + 3 <= axis->count; x += 2, to_a += 6, to_b += 6, weights += 2 * taps) {
        size_t first = 3 * (size_t)(axis->at[x] - axis->begin), second = 3 * (size_t)(axis->at[x + 1] - axis->begin);
        __m256i both = _mm256_packs_epi32(sum16(a + first, b + first, weights, taps),
                                          sum16(a + second, b + second, weights + taps, taps));
        both = _mm256_shuffle_epi8(_mm256_packus_epi16(both, both), close);
        /* Two bytes too many, which the next pixel overwrites. */
        _mm_storel_epi64((__m128i *)to_a, _mm256_castsi256_si128(both));
        _mm_storel_epi64((__m128i *)to_b, _mm256_extracti128_si256(both, 1));
    }
    for (; x < axis->count; x++, to_a += 3, to_b += 3, weights += taps) {
        size_t at = 3 * (size_t)(axis->at[x] - axis->begin);
        __m256i sum = sum16(a + at, b + at, weights, taps);
        sum = _mm256_packs_epi32(sum, sum);
        sum = _mm256_packus_epi16(sum, sum);
        uint32_t pixel_a = (uint32_t)_mm256_extract_epi32(sum, 0), pixel_b = (uint32_t)_mm256_extract_epi32(sum, 4);
        memcpy(to_a, &pixel_a, 3);
        memcpy(to_b, &pixel_b, 3);
    }
}

/* As for down8. */
AVX2 static void across16(const int16_t *a, const int16_t *b, const sr_axis *axis, uint8_t *to_a, uint8_t *to_b)
{
    if (axis->taps == 2)
        across16_of(a, b, axis, 2, to_a, to_b);
    else if (axis->taps == 4)
        across16_of(a, b, axis, 4, to_a, to_b);
    else
        across16_of(a, b, axis, axis->taps, to_a, to_b);
}

AVX2 static void across8(const uint8_t *a, const uint8_t *b, const sr_axis *axis, int16_t *to_a, int16_t *to_b)
{
    const int shift = SR_PRECISION - SR_EXTRA;
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    const __m256i zero = _mm256_setzero_si256(), most = _mm256_set1_epi16(SR_MIDDLE_MOST);
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const int16_t *weights = axis->weights;
    for (int x = 0; x < axis->count; x++, to_a += 3, to_b += 3) {
        size_t at = 3 * (size_t)(axis->at[x] - axis->begin);
        __m256i sum = half;
        for (int t = 0; t < axis->taps; t += 2, at += 6, weights += 2) {
            int32_t w;
            memcpy(&w, weights, sizeof w);
            __m256i pixels = _mm256_shuffle_epi8(two8(a + at, b + at), order);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pixels, _mm256_set1_epi32(w)));
        }
        sum = _mm256_srai_epi32(sum, shift);
        sum = _mm256_min_epi16(_mm256_max_epi16(_mm256_packs_epi32(sum, sum), zero), most);
        _mm_storel_epi64((__m128i *)to_a, _mm256_castsi256_si128(sum)); /* and its fourth value: see above */
        _mm_storel_epi64((__m128i *)to_b, _mm256_extracti128_si256(sum, 1));
    }
}

/* One colour of 16 pixels: its bytes of three registers of 16, each shuffled to their lanes. */
AVX2 static inline __m128i colour(const __m128i *parts, __m128i first, __m128i second, __m128i third)
{
    return _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(parts[0], first), _mm_shuffle_epi8(parts[1], second)),
                        _mm_shuffle_epi8(parts[2], third));
}

AVX2 static void planes(const uint8_t *from, int pixels, uint8_t *red, uint8_t *green, uint8_t *blue)
{
    const __m128i r0 = _mm_setr_epi8(0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i r1 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14, -1, -1, -1, -1, -1);
    const __m128i r2 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 4, 7, 10, 13);
    const __m128i g0 = _mm_setr_epi8(1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i g1 = _mm_setr_epi8(-1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15, -1, -1, -1, -1, -1);
    const __m128i g2 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 2, 5, 8, 11, 14);
    const __m128i b0 = _mm_setr_epi8(2, 5, 8, 11, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i b1 = _mm_setr_epi8(-1, -1, -1, -1, -1, 1, 4, 7, 10, 13, -1, -1, -1, -1, -1, -1);
    const __m128i b2 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 3, 6, 9, 12, 15);
    int x = 0;
    for (; x + 16 <= pixels; x += 16, from += 48) {
        __m128i parts[3];
        for (int i = 0; i < 3; i++)
            parts[i] = _mm_loadu_si128((const __m128i *)(from + 16 * i));
        _mm_storeu_si128((__m128i *)(red + x), colour(parts, r0, r1, r2));
        _mm_storeu_si128((__m128i *)(green + x), colour(parts, g0, g1, g2));
        _mm_storeu_si128((__m128i *)(blue + x), colour(parts, b0, b1, b2));
    }
    sr_kernels_c.planes(from, pixels - x, red + x, green + x, blue + x);
}

/* Return whether the processor has AVX2 and the operating system saves its registers. Not __builtin_cpu_supports, which
 * calls the compiler's run-time library: zig's always says no. */
bool sr_has_avx2(void)
{
    const unsigned avx = bit_OSXSAVE | bit_AVX, saved = 6; /* SSE's and AVX's registers */
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & avx) != avx)
        return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & saved) == saved && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}

const sr_kernels sr_kernels_avx2 = {"avx2", down8, down16, across8, across16, planes};
#endif
