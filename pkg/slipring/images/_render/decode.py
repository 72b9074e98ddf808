"""One image: from encoded bytes to a resized crop in an array."""

from __future__ import annotations

import io
import math
import struct
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slipring._core.options.checks import flag, integer, one_of, real
from slipring._core.ring._check import from_handler
from slipring._core.ring._slot import DECODE, RESIZE
from slipring.errors import ImageError, shown
from slipring.images import _decode
from slipring.images._render.backend import backend, pillow
from slipring.images._render.view import INTERPOLATIONS, WHOLE, Placement, interpolation_name

if TYPE_CHECKING:
    import enum
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from slipring.images._render.view import Interpolation

MAX_PIXELS = 178_956_970  # Pillow's limit, too: a decompression bomb of a few kB would take all memory, or hours
_ORIENTATION = 0x0112  # the tag of EXIF
LONGEST = 1 << 24  # side of an image, before and after scaling


def size(data: Buffer, exif: bool = False) -> tuple[int, int]:
    """Return the size of an encoded image, without decoding it.

    Parameters
    ----------
    data : bytes-like
    exif : bool
        Apply EXIF's orientation: exchange width and height if it says so.

    Returns
    -------
    (int, int)
        Height and width, in pixels.

    Raises
    ------
    ImageError
        The bytes are not a readable image.
    """
    encoded("data", data)
    flag("exif", exif)
    width, height, orientation = look(data, exif)
    return (width, height) if exif and orientation >= 5 else (height, width)


def encoded(name, data):
    """Raise TypeError if `data` is not bytes-like."""
    try:
        fits = memoryview(data).ndim > 0
    except TypeError:
        fits = False
    if not fits:
        raise TypeError(f"{name} must be bytes-like, not {shown(data)}")


def look(data, exif):
    """Return (width, height, orientation) as stored, of an image of any format; orientation 1 unless `exif`."""
    try:
        found = _decode.look(data)
    except ValueError as error:
        raise ImageError(str(error)) from None
    if found is not None:
        return found if exif else (*found[:2], 1)
    with _open(data) as image:
        # Pillow itself rotates a TIFF; when it exchanges the sizes depends on its release.
        if image.format == "TIFF":
            stored = image.tag_v2[256], image.tag_v2[257]
            return (*stored[:: -1 if _orientation(image) >= 5 else 1], 1)
        return *image.size, _orientation(image) if exif else 1


def _orientation(image):
    """Return EXIF's orientation; 1 if there is none, or it cannot be read."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except (OSError, SyntaxError, ValueError, TypeError, KeyError, EOFError, struct.error) as error:
        if from_handler(error):
            raise
        return 1
    return value if value in range(1, 9) else 1


def decode(
    data: Buffer,
    channels: Literal[1, 3] = 3,
    mode: Literal["unchanged"] | None = None,
    *,
    exif: bool = False,
    truncated: Literal["raise", "fill"] = "raise",
    grey16: Literal["clip", "scale"] = "clip",
    max_pixels: int = MAX_PIXELS,
) -> NDArray[Any]:
    """Return a whole image as an array, which the caller may change.

    Parameters
    ----------
    data : bytes-like
        A JPEG, or any format that Pillow reads.
    channels : {3, 1}
        RGB, or Pillow's grey of it. The array is uint8, height × width × channels.
    mode : {'unchanged'}, optional
        Return the values that the file stores, in their own dtype and number of channels, whatever `channels` is: the
        numbers of a palette, 1 (as bool), 2, 4 or 16 bits of grey. With one channel the array is height × width. (Of
        colours with 16 bits Pillow reads 8.)
    exif, truncated, grey16, max_pixels
        As in `decode_into`.

    Raises
    ------
    ImageError
        The bytes are not an image, or the image is broken, truncated or larger than `max_pixels`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from slipring import images
    >>> data = Path("train/cat/0.jpg").read_bytes()
    >>> height, width = images.size(data)
    >>> images.decode(data, channels=1).shape == (height, width, 1)
    True
    """
    encoded("data", data)
    if integer("channels", channels) not in (1, 3):
        raise ValueError(f"channels must be 3 (RGB) or 1 (grey), not {shown(channels)}")
    one_of("mode", mode, (None, "unchanged"))
    reading = ImageReading("bilinear", None, exif, truncated, max_pixels, grey16)
    if mode == "unchanged":
        with _open(data) as image:
            scale = _scale_of(image)
            return _unscaled(np.array(_loaded(image, reading, lambda: _upright(image, reading.exif))), *scale)
    width, height, orientation = look(data, reading.exif)
    check_size(width, height, reading.max_pixels)
    out = np.empty((width, height, 3) if orientation >= 5 else (height, width, 3), np.uint8)
    write(data, WHOLE, _decode.Target(out), reading)
    if channels == 3:
        return out
    return np.array(pillow().fromarray(out).convert("L"))[..., None]


def decode_into(
    data: Buffer,
    out: NDArray[np.uint8],
    box: Sequence[int] | None = None,
    flip: bool = False,
    reducing_gap: float | None = None,
    exif: bool = False,
    interpolation: Interpolation | enum.Enum = "bilinear",
    truncated: Literal["raise", "fill"] = "raise",
    grey16: Literal["clip", "scale"] = "clip",
    max_pixels: int = MAX_PIXELS,
) -> None:
    """Decode a box of an encoded image, scale it to the size of `out`, and write it there.

    Pixels outside of the box are not decoded. Each value of the result differs by at most one from the result of
    Pillow's ``crop`` and ``resize``. A JPEG is decoded without the GIL.

    Parameters
    ----------
    data : bytes-like
        A JPEG, or any format that Pillow reads.
    out : numpy.ndarray
        Writable, uint8, height × width × 3 (RGB); rows, pixels and channels may be strided.
    box : (top, left, height, width), optional
        In pixels; the whole image if None.
    flip : bool
        Exchange left and right.
    reducing_gap : float, optional
        Allow a JPEG to be decoded at 1/2, 1/4 or 1/8, as long as it stays this many times larger than the
        result: faster for large images, but not exact. At least 1; larger numbers give closer results.
    exif : bool
        Apply EXIF's orientation; `box` then refers to the image with the orientation applied.
    interpolation : {'bilinear', 'bicubic', 'nearest'}
        The first two are antialiased, as Pillow's. 'nearest' takes the same pixels as Pillow. Members of torchvision's
        ``InterpolationMode`` and of Pillow's ``Resampling`` count as their names.
    truncated : {'raise', 'fill'}
        Raise an error for an image whose end is missing, as Pillow does, or fill the missing part with grey. In other
        formats than JPEG, Pillow fills it, mostly with black. A truncated WebP always raises an error, because Pillow
        returns no part of it.
    grey16 : {'clip', 'scale'}
        What becomes of a grey image with 16 bits: each value above 255 is white, as Pillow converts it, or of each
        value the upper 8 bits are taken, as Pillow does with colours of 16 bits.
    max_pixels : int
        The largest number of pixels that is accepted.

    Raises
    ------
    ImageError
        The bytes are not an image, or the image is broken, truncated or larger than `max_pixels`, or does not contain
        the box.
    TypeError, ValueError
        `data` is not bytes-like, `out` is not such an array, or an option is not one of those above.

    Examples
    --------
    >>> from pathlib import Path
    >>> from slipring import Loader, images
    >>> class Thumbnails:
    ...     paths = ["train/cat/0.jpg", "train/dog/2.jpg"]
    ...     def __len__(self):
    ...         return len(self.paths)
    ...     def fetch_into(self, indices, empty):  # the batch is decoded where it will be read
    ...         batch = empty((len(indices), 16, 16, 3), "uint8")
    ...         for row, index in zip(batch, indices):
    ...             images.decode_into(Path(self.paths[index]).read_bytes(), row)
    ...         return batch
    >>> with Loader(Thumbnails(), batch_size=2, num_workers=1) as loader:
    ...     print(next(iter(loader)).shape)
    (2, 16, 16, 3)
    """
    encoded("data", data)
    flag("flip", flip)
    if not isinstance(out, np.ndarray) or out.dtype != np.uint8:
        kind = f"an array of {out.dtype}" if isinstance(out, np.ndarray) else f"a {type(out).__name__}"
        raise ValueError(f"out must be a numpy array of uint8, not {kind}")
    if not out.flags.writeable:
        raise ValueError("out must be writable")
    if box is not None:
        box = _box(box)
    reading = ImageReading(interpolation, reducing_gap, exif, truncated, max_pixels, grey16)
    write(data, Placement(box, None, (0, 0), flip, reading.filter), _decode.Target(out), reading)


class ImageReading:
    """The options for reading images, checked once; see `decode_into`."""

    def __init__(
        self,
        interpolation="bilinear",
        reducing_gap=None,
        exif=False,
        truncated="raise",
        max_pixels=MAX_PIXELS,
        grey16="clip",
    ):
        one_of("truncated", truncated, ("raise", "fill"))
        one_of("grey16", grey16, ("clip", "scale"))
        flag("exif", exif)
        self.gap = 0.0 if reducing_gap is None else real("reducing_gap", reducing_gap, "a number or None")
        if reducing_gap is not None and not 1 <= self.gap < math.inf:
            raise ValueError(f"reducing_gap must be at least 1, or None, not {shown(reducing_gap)}")
        self.filter = INTERPOLATIONS.index(interpolation_name(interpolation))
        self.exif = bool(exif)
        self.fill = truncated == "fill"
        self.scale16 = grey16 == "scale"
        self.max_pixels = integer("max_pixels", max_pixels, 1, (1 << 62) - 1)


class Image:
    """An image that recipes crop; `stored` is its (height, width) before EXIF's `orientation`."""

    stage: int  # of the worker's time
    stored: tuple[int, int]
    orientation: int

    @property
    def size(self) -> tuple[int, int]:
        """(int, int): height and width, with the orientation applied."""
        height, width = self.stored
        return (width, height) if self.orientation >= 5 else (height, width)


class EncodedImage(Image):
    """The bytes of an image of any format, which each `write` decodes."""

    stage = DECODE

    def __init__(self, data, reading):
        width, height, self.orientation = look(data, reading.exif)
        check_size(width, height, reading.max_pixels)
        self.stored, self.data, self.reading = (height, width), data, reading

    def write(self, placement, target):
        """Write a part of the image; raise ImageError if the image is broken or does not contain the box."""
        write(self.data, placement, target, self.reading)


class DecodedImage(Image):
    """An image in memory: height × width × 3, uint8, C-contiguous."""

    stage = RESIZE

    def __init__(self, pixels, orientation=1):
        self.pixels, self.orientation, self.stored = pixels, orientation, pixels.shape[:2]

    def write(self, placement, target):
        if _decode.crop_pixels(self.pixels, target, placement, self.orientation) == _decode.BAD_BOX:
            raise _outside(placement.box, *self.stored)


def write(data, placement, target, reading):
    """Decode the part of an image that a `Placement` names into a `Target`."""
    backend()
    code, message, width, height = _decode.decode(data, target, placement, reading)
    if code == 0:
        return
    if code in (_decode.NOT_FOR_US, _decode.TRUNCATED):
        try:
            _by_pillow(data, reading).write(placement, target)
        except ImageError as error:
            if code == _decode.NOT_FOR_US or "truncated" not in str(error):
                raise
            # If only the end marker is missing, Pillow may have read the image.
            raise ImageError(
                "the JPEG is truncated: its end is missing; truncated='fill' has grey in its place"
            ) from error
    elif code == _decode.TOO_LARGE:
        check_size(width, height, reading.max_pixels)
    elif code == _decode.BAD_BOX:
        raise _outside(placement.box, height, width)
    else:
        raise ImageError(f"the JPEG is broken: {message or 'it ends too early'}")


def _by_pillow(data, reading):
    """Decode a whole image of a format that libjpeg does not decode."""
    with _open(data) as image:
        pixels = _loaded(image, reading, lambda: _rgb(image, reading.scale16))
        orientation = _orientation(image) if reading.exif else 1  # only now: loading rotates a TIFF
    return DecodedImage(np.ascontiguousarray(pixels), orientation)


def _loaded(image, reading, convert):
    """Return the result of `convert`, which decodes an image of Pillow's; raise ImageError if it cannot be decoded."""
    width, height = image.size
    check_size(width, height, reading.max_pixels)
    try:
        if reading.fill:
            _load_what_is_there(image)
        return convert()
    except MemoryError:
        raise
    except Exception as error:  # each format's reader raises its own kinds
        if from_handler(error):
            raise
        raise ImageError(f"the {image.format} image is broken: {error}") from error


def _rgb(image, scale16):
    """Return the RGB pixels of an image of Pillow's."""
    image.load()
    if not scale16 or not (image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))):
        return np.asarray(image.convert("RGB"))
    grey = (np.asarray(image) >> 8).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)


def _scale_of(image):
    """Return (largest stored value, largest value after Pillow has scaled it) of an image that is not loaded yet."""
    if not image.tile:
        return 1, 1
    codec, _, _, args = image.tile[0]
    raw, *rest = (args,) if isinstance(args, str) else args
    if codec.startswith("ppm"):
        return rest[-1] if rest else 255, 65535 if image.mode == "I" else 255
    return {"L;2": 3, "L;4": 15}.get(str(raw)[:3], 255), 255


def _unscaled(pixels, stored, scaled):
    """Return the values that a file stores, of pixels that Pillow has scaled."""
    if stored == scaled or pixels.dtype == bool:
        return pixels
    return ((pixels.astype(np.int64) * stored + scaled // 2) // scaled).astype(pixels.dtype)


def _upright(image, exif):
    """Return an image with EXIF's orientation applied, if `exif`."""
    from PIL import ImageOps

    image.load()  # this rotates a TIFF
    return ImageOps.exif_transpose(image) if exif and _orientation(image) != 1 else image


def _load_what_is_there(image):
    """Decode an image that may be truncated. Pillow's own switch for that would apply to all threads."""
    try:
        image.load()
    except OSError as error:
        if "truncated" not in str(error) or from_handler(error):
            raise
        image.tile = []  # decode nothing more: the image is the part that has been decoded


def _open(data):
    Image = pillow()
    try:
        return Image.open(io.BytesIO(data))
    except Image.DecompressionBombError as error:
        raise ImageError(f"the image is larger than Pillow reads: {error}; see PIL.Image.MAX_IMAGE_PIXELS") from None
    except Image.UnidentifiedImageError:
        if not len(data):
            raise ImageError("there are no bytes: the image is empty") from None
        start = bytes(memoryview(data)[:12])
        raise ImageError(f"no format that can be read: the {len(data)} bytes begin with {start!r}") from None
    except MemoryError:
        raise
    except Exception as error:  # each format's reader raises its own kinds
        if from_handler(error):
            raise
        raise ImageError(f"the image cannot be read: {error}") from error


def check_size(width, height, most):
    """Raise ImageError if an image is too large."""
    if width * height > most:
        raise ImageError(
            f"the image claims {width} x {height} = {width * height:,} pixels, the limit is {most:,}; "
            f"raise max_pixels if you trust it"
        )
    if max(width, height) > LONGEST:
        raise ImageError(f"the image claims {width} x {height} pixels, a side may have {LONGEST}")


def _outside(box, height, width):
    return ImageError(
        f"the box (top, left, height, width) = {box} is not inside the image of {height} x {width} pixels"
    )


def _box(box):
    try:
        top, left, height, width = (int(value) for value in box)
        exact = all(int(value) == value for value in box)
    except (TypeError, ValueError):
        exact = False
    if not exact or not all(-(1 << 31) < value < 1 << 31 for value in (top, left, height, width)):
        raise ValueError(f"box must be four whole numbers (top, left, height, width), not {shown(box)}")
    if height < 1 or width < 1:
        raise ValueError(f"box must have a height and a width of at least 1, not {height} x {width}")
    return top, left, height, width
