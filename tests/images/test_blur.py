"""Sharpness and blurs: the pixels of Pillow and of torchvision."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from tests.support.inside import operate
from tests.support.pictures import FUSED, error, pixels

SIZES = [(1, 1), (1, 7), (7, 1), (3, 5), (37, 41), (224, 224)]
FACTORS = [0, 0.1, 0.5, 0.9, 1, 1.9, 2, 7.3, -1.5]
RADII = [(0.1, 0.1), (0.5, 0.5), (1, 1), (1.3, 1.3), (2, 2), (0, 1.5), (2.5, 0), (7.7, 3.2), (30, 60), (0, 0)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("factor", FACTORS)
def test_sharpness_gives_the_bytes_of_pillow(factor, size):
    for noise in (False, True):
        image = pixels(*size, noise=noise)
        wanted = np.asarray(ImageEnhance.Sharpness(Image.fromarray(image)).enhance(factor))
        assert error(operate(image, "sharpness", (), (factor,)), wanted) <= FUSED


def test_a_smooth_pixel_is_exact_for_each_sum():
    """The integer arithmetic of the filter: all sums of neighbours, which reach 13 times 255."""
    steps = np.arange(256).repeat(3)
    image = np.stack([np.stack([steps[i : i + 256 * 3 - 2] for i in (0, 1, 2)])] * 3, axis=-1).astype(np.uint8)
    wanted = np.asarray(ImageEnhance.Sharpness(Image.fromarray(image)).enhance(0))
    assert error(operate(image, "sharpness", (), (0,)), wanted) == 0


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("radius", RADII, ids=str)
def test_a_box_blur_gives_the_bytes_of_pillow(radius, size):
    for noise in (False, True):
        image = pixels(*size, noise=noise)
        wanted = np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius)))
        assert error(operate(image, "pil_gaussian_blur", (), radius), wanted) == 0


def gaussian(image, taps, sigma):
    """Return torchvision's gaussian_blur: a separable kernel, the image mirrored at its borders, rounded once."""
    levels = image.astype(np.float64)
    for axis in (1, 0):
        radius = taps[1 - axis] // 2
        positions = np.arange(-radius, radius + 1)
        weights = np.exp(-0.5 * (positions / sigma[1 - axis]) ** 2)
        padding = [(0, 0)] * 3
        padding[axis] = radius, radius
        padded = np.moveaxis(np.pad(levels, padding, mode="reflect"), axis, -1)
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * radius + 1, axis=-1)
        levels = np.moveaxis(windows @ (weights / weights.sum()), -1, axis)
    return levels.round().astype(np.uint8)


KERNELS = [
    ((1, 1), (1, 1), (1, 1)),
    ((1, 7), (13, 1), (2, 1)),
    ((7, 1), (1, 5), (2, 0.1)),
    ((3, 5), (9, 5), (1, 30)),
    ((37, 41), (81, 73), (9, 40)),
    ((224, 224), (23, 23), (2, 2)),
    ((224, 224), (65, 63), (1000, 8)),
    ((224, 224), (67, 3), (12, 1)),
    ((224, 224), (3, 447), (12, 90)),
]


@pytest.mark.parametrize(("size", "taps", "sigma"), KERNELS, ids=str)
def test_a_gaussian_blur_is_torchvisions(size, taps, sigma):
    for noise in (False, True):
        image = pixels(*size, noise=noise)
        assert error(operate(image, "gaussian_blur", taps, sigma), gaussian(image, taps, sigma)) <= 1
    flat = np.full((*size, 3), (0, 200, 255), np.uint8)
    assert error(operate(flat, "gaussian_blur", taps, sigma), flat) == 0
