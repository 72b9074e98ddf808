"""Transforms that crop, scale and mirror: torchvision's, in one pass over the part of the image that is needed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from slipring._core.options.checks import flag
from slipring.errors import shown
from slipring.images._render.view import INTERPOLATIONS, interpolation_name
from slipring.images._steps.base import RandomStep, Transform, pair, pixels, positive_range, probability_of
from slipring.images._steps.checks import RANDOM, interpolation_or_random

if TYPE_CHECKING:
    import enum
    from collections.abc import Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe
    from slipring.images._render.view import Interpolation, InterpolationOrRandom


class RandomResizedCrop(Transform):
    """Crop a box of random area and aspect, and scale it to one size: torchvision's usual transform for training.

    Parameters
    ----------
    size : int or (int, int)
        Height and width of the result; one number for both.
    scale : (float, float)
        Range of the box's share of the image's area, drawn uniformly.
    ratio : (float, float)
        Range of the box's width / height; its logarithm is drawn uniformly.
    flip : float
        Probability that left and right are exchanged.
    interpolation : {'bilinear', 'bicubic', 'nearest', 'random'}
        torchvision's ``InterpolationMode`` and Pillow's ``Resampling`` count as their names. 'random', which is timm's,
        draws one of bilinear and bicubic for each sample.

    Examples
    --------
    >>> from slipring import images
    >>> pixels, label = images.Folder("train/", images.RandomResizedCrop(24, scale=(0.5, 1.0), flip=0))[0]
    >>> pixels.shape
    (24, 24, 3)
    """

    size: tuple[int, int]
    is_random: bool = True
    resizes: bool = True
    scale: tuple[float, float]
    ratio: tuple[float, float]
    flip: float
    interpolation: InterpolationOrRandom

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        interpolation: InterpolationOrRandom | enum.Enum = "bilinear",
    ) -> None:
        self.size = pair("size", size)
        self.scale = positive_range("scale", scale)
        self.ratio = positive_range("ratio", ratio)
        self.flip = probability_of("flip", flip)
        self.interpolation = interpolation_or_random(interpolation)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        recipe.crop(*random_box(recipe.height, recipe.width, self.scale, self.ratio, draws))
        name = INTERPOLATIONS[draws.below(2)] if self.interpolation == RANDOM else self.interpolation
        recipe.resize(*self.size, name)
        if draws.uniform(0, 1) < self.flip:
            recipe.flip()

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return self.size

    def __repr__(self) -> str:
        return (
            f"RandomResizedCrop({self.size}, scale={self.scale}, ratio={self.ratio}, flip={self.flip}, "
            f"interpolation={self.interpolation!r})"
        )


def random_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], draws: Draws
) -> tuple[int, int, int, int]:
    """Return a box (top, left, height, width) of random area and aspect; see `RandomResizedCrop`."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        area = height * width * draws.uniform(*scale)
        drawn = math.exp(draws.uniform(low, high))
        w, h = round(math.sqrt(area * drawn)), round(math.sqrt(area / drawn))
        if 0 < w <= width and 0 < h <= height:
            return draws.below(height - h + 1), draws.below(width - w + 1), h, w
    # None of them has fitted: take the largest box of an allowed aspect, in the middle.
    w, h = width, height
    if width < ratio[0] * height:
        h = max(1, round(width / ratio[0]))
    elif width > ratio[1] * height:
        w = max(1, round(height * ratio[1]))
    return (height - h) // 2, (width - w) // 2, h, w


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
    interpolation: Interpolation
    max_size: int | None

    def __init__(
        self,
        size: int | Sequence[int] | None,
        interpolation: Interpolation | enum.Enum = "bilinear",
        max_size: int | None = None,
    ) -> None:
        self.max_size = None if max_size is None else pixels("max_size", max_size)
        self.shorter = self.size = None
        if isinstance(size, (tuple, list)):
            self.size = pair("size", size)
            if max_size is not None:
                raise ValueError(f"max_size must be None if size is a height and a width, not {shown(max_size)}")
        elif size is not None or self.max_size is None:
            self.shorter = pixels("size", size)
            if self.max_size is not None and self.max_size <= self.shorter:
                raise ValueError(f"max_size must be above size={self.shorter}, not {shown(max_size)}")
        self.interpolation = interpolation_name(interpolation)

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


class CenterCrop(Transform):
    """Crop the middle of the image; a smaller image gets a black border.

    Parameters
    ----------
    size : int or (int, int)
        Height and width; one number for both.

    Examples
    --------
    >>> from slipring import images
    >>> pixels, label = images.Folder("train/", images.CenterCrop(24))[0]
    >>> pixels.shape
    (24, 24, 3)
    """

    size: tuple[int, int]

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = pair("size", size)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        height, width = self.size
        seen_height, seen_width = recipe.height, recipe.width
        # torchvision pads first, with the smaller half at the top and left; then it rounds the place of the crop.
        top = -((height - seen_height) // 2) if height > seen_height else round((seen_height - height) / 2.0)
        left = -((width - seen_width) // 2) if width > seen_width else round((seen_width - width) / 2.0)
        recipe.crop(top, left, height, width)

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return self.size

    def __repr__(self) -> str:
        return f"CenterCrop({self.size})"


class CoverCrop(Transform):
    """Scale the image, with its aspect, until it covers a size, and crop the excess.

    So the result shows as much of the image as the aspect of `size` allows, as Pillow's ``ImageOps.fit`` does.

    Parameters
    ----------
    size : int or (int, int)
        Height and width of the result; one number for both.
    random : bool
        Draw the place of the crop; otherwise it is in the middle.
    interpolation : {'bilinear', 'bicubic', 'nearest'}

    See Also
    --------
    LetterBox : Keeps the whole image, and adds a border.

    Examples
    --------
    >>> from slipring import images
    >>> pixels, label = images.Folder("train/", images.CoverCrop((24, 64)))[0]
    >>> pixels.shape
    (24, 64, 3)
    """

    size: tuple[int, int]
    random: bool
    interpolation: Interpolation
    resizes: bool = True

    def __init__(
        self,
        size: int | Sequence[int],
        random: bool = False,
        interpolation: Interpolation | enum.Enum = "bilinear",
    ) -> None:
        self.size = pair("size", size)
        flag("random", random)
        self.random = bool(random)
        self.is_random: bool = self.random
        self.interpolation = interpolation_name(interpolation)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        height, width = self.size
        ratio = max(height / recipe.height, width / recipe.width)
        rows, columns = max(height, round(recipe.height * ratio)), max(width, round(recipe.width * ratio))
        recipe.resize(rows, columns, self.interpolation)
        top, left = (self._place(over, draws) for over in (rows - height, columns - width))
        recipe.crop(top, left, height, width)

    def _place(self, over, draws):
        """Return the first row or column of the crop, as RandomCrop and CenterCrop do."""
        if self.random:
            return draws.below(over + 1) if over else 0
        return round(over / 2)

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return self.size


class RandomHorizontalFlip(RandomStep):
    """Exchange left and right with probability `p`.

    Examples
    --------
    >>> from slipring import images
    >>> steps = [images.Resize((24, 24)), images.RandomHorizontalFlip(p=0.5)]
    >>> pixels, label = images.Folder("train/", steps)[0]
    >>> pixels.shape
    (24, 24, 3)
    """

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        recipe.flip()
