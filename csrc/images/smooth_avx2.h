/* smooth_avx2.h - the weighted sums of blur.c with AVX2: the same integers as in smooth_loops.h. */
#include <immintrin.h>

#define OWN_PAIRS

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
        __m256i levels = _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8);
        _mm256_storeu_si256((__m256i *)(to + i), levels);
    }
}
