"""Transforms that turn, distort and blur the image: torchvision's, with its results on PIL images."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

from slipring._core.options.checks import flag
from slipring.errors import shown
from slipring.images._render import ops
from slipring.images._render.ops import add_affine, add_rotation, inverse_affine, perspective_coefficients
from slipring.images._steps.base import RandomStep, Transform
from slipring.images._steps.checks import (
    angles,
    center_of,
    fill_of,
    filter_of,
    interpolation_or_random,
    kernel_size_of,
    number,
    one_or_two,
    sequence,
    span,
)

if TYPE_CHECKING:
    import enum
    from collections.abc import Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe
    from slipring.images._render.view import InterpolationOrRandom

    Fill = float | Sequence[float] | None


class Filling(Transform):
    """A step that interpolates between pixels, and fills the parts of the result that show no part of the image."""

    fill: Fill
    interpolation: InterpolationOrRandom

    def _set_filling(self, interpolation: InterpolationOrRandom | enum.Enum, fill: Fill) -> None:
        self.interpolation = interpolation_or_random(interpolation)
        self._filter = filter_of(self.interpolation)
        self.fill, self._fill = fill, fill_of(fill)

    def _drawn_filter(self, draws):
        return draws.below(2) if self._filter is None else self._filter


class RandomAffine(Filling):
    """Turn, move, scale and shear the image by amounts that are drawn uniformly; its size stays.

    Parameters
    ----------
    degrees : float or (float, float)
        Range of the angle, in degrees clockwise; one number x is the range from -x to x.
    translate : (float, float), optional
        Largest moves to the right and down, as shares (0 to 1) of width and height; moves are whole pixels in both
        directions.
    scale : (float, float), optional
        Range of the factor of the size.
    shear : float, (float, float) or (float, float, float, float), optional
        Range of the angle in x, in degrees; four numbers are the ranges in x and in y.
    interpolation : {'nearest', 'bilinear', 'bicubic', 'random'}
        'random' draws one of bilinear and bicubic for each sample.
    fill : float or (float, float, float), optional
        Colour where the result shows no part of the image, from 0 to 255; None is black.
    center : (float, float), optional
        Coordinates (x, y) of the fixed point, in pixels; the middle by default.

    Examples
    --------
    >>> from slipring import images
    >>> steps = [images.Resize((24, 24)), images.RandomAffine(degrees=10, translate=(0.1, 0.1), scale=(0.9, 1.1))]
    >>> data = images.Folder("train/", steps)
    """

    translate: tuple[float, ...] | None
    scale: tuple[float, float] | None
    is_random: bool = True

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: InterpolationOrRandom | enum.Enum = "nearest",
        fill: Fill = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        self.degrees: tuple[float, ...] = angles("degrees", degrees)
        self.translate = None
        if translate is not None:
            what = "two numbers from 0 to 1, or None"
            self.translate = sequence("translate", translate, (2,), what)
            if not all(0 <= share <= 1 for share in self.translate):
                raise ValueError(f"translate must be {what}, not {shown(translate)}")
        self.scale = None
        if scale is not None:
            what = "two numbers above 0, the smaller first, or None"
            self.scale = span("scale", scale, math.nextafter(0, 1), math.inf, what)
        self.shear: tuple[float, ...] | None = None if shear is None else angles("shear", shear, (2, 4))
        self._set_filling(interpolation, fill)
        self.center: tuple[float, float] | None = center_of(center)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        height, width = recipe.height, recipe.width
        angle = draws.uniform(*self.degrees)
        x, y, scale, shear_x, shear_y = 0, 0, 1.0, 0.0, 0.0
        if self.translate is not None:
            reach_x, reach_y = self.translate[0] * width, self.translate[1] * height
            x, y = round(draws.uniform(-reach_x, reach_x)), round(draws.uniform(-reach_y, reach_y))
        if self.scale is not None:
            scale = draws.uniform(*self.scale)
        if self.shear is not None:
            shear_x = draws.uniform(*self.shear[:2])
            if len(self.shear) == 4:
                shear_y = draws.uniform(*self.shear[2:])
        center = (width * 0.5, height * 0.5) if self.center is None else self.center
        matrix = inverse_affine(center, angle, (x, y), scale, (shear_x, shear_y))
        add_affine(recipe, matrix, self._drawn_filter(draws), self._fill)


class RandomRotation(Filling):
    """Turn the image by an angle that is drawn uniformly.

    Parameters
    ----------
    degrees : float or (float, float)
        Range of the angle, in degrees counter-clockwise; one number x is the range from -x to x.
    expand : bool
        Make the result so large that it shows the whole turned image. The sizes of samples differ then.
    interpolation, center, fill
        As in `RandomAffine`.

    Examples
    --------
    >>> from slipring import images
    >>> steps = [images.Resize((24, 24)), images.RandomRotation(degrees=15, interpolation="bilinear")]
    >>> data = images.Folder("train/", steps)
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: InterpolationOrRandom | enum.Enum = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Fill = 0,
    ) -> None:
        self.degrees: tuple[float, ...] = angles("degrees", degrees)
        self._set_filling(interpolation, fill)
        flag("expand", expand)
        self.expand: bool = bool(expand)
        self.center: tuple[float, float] | None = center_of(center)
        self.is_random: bool = self.degrees[0] < self.degrees[1] or self._filter is None

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        angle = draws.uniform(*self.degrees)
        add_rotation(recipe, angle, self._drawn_filter(draws), self.expand, self.center, self._fill)

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if self.expand else size


class RandomPerspective(Filling, RandomStep):
    """Distort the image as if it were seen from the side, with probability `p`; its size stays.

    Parameters
    ----------
    distortion_scale : float
        From 0 to 1: each corner moves by up to this share of half the width and half the height.
    p : float
    interpolation, fill
        As in `RandomAffine`.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.RandomPerspective(distortion_scale=0.5, p=1)])
    """

    def __init__(
        self,
        distortion_scale: float = 0.5,
        p: float = 0.5,
        interpolation: InterpolationOrRandom | enum.Enum = "bilinear",
        fill: Fill = 0,
    ) -> None:
        super().__init__(p)
        self.is_random: bool = self.p > 0
        self.distortion_scale: float = number("distortion_scale", distortion_scale, 0, 1, "a number from 0 to 1")
        self._set_filling(interpolation, fill)

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        height, width = recipe.height, recipe.width
        rows = int(self.distortion_scale * (height // 2)) + 1
        columns = int(self.distortion_scale * (width // 2)) + 1
        right, bottom = width - columns, height - rows
        below = draws.below
        end = [
            (below(columns), below(rows)),
            (right + below(columns), below(rows)),
            (right + below(columns), bottom + below(rows)),
            (below(columns), bottom + below(rows)),
        ]
        start = (0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1)
        recipe.op(ops.PerspectiveOp(self._drawn_filter(draws), perspective_coefficients(start, end), self._fill))


class ElasticTransform(Filling):
    """Move each pixel by a random amount that changes smoothly over the image, as if it were seen through water.

    Parameters
    ----------
    alpha : float or (float, float)
        Strength of the moves, in x and in y.
    sigma : float or (float, float)
        Smoothness: the deviations, in pixels, of the blur of the moves in x and in y; 0 does not blur.
    interpolation, fill
        As in `RandomAffine`.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.ElasticTransform(alpha=30.0)])
    """

    is_random: bool = True

    def __init__(
        self,
        alpha: float | Sequence[float] = 50.0,
        sigma: float | Sequence[float] = 5.0,
        interpolation: InterpolationOrRandom | enum.Enum = "bilinear",
        fill: Fill = 0,
    ) -> None:
        self.alpha: tuple[float, float] = one_or_two("alpha", alpha)
        self.sigma: tuple[float, float] = one_or_two("sigma", sigma, 0)
        self._set_filling(interpolation, fill)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        halves = struct.unpack("<2i", draws.bits().to_bytes(8, "little"))
        recipe.op(ops.ElasticOp(self._drawn_filter(draws), halves, self.alpha, self.sigma, self._fill))


class GaussianBlur(Transform):
    """Blur the image by torchvision's Gaussian kernel; the borders are reflected.

    Parameters
    ----------
    kernel_size : int or (int, int)
        Width and height of the kernel in pixels, both odd.
    sigma : float or (float, float)
        Range of the standard deviation, in pixels.

    See Also
    --------
    PILGaussianBlur : Pillow's filter, which DINO and timm use.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.GaussianBlur(kernel_size=5)])
    """

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        self.kernel_size: tuple[int, int] = kernel_size_of(kernel_size)
        self.sigma: tuple[float, float] = _range_above_0("sigma", sigma)
        self.is_random: bool = self.sigma[0] < self.sigma[1]

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        sigma = draws.uniform(*self.sigma)
        recipe.op(ops.GaussianBlurOp(self.kernel_size, (sigma, sigma)))


class PILGaussianBlur(RandomStep):
    """Blur the image by Pillow's ``ImageFilter.GaussianBlur`` with probability `p`, as DINO and 3-Augment do.

    Parameters
    ----------
    radius : float or (float, float)
        Range of the radius, in pixels.
    p : float

    See Also
    --------
    GaussianBlur : torchvision's blur. For equal numbers it blurs about as much.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.PILGaussianBlur()])
    """

    def __init__(self, radius: float | Sequence[float] = (0.1, 2.0), p: float = 0.5) -> None:
        super().__init__(p)
        self.radius: tuple[float, float] = _range_above_0("radius", radius)
        self.is_random: bool = self.p > 0 and (self.p < 1 or self.radius[0] < self.radius[1])

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        radius = draws.uniform(*self.radius)
        recipe.op(ops.PilGaussianBlurOp((radius, radius)))


def _range_above_0(name, value):
    what = "a number above 0, or two, the smaller first"
    if isinstance(value, (tuple, list)):
        low, high = one_or_two(name, value)
        return span(name, (low, high), math.nextafter(0, 1), math.inf, what)
    return (number(name, value, math.nextafter(0, 1), math.inf, what),) * 2
