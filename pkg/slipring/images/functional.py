"""Single operations on images in memory: torchvision's functions, with its results on PIL images.

Each takes an array of uint8, height × width × 3 (red, green, blue), and returns a new, C-contiguous one. Other arrays
raise TypeError or ValueError. `interpolation` takes "nearest", "bilinear" or "bicubic", or members of torchvision's
``InterpolationMode`` and of Pillow's ``Resampling``. `fill` is one number or three, from 0 to 255; None is black.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slipring._core.options.checks import flag, integer, real
from slipring.errors import shown
from slipring.images import _decode
from slipring.images._render import ops
from slipring.images._render import recipe as recipes
from slipring.images._render.draws import Draws
from slipring.images._render.view import INTERPOLATIONS, interpolation_name
from slipring.images._steps.base import pair, pixels
from slipring.images._steps.checks import (
    center_of,
    fill_of,
    kernel_size_of,
    not_negative,
    number,
    one_or_two,
    padding_mode_of,
    padding_of,
    sequence,
)
from slipring.images._steps.crops import CenterCrop, add_padding
from slipring.images._steps.sizes import Resize

if TYPE_CHECKING:
    import enum
    from collections.abc import Sequence
    from typing import TypeAlias

    from numpy.typing import ArrayLike, NDArray

    from slipring.images._render.view import Interpolation
    from slipring.images._steps.crops import PaddingMode

    Image: TypeAlias = NDArray[np.uint8]
    Fill: TypeAlias = float | Sequence[float] | None

__all__ = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "adjust_sharpness",
    "affine",
    "autocontrast",
    "center_crop",
    "crop",
    "elastic",
    "equalize",
    "erase",
    "gaussian_blur",
    "horizontal_flip",
    "invert",
    "pad",
    "permute_channels",
    "perspective",
    "pil_gaussian_blur",
    "posterize",
    "resize",
    "resized_crop",
    "rgb_to_grayscale",
    "rotate",
    "solarize",
    "vertical_flip",
]


def _image(value):
    """Return the array, C-contiguous, and an empty recipe for it."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"image must be a numpy array of uint8, height x width x 3, not {shown(value)}")
    if value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] != 3 or not value.size:
        raise ValueError(
            f"image must be an array of uint8, height x width x 3, not of {value.dtype} with shape {value.shape}"
        )
    return np.ascontiguousarray(value), recipes.Recipe(*value.shape[:2])


def _after(image, add, *arguments):
    """Return an image after what ``add(recipe, *arguments)`` adds."""
    array, recipe = _image(image)
    add(recipe, *arguments)
    return recipes.apply(array, recipe)


def _with(image, operation):
    return _after(image, recipes.Recipe.op, operation)


def _filter(interpolation):
    return INTERPOLATIONS.index(interpolation_name(interpolation))


# ---- moves


def horizontal_flip(image: Image) -> Image:
    """Exchange left and right."""
    return _after(image, recipes.Recipe.flip)


def vertical_flip(image: Image) -> Image:
    """Exchange top and bottom."""
    return _after(image, recipes.Recipe.flip_vertically)


def crop(image: Image, top: int, left: int, height: int, width: int) -> Image:
    """Return a box of the image, in pixels; it is black where it reaches beyond the image."""
    return _after(image, recipes.Recipe.crop, *_box(top, left, height, width))


def _box(top, left, height, width):
    first = (integer(name, value, -(1 << 20), 1 << 20) for name, value in (("top", top), ("left", left)))
    return *first, pixels("height", height), pixels("width", width)


def center_crop(image: Image, output_size: int | Sequence[int]) -> Image:
    """Return the middle of the image, of a (height, width); a smaller image gets a black border."""
    return _after(image, CenterCrop(pair("output_size", output_size)).apply, Draws(0))


def resize(
    image: Image,
    size: int | Sequence[int] | None,
    interpolation: Interpolation | enum.Enum = "bilinear",
    max_size: int | None = None,
) -> Image:
    """Scale the image, with antialiasing unless `interpolation` is "nearest".

    Parameters
    ----------
    image : array
    size : int, (int, int) or None
        Length of the shorter side, or height and width; None: the longer side gets the length `max_size`.
    interpolation : {'bilinear', 'nearest', 'bicubic'}
    max_size : int, optional
        With one number as `size`: the largest length of the longer side.
    """
    one = size[0] if isinstance(size, (tuple, list)) and len(size) == 1 else size
    return _after(image, Resize(one, interpolation, max_size).apply, Draws(0))


def resized_crop(
    image: Image,
    top: int,
    left: int,
    height: int,
    width: int,
    size: int | Sequence[int],
    interpolation: Interpolation | enum.Enum = "bilinear",
) -> Image:
    """Return a box of the image, in pixels, scaled to `size` as in `resize`."""
    array, recipe = _image(image)
    recipe.crop(*_box(top, left, height, width))
    one = size[0] if isinstance(size, (tuple, list)) and len(size) == 1 else size
    Resize(one, interpolation).apply(recipe, Draws(0))
    return recipes.apply(array, recipe)


def pad(image: Image, padding: int | Sequence[int], fill: Fill = None, padding_mode: PaddingMode = "constant") -> Image:
    """Add a border of `padding` pixels, as in `slipring.images.Pad`."""
    return _after(image, add_padding, padding_of(padding), padding_mode_of(padding_mode), fill_of(fill))


def erase(image: Image, i: int, j: int, h: int, w: int, v: ArrayLike) -> Image:
    """Overwrite a box: its first row `i` and column `j`, its height `h` and width `w`, in pixels.

    `v` is a number, three numbers, or an array of ``h`` × ``w`` × 3, which is converted to uint8.
    """
    array, recipe = _image(image)
    top, left = integer("i", i, 0, recipe.height), integer("j", j, 0, recipe.width)
    rows, columns = integer("h", h, 0, recipe.height - top), integer("w", w, 0, recipe.width - left)
    out = array.copy()
    try:
        values = np.broadcast_to(np.asarray(v).astype(np.uint8), (rows, columns, 3))
    except (TypeError, ValueError):
        raise ValueError(f"v must be a number, three numbers or an array of h x w x 3, not {shown(v)}") from None
    out[top : top + rows, left : left + columns] = values
    return out


# ---- colours


def adjust_brightness(image: Image, brightness_factor: float) -> Image:
    """Multiply the brightness by a factor from 0; 1 changes nothing."""
    return _with(image, ops.BrightnessOp(not_negative("brightness_factor", brightness_factor)))


def adjust_contrast(image: Image, contrast_factor: float) -> Image:
    """Change the contrast by a factor from 0, which gives grey; 1 changes nothing."""
    return _with(image, ops.ContrastOp(not_negative("contrast_factor", contrast_factor)))


def adjust_saturation(image: Image, saturation_factor: float) -> Image:
    """Change the saturation by a factor from 0, which gives grey; 1 changes nothing."""
    return _with(image, ops.SaturationOp(not_negative("saturation_factor", saturation_factor)))


def adjust_hue(image: Image, hue_factor: float) -> Image:
    """Turn the hue by -0.5 to 0.5 of a circle."""
    factor = number("hue_factor", hue_factor, -0.5, 0.5, "a number from -0.5 to 0.5")
    return _with(image, ops.HueOp(factor))


def adjust_sharpness(image: Image, sharpness_factor: float) -> Image:
    """Change the sharpness by a factor: 0 blurs, 1 changes nothing, 2 doubles it."""
    return _with(image, ops.SharpnessOp(not_negative("sharpness_factor", sharpness_factor)))


def rgb_to_grayscale(image: Image, num_output_channels: int = 1) -> Image:
    """Return the image in grey: height × width × `num_output_channels`, which is 1 or 3 (equal) channels."""
    if integer("num_output_channels", num_output_channels) not in (1, 3):
        raise ValueError(f"num_output_channels must be 1 or 3, not {shown(num_output_channels)}")
    grey = _with(image, ops.GrayscaleOp())
    return grey if num_output_channels == 3 else grey[..., :1].copy()


def posterize(image: Image, bits: int) -> Image:
    """Keep the upper `bits` (0 to 8) of each pixel value."""
    return _with(image, ops.PosterizeOp(integer("bits", bits, 0, 8)))


def solarize(image: Image, threshold: float) -> Image:
    """Invert all pixel values that are at least `threshold`, from 0 to 256."""
    return _with(image, ops.SolarizeOp(number("threshold", threshold, 0, 256, "a number from 0 to 256")))


def invert(image: Image) -> Image:
    """Replace each pixel value x by 255 - x."""
    return _with(image, ops.InvertOp())


def autocontrast(image: Image) -> Image:
    """Stretch each channel to the full range of pixel values."""
    return _with(image, ops.AutocontrastOp())


def equalize(image: Image) -> Image:
    """Equalize the histogram of each channel."""
    return _with(image, ops.EqualizeOp())


def permute_channels(image: Image, permutation: Sequence[int]) -> Image:
    """Return the image with its channels in another order, such as (2, 1, 0): each of 0, 1 and 2 once."""
    what = "the numbers 0, 1 and 2 in any order"
    order = sequence("permutation", permutation, (3,), what)
    if sorted(order) != [0, 1, 2]:
        raise ValueError(f"permutation must be {what}, not {shown(permutation)}")
    return _with(image, ops.PermuteChannelsOp([int(channel) for channel in order]))


# ---- distortions and blur


def affine(
    image: Image,
    angle: float,
    translate: Sequence[float],
    scale: float,
    shear: float | Sequence[float],
    interpolation: Interpolation | enum.Enum = "nearest",
    fill: Fill = None,
    center: Sequence[float] | None = None,
) -> Image:
    """Shear, scale, turn and move the image; its size stays.

    Parameters
    ----------
    image : array
    angle : float
        Degrees, clockwise.
    translate : (float, float)
        Translation to the right and down, in pixels.
    scale : float
        Factor of the size, above 0.
    shear : float or (float, float)
        Angles in x and in y, in degrees; one number is that in x.
    interpolation : {'nearest', 'bilinear', 'bicubic'}
    fill : float or (float, float, float), optional
    center : (float, float), optional
        Coordinates (x, y) of the fixed point; the middle by default.
    """
    array, recipe = _image(image)
    middle = center_of(center) or (recipe.width * 0.5, recipe.height * 0.5)
    factor = number("scale", scale, np.nextafter(0, 1), np.inf, "a number above 0")
    shears = (shear, 0.0) if not isinstance(shear, (tuple, list)) else shear * 2 if len(shear) == 1 else shear
    matrix = ops.inverse_affine(
        middle,
        real("angle", angle),
        sequence("translate", translate, (2,), "two numbers"),
        factor,
        sequence("shear", shears, (2,), "a number, or two"),
    )
    ops.add_affine(recipe, matrix, _filter(interpolation), fill_of(fill))
    return recipes.apply(array, recipe)


def rotate(
    image: Image,
    angle: float,
    interpolation: Interpolation | enum.Enum = "nearest",
    expand: bool = False,
    center: Sequence[float] | None = None,
    fill: Fill = None,
) -> Image:
    """Turn the image counter-clockwise by an angle in degrees.

    With `expand`, the result is so large that it shows the whole turned image. `center` is the fixed point (x, y);
    it is the middle by default.
    """
    array, recipe = _image(image)
    flag("expand", expand)
    turn = number("angle", angle, -np.inf, np.inf, "a number of degrees")
    ops.add_rotation(recipe, turn, _filter(interpolation), bool(expand), center_of(center), fill_of(fill))
    return recipes.apply(array, recipe)


def perspective(
    image: Image,
    startpoints: Sequence[Sequence[float]] | None,
    endpoints: Sequence[Sequence[float]] | None,
    interpolation: Interpolation | enum.Enum = "bilinear",
    fill: Fill = None,
    coefficients: Sequence[float] | None = None,
) -> Image:
    """Distort the image as if it were seen from the side; its size stays.

    Parameters
    ----------
    image : array
    startpoints, endpoints : sequence of four (x, y), or None
        Points in the image, and where they lie in the result.
    interpolation : {'bilinear', 'nearest', 'bicubic'}
    fill : float or (float, float, float), optional
    coefficients : sequence of 8 floats, optional
        In place of the points: the map from the result to the image, as in Pillow's ``Image.transform``.
    """
    if coefficients is None:
        found: Sequence[float] = ops.perspective_coefficients(
            _points("startpoints", startpoints), _points("endpoints", endpoints)
        )
    elif startpoints is not None and endpoints is not None:
        raise ValueError("coefficients must be None if startpoints and endpoints are given")
    else:
        found = sequence("coefficients", coefficients, (8,), "8 numbers")
    return _with(image, ops.PerspectiveOp(_filter(interpolation), found, fill_of(fill)))


def _points(name, value):
    what = "four pairs (x, y)"
    if not isinstance(value, (tuple, list)) or len(value) != 4:
        raise ValueError(f"{name} must be {what}, not {shown(value)}")
    return [sequence(name, point, (2,), what) for point in value]


def elastic(
    image: Image,
    displacement: ArrayLike,
    interpolation: Interpolation | enum.Enum = "bilinear",
    fill: Fill = None,
) -> Image:
    """Move each pixel by a displacement of its own.

    Parameters
    ----------
    image : array
    displacement : array-like of float32, 1 × height × width × 2
        Source of each pixel of the result, relative to the pixel's own position: x and y as multiples of half of the
        image's width and height. A tensor of torch counts as an array.
    interpolation : {'bilinear', 'nearest', 'bicubic'}
    fill : float or (float, float, float), optional
        Colour of pixels that come from outside of the image, from 0 to 255. None gives the same borders as 0 does in
        torchvision.

    Examples
    --------
    >>> import numpy as np
    >>> from slipring.images import functional
    >>> image = np.arange(12, dtype=np.uint8).reshape(1, 4, 3)
    >>> displacement = np.zeros((1, 1, 4, 2))
    >>> displacement[..., 0] = 0.5  # a quarter of the width
    >>> functional.elastic(image, displacement)[0, :, 0].tolist()
    [3, 6, 9, 0]
    """
    array, _ = _image(image)
    moves = np.asarray(displacement, np.float32)
    if moves.shape != (1, *array.shape[:2], 2):
        raise ValueError(f"displacement must have the shape {(1, *array.shape[:2], 2)}, not {moves.shape}")
    x, y = (np.ascontiguousarray(moves[0, ..., axis]) for axis in (0, 1))
    out = np.empty_like(array)
    _decode.displace(array, out, x, y, _filter(interpolation), fill_of(fill))
    return out


def gaussian_blur(
    image: Image, kernel_size: int | Sequence[int], sigma: float | Sequence[float] | None = None
) -> Image:
    """Blur the image by torchvision's Gaussian kernel; the borders are reflected.

    Parameters
    ----------
    image : array
    kernel_size : int or (int, int)
        Width and height of the kernel in pixels, both odd.
    sigma : float or (float, float), optional
        Standard deviation in x and y, in pixels; by default 0.15 times the size of the kernel + 0.35.
    """
    size = kernel_size_of(kernel_size)
    deviations = tuple(n * 0.15 + 0.35 for n in size) if sigma is None else one_or_two("sigma", sigma, 0)
    if not all(deviations):
        raise ValueError(f"sigma must be above 0, not {shown(sigma)}")
    return _with(image, ops.GaussianBlurOp(size, deviations))


def pil_gaussian_blur(image: Image, radius: float | Sequence[float]) -> Image:
    """Blur the image as Pillow's ``ImageFilter.GaussianBlur`` does, by a radius in pixels, or by two (x, y)."""
    return _with(image, ops.PilGaussianBlurOp(one_or_two("radius", radius, 0)))
