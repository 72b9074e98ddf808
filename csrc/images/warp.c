/* warp.c */
#include <errno.h>

#include "pixels.h"

int sr_warp(sr_augmenter *a, const sr_op *op, sr_pixels *image)
{
    return -EINVAL;
}
