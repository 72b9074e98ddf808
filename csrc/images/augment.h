/* augment.h - operations on an image in memory, one after another, between the resize and the row of the batch.
 *
 * The operations are Pillow's, as torchvision calls them for PIL images. augment.c runs a list of them: color.c gets
 * runs of colour operations, moves.c, warp.c and blur.c get the others one by one. An image lies in one of two buffers.
 * An operation works in place, or writes its result to the other buffer. Buffers are kept from one image to the next.
 */
#ifndef SLIPRING_IMAGES_AUGMENT_H
#define SLIPRING_IMAGES_AUGMENT_H

#include "resize.h"

/* An image: RGB, rows of 3 x width bytes without gaps. SR_SLACK bytes before and after it can be read and written. */
typedef struct sr_pixels {
    uint8_t *data;
    int height, width;
} sr_pixels;
#define SR_SLACK 64

/* What an operation does, and the meaning of its numbers. `fill` is red, green and blue, from 0 to 255. */
enum sr_op_code {
    /* Colour. Adjacent ones that map each value to a value (*) are applied as one table. */
    SR_OP_BRIGHTNESS = 0, /* * v: factor */
    SR_OP_CONTRAST,       /* v: factor */
    SR_OP_SATURATION,     /* v: factor */
    SR_OP_HUE,            /* v: factor from -0.5 to 0.5 */
    SR_OP_GRAYSCALE,      /* three equal channels */
    SR_OP_POSTERIZE,      /* * n: bits, 0 to 8 */
    SR_OP_SOLARIZE,       /* * v: threshold */
    SR_OP_SOLARIZE_ADD,   /* * n: addend, threshold */
    SR_OP_INVERT,         /* * */
    SR_OP_AUTOCONTRAST,   /* * after a histogram */
    SR_OP_EQUALIZE,       /* * after a histogram */
    SR_OP_PERMUTE_CHANNELS,        /* n: the image's channels that become red, green and blue; each of 0, 1, 2 once */
    SR_OP_COLORS,         /* not an operation: the number of those above */
    /* Neighbouring pixels (blur.c). */
    SR_OP_SHARPNESS = 16, /* v: factor */
    SR_OP_GAUSSIAN_BLUR,  /* n: kernel width, height (odd); v: sigma in x, in y. torchvision's kernel and borders */
    SR_OP_PIL_GAUSSIAN_BLUR,       /* v: radius in x, in y. Pillow's ImageFilter.GaussianBlur */
    /* Flips, crops, borders and resizing (moves.c). */
    SR_OP_HORIZONTAL_FLIP = 32,
    SR_OP_VERTICAL_FLIP,
    SR_OP_CROP,   /* n: top, left, height, width; v: fill, where the box lies outside of the image */
    SR_OP_PAD,    /* n: left, top, right, bottom (all >= 0), enum sr_padding; v: fill */
    SR_OP_RESIZE, /* n: height, width, enum sr_filter */
    /* Other geometry (warp.c). `inverse` maps the centre of a pixel of the result to a point in the image. */
    SR_OP_AFFINE = 48, /* n: enum sr_filter, height, width of the result; v: inverse (6), fill */
    SR_OP_PERSPECTIVE, /* n: enum sr_filter; v: inverse (8), fill */
    SR_OP_ELASTIC,     /* n: enum sr_filter, seed (two halves, the lower first); v: alpha x, y, sigma x, y, fill */
    /* Several images (augment.c), for AugMix. */
    SR_OP_KEEP = 64,   /* keep a copy, and begin an empty sum */
    SR_OP_ADD_TO_SUM,  /* v: weight. Add the image times the weight to the sum; the kept copy becomes the image */
    SR_OP_TAKE_SUM,    /* the sum, rounded, becomes the image */
};

enum sr_padding { SR_CONSTANT = 0, SR_EDGE, SR_REFLECT, SR_SYMMETRIC };

typedef struct sr_op {
    int32_t code;
    int32_t n[7];
    double v[12];
} sr_op;
#define SR_MOST_SIDE (1 << 24) /* pixels, as of a decoded image */
#define SR_MOST_PIXELS (INT64_C(1) << 31)

/* Buffers for one thread. Zeroed at first. */
typedef struct sr_augmenter {
    sr_buffer images[2]; /* the image and the result */
    sr_buffer work;      /* of one operation */
    sr_buffer sum;       /* of SR_OP_KEEP: the copy, then the sum as floats */
    sr_scratch resize;
    int current; /* the buffer that holds the image */
} sr_augmenter;
void sr_augmenter_free(sr_augmenter *a);

/* Make memory for an image that is to be augmented, with undefined pixels. -EINVAL: no such size; -ENOMEM. */
int sr_image_make(sr_augmenter *a, int height, int width, sr_pixels *image);

/* Apply `count` operations. -EINVAL: an operation's numbers are wrong, or an image would be too large; -ENOMEM. */
int sr_augment(sr_augmenter *a, const sr_op *ops, int count, sr_pixels *image);

/* Move each pixel: SR_OP_ELASTIC with given displacements, one of each kind per pixel, in parts of half the image. */
int sr_displace(sr_augmenter *a, int filter, const float *x, const float *y, const double fill[3], sr_pixels *image);

/* Write an image to its target, whose size it has. */
int sr_image_write(sr_augmenter *a, const sr_pixels *image, const sr_target *target);

enum sr_type { SR_UINT8 = 0, SR_FLOAT32, SR_FLOAT16, SR_BFLOAT16 };

/* A rectangle to overwrite in a target, in values of the target's type. */
typedef struct sr_erasure {
    int32_t top, left, height, width; /* inside the target */
    int32_t noise;                    /* 0: `values`; 1: independent normal numbers, mean 0 and deviation 1 */
    int32_t type;                     /* enum sr_type, of the target */
    uint64_t seed;                    /* of the noise */
    double values[3];
} sr_erasure;
void sr_erase(const sr_target *target, const sr_erasure *erasure);

/* values = values x share + other x rest, where share + rest is 1. */
void sr_mix(void *values, const void *other, size_t count, enum sr_type type, float share, float rest);

#endif
