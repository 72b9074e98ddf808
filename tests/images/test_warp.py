"""Affine, perspective and elastic operations: the pixels of Pillow and of torchvision."""

import math

import numpy as np
import pytest
from PIL import Image

from slipring.images import functional
from tests.support.inside import operate
from tests.support.pictures import error, pixels

SIZES = [(1, 1), (1, 7), (7, 1), (3, 5), (37, 41), (224, 224)]
FILTERS = {"bilinear": 0, "bicubic": 1, "nearest": 2}
IN_PILLOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC, "nearest": 0}
FAR = [10.0**power for power in (-30, -9, 4, 9, 20, 90)]


def by_pillow(image, coefficients, filter, fill, size=None):
    method = Image.Transform.AFFINE if len(coefficients) == 6 else Image.Transform.PERSPECTIVE
    height, width = size or image.shape[:2]
    picture = Image.fromarray(image)
    return np.asarray(picture.transform((width, height), method, coefficients, IN_PILLOW[filter], fillcolor=fill))


def turned(angle, height, width, size=None):
    """Return the coefficients of Pillow's Image.rotate; `size` is that of the result if it differs."""
    cosine, sine = round(math.cos(math.radians(-angle)), 15), round(math.sin(math.radians(-angle)), 15)
    y, x = (side / 2 for side in size or (height, width))
    return cosine, sine, width / 2 - cosine * x - sine * y, -sine, cosine, height / 2 + sine * x - cosine * y


def affine_cases(draw, height, width):
    """Yield coefficients of each kind that has a path of its own, and random ones."""
    yield 1, 0, draw.integers(-width, width + 1), 0, 1, draw.integers(-height, height + 1)  # a move
    yield 1, 0, draw.uniform(-width, width), 0, 1, draw.uniform(-height, height)
    yield 1, draw.uniform(-1, 1), draw.uniform(-width, width) / 4, 0, 1, draw.integers(-1, 2)  # rows move
    yield 1, draw.integers(-2, 3) * 2, draw.integers(-2, 3), 0, 1, 0
    yield 1, 0, 0, draw.uniform(-1, 1), 1, draw.uniform(-height, height) / 4  # columns move
    yield draw.uniform(0.2, 3), 0, draw.uniform(-width, width), 0, draw.uniform(-3, 3), draw.uniform(-height, height)
    yield 0, 0, draw.uniform(0, width), 0, 0, draw.uniform(0, height)
    for angle in (0, 90, 180, 270, draw.uniform(0, 360), draw.uniform(-30, 30)):
        yield turned(angle, height, width)
    for scale in (1, 1, *FAR):
        yield scale * draw.uniform(-1, 1, 6) * [1, 1, width, 1, 1, height]


def perspective_cases(draw, height, width):
    for _ in range(6):
        tilt = draw.normal(0, 0.6, 2) / (width, height)
        about = draw.normal((1, 0, 0, 0, 1, 0), 0.3) * (1, 1, width / 2, 1, 1, height / 2)
        yield *about, *tilt
    yield 1, 0, 0, 0, 1, 0, -1 / (width / 2), 0  # a division by zero in the middle, if the width is odd
    for scale in FAR:
        yield scale * draw.uniform(-1, 1, 8)


def off(image, draw, operation, cases):
    worst = dict.fromkeys(FILTERS, 0)
    for case in cases:
        coefficients = tuple(float(number) for number in case)
        fill = tuple(int(level) for level in draw.integers(0, 256, 3)) if draw.random() < 0.7 else (0, 0, 0)
        size = image.shape[:2]
        if operation == "affine" and draw.random() < 0.3:
            size = tuple(int(side) for side in draw.integers(1, 60, 2))
        for name, filter in FILTERS.items():
            n = (filter, *size) if operation == "affine" else (filter,)
            ours = operate(image, operation, n, (*coefficients, *fill), size)
            worst[name] = max(worst[name], error(ours, by_pillow(image, coefficients, name, fill, size)))
    return worst


@pytest.mark.parametrize("noise", [False, True], ids=["waves", "noise"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("operation", ["affine", "perspective"])
def test_an_image_is_warped_as_by_pillow(operation, size, noise):
    draw = np.random.default_rng(sum(size) + noise)
    image = pixels(*size, seed=3, noise=noise)
    cases = (affine_cases if operation == "affine" else perspective_cases)(draw, *size)
    worst = off(image, draw, operation, cases)
    assert worst.pop("nearest") == 0
    assert max(worst.values()) <= 1, worst


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("angle", [0, 90, 180, 270])
def test_a_right_angle_moves_pixels_as_in_pillow(angle, filter, expand):
    """Pillow transposes the image there, if the result is expanded or square."""
    for height, width in ((1, 1), (2, 7), (5, 5), (6, 6), (31, 18)):
        size = (width, height) if expand and angle % 180 else (height, width)
        image = pixels(height, width, noise=True)
        wanted = Image.fromarray(image).rotate(angle, IN_PILLOW[filter], expand, fillcolor=(1, 2, 3))
        coefficients = turned(angle, height, width, size)
        ours = operate(image, "affine", (FILTERS[filter], *size), (*coefficients, 1, 2, 3), size)
        assert np.array_equal(ours, np.asarray(wanted))


def test_images_that_are_too_large_for_fixed_point_are_warped_as_by_pillow():
    """Pillow adds up steps in double precision there."""
    draw = np.random.default_rng(5)
    image = pixels(2, 40_000, noise=True)
    for coefficients in ((1, 0.3, 0.1, 1e-5, 1, 0), (-0.7, 0, 39_000.2, 0.00001, 1, 0.1)):
        assert off(image, draw, "perspective", [(*coefficients, 0, 0)])["nearest"] == 0
        ours = operate(image, "affine", (2, 2, 40_000), (*coefficients, 1, 2, 3))
        assert error(ours, by_pillow(image, coefficients, "nearest", (1, 2, 3))) == 0


def uniform(seed, count):
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2.0**53


def elastic_by_torch(image, seed, alpha, sigma, fill, how):
    """Return what torchvision's ElasticTransform computes for the noise of a seed, clipped before it is rounded."""
    torch = pytest.importorskip("torch")
    nn = torch.nn.functional
    height, width = image.shape[:2]
    noise = torch.from_numpy(uniform(seed, 2 * height * width).reshape(2, 1, 1, height, width) * 2 - 1).float()
    displacements = []
    for i, size in enumerate((width, height)):
        plane = noise[i]
        if sigma[i] > 0:
            radius = int(8 * sigma[i] + 1) // 2
            taps = torch.arange(-radius, radius + 1, dtype=torch.float64)
            across, down = (torch.softmax(-0.5 * (taps / s) ** 2, 0) for s in sigma)
            padded = nn.pad(plane.double(), [radius] * 4, mode="reflect")
            rows = nn.conv2d(padded, across[None, None, None])
            plane = nn.conv2d(rows, down[None, None, :, None]).float()
        displacements.append(plane * alpha[i] / size)
    return moved_by_torch(image, torch.stack([plane[0, 0] for plane in displacements], -1), fill, how)


def moved_by_torch(image, displacements, fill, how):
    """Return the image moved as in torchvision's elastic, clipped before it is rounded."""
    import torch

    height, width = image.shape[:2]
    y, x = (torch.linspace((1 - n) / n, (n - 1) / n, n) for n in (height, width))
    grid = torch.stack([x.expand(height, width), y[:, None].expand(height, width)], -1)[None]
    grid = grid + displacements
    levels = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    levels = torch.cat([levels, torch.ones_like(levels[:, :1])], 1)
    levels = torch.nn.functional.grid_sample(levels, grid, mode=how, padding_mode="zeros", align_corners=False)[0]
    levels, mask = levels[:3], levels[3]
    color = torch.tensor(fill, dtype=torch.float32)[:, None, None]
    mixed = torch.where(mask < 0.5, color, levels) if how == "nearest" else (levels - color) * mask + color
    return mixed.clamp(0, 255).round().permute(1, 2, 0).to(torch.uint8).numpy()


@pytest.mark.parametrize("how", FILTERS)
@pytest.mark.parametrize(
    ("size", "alpha", "sigma"),
    [
        ((1, 1), (50, 50), (0, 0)),
        ((1, 7), (3, 9), (0, 0)),
        ((3, 5), (9, 9), (0.2, 0.2)),
        ((37, 41), (50, 90), (3.1, 1.7)),
        ((224, 224), (50, 50), (5, 5)),
        ((224, 224), (1e30, 1e38), (0, 0)),
    ],
    ids=str,
)
def test_an_image_is_elastic_as_in_torchvision(size, alpha, sigma, how):
    for seed, fill in ((1, (0, 0, 0)), (0xFEDC_BA98_7654_3210, (255, 9, 120))):
        image = pixels(*size, seed=seed & 7, noise=True)
        n = FILTERS[how], *np.array([seed & 0xFFFF_FFFF, seed >> 32], np.uint32).astype(np.int32).tolist()
        ours = operate(image, "elastic", n, (*alpha, *sigma, *fill))
        wanted = elastic_by_torch(image, seed, alpha, sigma, fill, how)
        if how == "nearest":  # rounding errors of the blurred noise may choose the other of two pixels
            assert np.mean(np.any(ours != wanted, axis=-1)) < 0.001
        else:
            assert error(ours, wanted) <= 1


@pytest.mark.parametrize("how", FILTERS)
def test_given_displacements_move_pixels_as_in_torchvision(how):
    torch = pytest.importorskip("torch")
    image, size = pixels(23, 31, noise=True), np.array((31, 23), np.float32)
    moves = np.random.default_rng(4).normal(0, 0.2, (1, 23, 31, 2)).astype(np.float32)
    wanted = moved_by_torch(image, torch.from_numpy(moves), (0, 0, 0), how).astype(int)
    made = functional.elastic(image, moves, how)
    assert np.mean(np.any(np.abs(made - wanted) > (how != "nearest"), axis=-1)) < 0.001
    assert np.array_equal(made, functional.elastic(image, torch.from_numpy(moves), how))
    right = np.full((1, 23, 31, 2), (2.0, 0.0)) / size  # by one pixel
    assert np.array_equal(functional.elastic(image, right, how, fill=7)[:, :-1], image[:, 1:])
    assert (functional.elastic(image, right, "nearest", fill=7)[:, -1] == 7).all()


@pytest.mark.parametrize("sigma", [(5, 5), (1, 0), (0, 1), (-1, -1)])
def test_an_elastic_blur_needs_pixels_for_its_kernel(sigma):
    """torchvision's kernel has int(8 sigma + 1) taps, and its padding must be smaller than the image."""
    with pytest.raises(ValueError, match=r"."):
        operate(pixels(20, 30), "elastic", (0, 1, 2), (50, 50, *sigma))
    assert operate(pixels(21, 30), "elastic", (0, 1, 2), (50, 50, 5, 5)).shape == (21, 30, 3)
