/* color_loops.h - the inner loops of color.c, in a form that compilers turn into vector code.
 *
 * color.c includes this file once for each kind of processor: LOOP begins a function, LOOP_NAME(f) is its name. All
 * versions round in the same places, so they give the same bytes. `n` counts pixels, `values` counts single values.
 */

/* Exchange each value for that in the table of its channel. */
LOOP void LOOP_NAME(map)(uint8_t *restrict data, size_t n, const uint8_t table[3][256])
{
    for (size_t i = 0; i < n; i++, data += 3) {
        uint8_t r = table[0][data[0]], g = table[1][data[1]], b = table[2][data[2]];
        data[0] = r, data[1] = g, data[2] = b;
    }
}

/* Invert the values from `threshold` on, then clear the bits that `mask` lacks. */
LOOP void LOOP_NAME(bits)(uint8_t *restrict data, size_t values, uint8_t threshold, uint8_t inverted, uint8_t mask)
{
    for (size_t i = 0; i < values; i++)
        data[i] = (data[i] ^ (data[i] >= threshold ? inverted : 0)) & mask;
}

/* Find the smallest and the largest value of each channel. */
LOOP void LOOP_NAME(range)(const uint8_t *restrict data, size_t n, uint8_t least[3], uint8_t most[3])
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

/* Return the sum of the grey levels of at most 2^24 pixels. */
LOOP uint32_t LOOP_NAME(gray_sum)(const uint8_t *restrict data, size_t n)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += sr_gray(data[3 * i], data[3 * i + 1], data[3 * i + 2]);
    return sum;
}

LOOP void LOOP_NAME(grayscale)(uint8_t *restrict data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t level = (uint8_t)sr_gray(data[3 * i], data[3 * i + 1], data[3 * i + 2]);
        data[3 * i] = data[3 * i + 1] = data[3 * i + 2] = level;
    }
}

/* Blend each pixel with its grey level. */
LOOP void LOOP_NAME(saturate)(uint8_t *restrict data, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++) {
        int r = data[3 * i], g = data[3 * i + 1], b = data[3 * i + 2];
        int level = (int)sr_gray(r, g, b);
        data[3 * i] = sr_blend(level, r, factor);
        data[3 * i + 1] = sr_blend(level, g, factor);
        data[3 * i + 2] = sr_blend(level, b, factor);
    }
}

LOOP void LOOP_NAME(split)(const uint8_t *restrict data, size_t n, uint8_t *restrict red, uint8_t *restrict green,
                           uint8_t *restrict blue)
{
    for (size_t i = 0; i < n; i++) {
        red[i] = data[3 * i];
        green[i] = data[3 * i + 1];
        blue[i] = data[3 * i + 2];
    }
}

LOOP void LOOP_NAME(join)(uint8_t *restrict data, size_t n, const uint8_t *restrict red, const uint8_t *restrict green,
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
 * The results are Pillow's for all colours and shifts. Going forward, the divisions are Pillow's, because truncation
 * shows the last bit of exact multiples. Going back, nothing lies close to a half, and products of whole numbers do. */
LOOP void LOOP_NAME(hue_planes)(uint8_t *restrict red, uint8_t *restrict green, uint8_t *restrict blue, size_t n,
                                uint8_t shift)
{
    for (size_t i = 0; i < n; i++) {
        int r = red[i], g = green[i], b = blue[i];
        int most = r > g ? r : g, least = r < g ? r : g;
        most = most > b ? most : b;
        least = least < b ? least : b;
        int spread = most - least, middle = r + g + b - most - least;
        int s = (int)((float)spread / (float)(most ? most : 1) * 255.0f);

        /* The hue in sixths: up or down from an odd number, which is where the middle value equals the largest. */
        float part = (float)(most - middle) / (float)(spread ? spread : 1);
        bool r_first = r == most, g_first = !r_first & (g == most);
        bool down = r_first ? g >= b : g_first ? b > r : g >= r ? r > g : true;
        float corner = r_first ? (g >= b ? 1.0f : -1.0f) : g_first ? (b > r ? 3.0f : 1.0f) : (g >= r ? 3.0f : 5.0f);
        float hue = (down ? corner - part : corner + part) / 6.0f;
        hue = hue < 0 ? hue + 1.0f : hue;
        int h = spread ? (int)(hue * 255.0f) : 0;

        h = (h + shift) & 255;
        int sixth = h * 1543 >> 16, rest = 2 * h - 85 * sixth; /* of 85 */
        bool odd = sixth & 1;
        float product = (float)(most * s * (odd ? rest : 85 - rest));
        int between = most - (int)(product * (1 / 21675.0f) + 0.5f);
        int eighth = most * s + 128, low = most - ((eighth + (eighth >> 8)) >> 8); /* most * s / 255, rounded */
        sixth = sixth == 6 ? 0 : sixth;
        red[i] = (uint8_t)(sixth == 0 || sixth == 5 ? most : sixth == 1 || sixth == 4 ? between : low);
        green[i] = (uint8_t)(sixth == 1 || sixth == 2 ? most : sixth == 0 || sixth == 3 ? between : low);
        blue[i] = (uint8_t)(sixth == 3 || sixth == 4 ? most : sixth == 2 || sixth == 5 ? between : low);
    }
}

LOOP void LOOP_NAME(hue)(uint8_t *restrict data, size_t n, uint8_t shift)
{
    uint8_t red[HUE_PIXELS], green[HUE_PIXELS], blue[HUE_PIXELS];
    for (size_t i = 0; i < n; i += HUE_PIXELS) {
        size_t count = n - i < HUE_PIXELS ? n - i : HUE_PIXELS;
        LOOP_NAME(split)(data + 3 * i, count, red, green, blue);
        LOOP_NAME(hue_planes)(red, green, blue, count, shift);
        LOOP_NAME(join)(data + 3 * i, count, red, green, blue);
    }
}

static const color_loops LOOP_NAME(loops) = {
    .map = LOOP_NAME(map),
    .bits = LOOP_NAME(bits),
    .range = LOOP_NAME(range),
    .gray_sum = LOOP_NAME(gray_sum),
    .grayscale = LOOP_NAME(grayscale),
    .saturate = LOOP_NAME(saturate),
    .hue = LOOP_NAME(hue),
};

#undef LOOP
#undef LOOP_NAME
