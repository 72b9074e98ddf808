"""Transforms that crop at random places, add borders and mirror vertically: torchvision's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from slipring._core.options.checks import flag
from slipring.errors import ImageError, shown
from slipring.images._render import ops
from slipring.images._steps.base import RandomStep, Transform, pair
from slipring.images._steps.checks import fill_of, padding_mode_of, padding_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe

    PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]


class RandomVerticalFlip(RandomStep):
    """Exchange top and bottom with probability `p`.

    Examples
    --------
    >>> from slipring import images
    >>> steps = [images.Resize((24, 24)), images.RandomVerticalFlip(p=0.5)]
    >>> pixels, label = images.Folder("train/", steps)[0]
    >>> pixels.shape
    (24, 24, 3)
    """

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        recipe.flip_vertically()


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

    padding: tuple[int, int, int, int]
    fill: float | Sequence[float] | None
    padding_mode: PaddingMode

    def __init__(
        self,
        padding: int | Sequence[int],
        fill: float | Sequence[float] | None = 0,
        padding_mode: PaddingMode = "constant",
    ) -> None:
        self.padding = padding_of(padding)
        self.fill, self._fill = fill, fill_of(fill)
        self.padding_mode, self._mode = padding_mode, padding_mode_of(padding_mode)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        add_padding(recipe, self.padding, self._mode, self._fill)

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        left, top, right, bottom = self.padding
        return None if size is None else (size[0] + top + bottom, size[1] + left + right)


def add_padding(recipe: Recipe, padding: Sequence[int], mode: int, fill: Sequence[float]) -> None:
    """Add a border of (left, top, right, bottom) pixels; `mode` is a place in `PADDING_MODES`."""
    left, top, right, bottom = padding
    height, width = recipe.height + top + bottom, recipe.width + left + right
    if mode == 0:
        recipe.crop(-top, -left, height, width, fill)
    elif any(padding):
        recipe.op(ops.PadOp(*padding, mode, fill))


class RandomCrop(Transform):
    """Crop a box of one size at a random place, after adding a border.

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
    >>> pixels, label = images.Folder("train/", [images.Resize((24, 24)), images.RandomCrop(24, padding=4)])[0]
    >>> pixels.shape
    (24, 24, 3)
    """

    size: tuple[int, int]
    padding: tuple[int, int, int, int] | None
    pad_if_needed: bool
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
        self.size = pair("size", size)
        self.padding = None if padding is None else padding_of(padding)
        flag("pad_if_needed", pad_if_needed)
        self.pad_if_needed = bool(pad_if_needed)
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

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int]:
        return self.size
