"""Transforms that crop, mirror or add borders: torchvision's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from slipring._core.options.checks import flag
from slipring.errors import ImageError, shown
from slipring.images._render import ops
from slipring.images._render.view import INTERPOLATIONS, interpolation_name
from slipring.images._steps.base import OneSize, RandomStep, Transform, pair, positive_range, probability_of
from slipring.images._steps.checks import RANDOM, fill_of, interpolation_or_random, padding_mode_of, padding_of

if TYPE_CHECKING:
    import enum
    from collections.abc import Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe
    from slipring.images._render.view import Interpolation, InterpolationOrRandom

    PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]


class RandomResizedCrop(OneSize):
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

    is_random: bool = True
    resizes: bool = True

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        interpolation: InterpolationOrRandom | enum.Enum = "bilinear",
    ) -> None:
        self.size: tuple[int, int] = pair("size", size)
        self.scale: tuple[float, float] = positive_range("scale", scale)
        self.ratio: tuple[float, float] = positive_range("ratio", ratio)
        self.flip: float = probability_of("flip", flip)
        self.interpolation: InterpolationOrRandom = interpolation_or_random(interpolation)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        recipe.crop(*random_box(recipe.height, recipe.width, self.scale, self.ratio, draws))
        name = INTERPOLATIONS[draws.below(2)] if self.interpolation == RANDOM else self.interpolation
        recipe.resize(*self.size, name)
        if draws.uniform(0, 1) < self.flip:
            recipe.flip()

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


class CenterCrop(OneSize):
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

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size: tuple[int, int] = pair("size", size)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        height, width = self.size
        seen_height, seen_width = recipe.height, recipe.width
        # torchvision pads first, with the smaller half at the top and left; then it rounds the offset of the crop.
        top = -((height - seen_height) // 2) if height > seen_height else round((seen_height - height) / 2.0)
        left = -((width - seen_width) // 2) if width > seen_width else round((seen_width - width) / 2.0)
        recipe.crop(top, left, height, width)

    def __repr__(self) -> str:
        return f"CenterCrop({self.size})"


class CoverCrop(OneSize):
    """Scale the image, with its aspect, until it covers a size, and crop the excess.

    So the result shows as much of the image as the aspect of `size` allows, as Pillow's ``ImageOps.fit`` does.

    Parameters
    ----------
    size : int or (int, int)
        Height and width of the result; one number for both.
    random : bool
        Draw the position of the crop; otherwise it is in the middle.
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

    resizes: bool = True

    def __init__(
        self, size: int | Sequence[int], random: bool = False, interpolation: Interpolation | enum.Enum = "bilinear"
    ) -> None:
        self.size: tuple[int, int] = pair("size", size)
        flag("random", random)
        self.random: bool = bool(random)
        self.is_random: bool = self.random
        self.interpolation: Interpolation = interpolation_name(interpolation)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        height, width = self.size
        ratio = max(height / recipe.height, width / recipe.width)
        rows, columns = max(height, round(recipe.height * ratio)), max(width, round(recipe.width * ratio))
        recipe.resize(rows, columns, self.interpolation)
        top, left = (self._offset(over, draws) for over in (rows - height, columns - width))
        recipe.crop(top, left, height, width)

    def _offset(self, over, draws):
        """Return the first row or column of the crop, as RandomCrop and CenterCrop do."""
        if self.random:
            return draws.below(over + 1) if over else 0
        return round(over / 2)


class RandomCrop(OneSize):
    """Crop a box of one size at a random position, after adding a border.

    Parameters
    ----------
    size : int or (int, int)
        Height and width of the result; one number for both.
    padding : int, (int, int) or (int, int, int, int), optional
        As in `Pad`.
    pad_if_needed : bool
        If the image with its border is smaller than `size`, add as many pixels as are missing to both sides.
        Without it, such an image raises ValueError.
    fill, padding_mode
        As in `Pad`.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.RandomCrop(24, padding=4)])
    """

    fill: float | Sequence[float] | None
    padding_mode: PaddingMode
    is_random: bool = True

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: float | Sequence[float] | None = 0,
        padding_mode: PaddingMode = "constant",
    ) -> None:
        self.size: tuple[int, int] = pair("size", size)
        self.padding: tuple[int, int, int, int] | None = None if padding is None else padding_of(padding)
        flag("pad_if_needed", pad_if_needed)
        self.pad_if_needed: bool = bool(pad_if_needed)
        self.fill, self._fill = fill, fill_of(fill)
        self.padding_mode, self._mode = padding_mode, padding_mode_of(padding_mode)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        height, width = self.size
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        rows, columns = recipe.height + top + bottom, recipe.width + left + right
        if self.pad_if_needed:
            more_rows, more_columns = max(0, height - rows), max(0, width - columns)
            top, bottom, left, right = top + more_rows, bottom + more_rows, left + more_columns, right + more_columns
            rows, columns = rows + 2 * more_rows, columns + 2 * more_columns
        if rows < height or columns < width:
            raise ImageError(
                f"size must be at most that of the image with its border, {rows} x {columns} pixels, not "
                f"{shown(self.size)}: scale the image before, or use pad_if_needed=True"
            )
        first = draws.below(rows - height + 1) if rows > height else 0
        begin = draws.below(columns - width + 1) if columns > width else 0
        y, x = first - top, begin - left
        inside = 0 <= y <= recipe.height - height and 0 <= x <= recipe.width - width
        if self._mode == 0 or inside:
            recipe.crop(y, x, height, width, self._fill)
        else:
            add_padding(recipe, (left, top, right, bottom), self._mode, self._fill)
            recipe.crop(first, begin, height, width)


class FixedSizeCrop(OneSize):
    """Crop a box of one size at a random position; a smaller image gets a border at the bottom and the right.

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

    fill: float | Sequence[float] | None
    padding_mode: PaddingMode
    is_random: bool = True

    def __init__(
        self,
        size: int | Sequence[int],
        fill: float | Sequence[float] | None = 0,
        padding_mode: PaddingMode = "constant",
    ) -> None:
        self.size: tuple[int, int] = pair("size", size)
        self.fill, self._fill = fill, fill_of(fill)
        self.padding_mode, self._mode = padding_mode, padding_mode_of(padding_mode)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        height, width = self.size
        fraction = draws.uniform(0, 1)
        top, left = int(max(0, recipe.height - height) * fraction), int(max(0, recipe.width - width) * fraction)
        if self._mode == 0:
            recipe.crop(top, left, height, width, self._fill)
        else:
            rows, columns = min(height, recipe.height), min(width, recipe.width)
            recipe.crop(top, left, rows, columns)
            add_padding(recipe, (0, 0, width - columns, height - rows), self._mode, self._fill)
        if recipe.boxes is not None:
            recipe.boxes.keep((recipe.boxes.xyxy[:, 2:] > recipe.boxes.xyxy[:, :2]).all(1))


class Pad(Transform):
    """Add a border to the image.

    Parameters
    ----------
    padding : int, (int, int) or (int, int, int, int)
        Width of the border in pixels: of all sides; of left and right, top and bottom; or of left, top, right and
        bottom. Negative numbers, by which torchvision crops, are refused.
    fill : float or (float, float, float)
        Colour of a constant border, from 0 to 255.
    padding_mode : {'constant', 'edge', 'reflect', 'symmetric'}
        What the border shows: `fill`; the outermost pixels; the mirrored image without its outermost pixels; the
        mirrored image.

    Examples
    --------
    >>> from slipring import images
    >>> pixels, label = images.Folder("train/", [images.Resize((24, 24)), images.Pad(4)])[0]
    >>> pixels.shape
    (32, 32, 3)
    """

    fill: float | Sequence[float] | None
    padding_mode: PaddingMode

    def __init__(
        self,
        padding: int | Sequence[int],
        fill: float | Sequence[float] | None = 0,
        padding_mode: PaddingMode = "constant",
    ) -> None:
        self.padding: tuple[int, int, int, int] = padding_of(padding)
        self.fill, self._fill = fill, fill_of(fill)
        self.padding_mode, self._mode = padding_mode, padding_mode_of(padding_mode)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        add_padding(recipe, self.padding, self._mode, self._fill)

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        left, top, right, bottom = self.padding
        return None if size is None else (size[0] + top + bottom, size[1] + left + right)


def add_padding(recipe: Recipe, padding: Sequence[int], mode: int, fill: Sequence[float]) -> None:
    """Add a border of (left, top, right, bottom) pixels; `mode` is an index in `PADDING_MODES`."""
    left, top, right, bottom = padding
    height, width = recipe.height + top + bottom, recipe.width + left + right
    if mode == 0:
        recipe.crop(-top, -left, height, width, fill)
    elif any(padding):
        recipe.op(ops.PadOp(*padding, mode, fill))


class RandomHorizontalFlip(RandomStep):
    """Exchange left and right with probability `p`.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.RandomHorizontalFlip(p=0.5)])
    """

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        recipe.flip()


class RandomVerticalFlip(RandomStep):
    """Exchange top and bottom with probability `p`.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.RandomVerticalFlip(p=0.5)])
    """

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        recipe.flip_vertically()
