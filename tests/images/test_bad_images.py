"""Bytes that are no image, and invalid calls: the error names the value, the limit and the remedy."""

import random
import signal
import struct

import numpy as np
import pytest
from PIL import Image

from slipring import images
from slipring.errors import ImageError, SlipringError
from tests.support.pictures import by_pillow, encoded, error, pixels
from tests.support.signals import Raised, handling, raising_once

GOOD = encoded(pixels(375, 500), quality=90)


def decode(data, *args, **options):
    out = np.empty((32, 32, 3), np.uint8)
    images.decode_into(data, out, *args, **options)
    return out


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "empty"),
        (b"hello, I am a text\n" * 20, "begin with b'hello, I am"),
        (b"\xff\xd8\xff", "broken"),
        (GOOD[:100], "broken"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "cannot be read|no format"),
    ],
    ids=range(5),
)
def test_bytes_that_are_no_image_are_refused_with_a_description(data, text):
    with pytest.raises(ImageError, match=text) as caught:
        decode(data)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, SlipringError)
    with pytest.raises(ImageError):
        images.size(data)


@pytest.mark.parametrize("part", [0.15, 0.999])
def test_a_truncated_jpeg_is_refused_as_by_pillow_wherever_the_box_lies(part):
    data = GOOD[: int(len(GOOD) * part)]
    with pytest.raises(OSError, match="truncated"):
        by_pillow(data)
    for box in (None, (0, 0, 10, 10), (300, 400, 10, 10)):
        with pytest.raises(ImageError, match="truncated"):
            decode(data, box)


def test_a_jpeg_that_only_lacks_the_mark_of_its_end_is_read_where_pillow_reads_it():
    data = GOOD[:-2] + bytes(50)
    assert error(decode(data, (3, 5, 100, 90)), by_pillow(data, (3, 5, 100, 90), (32, 32))) <= 1


def test_a_side_that_no_image_has_is_refused():
    steps = [images.Resize(256), images.CenterCrop(224)]
    with pytest.raises(ImageError, match=r"scaled to 256 x 17920000 pixels"):
        images.Bytes([(encoded(pixels(1, 70000), "PNG"), 0)], steps)[0]


def test_the_rest_of_a_truncated_jpeg_can_be_decoded():
    data = GOOD[: len(GOOD) // 2]
    out = decode(data, (0, 0, 100, 100), truncated="fill")
    assert error(out, by_pillow(GOOD, (0, 0, 100, 100), (32, 32))) <= 1
    grey = decode(data, (340, 400, 30, 30), truncated="fill")
    assert np.ptp(grey) <= 2, "the missing part has one colour"


def unfinished(progressive):
    """Return JPEGs that are cut off at many places; some of them still have an end marker."""
    draw = random.Random(3)
    for number in range(40):
        sampling, quality = draw.choice(["4:4:4", "4:2:2", "4:2:0"]), draw.choice([60, 90])
        array = pixels(draw.randint(40, 200), draw.randint(40, 200), number)
        if number % 8 == 0:
            array, sampling = array[..., 0], "4:4:4"  # grey
        whole = encoded(array, subsampling=sampling, quality=quality, progressive=progressive)
        yield array.shape[:2], whole[: draw.randint(len(whole) // 3, len(whole))] + b"\xff\xd9" * (number % 2)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_box_of_a_jpeg_whose_end_is_missing_has_the_pixels_of_the_whole_image(progressive):
    draw, boxes = random.Random(4), 0
    for (height, width), data in unfinished(progressive):
        whole = np.empty((height, width, 3), np.uint8)
        try:
            images.decode_into(data, whole, truncated="fill")
        except ImageError:  # it is cut off within a table
            continue
        for _ in range(4):
            rows, columns = draw.randint(5, height), draw.randint(5, width)
            top, left = draw.randint(0, height - rows), draw.randint(0, width - columns)
            box = np.empty((rows, columns, 3), np.uint8)
            images.decode_into(data, box, (top, left, rows, columns), truncated="fill")
            assert (box == whole[top : top + rows, left : left + columns]).all()
            boxes += 1
    assert boxes > 100


def test_a_box_of_a_progressive_jpeg_without_its_last_scans_has_pillows_pixels():
    """It has its end marker, so Pillow reads it: libjpeg estimates the missing values from the surrounding blocks."""
    for seed in range(8):
        whole = encoded(pixels(150, 200, seed), progressive=True)
        scans = [at for at in range(len(whole)) if whole[at : at + 2] == b"\xff\xda"]
        data = whole[: scans[3]] + b"\xff\xd9"
        box = (40, 70, 32, 32)
        assert error(decode(data, box), by_pillow(data, box)) <= 1


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF"])
def test_the_rest_of_a_truncated_file_of_another_format_can_be_decoded(format):
    whole = encoded(pixels(200, 100), format)
    data = whole[: len(whole) // 2]
    with pytest.raises(ImageError, match="truncated"):
        decode(data)
    # (A BMP starts at the bottom.)
    there, missing = ((180, 0, 20, 100), (0, 0, 20, 100))[:: 1 if format == "BMP" else -1]
    assert error(decode(data, there, truncated="fill"), by_pillow(whole, there, (32, 32))) <= 1
    assert not decode(data, missing, truncated="fill").any(), "the missing part is black"
    assert error(decode(whole, truncated="fill"), by_pillow(whole, None, (32, 32))) <= 1


def test_a_truncated_webp_is_always_refused_because_pillow_returns_no_part_of_it():
    whole = encoded(pixels(200, 100), "WEBP")
    with pytest.raises(ImageError):
        decode(whole[: len(whole) // 2], truncated="fill")


def with_size(data, height, width):
    at = data.index(b"\xff\xc0")
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def test_a_jpeg_that_claims_too_many_pixels_is_refused_with_the_limit_and_the_remedy():
    bomb = with_size(GOOD, 65500, 65500)
    with pytest.raises(
        ImageError, match=r"65500 x 65500 = 4,290,250,000 pixels, the limit is 178,956,970; raise max_pixels"
    ):
        decode(bomb)
    with pytest.raises(ImageError, match="the limit is 1,000"):
        decode(GOOD, max_pixels=1000)


@pytest.mark.parametrize("box", [(0, 0, 376, 10), (370, 0, 6, 10), (-1, 0, 10, 10), (0, 491, 10, 10)])
def test_a_box_outside_of_the_image_is_refused(box):
    with pytest.raises(ImageError, match=r"not inside the image of 375 x 500 pixels"):
        decode(GOOD, box)
    with pytest.raises(ImageError, match=r"not inside the image of 375 x 500 pixels"):
        decode(encoded(pixels(375, 500), "BMP"), box)


@pytest.mark.parametrize("box", [(0, 0, 0, 5), (0, 0, 5, -1), (0, 0, 5), (0, 0, 1.5, 3), "abcd", (0, 0, 1 << 40, 1), 7])
def test_a_box_that_is_none_is_refused(box):
    with pytest.raises(ValueError, match="box must"):
        decode(GOOD, box)


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (np.empty((4, 4, 3), np.float32), "uint8, not an array of float32"),
        (np.empty((4, 4, 4), np.uint8), "shape"),
        ([[1, 2, 3]], "not a list"),
        (np.frombuffer(bytes(48), np.uint8).reshape(4, 4, 3), "writable"),
    ],
)
def test_an_out_that_cannot_take_it_is_refused(out, text):
    with pytest.raises(ValueError, match=text):
        images.decode_into(GOOD, out)


def test_a_scan_that_is_repeated_for_ever_is_given_up():
    data = encoded(pixels(16, 16), progressive=True)
    start = data.index(b"\xff\xda")
    end = data.index(b"\xff", start + 14)
    while data[end + 1] == 0:
        end = data.index(b"\xff", end + 1)
    with pytest.raises(ImageError, match="more than 1000 scans"):
        decode(data[:start] + data[start:end] * 1500 + b"\xff\xd9")


def test_a_failure_leaves_the_decoder_as_it_was():
    want = decode(GOOD)
    for _ in range(50):
        with pytest.raises(ImageError):
            decode(GOOD[:5000])
        with pytest.raises(ImageError):
            decode(GOOD, (0, 0, 999, 999))
        assert np.array_equal(decode(GOOD), want)


@pytest.mark.parametrize(
    ("where", "kind", "on_error"),
    [("open", Raised, "skip"), ("convert", OSError, "skip"), ("getexif", OSError, "raise")],
)
def test_a_handlers_exception_while_pillow_reads_is_no_fault_of_the_image(where, kind, on_error, monkeypatch):
    owner = Image if where == "open" else Image.Image
    read = getattr(owner, where)
    calls = []

    def interrupted(*args, **options):
        calls.append(where)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGUSR1)
        return read(*args, **options)

    samples = [(encoded(pixels(40, 40), "PNG"), 0)] * 2
    data = images.Bytes(samples, images.CenterCrop(20), on_error=on_error, exif=True)
    monkeypatch.setattr(owner, where, interrupted)
    with handling(raising_once(kind("stop"))):
        with pytest.raises(kind, match="stop") as caught:
            data[0]
        assert type(caught.value) is kind
        assert data[0][0].shape == (20, 20, 3)


class ReadAgain:
    """One broken image; the second read, which is for the name in its error, is interrupted."""

    reads = 0

    def __len__(self):
        return 1

    def __getitem__(self, index):
        self.reads += 1
        if self.reads == 2:
            signal.raise_signal(signal.SIGUSR1)
        return {"image": b"no image"}


def test_a_handlers_exception_while_a_broken_image_is_named_is_raised():
    data = images.Annotated(ReadAgain(), images.CenterCrop(20))
    with handling(raising_once(OSError("stop"))), pytest.raises(OSError, match="stop"):
        data[0]
    with pytest.raises(ImageError, match="index 0: no format"):
        data[0]
