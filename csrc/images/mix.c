/* mix.c - mix two images of a batch, for MixUp. */
#include "pixels.h"

/* As torch does, both products are rounded before the sum. */
#define MIX(TYPE, DECODE, ENCODE)                                                            \
    do {                                                                                     \
        TYPE *to = values;                                                                   \
        const TYPE *from = other;                                                            \
        for (size_t i = 0; i < count; i++) {                                                 \
            float mine = DECODE(to[i]) * share, theirs = DECODE(from[i]) * rest;             \
            to[i] = ENCODE(mine + theirs);                                                   \
        }                                                                                    \
    } while (0)

#define SAME(value) (value)
#define ROUNDED(value) ((uint8_t)((value) + 0.5f))

void sr_mix(void *values, const void *other, size_t count, enum sr_type type, float share, float rest)
{
    switch (type) {
    case SR_UINT8:
        MIX(uint8_t, SAME, ROUNDED);
        break;
    case SR_FLOAT32:
        MIX(float, SAME, SAME);
        break;
    case SR_FLOAT16:
        MIX(uint16_t, sr_of_half, sr_half_of);
        break;
    case SR_BFLOAT16:
        MIX(uint16_t, sr_of_bfloat16, sr_bfloat16_of);
        break;
    }
}
