/* header.c - a JPEG's size and orientation, from the segments before its first scan. */
#include <errno.h>

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

/* Return the orientation in an APP1 segment; 0: it has none. */
static int orientation_of(bytes segment)
{
    static const uint8_t signature[6] = {'E', 'x', 'i', 'f', 0, 0};
    if (segment.end - segment.at < 14)
        return 0;
    for (int i = 0; i < 6; i++)
        if (segment.at[i] != signature[i])
            return 0;
    const uint8_t *tiff = segment.at + 6;
    size_t length = (size_t)(segment.end - tiff);
    bool little = tiff[0] == 'I';
    if (tiff[0] != tiff[1] || (tiff[0] != 'I' && tiff[0] != 'M') || number(tiff + 2, 2, little) != 42)
        return 0;
    size_t directory = number(tiff + 4, 4, little);
    if (directory > length - 2 || length < 10)
        return 0;
    unsigned entries = number(tiff + directory, 2, little);
    for (size_t i = 0, at = directory + 2; i < entries && at + 12 <= length; i++, at += 12) {
        if (number(tiff + at, 2, little) == 0x0112 && number(tiff + at + 2, 2, little) == 3) {
            uint32_t value = number(tiff + at + 8, 2, little);
            return value >= 1 && value <= 8 ? (int)value : 0;
        }
    }
    return 0;
}

int sr_jpeg_header(const uint8_t *data, size_t size, sr_image *out)
{
    bytes in = {data, data + size};
    *out = (sr_image){.orientation = 1};
    if (size < 3 || in.at[0] != 0xff || in.at[1] != 0xd8 || in.at[2] != 0xff)
        return -ENOTSUP;
    bool oriented = false;
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
            return out->width && out->height ? 0 : -EINVAL;
        }
        if (marker == 0xda)
            return -EINVAL;
        if (marker == 0xe1 && !oriented) {
            int value = orientation_of(segment);
            oriented = value != 0;
            out->orientation = value ? value : 1;
        }
        in.at = segment.end;
    }
}
