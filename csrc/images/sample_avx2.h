/* sample_avx2.h - interpolation with AVX2: the same integers as in sample_loops.h. */
#include <immintrin.h>

#define OWN_TAPS

/* Two pixels at a time, each in one half of a register: the pixel, then its right neighbour. */
LOOP void NAMED(bilinear_taps)(const sr_sampler *s, int n, uint8_t *to)
{
    const __m256i bias = _mm256_set1_epi16((int16_t)s->bias);
    const __m256i spread = _mm256_inserti128_si256(_mm256_set1_epi16(0x0100), _mm_set1_epi16(0x0302), 1);
    const uint32_t *at = s->at;
    const int16_t *wx = s->weights[0], *wy = s->weights[1];
    size_t down = s->steps[1];
    for (int i = 0; i < n; i += 2, to += 6) {
        const uint8_t *p = s->data + at[i], *q = s->data + at[i + 1];
        __m128i upper = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)p), _mm_loadl_epi64((const __m128i *)q));
        __m128i lower = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(p + down)),
                                           _mm_loadl_epi64((const __m128i *)(q + down)));
        int32_t fractions[2];
        memcpy(fractions, wx + i, 4);
        memcpy(fractions + 1, wy + i, 4);
        __m256i x = _mm256_shuffle_epi8(_mm256_set1_epi32(fractions[0]), spread);
        __m256i y = _mm256_shuffle_epi8(_mm256_set1_epi32(fractions[1]), spread);
        __m256i a = _mm256_slli_epi16(_mm256_cvtepu8_epi16(upper), 7);
        __m256i b = _mm256_slli_epi16(_mm256_cvtepu8_epi16(lower), 7);
        __m256i left = _mm256_sub_epi16(a, _mm256_mulhrs_epi16(_mm256_sub_epi16(b, a), y));
        __m256i right = _mm256_srli_si256(left, 6);
        __m256i value = _mm256_sub_epi16(left, _mm256_mulhrs_epi16(_mm256_sub_epi16(right, left), x));
        value = _mm256_srli_epi16(_mm256_add_epi16(value, bias), 7);
        value = _mm256_packus_epi16(value, value);
        int first = _mm_cvtsi128_si32(_mm256_castsi256_si128(value));
        int second = _mm_cvtsi128_si32(_mm256_extracti128_si256(value, 1));
        memcpy(to, &first, 4);
        memcpy(to + 3, &second, 4);
    }
}

LOOP void NAMED(bicubic_taps)(const sr_sampler *s, int n, uint8_t *to)
{
    const __m256i half = _mm256_set1_epi32(128);
    /* The values of columns 0 and 1, and of 2 and 3, in pairs. */
    const __m256i pairs = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1));
    for (int i = 0; i < n; i++, to += 3) {
        const uint8_t *p = s->data + s->at[i];
        __m256i row[4];
        for (int k = 0; k < 4; k++)
            row[k] = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(p + s->steps[k])));
        __m256i upper = _mm256_set1_epi32((int)s->pairs_y[0][i]), lower = _mm256_set1_epi32((int)s->pairs_y[1][i]);
        __m256i low = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpacklo_epi16(row[0], row[1]), upper),
                                       _mm256_madd_epi16(_mm256_unpacklo_epi16(row[2], row[3]), lower));
        __m256i high = _mm256_add_epi32(_mm256_madd_epi16(_mm256_unpackhi_epi16(row[0], row[1]), upper),
                                        _mm256_madd_epi16(_mm256_unpackhi_epi16(row[2], row[3]), lower));
        low = _mm256_srai_epi32(_mm256_add_epi32(low, half), 8);
        high = _mm256_srai_epi32(_mm256_add_epi32(high, half), 8);
        __m256i columns = _mm256_packs_epi32(low, high);
        __m128i first = _mm256_castsi256_si128(columns);
        __m128i last = _mm_alignr_epi8(_mm256_extracti128_si256(columns, 1), first, 12);
        columns = _mm256_shuffle_epi8(_mm256_inserti128_si256(columns, last, 1), pairs);
        __m256i weights = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi32((int)s->pairs_x[0][i])),
                                                  _mm_set1_epi32((int)s->pairs_x[1][i]), 1);
        columns = _mm256_madd_epi16(columns, weights);
        __m128i value = _mm_add_epi32(_mm256_castsi256_si128(columns), _mm256_extracti128_si256(columns, 1));
        value = _mm_packs_epi32(_mm_srai_epi32(value, 20), value);
        int pixels = _mm_cvtsi128_si32(_mm_packus_epi16(value, value));
        memcpy(to, &pixels, 4);
    }
}

LOOP void NAMED(shift)(const uint8_t *from, const uint8_t *next, int values, int fraction, uint8_t *to)
{
    const __m256i f = _mm256_set1_epi16((int16_t)fraction);
    for (int i = 0; i < values; i += 16) {
        __m256i a = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(from + i))), 7);
        __m256i b = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(next + i))), 7);
        a = _mm256_srli_epi16(_mm256_sub_epi16(a, _mm256_mulhrs_epi16(_mm256_sub_epi16(b, a), f)), 7);
        __m128i pixels = _mm_packus_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
        _mm_storeu_si128((__m128i *)(to + i), pixels);
    }
}
