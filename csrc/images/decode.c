/* decode.c - decode a JPEG row by row with libjpeg, and pass the rows to the resize. */
#define _GNU_SOURCE
#include "decode.h"

#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static_assert(SR_NOT_A_JPEG_FOR_US == -ENOTSUP && SR_BAD_IMAGE == -EINVAL && SR_BAD_BOX == -EDOM
                  && SR_TOO_LARGE == -EFBIG && SR_TRUNCATED == -ENODATA,
              "decode.h gives the numbers for readers that have no errno.h");

#define MOST_SCANS 1000 /* a file of many empty scans would take hours to decode */
#define SPARE 2         /* pixels at each side that smooth chroma upsampling reads */
/* offset of the first row: libjpeg-turbo writes aligned rows past the caches, but they are read at once */
#define UNALIGNED 8

struct sr_decoder {
    jpeg_decompress_struct jpeg; /* first: libjpeg's callbacks get a pointer to it, and use it for the whole */
    jpeg_error_mgr errors;
    jpeg_source_mgr source;
    jpeg_progress_mgr progress;
    const sr_libjpeg *library;
    jmp_buf failed; /* back into `decode_rows` or `create`; no resource is held between there and libjpeg */
    bool ran_out;   /* libjpeg has requested bytes after the end of the data */
    char message[JMSG_LENGTH_MAX];
};

/* ---- callbacks of libjpeg --------------------------------------------------------------------------------------- */

static sr_decoder *ours(j_decompress_ptr jpeg) { return (sr_decoder *)jpeg; }

static void fail(j_decompress_ptr jpeg)
{
    sr_decoder *decoder = ours(jpeg);
    decoder->errors.format_message(jpeg, decoder->message);
    longjmp(decoder->failed, 1);
}

static void emit_message(j_decompress_ptr jpeg, int level)
{
    sr_decoder *decoder = ours(jpeg);
    if (level < 0 && decoder->errors.num_warnings++ == 0)
        decoder->errors.format_message(jpeg, decoder->message);
}

static void do_nothing(j_decompress_ptr jpeg) { (void)jpeg; }

static void limit_scans(j_decompress_ptr jpeg)
{
    sr_decoder *decoder = ours(jpeg);
    if (jpeg->input_scan_number > MOST_SCANS) {
        snprintf(decoder->message, sizeof decoder->message, "more than %d scans", MOST_SCANS);
        longjmp(decoder->failed, 1);
    }
}

static int fill_input_buffer(j_decompress_ptr jpeg)
{
    static const uint8_t end_of_image[2] = {0xff, JPEG_EOI};
    ours(jpeg)->ran_out = true;
    ours(jpeg)->source.next_input_byte = end_of_image;
    ours(jpeg)->source.bytes_in_buffer = sizeof end_of_image;
    return 1;
}

static void skip_input_data(j_decompress_ptr jpeg, long bytes)
{
    jpeg_source_mgr *source = &ours(jpeg)->source;
    if (bytes <= 0)
        return;
    if ((size_t)bytes >= source->bytes_in_buffer) {
        (void)fill_input_buffer(jpeg);
        return;
    }
    source->next_input_byte += bytes;
    source->bytes_in_buffer -= (size_t)bytes;
}

/* ---- make a decoder ---------------------------------------------------------------------------------------------- */

/* Create decoder->jpeg, which serves one image: libjpeg would keep its tables for a file that has none of its own.
 * -EPROTO: the library expects another version or size of the structure. */
static int create(sr_decoder *decoder)
{
    const sr_libjpeg *library = decoder->library;
    decoder->jpeg.err = library->std_error(&decoder->errors);
    decoder->errors.error_exit = fail;
    decoder->errors.emit_message = emit_message;
    decoder->errors.output_message = do_nothing;
    if (setjmp(decoder->failed))
        return -EPROTO;
    library->create(&decoder->jpeg, JPEG_LIB_VERSION, sizeof decoder->jpeg);
    decoder->jpeg.src = &decoder->source;
    decoder->jpeg.progress = &decoder->progress;
    decoder->progress.progress_monitor = limit_scans;
    decoder->source = (jpeg_source_mgr){.init_source = do_nothing, .fill_input_buffer = fill_input_buffer,
                                        .skip_input_data = skip_input_data, .resync_to_restart = library->resync,
                                        .term_source = do_nothing};
    return 0;
}

int sr_library_bind(void *handle, sr_libjpeg *library, char why[JMSG_LENGTH_MAX])
{
    struct { void **to; const char *name; } wanted[] = {
        {(void **)&library->std_error, "jpeg_std_error"},
        {(void **)&library->create, "jpeg_CreateDecompress"},
        {(void **)&library->destroy, "jpeg_destroy_decompress"},
        {(void **)&library->read_header, "jpeg_read_header"},
        {(void **)&library->start, "jpeg_start_decompress"},
        {(void **)&library->crop, "jpeg_crop_scanline"},
        {(void **)&library->skip, "jpeg_skip_scanlines"},
        {(void **)&library->read, "jpeg_read_scanlines"},
        {(void **)&library->resync, "jpeg_resync_to_restart"},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].to = dlsym(handle, wanted[i].name);
        if (!*wanted[i].to) {
            snprintf(why, JMSG_LENGTH_MAX, "it has no %s", wanted[i].name);
            return -ENOENT;
        }
    }
    sr_decoder probe = {.library = library};
    int rc = create(&probe);
    if (rc == 0)
        library->destroy(&probe.jpeg);
    else
        snprintf(why, JMSG_LENGTH_MAX, "%.*s", JMSG_LENGTH_MAX - 1, probe.message);
    return rc;
}

int sr_decoder_make(const sr_libjpeg *library, sr_decoder **out)
{
    sr_decoder *decoder = calloc(1, sizeof *decoder);
    if (!decoder)
        return -ENOMEM;
    decoder->library = library;
    *out = decoder;
    return 0;
}

void sr_decoder_free(sr_decoder *decoder)
{
    free(decoder);
}

const char *sr_decoder_message(const sr_decoder *decoder) { return decoder->message; }

/* ---- rows of a JPEG ---------------------------------------------------------------------------------------------- */

typedef struct rows {
    sr_source source; /* first: the resize passes it to `need` */
    sr_decoder *decoder;
    uint8_t *kept; /* rows origin to `have` */
    size_t lead;   /* bytes of a row before the first pixel of the box */
    int have, end, capacity;
} rows;

static int need(sr_source *source, int first, int end)
{
    rows *r = (rows *)source;
    while (r->have < end) {
        if (end - source->origin > r->capacity && source->origin < first) {
            int keep = first < r->have ? first : r->have; /* nearest skips rows that are not decoded yet */
            memmove(r->kept, r->kept + (size_t)(keep - source->origin) * source->stride,
                    (size_t)(r->have - keep) * source->stride);
            source->origin = keep;
        }
        uint8_t *lines[16];
        int most = source->origin + r->capacity - r->have;
        if (most > r->end - r->have)
            most = r->end - r->have;
        if (most > (int)(sizeof lines / sizeof *lines))
            most = sizeof lines / sizeof *lines;
        for (int i = 0; i < most; i++)
            lines[i] = r->kept + (size_t)(r->have - source->origin + i) * source->stride;
        uint32_t got = r->decoder->library->read(&r->decoder->jpeg, lines, (uint32_t)most);
        if (got == 0)
            return SR_BAD_IMAGE;
        r->have += (int)got;
    }
    return 0;
}

/* Return whether an EOI marker follows the first scan's header. The bytes of a scan contain no marker by chance. */
static bool is_ended(const uint8_t *from, const uint8_t *end)
{
    while (end - from >= 2) {
        const uint8_t *last = memrchr(from + 1, JPEG_EOI, (size_t)(end - from - 1));
        if (!last)
            return false;
        if (last[-1] == 0xff)
            return true;
        end = last;
    }
    return false;
}

/* Return 1, 2, 4 or 8: libjpeg decodes at 1/this size, so that the box stays `reducing_gap` times as large as the
 * result. */
static int halving(const sr_crop *c)
{
    int halved = 1;
    while (c->reducing_gap > 0 && halved < 8 && c->width >= 2.0 * halved * c->reducing_gap * c->to_width
           && c->height >= 2.0 * halved * c->reducing_gap * c->to_height)
        halved *= 2;
    return halved;
}

/* Return whether libjpeg estimates coefficients of a progressive file from neighbouring blocks, because the scans with
 * them are missing. A crop then needs more of the image than its own pixels. */
static bool is_estimated(const jpeg_decompress_struct *jpeg)
{
    if (!jpeg->progressive_mode || !jpeg->coef_bits)
        return false;
    for (int component = 0; component < jpeg->num_components; component++)
        for (int i = 0; i < DCTSIZE2; i++)
            if (jpeg->coef_bits[component][i] != 0)
                return true;
    return false;
}

/* Do everything between jpeg_read_header and jpeg_destroy_decompress. libjpeg may leave it through `fail`, so no
 * resource is held here. */
static int decode_rows(sr_decoder *decoder, const sr_settled_crop *settled, sr_scratch *scratch)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    const sr_libjpeg *library = decoder->library;
    sr_plan plan;
    int top, left, halved = halving(&settled->crop), rc = sr_crop_plan(&plan, settled, halved, &top, &left, scratch);
    if (rc)
        return rc;
    jpeg->out_color_space = JCS_RGB;
    jpeg->scale_num = 1;
    jpeg->scale_denom = (uint32_t)halved;
    if (!library->start(jpeg))
        return SR_BAD_IMAGE;

    int width = (int)jpeg->output_width, begin = left + plan.x.begin, end = left + plan.x.end;
    int from = begin > SPARE ? begin - SPARE : 0, upto = end + SPARE < width ? end + SPARE : width;
    uint32_t crop_left = (uint32_t)from, crop_width = (uint32_t)(upto - from);
    if (is_estimated(jpeg))
        crop_left = 0;
    else if (from > 0 || upto < width)
        library->crop(jpeg, &crop_left, &crop_width);
    if (top + plan.y.begin > 0)
        (void)library->skip(jpeg, (uint32_t)(top + plan.y.begin));

    rows r = {.decoder = decoder, .lead = 3 * (size_t)(begin - (int)crop_left), .have = plan.y.begin,
              .end = plan.y.end, .capacity = sr_plan_window(&plan) + 32};
    r.source = (sr_source){.need = need, .stride = ((size_t)jpeg->output_width * 3 + 63 + 32) / 32 * 32,
                           .origin = plan.y.begin, .padded = true};
    char *memory = sr_buffer_need(&scratch->rows, UNALIGNED + (size_t)r.capacity * r.source.stride);
    if (!memory)
        return -ENOMEM;
    r.kept = (uint8_t *)memory + UNALIGNED;
    r.source.data = r.kept + r.lead;
    return sr_resize(&plan, &r.source, &settled->target, scratch);
}

static int decode(sr_decoder *decoder, sr_scratch *scratch, const uint8_t *data, size_t bytes, const sr_crop *crop,
                  const sr_target *target, sr_image *image)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    if (setjmp(decoder->failed))
        return SR_BAD_IMAGE;
    decoder->source.next_input_byte = data;
    decoder->source.bytes_in_buffer = bytes;
    if (decoder->library->read_header(jpeg, 1) != JPEG_HEADER_OK)
        return SR_BAD_IMAGE;
    image->width = (int)jpeg->image_width, image->height = (int)jpeg->image_height;
    if ((uint64_t)jpeg->image_width * jpeg->image_height > crop->most_pixels)
        return SR_TOO_LARGE;
    const int space = jpeg->jpeg_color_space;
    if (jpeg->data_precision != 8
        || !((jpeg->num_components == 1 && space == JCS_GRAYSCALE)
             || (jpeg->num_components == 3 && (space == JCS_YCbCr || space == JCS_RGB))))
        return SR_NOT_A_JPEG_FOR_US;
    if (!crop->fill_truncated && (decoder->ran_out || !is_ended(decoder->source.next_input_byte, data + bytes)))
        return SR_TRUNCATED;
    sr_settled_crop settled;
    int orientation = crop->orientation ? crop->orientation : image->orientation;
    int rc = sr_crop_settle(&settled, crop, target, image->width, image->height, orientation);
    if (rc == 0)
        rc = decode_rows(decoder, &settled, scratch);
    if (rc || crop->fill_truncated)
        return rc;
    /* Corrupt data: libjpeg has made up pixels. Pillow reads the whole file, and refuses some of these files. */
    return decoder->ran_out ? SR_TRUNCATED : decoder->errors.num_warnings ? SR_NOT_A_JPEG_FOR_US : 0;
}

int sr_decode(sr_decoder *decoder, sr_scratch *scratch, const uint8_t *data, size_t bytes, const sr_crop *crop,
              const sr_target *target, sr_image *image)
{
    *image = (sr_image){.orientation = 1};
    decoder->message[0] = '\0';
    if (bytes < 3 || data[0] != 0xff || data[1] != 0xd8 || data[2] != 0xff || !decoder->library)
        return SR_NOT_A_JPEG_FOR_US;
    if (crop->orientation == 0) {
        int rc = sr_jpeg_header(data, bytes, image);
        if (rc) {
            snprintf(decoder->message, sizeof decoder->message, "no size in its header");
            return SR_BAD_IMAGE;
        }
    }
    decoder->ran_out = false;
    int rc = create(decoder);
    if (rc == 0)
        rc = decode(decoder, scratch, data, bytes, crop, target, image);
    decoder->library->destroy(&decoder->jpeg); /* cannot fail */
    /* libjpeg can neither crop nor convert a lossless file, and fails. */
    sr_image header;
    if (rc == SR_BAD_IMAGE && sr_jpeg_header(data, bytes, &header) == 0 && header.lossless)
        return SR_NOT_A_JPEG_FOR_US;
    return rc;
}
