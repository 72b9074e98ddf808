/* decode.h - JPEG bytes to the resized crop, in one pass.
 *
 * libjpeg-turbo decodes only the rows and columns of the crop, a few rows at a time. The resize reads them
 * and writes the result directly to the target. libjpeg keeps a whole image, as coefficients, only of a progressive
 * file.
 */
#ifndef SLIPRING_IMAGES_DECODE_H
#define SLIPRING_IMAGES_DECODE_H

#include "crop.h"
#include "libjpeg.h"

/* Find libjpeg's functions in an open library (dlopen's handle). -ENOENT: one is missing; -EPROTO: the library lays its
 * structures out differently, and `why` receives its message. */
int sr_library_bind(void *handle, sr_libjpeg *library, char why[JMSG_LENGTH_MAX]);

/* A decoder. One thread at a time may use it. */
typedef struct sr_decoder sr_decoder;
int sr_decoder_make(const sr_libjpeg *library, sr_decoder **out); /* library NULL: it decodes no files. -ENOMEM */
void sr_decoder_free(sr_decoder *decoder);
const char *sr_decoder_message(const sr_decoder *decoder); /* libjpeg's message, after -EINVAL */

/* The properties of an image, from its header. */
typedef struct sr_image {
    int width, height;
    int orientation; /* EXIF's, else XMP's, 1 to 8; 1 if there is none */
    bool lossless;   /* a lossless JPEG, which libjpeg can neither crop nor convert */
} sr_image;

/* -ENOTSUP: not a JPEG; -EINVAL: a JPEG without a size. */
int sr_jpeg_header(const uint8_t *data, size_t bytes, sr_image *out);

/* Why sr_decode refused: its return values, and SR_BAD_BOX with the size of the image in *image. */
#define SR_NOT_A_JPEG_FOR_US (-95) /* ENOTSUP: another format, colours that libjpeg cannot convert, corrupt data */
#define SR_BAD_IMAGE (-22)         /* EINVAL: broken; the message has the details */
#define SR_TOO_LARGE (-27)         /* EFBIG: more than most_pixels */
#define SR_TRUNCATED (-61)         /* ENODATA */

/* 0, one of the above, or -ENOMEM. *image receives the properties in the file's header. */
int sr_decode(sr_decoder *decoder, sr_scratch *scratch, const uint8_t *data, size_t bytes, const sr_crop *crop,
              const sr_target *target, sr_image *image);

#endif
