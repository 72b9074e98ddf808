/* color.c */
#include <errno.h>

#include "pixels.h"

int sr_color(sr_augmenter *a, const sr_op *ops, int count, sr_pixels *image)
{
    return -EINVAL;
}
