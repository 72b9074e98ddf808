/* color_c.c - the inner loops of the colour operations in plain C. */
#include <string.h>

#include "color_loops.h"

#define HUE_PIXELS 1024 /* three planes of them fit the first cache */

static inline uint32_t gray(uint32_t r, uint32_t g, uint32_t b)
{
    return (r * SR_GRAY_RED + g * SR_GRAY_GREEN + b * SR_GRAY_BLUE + 0x8000) >> 16;
}

static void map(uint8_t *restrict data, size_t n, const uint8_t table[3][256])
{
    for (size_t i = 0; i < n; i++, data += 3) {
        uint8_t r = table[0][data[0]], g = table[1][data[1]], b = table[2][data[2]];
        data[0] = r, data[1] = g, data[2] = b;
    }
}

static void bits(uint8_t *restrict data, size_t values, uint8_t threshold, uint8_t inverted, uint8_t mask)
{
    for (size_t i = 0; i < values; i++)
        data[i] = (data[i] ^ (data[i] >= threshold ? inverted : 0)) & mask;
}

static void range(const uint8_t *restrict data, size_t n, uint8_t least[3], uint8_t most[3])
{
    uint8_t low[48], high[48]; /* vectors of values whose channels repeat */
    size_t i = 0, values = 3 * n;
    memset(low, 255, sizeof low);
    memset(high, 0, sizeof high);
    for (; i + 48 <= values; i += 48)
        for (int k = 0; k < 48; k++) {
            low[k] = data[i + k] < low[k] ? data[i + k] : low[k];
            high[k] = data[i + k] > high[k] ? data[i + k] : high[k];
        }
    for (; i < values; i++) {
        low[i % 3] = data[i] < low[i % 3] ? data[i] : low[i % 3];
        high[i % 3] = data[i] > high[i % 3] ? data[i] : high[i % 3];
    }
    for (int k = 3; k < 48; k++) {
        low[k % 3] = low[k] < low[k % 3] ? low[k] : low[k % 3];
        high[k % 3] = high[k] > high[k % 3] ? high[k] : high[k % 3];
    }
    memcpy(least, low, 3);
    memcpy(most, high, 3);
}

static uint32_t gray_sum(const uint8_t *restrict data, size_t n)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += gray(data[3 * i], data[3 * i + 1], data[3 * i + 2]);
    return sum;
}

static void grayscale(uint8_t *restrict data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t level = (uint8_t)gray(data[3 * i], data[3 * i + 1], data[3 * i + 2]);
        data[3 * i] = data[3 * i + 1] = data[3 * i + 2] = level;
    }
}

static void saturate(uint8_t *restrict data, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++) {
        int r = data[3 * i], g = data[3 * i + 1], b = data[3 * i + 2];
        int level = (int)gray(r, g, b);
        data[3 * i] = sr_blend(level, r, factor);
        data[3 * i + 1] = sr_blend(level, g, factor);
        data[3 * i + 2] = sr_blend(level, b, factor);
    }
}

static void split(const uint8_t *restrict data, size_t n, uint8_t *restrict red, uint8_t *restrict green,
                  uint8_t *restrict blue)
{
    for (size_t i = 0; i < n; i++) {
        red[i] = data[3 * i];
        green[i] = data[3 * i + 1];
        blue[i] = data[3 * i + 2];
    }
}

static void join(uint8_t *restrict data, size_t n, const uint8_t *restrict red, const uint8_t *restrict green,
                 const uint8_t *restrict blue)
{
    for (size_t i = 0; i < n; i++) {
        data[3 * i] = red[i];
        data[3 * i + 1] = green[i];
        data[3 * i + 2] = blue[i];
    }
}

/* Convert to Pillow's 8-bit HSV, add `shift` to the hue, and convert back.
 *
 * The results are Pillow's for every colour and shift. The divisions are those of Pillow, because it truncates their
 * results, and an exact multiple may come out a little too small. The way back rounds numbers that are never close to a
 * half, so products of integers replace Pillow's fractions. */
static void hue_planes(uint8_t *restrict red, uint8_t *restrict green, uint8_t *restrict blue, size_t n,
                       uint8_t shift)
{
    for (size_t i = 0; i < n; i++) {
        int r = red[i], g = green[i], b = blue[i];
        int most = r > g ? r : g, least = r < g ? r : g;
        most = most > b ? most : b;
        least = least < b ? least : b;
        int spread = most - least, middle = r + g + b - most - least;
        int s = (int)((float)spread / (float)(most + (most == 0)) * 255.0f);

        /* The hue in sixths: up or down from an odd number, which is where the middle value equals the largest.
         * Masks instead of conditions, which some compilers turn into branches. */
        float part = (float)(most - middle) / (float)(spread + (spread == 0));
        int by_red = -(r == most), by_green = ~by_red & -(g == most), by_blue = ~(by_red | by_green);
        int g_less = 2 * (g < b), r_less = 2 * (r < b), r_most = 2 * (g < r);
        int corner = (by_red & (1 - g_less)) | (by_green & (1 + r_less)) | (by_blue & (3 + r_most));
        int sign = (by_red & (g_less - 1)) | (by_green & (1 - r_less)) | (by_blue & (1 - r_most));
        float hue = ((float)corner + (float)sign * part) / 6.0f + (float)-(corner >> 31);
        int h = (((int)(hue * 255.0f) & -(spread > 0)) + shift) & 255;

        int sixth = h * 1543 >> 16, odd = -(sixth & 1);
        int rest = 2 * h - 85 * sixth, part_85 = (rest & odd) | ((85 - rest) & ~odd);
        float product = (float)(most * s * part_85);
        int between = most - (int)(product * (1 / 21675.0f) + 0.5f);
        int chroma = most * s + 128, low = most - ((chroma + (chroma >> 8)) >> 8); /* most * s / 255, rounded */
        sixth &= -(sixth < 6); /* 255 is 0 again */
        int at_0 = -(sixth == 0), at_1 = -(sixth == 1), at_2 = -(sixth == 2), at_3 = -(sixth == 3);
        int at_4 = -(sixth == 4), at_5 = -(sixth == 5);
        red[i] = (uint8_t)(((at_0 | at_5) & most) | ((at_1 | at_4) & between) | ((at_2 | at_3) & low));
        green[i] = (uint8_t)(((at_1 | at_2) & most) | ((at_0 | at_3) & between) | ((at_4 | at_5) & low));
        blue[i] = (uint8_t)(((at_3 | at_4) & most) | ((at_2 | at_5) & between) | ((at_0 | at_1) & low));
    }
}

static void hue(uint8_t *restrict data, size_t n, uint8_t shift)
{
    uint8_t red[HUE_PIXELS], green[HUE_PIXELS], blue[HUE_PIXELS];
    for (size_t i = 0; i < n; i += HUE_PIXELS) {
        size_t count = n - i < HUE_PIXELS ? n - i : HUE_PIXELS;
        split(data + 3 * i, count, red, green, blue);
        hue_planes(red, green, blue, count, shift);
        join(data + 3 * i, count, red, green, blue);
    }
}

static void permute(uint8_t *restrict data, size_t n, const int32_t from[3])
{
    for (size_t i = 0; i < n; i++, data += 3) {
        uint8_t r = data[from[0]], g = data[from[1]], b = data[from[2]];
        data[0] = r, data[1] = g, data[2] = b;
    }
}

const sr_color_loops sr_color_loops_c = {
    .map = map,
    .bits = bits,
    .range = range,
    .gray_sum = gray_sum,
    .grayscale = grayscale,
    .saturate = saturate,
    .hue = hue,
    .permute = permute,
};
