# Declarations of csrc/images/decode.h and augment.h. None of its functions needs the GIL.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

cdef extern from "augment.h" nogil:
    ctypedef struct sr_target:
        char *data
        int64_t row
        int64_t pixel
        int64_t channel
        int width
        int height
        int bytes
        const void *table

    ctypedef struct sr_op:
        pass

    ctypedef struct sr_erasure:
        int32_t top
        int32_t left
        int32_t height
        int32_t width
        int32_t noise
        int32_t type

    ctypedef struct sr_pixels:
        uint8_t *data
        int height
        int width

    ctypedef struct sr_scratch:
        pass

    ctypedef struct sr_augmenter:
        sr_scratch resize

    void sr_augmenter_free(sr_augmenter *a)
    int sr_image_make(sr_augmenter *a, int height, int width, sr_pixels *image)
    int sr_augment(sr_augmenter *a, const sr_op *ops, int count, sr_pixels *image)
    int sr_displace(sr_augmenter *a, int filter, const float *x, const float *y, const double *fill, sr_pixels *image)
    int sr_image_write(sr_augmenter *a, const sr_pixels *image, const sr_target *target)
    void sr_erase(const sr_target *target, const sr_erasure *erasure)

    enum sr_type:
        SR_UINT8
        SR_FLOAT32
        SR_FLOAT16
        SR_BFLOAT16

    void sr_mix(void *values, const void *other, size_t count, sr_type type, float share, float rest)

cdef extern from "decode.h" nogil:
    enum:
        JMSG_LENGTH_MAX
        SR_BILINEAR
        SR_BICUBIC
        SR_NEAREST
        SR_NOT_A_JPEG_FOR_US
        SR_BAD_IMAGE
        SR_BAD_BOX
        SR_TOO_LARGE
        SR_TRUNCATED

    ctypedef struct sr_libjpeg:
        pass

    ctypedef struct sr_decoder:
        pass

    ctypedef struct sr_image:
        int width
        int height
        int orientation

    ctypedef struct sr_crop:
        int top
        int left
        int height
        int width
        int to_height
        int to_width
        int window_top
        int window_left
        int filter
        int orientation
        bint flip
        bint fill_truncated
        double reducing_gap
        uint64_t most_pixels

    int sr_library_bind(void *handle, sr_libjpeg *library, char *why)
    int sr_decoder_make(const sr_libjpeg *library, sr_decoder **out)
    void sr_decoder_free(sr_decoder *decoder)
    const char *sr_decoder_message(const sr_decoder *decoder)
    int sr_jpeg_header(const uint8_t *data, size_t bytes, sr_image *out)
    int sr_decode(sr_decoder *decoder, sr_scratch *scratch, const uint8_t *data, size_t bytes, const sr_crop *crop,
                  const sr_target *target, sr_image *image)
    int sr_crop_pixels(sr_scratch *scratch, const uint8_t *pixels, size_t stride, int width, int height,
                       const sr_crop *crop, const sr_target *target)
    const char *sr_resize_kernels()
