"""Damaged JPEGs: slipring refuses those that Pillow refuses, and reads the others as Pillow does."""

import collections
import io
import random

import numpy as np
import pytest
from PIL import Image

from slipring import images
from slipring.errors import ImageError
from tests.support.parts import slow
from tests.support.pictures import pixels

KINDS = {
    "baseline": {},
    "progressive": {"progressive": True},
    "full colour": {"subsampling": 0},
    "restarts": {"restart_marker_rows": 1},
    "progressive restarts": {"restart_marker_rows": 1, "progressive": True},
}


def encoded(size, mode="RGB", **options):
    file = io.BytesIO()
    Image.fromarray(pixels(*size)).convert(mode).save(file, "JPEG", quality=85, **options)
    return file.getvalue()


def cut(draw, data, scan):
    return data[: draw.randrange(scan, len(data))]


def changed_bytes(draw, data, scan):
    data = bytearray(data)
    for _ in range(draw.randrange(1, 6)):
        data[draw.randrange(scan + 12, len(data))] = draw.randrange(256)
    return bytes(data)


def removed_bytes(draw, data, scan):
    at = draw.randrange(scan + 12, len(data))
    return data[:at] + data[at + draw.randrange(1, 200) :]


def inserted_marker(draw, data, scan):
    at = draw.randrange(scan + 12, len(data))
    return data[:at] + bytes([0xFF, draw.randrange(0xC0, 0x100)]) + data[at:]


def early_end(draw, data, scan):
    return cut(draw, data, scan) + b"\xff\xd9"


def changed_header(draw, data, scan):
    data = bytearray(data)
    data[draw.randrange(2, scan)] = draw.randrange(256)
    return bytes(data)


def segment_past_the_end(draw, data, scan):
    return cut(draw, data, scan) + b"\xff\xfe\x01\x00 \xff\xd9 "  # a comment of 256 bytes, which contains an EOI


DAMAGES = (
    cut, changed_bytes, removed_bytes, inserted_marker, early_end, changed_header, segment_past_the_end
)  # fmt: skip


def by_pillow(data):
    """The pixels, or None for an image that Pillow refuses."""
    try:
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    except (OSError, SyntaxError, ValueError):
        return None


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", [0, *map(slow, range(1, 6))])
def test_damaged_jpegs_are_read_and_refused_as_by_pillow(seed):
    draw = random.Random(seed)
    whole = [encoded(size, **options) for size in ((64, 64), (90, 120)) for options in KINDS.values()]
    whole += [encoded((64, 64), mode) for mode in ("L", "CMYK")]
    read = collections.Counter()
    for number in range(400):
        damage, data = DAMAGES[number % len(DAMAGES)], draw.choice(whole)
        data = damage(draw, data, data.index(b"\xff\xda"))
        want = by_pillow(data)
        read[damage.__name__, want is not None] += 1
        if want is None:
            with pytest.raises(ImageError):
                images.decode(data)
        else:
            got = images.decode(data)
            assert got.shape == want.shape and np.abs(got.astype(int) - want).max() <= 1, (number, damage.__name__)
    assert all(read[damage.__name__, False] for damage in DAMAGES)
    assert read["changed_bytes", True] and read["early_end", True]


def test_a_box_above_the_damaged_rows_is_read():
    whole = encoded((320, 240))
    scan = whole.index(b"\xff\xda")
    at = scan + (len(whole) - scan) * 3 // 4
    damaged = whole[:at] + b"\xff\xc0" + whole[at:]
    assert by_pillow(damaged) is None
    with pytest.raises(ImageError):
        images.decode(damaged)
    out, want = (np.empty((40, 60, 3), np.uint8) for _ in range(2))
    for data, to in ((damaged, out), (whole, want)):
        images.decode_into(data, to, (10, 20, 40, 60))
    assert np.array_equal(out, want)
    with pytest.raises(ImageError):
        images.decode_into(damaged, out, (270, 20, 40, 60))


def test_damaged_pixels_are_made_up_if_the_missing_part_is_filled():
    whole = encoded((64, 64))
    at = whole.index(b"\xff\xda") + 400
    damaged = whole[:at] + b"\xff\xc0" + whole[at:]
    assert images.decode(damaged, truncated="fill").shape == (64, 64, 3)
