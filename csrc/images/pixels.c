/* pixels.c - the buffers of an image and of an operation's result, and pixels of one colour. */
#include "pixels.h"

#include <errno.h>
#include <stdlib.h>

/* Return memory for an image of that size in a buffer; NULL: there is none. */
static uint8_t *image_memory(sr_buffer *buffer, int height, int width)
{
    char *memory = sr_buffer_need(buffer, 3 * (size_t)height * (size_t)width + 2 * SR_SLACK);
    return memory ? (uint8_t *)memory + SR_SLACK : NULL;
}

int sr_image_make(sr_augmenter *a, int height, int width, sr_pixels *image)
{
    if (!sr_is_size(height, width))
        return -EINVAL;
    a->current = 0;
    *image = (sr_pixels){image_memory(&a->images[0], height, width), height, width};
    return image->data ? 0 : -ENOMEM;
}

uint8_t *sr_result(sr_augmenter *a, int height, int width)
{
    return image_memory(&a->images[1 - a->current], height, width);
}

void sr_take_result(sr_augmenter *a, sr_pixels *image, int height, int width)
{
    a->current = 1 - a->current;
    *image = (sr_pixels){(uint8_t *)a->images[a->current].data + SR_SLACK, height, width};
}

void sr_augmenter_free(sr_augmenter *a)
{
    sr_buffer *all[] = {&a->images[0], &a->images[1], &a->work, &a->sum};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]->data);
        *all[i] = (sr_buffer){NULL, 0};
    }
    sr_scratch_free(&a->resize);
}

void sr_fill_pixels(uint8_t *to, int pixels, const uint8_t fill[3])
{
    if (fill[0] == fill[1] && fill[1] == fill[2]) {
        memset(to, fill[0], 3 * (size_t)pixels);
        return;
    }
    for (int x = 0; x < pixels; x++)
        memcpy(to + 3 * (size_t)x, fill, 3);
}
