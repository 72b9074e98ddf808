/* libjpeg.h - the part of libjpeg's binary interface that the decoder uses.
 *
 * The library itself is found at run time (images/_backend.py), mostly the libjpeg-turbo that Pillow's wheel carries, and no
 * package on a bare machine has its header. So the structures are described here, as every library with the
 * interface LIBJPEG_6.2 has them on a 64-bit machine: the fields in use by name, the rest as room. The library
 * compares version and size in jpeg_CreateDecompress and refuses another layout; it is never misread.
 */
#ifndef SLIPRING_IMAGES_LIBJPEG_H
#define SLIPRING_IMAGES_LIBJPEG_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define LJ_VERSION 62
#define LJ_HEADER_OK 1
#define LJ_MARKER_EOI 0xd9

enum lj_color { LJ_UNKNOWN = 0, LJ_GRAY = 1, LJ_RGB = 2, LJ_YCC = 3, LJ_CMYK = 4, LJ_YCCK = 5 };

struct lj_decoder;

typedef struct lj_errors {
    void (*error_exit)(struct lj_decoder *);
    void (*emit_message)(struct lj_decoder *, int level); /* below 0: a warning */
    void (*output_message)(struct lj_decoder *);
    void (*format_message)(struct lj_decoder *, char *text);
    void (*reset)(struct lj_decoder *);
    int code;
    char parameters[80];
    int trace_level;
    long warnings;
    const void *messages[2]; /* a table, and its last number */
    const void *more[2];     /* an application's own: table, first and last number */
} lj_errors;
#define LJ_MESSAGE_ROOM 200 /* what format_message may write */

typedef struct lj_progress {
    void (*monitor)(struct lj_decoder *);
    long counter, limit;
    int passes_done, passes;
} lj_progress;

typedef struct lj_source {
    const uint8_t *next;
    size_t left;
    void (*begin)(struct lj_decoder *);
    int (*fill)(struct lj_decoder *);
    void (*skip)(struct lj_decoder *, long bytes);
    int (*resync)(struct lj_decoder *, int desired);
    void (*end)(struct lj_decoder *);
} lj_source;

typedef struct lj_decoder {
    lj_errors *errors;
    void *memory;
    lj_progress *progress;
    void *ours; /* the application's */
    int is_decoder;
    int state;
    lj_source *source;
    uint32_t width, height;
    int components;
    int color, out_color; /* enum lj_color */
    uint32_t scale_num, scale_denom;
    double gamma;
    int buffered, raw;
    int dct;
    int fancy_upsampling, block_smoothing, quantize;
    int dither, two_pass, colors, passes[3];
    uint32_t out_width, out_height;
    int out_components[2];
    int rows_at_once;
    int actual_colors;
    void *colormap;
    uint32_t row; /* the next that jpeg_read_scanlines gives */
    int scan;     /* of the file, that has been begun */
    uint32_t input_row;
    int out_scan;
    uint32_t out_row;
    void *tables[13];
    int precision;
    void *component;
    int progressive, arithmetic;
    uint8_t rest[312];
} lj_decoder;

static_assert(sizeof(void *) == 8, "the structures are those of a 64-bit machine");
static_assert(sizeof(lj_errors) == 168, "lj_errors");
static_assert(sizeof(lj_decoder) == 632, "lj_decoder");
static_assert(offsetof(lj_decoder, out_width) == 136, "lj_decoder.out_width");
static_assert(offsetof(lj_decoder, precision) == 296, "lj_decoder.precision");

/* The functions, as found in one library. */
typedef struct lj_library {
    lj_errors *(*std_error)(lj_errors *);
    void (*create)(lj_decoder *, int version, size_t bytes);
    void (*destroy)(lj_decoder *);
    int (*read_header)(lj_decoder *, int require_image);
    int (*start)(lj_decoder *);
    void (*crop)(lj_decoder *, uint32_t *left, uint32_t *width);
    uint32_t (*skip)(lj_decoder *, uint32_t rows);
    uint32_t (*read)(lj_decoder *, uint8_t **rows, uint32_t most);
    void (*abort)(lj_decoder *);
    int (*resync)(lj_decoder *, int desired);
} lj_library;

#endif
