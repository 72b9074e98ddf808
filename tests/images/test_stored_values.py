"""Orientation, tables and stored values: what a file says decides, not another file, and not its format."""

import io
import struct
import zlib

import numpy as np
import pytest

from slipring import images
from slipring.errors import ImageError

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")
TURNED = range(1, 9)
FORMATS = {"JPEG": {"quality": 95, "subsampling": 0}, "PNG": {}, "WEBP": {"lossless": True}}


def scene(height=24, width=40):
    rows, columns = np.mgrid[:height, :width]
    return np.stack([rows * 9, columns * 6, rows + columns], axis=2).astype(np.uint8)


def encoded(format, **options):
    file = io.BytesIO()
    Image.fromarray(scene()).save(file, format, **FORMATS[format], **options)
    return file.getvalue()


def oriented(format, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(format, exif=exif)


def directory(kind, value, order="<"):
    """EXIF data with one tag, Orientation, of a type of TIFF."""
    number = struct.pack(order + {3: "H", 4: "I", 8: "h", 9: "i"}[kind], value).ljust(4, b"\0")
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    return b"Exif\0\0" + head + struct.pack(order + "HHHI", 1, 0x0112, kind, 1) + number + bytes(4)


def by_pillow(data, exif):
    image = Image.open(io.BytesIO(data))
    return np.asarray((ImageOps.exif_transpose(image) if exif else image).convert("RGB"))


def assert_same_as_pillow(data):
    for exif in (False, True):
        want = by_pillow(data, exif)
        assert images.size(data, exif=exif) == want.shape[:2]
        whole = images.decode(data, exif=exif)
        assert whole.shape == want.shape and np.abs(whole.astype(int) - want).max() <= 1
        part = Image.fromarray(want).crop((3, 2, 12, 9))
        for flip, size in ((False, (7, 9)), (True, (5, 4))):
            out = np.empty((*size, 3), np.uint8)
            images.decode_into(data, out, (2, 3, 7, 9), flip, exif=exif)
            scaled = np.asarray(part.resize(size[::-1], Image.Resampling.BILINEAR))
            assert np.abs(out.astype(int) - scaled[:, :: -1 if flip else 1]).max() <= 1
        sample, _ = images.Bytes([(data, 0)], exif=exif)[0]
        assert np.array_equal(sample, whole)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("orientation", TURNED)
def test_an_image_is_turned_if_exif_is_asked_for_and_else_keeps_its_size(format, orientation):
    assert_same_as_pillow(oriented(format, orientation))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4, 8, 9])
def test_an_orientation_of_any_whole_type_counts(format, order, kind):
    data = encoded(format, exif=directory(kind, 6, order))
    assert by_pillow(data, True).shape == (40, 24, 3)
    assert_same_as_pillow(data)


@pytest.mark.parametrize(
    ("text", "orientation"),
    [
        ('<rdf:Description tiff:Orientation="6"/>', 6),
        ("<tiff:Orientation>8</tiff:Orientation>", 8),
        ('tiff:Orientation=6 tiff:Orientation="5"', 5),
        ('tiff:Orientation="9"', 1),
        ("tiff:Orientation", 1),
    ],
)
@pytest.mark.parametrize("exif", [None, 3])
def test_an_orientation_in_xmp_counts_if_exif_has_none(text, orientation, exif):
    options = {"exif": directory(3, exif)} if exif else {}
    for format in ("JPEG", "WEBP"):
        data = encoded(format, xmp=text.encode(), **options)
        assert (by_pillow(data, True).shape[0] == 40) == (not exif and orientation >= 5)
        assert_same_as_pillow(data)


def without(data, marker):
    """A JPEG without its segments of a kind."""
    at, out = 2, bytearray(data[:2])
    while True:
        length = 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] != marker:
            out += data[at : at + length]
        at += length
        if data[at + 1] == 0xDA:
            return bytes(out) + data[at:]


def test_a_jpeg_without_huffman_tables_has_the_standard_ones_whatever_was_decoded_before():
    data = encoded("JPEG")  # Pillow's encoder writes the standard tables
    other = io.BytesIO()
    Image.fromarray(scene()).save(other, "JPEG", quality=30, optimize=True)
    motion = without(data, 0xC4)
    for before in (data, other.getvalue()):
        images.decode(before)
        assert np.array_equal(images.decode(motion), images.decode(data))


def test_a_jpeg_without_quantisation_tables_is_broken_whatever_was_decoded_before():
    data = encoded("JPEG")
    images.decode(data)
    with pytest.raises(ImageError, match=r"[Qq]uantization"):
        images.decode(without(data, 0xDB))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_grey_png_masks_have_their_stored_values(bits):
    values = np.arange(64).reshape(8, 8) % (1 << bits)
    data = png(values, bits, colour=0)
    stored = images.decode(data, mode="unchanged")
    assert stored.dtype == (bool if bits == 1 else np.uint8) and np.array_equal(stored, values)
    sample = images.Annotated([{"image": scene(8, 8), "mask": data}], masks="mask")[0]
    assert np.array_equal(sample["mask"], values)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_palette_png_masks_have_their_numbers(bits):
    values = np.arange(64).reshape(8, 8) % (1 << bits)
    data = png(values, bits, colour=3, palette=bytes(range(3 << bits)) if bits < 7 else bytes(768))
    assert np.array_equal(images.decode(data, mode="unchanged"), values)


@pytest.mark.parametrize("most", [3, 15, 255])
def test_a_pgm_has_its_stored_values(most):
    values = (np.arange(64).reshape(8, 8) % (most + 1)).astype(np.uint8)
    data = b"P5 8 8 %d\n" % most + values.tobytes()
    assert np.array_equal(images.decode(data, mode="unchanged"), values)


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(values, bits, colour, palette=None):
    """A PNG of grey values or of numbers of a palette, with 1 to 8 bits, as the specification describes it."""
    height, width = values.shape
    planes = (values[..., None] >> np.arange(bits - 1, -1, -1) & 1).astype(np.uint8)
    rows = np.packbits(planes.reshape(height, width * bits), axis=1)
    content = b"".join(b"\0" + row.tobytes() for row in rows)
    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))]
    parts += [chunk(b"PLTE", palette)] if palette else []
    parts += [chunk(b"IDAT", zlib.compress(content)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def test_grey_with_16_bits_is_clipped_as_by_pillow_or_scaled():
    values = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    data = file.getvalue()
    clipped = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(images.decode(data), clipped)
    scaled = np.repeat((values >> 8).astype(np.uint8)[..., None], 3, axis=2)
    assert np.array_equal(images.decode(data, grey16="scale"), scaled)
    assert np.array_equal(images.Bytes([(data, 0)], grey16="scale")[0][0], scaled)
    assert np.array_equal(images.Bytes([(data, 0)], grey16="scale", cache="1MiB")[0][0], scaled)


def test_a_side_that_is_too_long_is_an_image_error_so_that_it_can_be_skipped():
    long = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", (1 << 24) + 1, 1, 8, 0, 0, 0, 0))
    long += chunk(b"IDAT", zlib.compress(bytes(8))) + chunk(b"IEND", b"")
    with pytest.raises(ImageError, match="a side may have"):
        images.Bytes([(long, 0)])[0]
    data = images.Bytes([(long, 0), (encoded("PNG"), 1)], images.CenterCrop(8), on_error="skip")
    assert data[0][0].shape == (8, 8, 3)
