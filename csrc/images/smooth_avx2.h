/* smooth_avx2.h - the sums of blur.c with AVX2: the same numbers as in smooth_loops.h. */
#include <immintrin.h>

#define OWN_SUMS

LOOP void NAMED(down)(const uint8_t *const *rows, const int16_t *weights, int pairs, int n, int16_t *to)
{
    const __m256i sixty_four = _mm256_set1_epi8(64), one = _mm256_set1_epi16(1);
    for (int i = 0; i < n; i += 32) {
        __m256i low = _mm256_setzero_si256(), high = low;
        for (int k = 0; k < pairs; k++) {
            __m256i weight = _mm256_set1_epi16(weights[k]);
            __m256i a = _mm256_loadu_si256((const __m256i *)(rows[2 * k] + i));
            __m256i b = _mm256_loadu_si256((const __m256i *)(rows[2 * k + 1] + i));
            __m256i x = _mm256_maddubs_epi16(_mm256_unpacklo_epi8(a, b), sixty_four);
            __m256i y = _mm256_maddubs_epi16(_mm256_unpackhi_epi8(a, b), sixty_four);
            low = _mm256_add_epi16(low, _mm256_mulhrs_epi16(x, weight));
            high = _mm256_add_epi16(high, _mm256_mulhrs_epi16(y, weight));
        }
        low = _mm256_srai_epi16(_mm256_add_epi16(low, one), 1);
        high = _mm256_srai_epi16(_mm256_add_epi16(high, one), 1);
        _mm256_storeu_si256((__m256i *)(to + i), _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256((__m256i *)(to + i + 16), _mm256_permute2x128_si256(low, high, 0x31));
    }
}

LOOP void NAMED(across)(const int16_t *row, const int16_t *weights, int pairs, int n, uint8_t *to)
{
    const __m256i half = _mm256_set1_epi16(64);
    for (int i = 0; i < n; i += 32) {
        __m256i low = _mm256_setzero_si256(), high = low;
        for (int k = 0; k < pairs; k++) {
            const int16_t *a = row + i - 3 * k, *b = row + i + 3 * k;
            __m256i weight = _mm256_set1_epi16(weights[k]);
            __m256i x = _mm256_add_epi16(_mm256_loadu_si256((const __m256i *)a),
                                         _mm256_loadu_si256((const __m256i *)b));
            __m256i y = _mm256_add_epi16(_mm256_loadu_si256((const __m256i *)(a + 16)),
                                         _mm256_loadu_si256((const __m256i *)(b + 16)));
            low = _mm256_add_epi16(low, _mm256_mulhrs_epi16(x, weight));
            high = _mm256_add_epi16(high, _mm256_mulhrs_epi16(y, weight));
        }
        low = _mm256_srai_epi16(_mm256_add_epi16(low, half), 7);
        high = _mm256_srai_epi16(_mm256_add_epi16(high, half), 7);
        __m256i pixels = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8);
        _mm256_storeu_si256((__m256i *)(to + i), pixels);
    }
}

LOOP __m256i NAMED(blended)(__m256i smooth, __m256i difference, __m256 factor)
{
    __m256 step = _mm256_mul_ps(factor, _mm256_cvtepi32_ps(difference));
    __m256 value = _mm256_add_ps(_mm256_cvtepi32_ps(smooth), step);
    value = _mm256_min_ps(_mm256_max_ps(value, _mm256_setzero_ps()), _mm256_set1_ps(255));
    return _mm256_cvttps_epi32(value);
}

LOOP void NAMED(blend)(const uint16_t *columns, const uint8_t *from, int n, float factor, uint8_t *to)
{
    const __m256i six = _mm256_set1_epi16(6), part = _mm256_set1_epi16(5042), zero = _mm256_setzero_si256();
    const __m256 factors = _mm256_set1_ps(factor);
    for (int i = 0; i < n; i += 16) {
        __m256i row = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(from + i)));
        __m256i sum = _mm256_add_epi16(_mm256_loadu_si256((const __m256i *)(columns + i)),
                                       _mm256_loadu_si256((const __m256i *)(columns + i + 3)));
        sum = _mm256_add_epi16(sum, _mm256_loadu_si256((const __m256i *)(columns + i + 6)));
        sum = _mm256_add_epi16(_mm256_add_epi16(sum, six), _mm256_slli_epi16(row, 2));
        __m256i smooth = _mm256_mulhi_epu16(sum, part), difference = _mm256_sub_epi16(row, smooth);
        __m256i low = NAMED(blended)(_mm256_unpacklo_epi16(smooth, zero),
                                     _mm256_srai_epi32(_mm256_unpacklo_epi16(difference, difference), 16), factors);
        __m256i high = NAMED(blended)(_mm256_unpackhi_epi16(smooth, zero),
                                      _mm256_srai_epi32(_mm256_unpackhi_epi16(difference, difference), 16), factors);
        __m256i pixels = _mm256_packs_epi32(low, high);
        pixels = _mm256_permute4x64_epi64(_mm256_packus_epi16(pixels, pixels), 0x08);
        _mm_storeu_si128((__m128i *)(to + i), _mm256_castsi256_si128(pixels));
    }
}
