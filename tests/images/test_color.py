"""Colour operations on images in memory give the bytes that Pillow gives."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from tests.support.inside import augmented

SIZES = [(1, 1), (1, 7), (3, 5), (37, 41), (224, 224)]
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
    "BRIGHTNESS": lambda image, n, v: ImageEnhance.Brightness(image).enhance(v[0]),
    "CONTRAST": lambda image, n, v: ImageEnhance.Contrast(image).enhance(v[0]),
    "SATURATION": lambda image, n, v: ImageEnhance.Color(image).enhance(v[0]),
    "HUE": lambda image, n, v: turned(image, v[0]),
    "GRAYSCALE": lambda image, n, v: image.convert("L").convert("RGB"),
    "POSTERIZE": lambda image, n, v: ImageOps.posterize(image, n[0]) if n[0] else image.point([0] * 768),
    "SOLARIZE": lambda image, n, v: ImageOps.solarize(image, v[0]),
    "SOLARIZE_ADD": lambda image, n, v: brightened(image, *n),
    "INVERT": lambda image, n, v: ImageOps.invert(image),
    "AUTOCONTRAST": lambda image, n, v: ImageOps.autocontrast(image),
    "EQUALIZE": lambda image, n, v: ImageOps.equalize(image),
    "PERMUTE": lambda image, n, v: Image.merge("RGB", [image.getchannel(channel) for channel in n]),
}
ARGUMENTS = {
    **{name: [((), (factor,)) for factor in FACTORS] for name in ("BRIGHTNESS", "CONTRAST", "SATURATION")},
    "HUE": [((), (factor,)) for factor in (-0.5, -0.3, -0.003, 0.0, 0.003, 0.1, 1 / 3, 0.499, 0.5)],
    "POSTERIZE": [((bits,), ()) for bits in range(9)],
    "SOLARIZE": [((), (threshold,)) for threshold in (0.0, 1.0, 127.5, 128.0, 255.0, 256.0)],
    "SOLARIZE_ADD": list(itertools.product(itertools.product((0, 30, 110, 255, -20), (0, 128, 256)), [()])),
    "PERMUTE": [(order, ()) for order in itertools.permutations((0, 1, 2))],
    **{name: [((), ())] for name in ("GRAYSCALE", "INVERT", "AUTOCONTRAST", "EQUALIZE")},
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
    if name in ("BRIGHTNESS", "CONTRAST", "SATURATION"):
        arguments += [((), (factor,)) for factor in draw.uniform(0, 2.5, 12)]
    for pixels, (n, v) in itertools.product(pictures(size), arguments):
        before, ours = pixels.copy(), augmented(pixels, (name, n, v))
        assert np.array_equal(ours, by_pillow(pixels, (name, n, v))), (n, v)
        assert np.array_equal(pixels, before)


def any_operations(draw, count):
    names = draw.choice(list(BY_PILLOW), count)
    return [(str(name), *ARGUMENTS[name][draw.integers(len(ARGUMENTS[name]))]) for name in names]


@pytest.mark.parametrize("seed", range(8))
def test_runs_of_operations_give_the_bytes_of_pillow_step_by_step(seed):
    draw = np.random.default_rng(seed)
    for size in SIZES[1:4]:
        for pixels in pictures(size):
            for _ in range(6):
                operations = any_operations(draw, draw.integers(2, 8))
                assert np.array_equal(augmented(pixels, *operations), by_pillow(pixels, *operations)), operations


@pytest.mark.parametrize("measuring", ["AUTOCONTRAST", "EQUALIZE"])
@pytest.mark.parametrize(
    "first", ["SOLARIZE", "INVERT", "POSTERIZE", "AUTOCONTRAST", "EQUALIZE", "SATURATION", "PERMUTE"]
)
def test_a_histogram_is_that_of_the_values_after_the_operations_before(first, measuring):
    for pixels in pictures((37, 41)):
        operations = [(first, *ARGUMENTS[first][2 % len(ARGUMENTS[first])]), (measuring, (), ()), ("INVERT", (), ())]
        operations += operations[:2]
        assert np.array_equal(augmented(pixels, *operations), by_pillow(pixels, *operations))


def test_every_colour_keeps_pillows_bytes_when_its_hue_changes():
    """All colours with two equal channels or an extreme one, where the sixths of the circle meet."""
    first, second = (axis.ravel() for axis in np.meshgrid(np.arange(256), np.arange(256)))
    triples = [(first, first, second), (first, second, 0 * first), (first, second, 0 * first + 255)]
    colors = [
        np.stack([triple[i] for i in order], -1) for triple in triples for order in itertools.permutations((0, 1, 2))
    ]
    pixels = np.concatenate(colors).astype(np.uint8).reshape(-1, 256, 3)
    for factor in (0.0, 0.02, 0.25, -0.4):
        assert np.array_equal(augmented(pixels, ("HUE", (), (factor,))), by_pillow(pixels, ("HUE", (), (factor,))))


@pytest.mark.parametrize(
    ("name", "n", "v"),
    [
        *((name, (), (factor,)) for name in ("BRIGHTNESS", "CONTRAST", "SATURATION") for factor in (np.nan, np.inf)),
        *(("HUE", (), (factor,)) for factor in (-0.51, 0.501, np.nan)),
        *(("POSTERIZE", (bits,), ()) for bits in (-1, 9)),
        ("SOLARIZE", (), (np.nan,)),
        *(("PERMUTE", order, ()) for order in ((0, 1, 1), (0, 1, 3), (-1, 1, 2), (0, 0, 0))),
    ],
)
def test_numbers_out_of_range_are_refused(name, n, v):
    with pytest.raises(ValueError):
        augmented(np.zeros((4, 4, 3), np.uint8), ("INVERT", (), ()), (name, n, v))


PROGRAM = """
import zlib
import numpy as np
from slipring import images
from tests.images.test_color import any_operations
from tests.support.inside import augmented
draw, total = np.random.default_rng(3), 0
for number in range(300):
    pixels = draw.integers(0, 256, (*draw.integers(1, 80, 2), 3), np.uint8)
    total = zlib.crc32(augmented(pixels, *any_operations(draw, 1 + number % 3)), total)
print(images.backend().kernels, total)
"""


def test_vectors_and_plain_c_give_the_same_colours():
    found = {}
    for kernels in ("", "c"):
        path = os.pathsep.join(part for part in sys.path if part)
        env = {**os.environ, "SLIPRING_IMAGES_KERNELS": kernels, "PYTHONPATH": path}
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
        name, total = done.stdout.split()
        found[name] = total
    if "c" in found and len(found) == 1:
        pytest.skip("this processor has only the plain loops")
    assert len(set(found.values())) == 1, found
