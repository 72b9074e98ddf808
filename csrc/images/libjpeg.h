/* libjpeg.h - the part of libjpeg's binary interface that the decoder uses.
 *
 * The library itself is found at run time (images/_render/backend.py). It is mostly the libjpeg-turbo of Pillow's
 * wheel, and its header is not installed. So the structures are declared here, as in every library with the interface
 * LIBJPEG_6.2 on a 64-bit machine: the fields in use by name, the rest as space. jpeg_CreateDecompress compares version
 * and size, and refuses another layout, so that a structure is never misread.
 */
#ifndef SLIPRING_IMAGES_LIBJPEG_H
#define SLIPRING_IMAGES_LIBJPEG_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define JPEG_LIB_VERSION 62
#define JPEG_HEADER_OK 1
#define JPEG_EOI 0xd9
#define DCTSIZE2 64 /* coefficients of a block */

enum J_COLOR_SPACE { JCS_UNKNOWN = 0, JCS_GRAYSCALE = 1, JCS_RGB = 2, JCS_YCbCr = 3, JCS_CMYK = 4, JCS_YCCK = 5 };

struct jpeg_decompress_struct;
typedef struct jpeg_decompress_struct jpeg_decompress_struct, *j_decompress_ptr;

typedef struct jpeg_error_mgr {
    void (*error_exit)(j_decompress_ptr);
    void (*emit_message)(j_decompress_ptr, int msg_level); /* below 0: a warning */
    void (*output_message)(j_decompress_ptr);
    void (*format_message)(j_decompress_ptr, char *buffer);
    void (*reset_error_mgr)(j_decompress_ptr);
    int msg_code;
    char msg_parm[80];
    int trace_level;
    long num_warnings;
    const void *jpeg_message_table;
    int last_jpeg_message;
    const void *addon_message_table;
    int first_addon_message, last_addon_message;
} jpeg_error_mgr;
#define JMSG_LENGTH_MAX 200 /* maximum length for format_message */

typedef struct jpeg_progress_mgr {
    void (*progress_monitor)(j_decompress_ptr);
    long pass_counter, pass_limit;
    int completed_passes, total_passes;
} jpeg_progress_mgr;

typedef struct jpeg_source_mgr {
    const uint8_t *next_input_byte;
    size_t bytes_in_buffer;
    void (*init_source)(j_decompress_ptr);
    int (*fill_input_buffer)(j_decompress_ptr);
    void (*skip_input_data)(j_decompress_ptr, long num_bytes);
    int (*resync_to_restart)(j_decompress_ptr, int desired);
    void (*term_source)(j_decompress_ptr);
} jpeg_source_mgr;

struct jpeg_decompress_struct {
    jpeg_error_mgr *err;
    void *mem;
    jpeg_progress_mgr *progress;
    void *client_data;
    int is_decompressor;
    int global_state;
    jpeg_source_mgr *src;
    uint32_t image_width, image_height;
    int num_components;
    int jpeg_color_space, out_color_space; /* enum J_COLOR_SPACE */
    uint32_t scale_num, scale_denom;
    double output_gamma;
    int buffered_image, raw_data_out;
    int dct_method;
    int do_fancy_upsampling, do_block_smoothing, quantize_colors;
    int dither_mode, two_pass_quantize, desired_number_of_colors;
    int enable_1pass_quant, enable_external_quant, enable_2pass_quant;
    uint32_t output_width, output_height;
    int out_color_components, output_components;
    int rec_outbuf_height;
    int actual_number_of_colors;
    void *colormap;
    uint32_t output_scanline;
    int input_scan_number;
    uint32_t input_iMCU_row;
    int output_scan_number;
    uint32_t output_iMCU_row;
    int (*coef_bits)[DCTSIZE2]; /* by component, in a progressive file: 0 where a coefficient is exact */
    void *quant_tbl_ptrs[4], *dc_huff_tbl_ptrs[4], *ac_huff_tbl_ptrs[4];
    int data_precision;
    void *comp_info;
    int progressive_mode, arith_code;
    uint8_t rest[312];
};

static_assert(sizeof(void *) == 8, "the structures are those of a 64-bit machine");
static_assert(sizeof(jpeg_error_mgr) == 168, "jpeg_error_mgr");
static_assert(sizeof(jpeg_decompress_struct) == 632, "jpeg_decompress_struct");
static_assert(offsetof(jpeg_decompress_struct, output_width) == 136, "output_width");
static_assert(offsetof(jpeg_decompress_struct, coef_bits) == 192, "coef_bits");
static_assert(offsetof(jpeg_decompress_struct, data_precision) == 296, "data_precision");

/* The functions of one library. */
typedef struct sr_libjpeg {
    jpeg_error_mgr *(*std_error)(jpeg_error_mgr *);
    void (*create)(j_decompress_ptr, int version, size_t bytes);
    void (*destroy)(j_decompress_ptr);
    int (*read_header)(j_decompress_ptr, int require_image);
    int (*start)(j_decompress_ptr);
    void (*crop)(j_decompress_ptr, uint32_t *left, uint32_t *width);
    uint32_t (*skip)(j_decompress_ptr, uint32_t rows);
    uint32_t (*read)(j_decompress_ptr, uint8_t **rows, uint32_t most);
    int (*resync)(j_decompress_ptr, int desired);
} sr_libjpeg;

#endif
