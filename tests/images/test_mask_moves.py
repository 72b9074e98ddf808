"""Masks after crops, borders, flips and nearest resizing are those that Pillow makes."""

import random

import numpy as np
import pytest
from PIL import Image, ImageOps

from slipring.images import _decode
from slipring.images._parts import Mask


def one_move(draw, size):
    """Return a move of an image of that size, and Pillow's function for it with a fill."""
    height, width = size
    kind = draw.choice(("crop", "pad", "resize", "flip", "vertical flip"))
    if kind == "crop":
        n = draw.randint(-9, height - 1), draw.randint(-9, width - 1), draw.randint(1, 60), draw.randint(1, 60)
        box = n[1], n[0], n[1] + n[3], n[0] + n[2]
        return _decode.OP_CROP, n, lambda image, fill: cropped(image, box, fill)
    if kind == "pad":
        n = tuple(draw.randint(0, 9) for _ in range(4))
        return _decode.OP_PAD, (*n, 0), lambda image, fill: ImageOps.expand(image, n, fill)
    if kind == "resize":
        n = draw.randint(1, 60), draw.randint(1, 60)
        return _decode.OP_RESIZE, n, lambda image, fill: image.resize(n[::-1], Image.Resampling.NEAREST)
    if kind == "flip":
        return _decode.OP_HORIZONTAL_FLIP, (), lambda image, fill: ImageOps.mirror(image)
    return _decode.OP_VERTICAL_FLIP, (), lambda image, fill: ImageOps.flip(image)


def cropped(image, box, fill):
    made = Image.new("L", (box[2] - box[0], box[3] - box[1]), fill)
    made.paste(image, (-box[0], -box[1]))
    return made


@pytest.mark.parametrize("fill", (0, 7), ids=("black", "filled"))
@pytest.mark.parametrize("count", (None, 1, 4), ids=("one mask", "one mask per box", "four masks"))
def test_moved_masks_equal_pillows(count, fill):
    for seed in range(150):
        draw, noise = random.Random(seed), np.random.default_rng(seed)
        size = draw.randint(1, 50), draw.randint(1, 50)
        values = np.zeros((*(() if count is None else (count,)), *size), np.uint8)
        rows, columns = sorted(noise.integers(0, size[0] + 1, 2)), sorted(noise.integers(0, size[1] + 1, 2))
        inside = values[..., slice(*rows), slice(*columns)]
        inside[...] = noise.integers(0, 255, inside.shape)
        mask, images = Mask(values, fill), [Image.fromarray(plane) for plane in values.reshape(-1, *size)]
        for _ in range(draw.randint(1, 4)):
            code, n, by_pillow = one_move(draw, images[0].size[::-1])
            mask.move(code, n, (0.0, 0.0, 0.0), *images[0].size[::-1])
            images = [by_pillow(image, fill) for image in images]
        expected = np.stack([np.asarray(image) for image in images]).reshape(*values.shape[:-2], *images[0].size[::-1])
        assert (mask.result() == expected).all(), seed


@pytest.mark.parametrize("dtype", ("bool", "uint8", "int16", "int64"))
def test_the_values_of_all_dtypes_stay_the_same(dtype):
    values = (np.arange(2 * 5 * 6).reshape(2, 5, 6) * 1000).astype(dtype)
    values[1] = 0
    mask = Mask(values)
    mask.move(_decode.OP_CROP, (1, -2, 6, 7), (), 5, 6)
    mask.move(_decode.OP_HORIZONTAL_FLIP, (), (), 6, 7)
    expected = np.zeros((2, 6, 7), dtype)
    expected[:, :4, 2:] = values[:, 1:, :5]
    assert mask.result().dtype == expected.dtype
    assert (mask.result() == expected[..., ::-1]).all()
