"""Colour operations on images in memory give the bytes that Pillow gives."""

import itertools

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from tests.support.inside import augmented
from tests.support.pictures import FUSED, error

SIZES = [(1, 1), (1, 7), (3, 5), (37, 41), (224, 224)]
FACTORED = "brightness", "contrast", "saturation"
FACTORS = (0.0, 1.0, 0.5, 0.3, 0.999, 1.001, 1.7, 3.14159, 40.0, -0.4, 1e6, -1e6)


def turned(image, factor):
    """Return the image with its hue moved on Pillow's circle of 256 hues, as torchvision moves it."""
    hue, saturation, value = image.convert("HSV").split()
    shift = int(factor * 255) % 256
    hue = Image.fromarray(np.asarray(hue) + np.uint8(shift))
    return Image.merge("HSV", (hue, saturation, value)).convert("RGB")


def brightened(image, addend, threshold):
    return image.point([min(255, i + addend) if i < threshold else i for i in range(256)] * 3)


BY_PILLOW = {
    "brightness": lambda image, n, v: ImageEnhance.Brightness(image).enhance(v[0]),
    "contrast": lambda image, n, v: ImageEnhance.Contrast(image).enhance(v[0]),
    "saturation": lambda image, n, v: ImageEnhance.Color(image).enhance(v[0]),
    "hue": lambda image, n, v: turned(image, v[0]),
    "grayscale": lambda image, n, v: image.convert("L").convert("RGB"),
    "posterize": lambda image, n, v: ImageOps.posterize(image, n[0]) if n[0] else image.point([0] * 768),
    "solarize": lambda image, n, v: ImageOps.solarize(image, v[0]),
    "solarize_add": lambda image, n, v: brightened(image, *n),
    "invert": lambda image, n, v: ImageOps.invert(image),
    "autocontrast": lambda image, n, v: ImageOps.autocontrast(image),
    "equalize": lambda image, n, v: ImageOps.equalize(image),
    "permute_channels": lambda image, n, v: Image.merge("RGB", [image.getchannel(channel) for channel in n]),
}
ARGUMENTS = {
    **{name: [((), (factor,)) for factor in FACTORS] for name in FACTORED},
    "hue": [((), (factor,)) for factor in (-0.5, -0.3, -0.003, 0.0, 0.003, 0.1, 1 / 3, 0.499, 0.5)],
    "posterize": [((bits,), ()) for bits in range(9)],
    "solarize": [((), (threshold,)) for threshold in (0.0, 1.0, 127.5, 128.0, 255.0, 256.0)],
    "solarize_add": list(itertools.product(itertools.product((0, 30, 110, 255, -20), (0, 128, 256)), [()])),
    "permute_channels": [(order, ()) for order in itertools.permutations((0, 1, 2))],
    **{name: [((), ())] for name in ("grayscale", "invert", "autocontrast", "equalize")},
}


def by_pillow(pixels, *operations):
    image = Image.fromarray(pixels)
    for name, n, v in operations:
        image = BY_PILLOW[name](image, n, v)
    return np.asarray(image)


def pictures(size):
    """Yield images: noise, a narrow range of values, one value per channel, black, white and an even ramp."""
    draw = np.random.default_rng(size)
    yield draw.integers(0, 256, (*size, 3), np.uint8)
    yield np.clip(draw.normal((60, 120, 200), (5, 20, 40), (*size, 3)), 0, 255).astype(np.uint8)
    for color in (draw.integers(0, 256, 3), (0, 0, 0), (255, 255, 255)):
        yield np.full((*size, 3), color, np.uint8)
    yield np.linspace(0, 255, 3 * size[0] * size[1]).astype(np.uint8).reshape(*size, 3)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", BY_PILLOW)
def test_each_operation_gives_the_bytes_of_pillow(name, size):
    draw = np.random.default_rng(7)
    arguments = list(ARGUMENTS[name])
    if name in FACTORED:
        arguments += [((), (factor,)) for factor in draw.uniform(0, 2.5, 12)]
    for pixels, (n, v) in itertools.product(pictures(size), arguments):
        before, ours = pixels.copy(), augmented(pixels, (name, n, v))
        fused = FUSED and name in FACTORED
        assert error(ours, by_pillow(pixels, (name, n, v))) <= fused, (n, v)
        assert np.array_equal(pixels, before)


def any_operations(draw, count):
    names = draw.choice(list(BY_PILLOW), count)
    return [(str(name), *ARGUMENTS[name][draw.integers(len(ARGUMENTS[name]))]) for name in names]


@pytest.mark.skipif(FUSED, reason="a difference of one level grows from step to step")
@pytest.mark.parametrize("seed", range(8))
def test_runs_of_operations_give_the_bytes_of_pillow_step_by_step(seed):
    draw = np.random.default_rng(seed)
    for size in SIZES[1:4]:
        for pixels in pictures(size):
            for _ in range(6):
                operations = any_operations(draw, draw.integers(2, 8))
                assert np.array_equal(augmented(pixels, *operations), by_pillow(pixels, *operations)), operations


def test_every_colour_keeps_pillows_bytes_when_its_hue_changes():
    """All colours with two equal channels or an extreme one, where the sixths of the circle meet."""
    first, second = (axis.ravel() for axis in np.meshgrid(np.arange(256), np.arange(256)))
    triples = [(first, first, second), (first, second, 0 * first), (first, second, 0 * first + 255)]
    colors = [
        np.stack([triple[i] for i in order], -1) for triple in triples for order in itertools.permutations((0, 1, 2))
    ]
    pixels = np.concatenate(colors).astype(np.uint8).reshape(-1, 256, 3)
    for factor in (0.0, 0.02, 0.25, -0.4):
        assert np.array_equal(augmented(pixels, ("hue", (), (factor,))), by_pillow(pixels, ("hue", (), (factor,))))
