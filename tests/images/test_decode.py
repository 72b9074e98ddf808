"""decode_into: at most 1 off Pillow's pixel values, for any file, box and size."""

import io
import os
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageOps

from slipring import images
from slipring.errors import ImageError
from tests.images.exact import off
from tests.support.inside import backend as _backend
from tests.support.parts import slow
from tests.support.pictures import any_jpeg, box_in, by_pillow, encoded, error, pixels
from tests.support.signals import handling

SEEDS = [0, 1, *map(slow, range(2, 6))]
ORIENTATION = 0x0112


@pytest.mark.parametrize("bicubic", [False, True], ids=["bilinear", "bicubic"])
@pytest.mark.parametrize("seed", SEEDS)
def test_any_box_of_any_jpeg_is_at_most_one_level_from_pillow(seed, bicubic):
    draw = random.Random(1000 * bicubic + seed)
    for _ in range(40):
        levels, _, what = off(draw, bicubic)
        assert levels <= 1, what


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("size", [(30, 41), (38, 39), (36, 38), (35, 38), (80, 41), (41, 20)])
def test_bicubic_has_pillows_order_of_rows_and_columns(size, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encoded(pixels(40, 40, noise=True), "JPEG", quality=95, subsampling="4:4:4", exif=exif)
    out = np.empty((*size, 3), np.uint8)
    images.decode_into(data, out, interpolation="bicubic", exif=True)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert error(out, np.asarray(upright.resize(size[::-1], Image.Resampling.BICUBIC))) <= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_nearest_takes_the_very_pixels_of_pillow(seed):
    draw = random.Random(seed)
    for _ in range(40):
        data, height, width, what = any_jpeg(draw, False)
        top, left, h, w = box = box_in(draw, height, width)
        size = draw.choice([(64, 64), (draw.randint(1, 300), draw.randint(1, 300)), (h, w)])
        flip = draw.random() < 0.5
        out = np.full((3, *size), 77, np.uint8).transpose(1, 2, 0) if flip else np.full((*size, 3), 77, np.uint8)
        images.decode_into(data, out, box, flip, interpolation="nearest")
        picture = Image.open(io.BytesIO(data)).convert("RGB").crop((left, top, left + w, top + h))
        want = np.asarray(picture.resize(size[::-1], Image.Resampling.NEAREST))
        assert np.array_equal(out, want[:, ::-1] if flip else want), (what, box, size, flip)


@pytest.mark.parametrize(
    ("interpolation", "flip", "planes"),
    [("bilinear", False, False), ("bilinear", True, True), ("bicubic", False, True)],
)
def test_a_box_that_keeps_its_size_has_the_images_own_pixels(interpolation, flip, planes):
    data = encoded(pixels(97, 131, 3), quality=92, subsampling=0)
    whole = by_pillow(data)
    for box in ((0, 0, 97, 131), (1, 2, 90, 120), (96, 130, 1, 1), (96, 0, 1, 131)):
        top, left, height, width = box
        out = np.empty((3, height, width) if planes else (height, width, 3), np.uint8)
        row = out.transpose(1, 2, 0) if planes else out
        images.decode_into(data, row, box, flip, interpolation=interpolation)
        expected = whole[top : top + height, left : left + width]
        assert np.array_equal(row, expected[:, ::-1] if flip else expected), box


def test_a_tiff_that_pillow_turns_itself_is_turned_once():
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    data = encoded(pixels(60, 90), "TIFF", exif=exif)
    turned = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    for asked in (False, True):
        assert images.size(data, exif=asked) == turned.shape[:2] == (90, 60)
        out = np.empty((90, 60, 3), np.uint8)
        images.decode_into(data, out, exif=asked)
        assert np.array_equal(out, turned)


@pytest.mark.parametrize("value", [0, 9, None])
def test_an_orientation_that_is_none_turns_nothing(value):
    exif = Image.Exif()
    exif[ORIENTATION] = value
    data = encoded(pixels(60, 90), "PNG", exif=b"Exif\0\0rubbish that is no directory" if value is None else exif)
    assert images.size(data, exif=True) == (60, 90)
    out = np.empty((60, 90, 3), np.uint8)
    images.decode_into(data, out, exif=True)
    assert np.array_equal(out, pixels(60, 90))


@pytest.mark.parametrize(
    ("format", "mode", "options"),
    [
        ("PNG", "RGBA", {}),
        ("PNG", "P", {}),
        ("PNG", "I;16", {}),
        ("PNG", "1", {}),
        ("GIF", "P", {}),
        ("TIFF", "CMYK", {}),
        ("WEBP", "RGB", {"lossless": True}),
        ("JPEG", "CMYK", {}),
    ],
)
def test_other_formats_and_colours_go_through_pillow_into_the_same_row(format, mode, options):
    if mode == "I;16":
        image = Image.fromarray(pixels(50, 70)[..., 0].astype(np.uint16) * 257)
    else:
        image = Image.fromarray(pixels(50, 70)).convert(mode)
    file = io.BytesIO()
    image.save(file, format, **options)
    out = np.empty((24, 32, 3), np.uint8)
    images.decode_into(file.getvalue(), out, (3, 4, 40, 60), flip=True)
    assert error(out, by_pillow(file.getvalue(), (3, 4, 40, 60), (24, 32), flip=True)) <= 1
    assert images.size(file.getvalue()) == (50, 70)


# Four rows of three grey values: SOF3, predicted from the left, with Huffman codes of four bits for all sizes.
LOSSLESS = (
    "ffd8ffc3000b080004000301011100ffc4001c0000000009000000000000000000000000000102030405060708"
    "ffda0008010100010000712951cc8b1fee00b07af18ae6d8dfffd9"
)


def test_a_lossless_jpeg_goes_through_pillow():
    data = bytes.fromhex(LOSSLESS)
    assert images.size(data) == (4, 3)
    assert images.decode(data)[..., 0].tolist() == [[10, 20, 250], [0, 255, 128], [3, 3, 90], [200, 100, 50]]
    for box in (None, (1, 0, 2, 3)):
        out = np.empty((24, 32, 3), np.uint8)
        images.decode_into(data, out, box, flip=True)
        assert error(out, by_pillow(data, box, (24, 32), flip=True)) <= 1


def test_a_reducing_gap_decodes_less_and_stays_near():
    data = encoded(pixels(1200, 1600), quality=90)
    exact, gapped = np.empty((2, 100, 100, 3), np.uint8)
    images.decode_into(data, exact)
    images.decode_into(data, gapped, reducing_gap=2.0)
    difference = np.abs(exact.astype(int) - gapped)
    assert 0 < difference.mean() < 6


@pytest.mark.parametrize("view", ["rows", "mirrored", "channels first", "reversed channels"])
def test_out_may_be_strided(view):
    data = encoded(pixels(60, 80))
    plain = np.empty((20, 30, 3), np.uint8)
    images.decode_into(data, plain)
    room = np.full((40, 40, 40, 3), 9, np.uint8)
    out = {
        "rows": room[0, :20, 5:35],
        "mirrored": room[0, :20, 34:4:-1],
        "channels first": room.reshape(-1)[: 3 * 20 * 30].reshape(3, 20, 30).transpose(1, 2, 0),
        "reversed channels": room[0, :20, 5:35, ::-1],
    }[view]
    before = room.copy()
    images.decode_into(data, out)
    assert np.array_equal(out, plain)
    out[...] = 9
    assert np.array_equal(room, before), "bytes beside the view have changed"


@pytest.mark.parametrize("library", ["pillow", "libm.so.6"])
def test_without_a_library_pillow_decodes_jpegs_too(library):
    program = (
        "import numpy as np; from slipring import images; from tests.support.pictures import *\n"
        "data = encoded(pixels(120, 160)); out = np.empty((50, 60, 3), np.uint8)\n"
        "images.decode_into(data, out, (3, 5, 100, 90), flip=True)\n"
        "assert error(out, by_pillow(data, (3, 5, 100, 90), (50, 60), flip=True)) <= 1\n"
        "print(images.backend())"
    )
    path = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "SLIPRING_IMAGES_JPEG": library, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "JPEG: Pillow" in done.stdout and library in done.stdout
    chosen = images.backend()
    assert chosen.jpeg.startswith(("libjpeg-turbo", "Pillow")) and chosen.reason in str(chosen)


def test_a_handler_may_decode_while_the_first_image_finds_its_decoder(monkeypatch):
    choose, chosen = _backend._choose, []

    def interrupted():
        if not chosen:
            chosen.append(None)
            signal.raise_signal(signal.SIGUSR1)
        return choose()

    monkeypatch.setattr(_backend, "_choose", interrupted)
    monkeypatch.setattr(_backend, "_chosen", None)
    with handling(lambda *_: chosen.append(images.backend())):
        assert images.backend() == chosen[1]


def test_a_whole_image_is_pillows_in_rgb_and_in_grey():
    for data in (encoded(pixels(31, 45), quality=80), encoded(pixels(31, 45), "PNG"), encoded(pixels(9, 7)[..., 0])):
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        ours = images.decode(data)
        assert np.array_equal(ours, np.asarray(picture)) and ours.flags.writeable
        grey = images.decode(data, channels=1)
        assert np.array_equal(grey[..., 0], np.asarray(picture.convert("L"))) and grey.shape[2] == 1


@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(pixels(20, 30, 1)).quantize(17),
        Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100),
    ],
    ids=["palette", "16 bits"],
)
def test_an_unchanged_image_has_the_values_and_the_dtype_of_its_file(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    ours = images.decode(file.getvalue(), mode="unchanged")
    assert np.array_equal(ours, np.asarray(image)) and ours.dtype == np.asarray(image).dtype and ours.flags.writeable


@pytest.mark.parametrize("orientation", [3, 6])
@pytest.mark.parametrize("options", [{}, {"channels": 1}, {"mode": "unchanged"}])
def test_a_whole_image_is_turned_as_exif_says(orientation, options):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encoded(pixels(12, 20), "PNG", exif=exif)
    want = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    want = np.asarray(want.convert("L"))[..., None] if options.get("channels") == 1 else np.asarray(want)
    assert np.array_equal(images.decode(data, exif=True, **options), want)
    assert images.decode(data, **options).shape[:2] == (12, 20)


@pytest.mark.parametrize(
    ("format", "options"), [("JPEG", {}), ("PNG", {}), ("JPEG", {"channels": 1}), ("PNG", {"mode": "unchanged"})]
)
def test_a_whole_image_that_is_broken_or_too_large_is_refused(format, options):
    data = encoded(pixels(40, 50), format)
    with pytest.raises(ImageError, match="truncated"):
        images.decode(data[:-40], **options)
    assert images.decode(data[:-40], truncated="fill", **options).shape[:2] == (40, 50)
    with pytest.raises(ImageError, match="2,000 pixels, the limit is 1,999"):
        images.decode(data, max_pixels=1999, **options)
    with pytest.raises(ImageError, match="no format"):
        images.decode(b"text that is no image", **options)
    with pytest.raises(ValueError, match="channels must be 3"):
        images.decode(data, channels=2)
