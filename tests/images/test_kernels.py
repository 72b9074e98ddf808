"""The C code refuses meaningless numbers, and its vector kernels run where the processor has them, with equal bytes."""

import json
import math
import os
import random
import subprocess
import sys
import zlib

import numpy as np
import pytest

from slipring import images
from tests.images.test_blur import FACTORS, KERNELS, RADII
from tests.images.test_color import any_operations
from tests.images.test_warp import FILTERS, SIZES, affine_cases, perspective_cases
from tests.support.inside import augmented, operate
from tests.support.pictures import any_jpeg, box_in, pixels

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("operation", "n", "v"),
    [
        *(("brightness", (), (factor,)) for factor in (NAN, INF)),
        ("hue", (), (0.501,)), ("posterize", (9,), ()), ("solarize", (), (NAN,)), ("sharpness", (), (1e300,)),
        *(("permute_channels", order, ()) for order in ((0, 1, 1), (0, 1, 3), (-1, 1, 2))),
        ("pil_gaussian_blur", (), (NAN, 1)), ("pil_gaussian_blur", (), (1, 1e30)), ("gaussian_blur", (3, 3), (1, 0)),
        ("gaussian_blur", (2, 3), (1, 1)), ("gaussian_blur", (3, -1), (1, 1)),
        ("gaussian_blur", (9, 3), (1, 1)),  # 4 pixels beyond the border: the image has 4 columns
        *(("affine", n, (1, 0, 0, 0, 1, 0)) for n in ((3, 5, 4), (0, 0, 4), (0, 5, -1), (0, 5, 1 << 30))),
        ("affine", (0, 5, 4), (1, 0, INF, 0, 1, 0)), ("affine", (0, 5, 4), (1, 0, 0, 0, 1, 1e200)),
        ("perspective", (0,), (1, 0, 0, 0, 1, 0, 0, NAN)), ("elastic", (0, 5, 4), (1, -INF, 1, 1)),
    ],
)  # fmt: skip
def test_the_c_code_refuses_numbers_without_a_meaning(operation, n, v):
    with pytest.raises(ValueError, match=r"."):
        operate(pixels(5, 4), operation, n, v)


def decoded():
    draw = random.Random(5)
    for number in range(60):
        data, height, width, _ = any_jpeg(draw)
        out = np.empty((draw.randint(1, 230), draw.randint(1, 230), 3), np.uint8)
        how = ["bilinear", "bicubic"][number % 3 == 0]
        images.decode_into(data, out, box_in(draw, height, width), number % 2 == 1, interpolation=how)
        yield out


def colored():
    draw = np.random.default_rng(3)
    for number in range(300):
        image = draw.integers(0, 256, (*draw.integers(1, 80, 2), 3), np.uint8)
        yield augmented(image, *any_operations(draw, 1 + number % 3))


def blurred():
    for size in [*SIZES, (100, 333)]:
        image = pixels(*size, noise=True)
        for factor in FACTORS:
            yield operate(image, "sharpness", (), (factor,))
        for radius in RADII:
            yield operate(image, "pil_gaussian_blur", (), radius)
        for kernel_size, taps, sigma in KERNELS:
            if kernel_size == size:
                yield operate(image, "gaussian_blur", taps, sigma)


def warped():
    for size in [*SIZES, (300, 500)]:
        draw = np.random.default_rng(7)
        image = pixels(*size, noise=True)
        for how in FILTERS.values():
            for case in affine_cases(draw, *size):
                yield operate(image, "affine", (how, *size), (*map(float, case), 7, 8, 9))
            for case in perspective_cases(draw, *size):
                yield operate(image, "perspective", (how,), (*map(float, case), 7, 8, 9))
            yield operate(image, "elastic", (how, 3, 4), (70, 60, 0.1, 0.1))


def digests():
    """Return the name of the kernels, and a checksum of all results of each kind."""
    found = {}
    for results in (decoded, colored, blurred, warped):
        found[results.__name__] = 0
        for image in results():
            found[results.__name__] = zlib.crc32(image, found[results.__name__])
    return [images.backend().kernels, found]


def test_vectors_run_where_the_processor_has_them_and_give_the_bytes_of_plain_c():
    """The CPU detection of some compilers finds nothing, and then the slow loops run."""
    found = {}
    for kernels in ("", "c"):
        env = {
            **os.environ,
            "SLIPRING_IMAGES_KERNELS": kernels,
            "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)]),
        }
        program = "import json; from tests.images.test_kernels import digests; print(json.dumps(digests()))"
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        found[kernels] = json.loads(done.stdout)
    if os.uname().machine == "aarch64":
        wanted = "neon"
    else:
        with open("/proc/cpuinfo") as file:
            flags = next((line.split() for line in file if line.startswith("flags")), [])
        wanted = "avx2" if "avx2" in flags else "c"
    assert (found[""][0], found["c"][0]) == (wanted, "c")
    if wanted == "c":
        pytest.skip("this processor has only the plain loops")
    assert found[""][1] == found["c"][1]
