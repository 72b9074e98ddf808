/* decode.h - JPEG bytes to the resized crop, in one pass.
 *
 * libjpeg-turbo decodes only the rows and columns of the crop, a few rows at a time; the resize reads them from there
 * and writes the result where it belongs. Only a progressive file is held as a whole, by libjpeg, as coefficients.
 */
#ifndef SLIPRING_IMAGES_DECODE_H
#define SLIPRING_IMAGES_DECODE_H

#include "libjpeg.h"
#include "resize.h"

/* Finds libjpeg's functions in an open library (dlopen's handle). -ENOENT: one is missing; -EPROTO: the library has
 * another layout of its structures, and `why` says what it said. */
int sr_library_bind(void *handle, sr_libjpeg *library, char why[JMSG_LENGTH_MAX]);

/* A decoder, and the memory that it keeps from one image to the next. One thread at a time may use it. */
typedef struct sr_decoder sr_decoder;
int sr_decoder_make(const sr_libjpeg *library, sr_decoder **out); /* library NULL: for arrays alone. -ENOMEM */
void sr_decoder_free(sr_decoder *decoder);
const char *sr_decoder_message(const sr_decoder *decoder); /* libjpeg's message, after -EINVAL */
long sr_decoder_warnings(const sr_decoder *decoder);       /* libjpeg's, of the last image */

/* The properties of an image that its header gives. */
typedef struct sr_image {
    int width, height;
    int orientation; /* EXIF's, 1 to 8; 1 where there is none */
    bool lossless;   /* a JPEG of its own kind, which libjpeg neither crops nor colours */
} sr_image;

/* -ENOTSUP: no JPEG; -EINVAL: a JPEG without a size. */
int sr_jpeg_header(const uint8_t *data, size_t bytes, sr_image *out);

/* A crop: a box of the image is scaled to a size, and a window of that, as large as the target, is the result. */
typedef struct sr_crop {
    int top, left, height, width; /* the box, in the image as it is shown; width 0: all of it */
    int to_height, to_width;      /* what the box is scaled to; 0: the target's size */
    int window_top, window_left;  /* where in that the target lies */
    enum sr_filter filter;
    int orientation;      /* EXIF's that is to be applied; 1: none. 0: the file's own */
    bool flip;            /* left and right exchanged, in the end */
    bool fill_truncated;  /* the missing pixels of a truncated file are grey */
    double reducing_gap;  /* 0: exact; else the file may be decoded at 1/2, 1/4, 1/8, this often larger than needed */
    uint64_t most_pixels; /* of an image */
} sr_crop;

/* Why sr_decode refused: as its return value. */
#define SR_NOT_A_JPEG_FOR_US (-95) /* ENOTSUP: another format, or colours that libjpeg does not turn into RGB */
#define SR_BAD_IMAGE (-22)       /* EINVAL: broken; the message says how */
#define SR_BAD_BOX (-33)           /* EDOM: the box is not inside the image, whose size is in *image */
#define SR_TOO_LARGE (-27)         /* EFBIG: more than most_pixels */
#define SR_TRUNCATED (-61)         /* ENODATA */

/* 0, one of the above, or -ENOMEM. *image: what the file says of itself. */
int sr_decode(sr_decoder *decoder, const uint8_t *data, size_t bytes, const sr_crop *crop, const sr_target *target,
              sr_image *image);

/* Like sr_decode, from RGB pixels in memory, with rows `stride` bytes apart. */
int sr_crop_pixels(sr_decoder *decoder, const uint8_t *pixels, size_t stride, int width, int height,
                   const sr_crop *crop, const sr_target *target);

#endif
