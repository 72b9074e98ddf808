"""decode_into: at most 1 off Pillow's pixel values, for any file, box and size."""

import io
import os
import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image, ImageOps

from slipring import images
from slipring.errors import ImageError
from slipring.images import _backend
from tests.images.exact import off, worst
from tests.images.lossless import lossless
from tests.support.parts import slow
from tests.support.pictures import SAMPLINGS, any_jpeg, box_in, by_pillow, encoded, error, pixels, resampled

SEEDS = [0, 1, *map(slow, range(2, 6))]
ORIENTATION = 0x0112


@pytest.mark.parametrize("bicubic", [False, True], ids=["bilinear", "bicubic"])
@pytest.mark.parametrize("seed", SEEDS)
def test_any_box_of_any_jpeg_is_at_most_one_level_from_pillow(seed, bicubic):
    draw = random.Random(1000 * bicubic + seed)
    for _ in range(40):
        levels, _, what = off(draw, bicubic)
        assert levels <= 1, what


@pytest.mark.parametrize("orientation", [1, 6, 7])
@pytest.mark.parametrize("size", [(30, 41), (20, 41), (38, 39), (36, 38), (35, 38), (80, 41), (41, 20), (80, 80)])
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


def test_nearest_of_a_window_is_the_window_of_nearest():
    data = encoded(pixels(77, 101), "PNG")
    for size in (33, 250):
        whole = np.asarray(Image.open(io.BytesIO(data)).resize((size, size), Image.Resampling.NEAREST))
        rows = [(data, 0)]
        steps = [images.Resize((size, size), "nearest"), images.CenterCrop((20, 25)), images.RandomHorizontalFlip(1)]
        top, left = round((size - 20) / 2), round((size - 25) / 2)
        ours = images.Bytes(rows, steps)[0][0]
        assert np.array_equal(ours, whole[top : top + 20, left : left + 25][:, ::-1])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_thousands_of_files_are_at_most_one_level_from_pillow(seed):
    most, where, kinds = worst(200, seed)
    assert most <= 1, where
    assert len(kinds) == 2 * len(SAMPLINGS), "each with and without progressive scans"


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_no_column_or_row_of_a_box_depends_on_where_it_lies_between_blocks(sampling, progressive):
    written, blocks = SAMPLINGS[sampling]
    array = pixels(112, 144, 3) if blocks else pixels(97, 131, 3)
    if sampling == "grey":
        data = encoded(array[..., 0], quality=85, progressive=progressive)
    else:
        data = encoded(array, subsampling=written, quality=85, progressive=progressive)
    if blocks:
        data, _ = resampled(data, blocks, progressive)
    whole = by_pillow(data)
    height, width = whole.shape[:2]
    for top in (0, 1, 7, 8, 15, 16, 17, 31, 33, height - 2):
        for left in (0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, width - 2):
            if left > width - 2:
                continue
            out = np.empty((2, 2, 3), np.uint8)
            images.decode_into(data, out, (top, left, 2, 2))
            assert np.array_equal(out, whole[top : top + 2, left : left + 2]), (top, left)


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (1200, 1600), (3000, 4000)])
def test_an_image_of_any_size_becomes_a_row_of_any_size(size):
    data = encoded(pixels(*size), quality=80)
    for wanted in ((1, 1), (224, 224), (5, 300)):
        out = np.empty((*wanted, 3), np.uint8)
        images.decode_into(data, out)
        assert error(out, by_pillow(data, None, wanted)) <= 1


def test_without_a_change_of_size_every_pixel_is_pillows():
    data = encoded(pixels(375, 500), quality=92)
    out = np.empty((375, 500, 3), np.uint8)
    images.decode_into(data, out)
    assert np.array_equal(out, by_pillow(data))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("planes", [False, True])
def test_a_box_that_keeps_its_size_has_the_images_own_pixels(interpolation, flip, planes):
    data = encoded(pixels(97, 131, 3), quality=92, subsampling=0)
    whole = by_pillow(data)
    for box in (
        (0, 0, 97, 131),
        (1, 2, 90, 120),
        (96, 130, 1, 1),
        (0, 130, 97, 1),
        (96, 0, 1, 131),
        (40, 3, 2, 2),
    ):
        top, left, height, width = box
        out = np.empty((3, height, width) if planes else (height, width, 3), np.uint8)
        row = out.transpose(1, 2, 0) if planes else out
        images.decode_into(data, row, box, flip, interpolation=interpolation)
        expected = whole[top : top + height, left : left + width]
        assert np.array_equal(row, expected[:, ::-1] if flip else expected), box


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_exif_turns_the_image_and_the_box_is_meant_as_it_is_shown(orientation, flip, format):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encoded(pixels(60, 90), format, exif=exif)
    shown = ImageOps.exif_transpose(Image.open(io.BytesIO(data)).convert("RGB"))
    assert images.size(data, exif=True) == (shown.height, shown.width)
    assert images.size(data) == (60, 90)
    top, left, height, width = box = (5, 11, shown.height - 20, shown.width - 30)
    theirs = shown.crop((left, top, left + width, top + height)).resize((37, 41), Image.Resampling.BILINEAR)
    if flip:
        theirs = theirs.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    out = np.empty((41, 37, 3), np.uint8)
    images.decode_into(data, out, box, flip, exif=True)
    assert error(out, np.asarray(theirs)) <= 1


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


@pytest.mark.parametrize("value", [0, 9, 77])
def test_an_orientation_that_is_none_turns_nothing(value):
    exif = Image.Exif()
    exif[ORIENTATION] = value
    data = encoded(pixels(60, 90), "PNG", exif=exif)
    assert images.size(data, exif=True) == (60, 90)
    out = np.empty((60, 90, 3), np.uint8)
    images.decode_into(data, out, exif=True)
    assert np.array_equal(out, pixels(60, 90))


def test_exif_that_is_rubbish_turns_nothing():
    data = encoded(pixels(60, 90), "PNG", exif=b"Exif\0\0rubbish that is no directory")
    out = np.empty((60, 90, 3), np.uint8)
    for asked in (False, True):
        assert images.size(data, exif=asked) == (60, 90)
        images.decode_into(data, out, exif=asked)
        assert np.array_equal(out, pixels(60, 90))


@pytest.mark.parametrize(
    ("format", "mode", "options"),
    [
        ("PNG", "RGB", {}),
        ("PNG", "L", {}),
        ("PNG", "RGBA", {}),
        ("PNG", "P", {}),
        ("PNG", "I;16", {}),
        ("PNG", "1", {}),
        ("GIF", "P", {}),
        ("BMP", "RGB", {}),
        ("TIFF", "RGB", {}),
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


def test_a_lossless_jpeg_goes_through_pillow():
    array = pixels(40, 50)[..., 0]
    data = lossless(array)
    assert images.size(data) == (40, 50)
    assert np.array_equal(by_pillow(data)[..., 0], array), "the test's own file"
    for box in (None, (3, 5, 20, 30)):
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


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, np.frombuffer])
def test_any_buffer_can_be_decoded(kind):
    data = encoded(pixels(30, 40))
    source = np.frombuffer(data, np.uint8) if kind is np.frombuffer else kind(data)
    out, plain = np.empty((2, 10, 10, 3), np.uint8)
    images.decode_into(source, out)
    images.decode_into(data, plain)
    assert np.array_equal(out, plain)
    assert images.size(source) == (30, 40)


PROGRAM = """
import sys, random, zlib
import numpy as np
from slipring import images
from tests.support.pictures import any_jpeg, box_in
draw, total = random.Random(5), 0
for number in range(60):
    data, height, width, _ = any_jpeg(draw)
    out = np.empty((draw.randint(1, 230), draw.randint(1, 230), 3), np.uint8)
    how = ["bilinear", "bicubic"][number % 3 == 0]
    images.decode_into(data, out, box_in(draw, height, width), number % 2 == 1, interpolation=how)
    total = zlib.crc32(out, total)
print(images.backend().kernels, total)
"""


def test_the_vector_kernels_run_where_the_processor_has_them():
    """The CPU detection of some compilers finds nothing, and then the slow loops run."""
    if os.uname().machine == "aarch64":
        wanted = "neon"
    else:
        with open("/proc/cpuinfo") as file:
            flags = next((line.split() for line in file if line.startswith("flags")), [])
        wanted = "avx2" if "avx2" in flags else "c"
    code = "from slipring import images; print(images.backend().kernels)"
    environment = {k: v for k, v in os.environ.items() if k != "SLIPRING_IMAGES_KERNELS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == wanted, done.stderr


def test_vectors_and_plain_c_give_the_same_bytes():
    found = {}
    for kernels in ("", "c"):
        env = {
            **os.environ,
            "SLIPRING_IMAGES_KERNELS": kernels,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
        name, total = done.stdout.split()
        found[name] = total
    if len(found) == 1:
        pytest.skip(f"this processor has only the kernels {', '.join(found)}")
    assert len(set(found.values())) == 1, found


def test_threads_decode_at_the_same_time_and_do_not_mix():
    datas = [encoded(pixels(200 + 10 * i, 300, seed=i)) for i in range(8)]
    wanted = [by_pillow(data, None, (50, 60)) for data in datas]
    wrong = []

    def work(i):
        out = np.empty((50, 60, 3), np.uint8)
        for _ in range(30):
            images.decode_into(datas[i], out)
            if error(out, wanted[i]) > 1:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_backend_names_the_decoder_and_the_reason():
    told = images.backend()
    assert told.jpeg.startswith(("libjpeg-turbo", "Pillow"))
    assert told.reason and told.others.startswith("Pillow")
    assert told.reason in str(told)


@pytest.mark.parametrize("library", ["pillow", "/nowhere/libjpeg.so", "libm.so.6"])
def test_without_a_library_pillow_decodes_jpegs_too(library):
    program = (
        "import numpy as np; from slipring import images; from tests.support.pictures import *\n"
        "data = encoded(pixels(120, 160)); out = np.empty((50, 60, 3), np.uint8)\n"
        "images.decode_into(data, out, (3, 5, 100, 90), flip=True)\n"
        "assert error(out, by_pillow(data, (3, 5, 100, 90), (50, 60), flip=True)) <= 1\n"
        "print(images.backend())"
    )
    env = {
        **os.environ,
        "SLIPRING_IMAGES_JPEG": library,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "JPEG: Pillow" in done.stdout and library in done.stdout


def test_a_handler_may_decode_while_the_first_image_finds_its_decoder(monkeypatch):
    choose, chosen = _backend._choose, []

    def interrupted():
        if not chosen:
            chosen.append(None)
            signal.raise_signal(signal.SIGUSR1)
        return choose()

    before = signal.signal(signal.SIGUSR1, lambda *_: chosen.append(images.backend()))
    monkeypatch.setattr(_backend, "_choose", interrupted)
    monkeypatch.setattr(_backend, "_chosen", None)
    try:
        assert images.backend() == chosen[1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_whole_image_is_pillows_in_rgb_and_in_grey():
    for data in (encoded(pixels(31, 45), quality=80), encoded(pixels(31, 45), "PNG"), encoded(pixels(9, 7)[..., 0])):
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        ours = images.decode(data)
        assert np.array_equal(ours, np.asarray(picture)) and ours.flags.writeable
        grey = images.decode(data, channels=1)
        assert np.array_equal(grey[..., 0], np.asarray(picture.convert("L"))) and grey.shape[2] == 1


def stored(image, **options):
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(pixels(20, 30, 1)).quantize(17),
        Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100),
        Image.fromarray(pixels(20, 30, 2)[..., 0]),
        Image.fromarray(np.dstack([pixels(20, 30, 3), pixels(20, 30, 4)[..., :1]])),
        Image.fromarray(pixels(20, 30, 5)[..., 0] > 99),
    ],
    ids=["palette", "16 bits", "grey", "RGBA", "1 bit"],
)
def test_an_unchanged_image_has_the_values_and_the_dtype_of_its_file(image):
    ours = images.decode(stored(image), mode="unchanged")
    assert np.array_equal(ours, np.asarray(image)) and ours.dtype == np.asarray(image).dtype and ours.flags.writeable


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("options", [{}, {"channels": 1}, {"mode": "unchanged"}])
def test_a_whole_image_is_turned_as_exif_says(orientation, options):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    picture = Image.fromarray(pixels(12, 20))
    data = stored(picture, exif=exif)
    want = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    want = np.asarray(want.convert("L"))[..., None] if options.get("channels") == 1 else np.asarray(want)
    assert np.array_equal(images.decode(data, exif=True, **options), want)
    assert images.decode(data, **options).shape[:2] == (12, 20)


@pytest.mark.parametrize("options", [{}, {"channels": 1}, {"mode": "unchanged"}])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
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
