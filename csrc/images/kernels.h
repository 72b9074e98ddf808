/* kernels.h - the inner loops of the resize, and which kind of loops runs. Private to csrc/images. */
#ifndef SLIPRING_IMAGES_KERNELS_H
#define SLIPRING_IMAGES_KERNELS_H

#include "resize.h"

#define SR_PRECISION 14 /* bits of a weight */
#define SR_EXTRA 6      /* bits between the two passes, beyond the 8 of a pixel value */
#define SR_MIDDLE_MOST (255 << SR_EXTRA)

typedef struct sr_kernels {
    const char *name;
    /* Pixel values of `taps` rows, `stride` apart, to one row between the passes. `values` = 3 x pixels. Reads no
     * further. */
    void (*down8)(const uint8_t *rows, size_t stride, int values, const int16_t *weights, int taps, int16_t *to);
    /* Rows between the passes to one row of pixel values. May read 32 bytes further. */
    void (*down16)(const int16_t *rows, size_t stride, int values, const int16_t *weights, int taps, uint8_t *to);
    /* Resize two rows across. May read 16 bytes further; writes count x 3 values. */
    void (*across8)(const uint8_t *a, const uint8_t *b, const sr_axis *axis, int16_t *to_a, int16_t *to_b);
    void (*across16)(const int16_t *a, const int16_t *b, const sr_axis *axis, uint8_t *to_a, uint8_t *to_b);
    /* Pixels to rows of red, green and blue. Reads and writes no further. */
    void (*planes)(const uint8_t *from, int pixels, uint8_t *red, uint8_t *green, uint8_t *blue);
} sr_kernels;

extern const sr_kernels sr_kernels_c;
/* Whether loops for this processor's vectors run: SLIPRING_IMAGES_KERNELS=c excludes them. The first call decides. */
bool sr_use_vectors(void);
#ifdef __x86_64__
extern const sr_kernels sr_kernels_avx2;
bool sr_has_avx2(void);
#endif
#ifdef __aarch64__
extern const sr_kernels sr_kernels_neon;
#endif

#endif
