"""A thread's decoder keeps nothing of an image: the next image is as in a process that has decoded no other."""

import io
import random
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from slipring import images
from slipring.errors import ImageError
from tests.support.parts import slow
from tests.support.pictures import pixels
from tests.support.processes import ROOT

STEPS = {
    "decode": None,
    "small": [images.Resize((9, 7))],
    "crop": [images.CenterCrop(20), images.RandomHorizontalFlip(1.0)],
    "operations": [
        images.Resize(30),
        images.ColorJitter(brightness=(1.5, 1.5), saturation=(0.5, 0.5)),
        images.RandomRotation((20, 20), expand=True),
        images.GaussianBlur(3, (1.0, 1.0)),
        images.RandomErasing(1.0, value=7),
    ],
}


def encoded(mode, file_format="JPEG", size=(40, 56), seed=0, **options):
    file = io.BytesIO()
    image = Image.fromarray(pixels(*size, seed))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    elif mode == "P":
        image = image.quantize(7 + seed)
    else:
        image = image.convert(mode)
    image.save(file, file_format, **options)
    return file.getvalue()


def without(data, marker):
    """Return a JPEG without its segments of one kind."""
    kept, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        kept += b"" if data[at + 1] == marker else data[at:end]
        at = end
    return kept + data[at:]


def with_segment(data, marker, content):
    return data[:2] + bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content + data[2:]


def adobe(transform):
    return b"Adobe\0\x64\0\0\0\0" + bytes([transform])


def pictures():
    """Return images that set, or lack, each thing that a decoder could keep."""
    plain, other = encoded("RGB"), encoded("RGB", size=(70, 33), seed=3, quality=30, subsampling=0)
    found = {
        "baseline": plain,
        "other tables": other,
        "optimized": encoded("RGB", seed=2, optimize=True),
        "large": encoded("RGB", size=(301, 402), seed=5, quality=95),
        "progressive": encoded("RGB", seed=1, progressive=True),
        "grey": encoded("L", quality=60),
        "grey progressive": encoded("L", progressive=True, size=(33, 90)),
        "CMYK": encoded("CMYK", seed=4),
        "restarts": encoded("RGB", restart_marker_blocks=1, seed=2),
        "restart rows": encoded("RGB", restart_marker_rows=1, progressive=True),
        "RGB by Adobe": with_segment(without(plain, 0xE0), 0xEE, adobe(0)),
        "YCbCr by Adobe": with_segment(without(other, 0xE0), 0xEE, adobe(1)),
        "neither JFIF nor Adobe": without(plain, 0xE0),
        "ICC": encoded("RGB", icc_profile=b"no profile" * 20, seed=6),
        "EXIF": with_segment(other, 0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"),
        "no Huffman tables": without(plain, 0xC4),
        "no quantisation tables": without(other, 0xDB),
        "neither": without(without(plain, 0xDB), 0xC4),
        "truncated": plain[: len(plain) * 2 // 3],
        "truncated progressive": encoded("RGB", progressive=True)[:-300] + b"\xff\xd9",
        "damaged": other[:-400] + bytes(100) + other[-300:],
        "damaged header": plain[:180] + bytes(20) + plain[200:],
        "lost restart": encoded("RGB", restart_marker_blocks=2).replace(b"\xff\xd3", b"\xff\xd6", 1),
        "empty": b"",
        "a text": b"a text that is no image",
        "palette": encoded("P", "PNG", seed=1),
        "small palette": encoded("P", "PNG", seed=0, size=(12, 80), transparency=1),
        "alpha": encoded("RGBA", "PNG"),
        "grey alpha": encoded("LA", "PNG", size=(50, 20)),
        "16 bits": encoded("I;16", "PNG"),
        "bits": encoded("1", "PNG"),
        "damaged PNG": encoded("RGB", "PNG")[:-200],
        "WebP": encoded("RGB", "WEBP"),
        "GIF": encoded("P", "GIF"),
        "one pixel": encoded("RGB", size=(1, 1)),
    }
    return found


def result(data, steps, options):
    """Return the pixels, or the text of the error."""
    try:
        if steps is None:
            return images.decode(data, **options)
        return images.Bytes([(data, 0)], steps, **options).try_sample(0, 11)[0]
    except ImageError as error:
        return str(error)


def digest(found):
    return found if isinstance(found, str) else f"{found.shape} {zlib.crc32(found)}"


OPTIONS = {"": {}, "fill": {"truncated": "fill", "exif": True}}
CASES = [(name, steps, options) for name in pictures() for steps in STEPS for options in OPTIONS]


def run(order):
    """Decode these cases one after another, with the one decoder of this thread; return the digests."""
    data = pictures()
    return {at: digest(result(data[CASES[at][0]], STEPS[CASES[at][1]], OPTIONS[CASES[at][2]])) for at in order}


ALONE = """
import os, sys
from slipring import images
from tests.images import test_one_decoder as test
images.functional
for at in range(len(test.CASES)):  # each in a fork of a process that has decoded nothing
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        print(at, repr(test.run([at])[at]), flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, test.CASES[at]
"""


@pytest.fixture(scope="module")
def alone():
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    return {int(at): eval(text) for at, text in found.items()}


@pytest.mark.timeout(700)
@pytest.mark.parametrize("seed", [0, 1, *map(slow, range(2, 12))])
def test_images_in_any_order_are_as_each_alone_in_a_fresh_process(alone, seed):
    order = list(range(len(CASES))) * 2
    random.Random(seed).shuffle(order)
    found, data = {}, pictures()
    for at in order:
        name, steps, options = CASES[at]
        found = digest(result(data[name], STEPS[steps], OPTIONS[options]))
        assert found == alone[at], CASES[at]
    assert sum(text.startswith("(") for text in alone.values()) > len(CASES) // 2
