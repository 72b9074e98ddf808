/* header.c - a JPEG's size and orientation, from the segments before its first scan. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>

#include "decode.h"

typedef struct bytes {
    const uint8_t *at, *end;
} bytes;

static unsigned be16(const uint8_t *p) { return (unsigned)p[0] << 8 | p[1]; }

/* Read a TIFF number in the header's byte order. */
static uint32_t number(const uint8_t *p, int n, bool little)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++)
        v |= (uint32_t)p[i] << 8 * (little ? i : n - 1 - i);
    return v;
}

static bool begins_with(bytes segment, const char *text, size_t length)
{
    return (size_t)(segment.end - segment.at) >= length && memcmp(segment.at, text, length) == 0;
}

/* Return the number of the tag Orientation in the directory of EXIF; -1: there is no such tag. */
static int64_t exif_orientation(bytes tiff)
{
    size_t length = (size_t)(tiff.end - tiff.at);
    if (length < 10)
        return -1;
    bool little = tiff.at[0] == 'I';
    if (tiff.at[0] != tiff.at[1] || (tiff.at[0] != 'I' && tiff.at[0] != 'M') || number(tiff.at + 2, 2, little) != 42)
        return -1;
    size_t directory = number(tiff.at + 4, 4, little);
    if (directory > length - 2)
        return -1;
    unsigned entries = number(tiff.at + directory, 2, little);
    for (size_t i = 0, at = directory + 2; i < entries && at + 12 <= length; i++, at += 12) {
        if (number(tiff.at + at, 2, little) != 0x0112)
            continue;
        uint32_t type = number(tiff.at + at + 2, 2, little);
        if (type == 3 || type == 8) /* SHORT, SSHORT */
            return number(tiff.at + at + 8, 2, little);
        if (type == 4 || type == 9) /* LONG, SLONG */
            return number(tiff.at + at + 8, 4, little);
        return 0;
    }
    return -1;
}

/* Return the digit after the first tiff:Orientation in XMP; -1: there is none. */
static int64_t xmp_orientation(bytes xmp)
{
    static const char name[] = "tiff:Orientation";
    const size_t length = sizeof name - 1;
    for (;;) {
        xmp.at = memmem(xmp.at, (size_t)(xmp.end - xmp.at), name, length);
        if (!xmp.at)
            return -1;
        xmp.at += length;
        const uint8_t *value = xmp.at;
        if (xmp.end - value >= 2 && value[0] == '=' && value[1] == '"')
            value += 2;
        else if (xmp.end - value >= 1 && value[0] == '>')
            value++;
        else
            continue;
        if (value < xmp.end && *value >= '0' && *value <= '9')
            return *value - '0';
    }
}

int sr_jpeg_header(const uint8_t *data, size_t size, sr_image *out)
{
    bytes in = {data, data + size};
    *out = (sr_image){.orientation = 1};
    if (size < 3 || in.at[0] != 0xff || in.at[1] != 0xd8 || in.at[2] != 0xff)
        return -ENOTSUP;
    /* As in Pillow, XMP counts if EXIF has no such tag; of several segments, the first EXIF and the last XMP. */
    static const char exif[] = "Exif\0", xmp[] = "http://ns.adobe.com/xap/1.0/";
    int64_t by_exif = -1, by_xmp = -1;
    bool has_exif = false;
    in.at += 2;
    for (;;) {
        while (in.at < in.end && *in.at != 0xff) /* like libjpeg, skip bytes between segments */
            in.at++;
        while (in.at < in.end && *in.at == 0xff)
            in.at++;
        if (in.at >= in.end)
            return -EINVAL;
        unsigned marker = *in.at++;
        if (marker == 0 || marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8))
            continue; /* such a marker has no length */
        if (marker == 0xd9 || in.end - in.at < 2)
            return -EINVAL;
        unsigned length = be16(in.at);
        if (length < 2 || (size_t)(in.end - in.at) < length)
            return -EINVAL;
        bytes segment = {in.at + 2, in.at + length};
        bool frame = marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
        if (frame) {
            if (segment.end - segment.at < 6)
                return -EINVAL;
            out->height = (int)be16(segment.at + 1);
            out->width = (int)be16(segment.at + 3);
            out->lossless = (marker & 3) == 3;
            int64_t value = by_exif >= 0 ? by_exif : by_xmp;
            out->orientation = value >= 1 && value <= 8 ? (int)value : 1;
            return out->width && out->height ? 0 : -EINVAL;
        }
        if (marker == 0xda)
            return -EINVAL;
        if (marker == 0xe1 && !has_exif && begins_with(segment, exif, sizeof exif)) {
            has_exif = true;
            by_exif = exif_orientation((bytes){segment.at + sizeof exif, segment.end});
        } else if (marker == 0xe1 && begins_with(segment, xmp, sizeof xmp)) {
            by_xmp = xmp_orientation((bytes){segment.at + sizeof xmp, segment.end});
        }
        in.at = segment.end;
    }
}
