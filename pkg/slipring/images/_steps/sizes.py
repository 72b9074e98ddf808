"""Transforms that scale to a drawn size or fit the image into a size: for detection and segmentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipring.errors import shown
from slipring.images._render.view import interpolation_name
from slipring.images._steps.base import Transform, pair, pixels, positive_range
from slipring.images._steps.checks import fill_of, padding_mode_of
from slipring.images._steps.crops import add_padding
from slipring.images._steps.resized import size_of_shorter

if TYPE_CHECKING:
    import enum
    from collections.abc import Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe
    from slipring.images._render.view import Interpolation
    from slipring.images._steps.crops import PaddingMode

    Size = tuple[int, int]


def _scaled(height: int, width: int, ratio: float) -> Size:
    """Return a size times a ratio, cut to whole pixels as torchvision does, and at least one pixel."""
    return max(1, int(height * ratio)), max(1, int(width * ratio))


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

    target_size: tuple[int, int]
    scale_range: tuple[float, float]
    interpolation: Interpolation
    resizes: bool = True

    def __init__(
        self,
        target_size: Sequence[int],
        scale_range: Sequence[float] = (0.1, 2.0),
        interpolation: Interpolation | enum.Enum = "bilinear",
    ) -> None:
        if not isinstance(target_size, (tuple, list)) or len(target_size) != 2:
            raise ValueError(f"target_size must be two numbers of pixels, not {shown(target_size)}")
        self.target_size = pair("target_size", target_size)
        self.scale_range = positive_range("scale_range", scale_range)
        self.interpolation = interpolation_name(interpolation)
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

    min_size: tuple[int, ...]
    max_size: int | None
    interpolation: Interpolation
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
        self.min_size = tuple(pixels("min_size", one) for one in listed)
        self.max_size = None if max_size is None else pixels("max_size", max_size)
        self.interpolation = interpolation_name(interpolation)
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

    min_size: int
    max_size: int
    interpolation: Interpolation
    resizes: bool = True

    def __init__(self, min_size: int, max_size: int, interpolation: Interpolation | enum.Enum = "bilinear") -> None:
        self.min_size = pixels("min_size", min_size)
        self.max_size = pixels("max_size", max_size)
        if self.max_size < self.min_size:
            raise ValueError(f"max_size must be at least min_size={self.min_size}, not {shown(max_size)}")
        self.interpolation = interpolation_name(interpolation)
        self.is_random: bool = self.max_size > self.min_size + 1

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        shorter = self.min_size + draws.below(max(1, self.max_size - self.min_size))
        recipe.resize(*size_of_shorter(recipe.height, recipe.width, shorter), self.interpolation)

    def result_size(self, size: Size | None) -> Size | None:
        return None if size is None or self.is_random else size_of_shorter(*size, self.min_size)


class FixedSizeCrop(Transform):
    """Crop a box of one size at a random place; a smaller image gets a border at the bottom and the right.

    The step is from torchvision's reference scripts for detection. One random number places the box in both
    directions, as there. Boxes outside of the crop are removed with their labels.

    Parameters
    ----------
    size : int or (int, int)
        Height and width of the result; one number for both.
    fill : float or (float, float, float), optional
        Colour of a constant border, from 0 to 255; None is black.
    padding_mode : {'constant', 'edge', 'reflect', 'symmetric'}
        As in `Pad`.

    Examples
    --------
    >>> from slipring import images
    >>> pixels, label = images.Folder("train/", images.FixedSizeCrop((24, 300), fill=114))[0]
    >>> pixels.shape
    (24, 300, 3)
    """

    size: tuple[int, int]
    fill: float | Sequence[float] | None
    padding_mode: PaddingMode
    is_random: bool = True

    def __init__(
        self,
        size: int | Sequence[int],
        fill: float | Sequence[float] | None = 0,
        padding_mode: PaddingMode = "constant",
    ) -> None:
        self.size = pair("size", size)
        self.fill, self._fill = fill, fill_of(fill)
        self.padding_mode, self._mode = padding_mode, padding_mode_of(padding_mode)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        height, width = self.size
        place = draws.uniform(0, 1)
        top, left = int(max(0, recipe.height - height) * place), int(max(0, recipe.width - width) * place)
        if self._mode == 0:
            recipe.crop(top, left, height, width, self._fill)
        else:
            rows, columns = min(height, recipe.height), min(width, recipe.width)
            recipe.crop(top, left, rows, columns)
            add_padding(recipe, (0, 0, width - columns, height - rows), self._mode, self._fill)
        if recipe.boxes is not None:
            recipe.boxes.keep((recipe.boxes.xyxy[:, 2:] > recipe.boxes.xyxy[:, :2]).all(1))

    def result_size(self, size: Size | None) -> Size:
        return self.size


class LetterBox(Transform):
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

    size: tuple[int, int]
    fill: float | Sequence[float] | None
    interpolation: Interpolation
    resizes: bool = True

    def __init__(
        self,
        size: int | Sequence[int],
        fill: float | Sequence[float] | None = 114,
        interpolation: Interpolation | enum.Enum = "bilinear",
    ) -> None:
        self.size = pair("size", size)
        self.fill, self._fill = fill, fill_of(fill)
        self.interpolation = interpolation_name(interpolation)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        height, width = self.size
        ratio = min(height / recipe.height, width / recipe.width)
        rows, columns = max(1, round(recipe.height * ratio)), max(1, round(recipe.width * ratio))
        recipe.resize(rows, columns, self.interpolation)
        recipe.crop(-((height - rows) // 2), -((width - columns) // 2), height, width, self._fill)

    def result_size(self, size: Size | None) -> Size:
        return self.size
