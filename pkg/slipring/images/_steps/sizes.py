"""Transforms that scale: to a size, to a drawn size, or to fit into a size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipring.errors import shown
from slipring.images._render.view import interpolation_name
from slipring.images._steps.base import OneSize, Transform, pair, pixels, positive_range
from slipring.images._steps.checks import fill_of

if TYPE_CHECKING:
    import enum
    from collections.abc import Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe
    from slipring.images._render.view import Interpolation

    Size = tuple[int, int]


def _scaled(height: int, width: int, ratio: float) -> Size:
    """Return a size times a ratio, cut to whole pixels as torchvision does, and at least one pixel."""
    return max(1, int(height * ratio)), max(1, int(width * ratio))


def size_of_shorter(height: int, width: int, shorter: int, most: int | None = None) -> tuple[int, int]:
    """Return the size whose shorter side has a length, unless the longer side would be longer than `most`."""
    longer = int(shorter * max(height, width) / min(height, width))
    if most is not None and longer > most:
        shorter, longer = max(1, int(most * shorter / longer)), most
    return (longer, shorter) if height > width else (shorter, longer)


class Resize(Transform):
    """Scale the image.

    Parameters
    ----------
    size : int, (int, int) or None
        One number is the new length of the shorter side, and the aspect stays; two numbers are height and width. None:
        the longer side gets the length `max_size`.
    interpolation : {'bilinear', 'bicubic', 'nearest'}
        torchvision's ``InterpolationMode`` and Pillow's ``Resampling`` count as their names.
    max_size : int, optional
        Largest length of the longer side, with one number as `size`, which must be smaller.

    Examples
    --------
    >>> from slipring import images
    >>> pixels, label = images.Folder("train/", images.Resize((24, 24)))[0]
    >>> pixels.shape
    (24, 24, 3)
    """

    size: tuple[int, int] | None
    resizes: bool = True
    shorter: int | None

    def __init__(
        self,
        size: int | Sequence[int] | None,
        interpolation: Interpolation | enum.Enum = "bilinear",
        max_size: int | None = None,
    ) -> None:
        self.max_size: int | None = None if max_size is None else pixels("max_size", max_size)
        self.shorter = self.size = None
        if isinstance(size, (tuple, list)):
            self.size = pair("size", size)
            if max_size is not None:
                raise ValueError(f"max_size must be None if size is a height and a width, not {shown(max_size)}")
        elif size is not None or self.max_size is None:
            self.shorter = pixels("size", size)
            if self.max_size is not None and self.max_size <= self.shorter:
                raise ValueError(f"max_size must be above size={self.shorter}, not {shown(max_size)}")
        self.interpolation: Interpolation = interpolation_name(interpolation)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        recipe.resize(*self._size(recipe.height, recipe.width), self.interpolation)

    def _size(self, height, width):
        if self.size is not None:
            return self.size
        if self.shorter is not None:
            return size_of_shorter(height, width, self.shorter, self.max_size)
        shorter = max(1, int(self.max_size * min(height, width) / max(height, width)))
        return (self.max_size, shorter) if height > width else (shorter, self.max_size)

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return self.size if self.size is not None or size is None else self._size(*size)

    def __repr__(self) -> str:
        most = "" if self.max_size is None else f", max_size={self.max_size}"
        return f"Resize({self.shorter or self.size}, interpolation={self.interpolation!r}{most})"


class ScaleJitter(Transform):
    """Scale the image to a random share of a target size; the aspect stays (large-scale jitter).

    Parameters
    ----------
    target_size : (int, int)
        With the factor 1, the image is as large as possible with its height at most the second number and its width at
        most the first, as in torchvision.
    scale_range : (float, float)
        Range of the factor, drawn uniformly.
    interpolation : {'bilinear', 'bicubic', 'nearest'}

    See Also
    --------
    FixedSizeCrop : Usually the next step, which leaves images of one size.

    Examples
    --------
    >>> from slipring import images
    >>> steps = [images.ScaleJitter((48, 48), scale_range=(0.5, 1.5)), images.FixedSizeCrop(48)]
    >>> pixels, label = images.Folder("train/", steps)[0]
    >>> pixels.shape
    (48, 48, 3)
    """

    resizes: bool = True

    def __init__(
        self,
        target_size: Sequence[int],
        scale_range: Sequence[float] = (0.1, 2.0),
        interpolation: Interpolation | enum.Enum = "bilinear",
    ) -> None:
        if not isinstance(target_size, (tuple, list)) or len(target_size) != 2:
            raise ValueError(f"target_size must be two numbers of pixels, not {shown(target_size)}")
        self.target_size: tuple[int, int] = pair("target_size", target_size)
        self.scale_range: tuple[float, float] = positive_range("scale_range", scale_range)
        self.interpolation: Interpolation = interpolation_name(interpolation)
        self.is_random: bool = self.scale_range[0] < self.scale_range[1]

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        scale = draws.uniform(*self.scale_range)
        recipe.resize(*self._size(recipe.height, recipe.width, scale), self.interpolation)

    def _size(self, height, width, scale):
        return _scaled(height, width, min(self.target_size[1] / height, self.target_size[0] / width) * scale)

    def result_size(self, size: Size | None) -> Size | None:
        return None if size is None or self.is_random else self._size(*size, self.scale_range[0])


class RandomShortestSize(Transform):
    """Scale the image so that its shorter side has a length that is drawn from a list; the aspect stays.

    Parameters
    ----------
    min_size : int or sequence of int
        Lengths of the shorter side, in pixels, which are equally likely.
    max_size : int, optional
        The image becomes smaller if its longer side would be longer than this.
    interpolation : {'bilinear', 'bicubic', 'nearest'}

    Examples
    --------
    >>> from slipring import images
    >>> pixels, label = images.Folder("train/", images.RandomShortestSize((24, 32), max_size=32))[0]
    >>> max(pixels.shape)
    32
    """

    resizes: bool = True

    def __init__(
        self,
        min_size: int | Sequence[int],
        max_size: int | None = None,
        interpolation: Interpolation | enum.Enum = "bilinear",
    ) -> None:
        listed = tuple(min_size) if isinstance(min_size, (tuple, list)) else (min_size,)
        if not listed:
            raise ValueError(f"min_size must be a number of pixels, or several, not {shown(min_size)}")
        self.min_size: tuple[int, ...] = tuple(pixels("min_size", one) for one in listed)
        self.max_size: int | None = None if max_size is None else pixels("max_size", max_size)
        self.interpolation: Interpolation = interpolation_name(interpolation)
        self.is_random: bool = len(set(self.min_size)) > 1

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        shorter = self.min_size[draws.below(len(self.min_size))]
        recipe.resize(*self._size(recipe.height, recipe.width, shorter), self.interpolation)

    def _size(self, height, width, shorter):
        ratio = shorter / min(height, width)
        if self.max_size is not None:
            ratio = min(ratio, self.max_size / max(height, width))
        return _scaled(height, width, ratio)

    def result_size(self, size: Size | None) -> Size | None:
        return None if size is None or self.is_random else self._size(*size, self.min_size[0])


class RandomResize(Transform):
    """Scale the image so that its shorter side has a random length; the aspect stays.

    Parameters
    ----------
    min_size, max_size : int
        The length is drawn from `min_size` to ``max_size - 1`` pixels, as in torchvision. Equal numbers are one length.
    interpolation : {'bilinear', 'bicubic', 'nearest'}

    Examples
    --------
    >>> from slipring import images
    >>> steps = [images.RandomResize(24, 48), images.RandomCrop(24)]
    >>> pixels, label = images.Folder("train/", steps)[0]
    >>> pixels.shape
    (24, 24, 3)
    """

    resizes: bool = True

    def __init__(self, min_size: int, max_size: int, interpolation: Interpolation | enum.Enum = "bilinear") -> None:
        self.min_size: int = pixels("min_size", min_size)
        self.max_size: int = pixels("max_size", max_size)
        if self.max_size < self.min_size:
            raise ValueError(f"max_size must be at least min_size={self.min_size}, not {shown(max_size)}")
        self.interpolation: Interpolation = interpolation_name(interpolation)
        self.is_random: bool = self.max_size > self.min_size + 1

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        shorter = self.min_size + draws.below(max(1, self.max_size - self.min_size))
        recipe.resize(*size_of_shorter(recipe.height, recipe.width, shorter), self.interpolation)

    def result_size(self, size: Size | None) -> Size | None:
        return None if size is None or self.is_random else size_of_shorter(*size, self.min_size)


class LetterBox(OneSize):
    """Scale the image to fit a size, with its aspect, and fill the rest equally on both sides, as YOLO does.

    If an odd number of pixels is missing, the bottom or the right gets one more.

    Parameters
    ----------
    size : int or (int, int)
        Height and width of the result; one number for both.
    fill : float or (float, float, float), optional
        Colour of the border, from 0 to 255; None is black.
    interpolation : {'bilinear', 'bicubic', 'nearest'}

    Examples
    --------
    >>> from slipring import images
    >>> pixels, label = images.Folder("train/", images.LetterBox((24, 64)))[0]
    >>> pixels.shape, pixels[0, 0].tolist()
    ((24, 64, 3), [114, 114, 114])
    """

    fill: float | Sequence[float] | None
    resizes: bool = True

    def __init__(
        self,
        size: int | Sequence[int],
        fill: float | Sequence[float] | None = 114,
        interpolation: Interpolation | enum.Enum = "bilinear",
    ) -> None:
        self.size: tuple[int, int] = pair("size", size)
        self.fill, self._fill = fill, fill_of(fill)
        self.interpolation: Interpolation = interpolation_name(interpolation)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        height, width = self.size
        ratio = min(height / recipe.height, width / recipe.width)
        rows, columns = max(1, round(recipe.height * ratio)), max(1, round(recipe.width * ratio))
        recipe.resize(rows, columns, self.interpolation)
        recipe.crop(-((height - rows) // 2), -((width - columns) // 2), height, width, self._fill)
