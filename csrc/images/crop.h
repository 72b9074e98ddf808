/* crop.h - a crop of an image: a box, the size to which it is scaled, and a window of that. */
#ifndef SLIPRING_IMAGES_CROP_H
#define SLIPRING_IMAGES_CROP_H

#include "resize.h"

/* A crop: a box of the image is scaled to a size, and the result is a window of that, as large as the target. */
typedef struct sr_crop {
    int top, left, height, width; /* the box, in the displayed image; width 0: the whole image */
    int to_height, to_width;      /* the size to which the box is scaled; 0: the target's */
    int window_top, window_left;  /* position of the target in the scaled box */
    enum sr_filter filter;
    int orientation;      /* EXIF's orientation to apply; 1: none; 0: the file's own */
    bool flip;            /* exchange left and right, as the last step */
    bool fill_truncated;  /* make the missing pixels of a truncated file grey */
    double reducing_gap;  /* 0: exact; else decode at 1/2, 1/4 or 1/8 if that is this many times as large as needed */
    uint64_t most_pixels; /* limit for an image */
} sr_crop;

#define SR_BAD_BOX (-33) /* EDOM: the box is not inside the image */

/* A crop and its target in the coordinates of the stored image, before EXIF's orientation. */
typedef struct sr_settled_crop {
    sr_crop crop;
    sr_target target;
    bool exchanged; /* the result has rows and columns exchanged */
    bool mirrored;  /* rows of the result are filled from right to left */
} sr_settled_crop;

/* Fill in the crop's defaults, check the box against the size of the stored image, and transform both to that image.
 * 0 or SR_BAD_BOX. */
int sr_crop_settle(sr_settled_crop *settled, const sr_crop *crop, const sr_target *target, int width, int height,
                   int orientation);

/* Plan the resize of an image decoded at 1/`halved`; *top and *left receive the box's beginning there. As
 * sr_plan_make. */
int sr_crop_plan(sr_plan *plan, const sr_settled_crop *settled, int halved, int *top, int *left, sr_scratch *scratch);

/* Crop RGB pixels in memory, with rows `stride` bytes apart. 0, SR_BAD_BOX, or as sr_plan_make. */
int sr_crop_pixels(sr_scratch *scratch, const uint8_t *pixels, size_t stride, int width, int height,
                   const sr_crop *crop, const sr_target *target);

#endif
