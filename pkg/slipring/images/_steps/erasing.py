"""Random erasing: torchvision's, and timm's modes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from slipring._core.options.checks import flag, integer, one_of, real
from slipring.errors import shown
from slipring.images._steps.base import RandomStep, positive_range
from slipring.images._steps.checks import span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe


class RandomErasing(RandomStep):
    """Overwrite a box of random area and aspect with probability `p`.

    This is the last step of a list: it writes values of the result, after `mean` and `std`, as torchvision's reference
    recipe does, where it follows Normalize. So `value` 0 is the mean colour if the dataset normalises. Other steps
    cannot follow it.

    Parameters
    ----------
    p : float
    scale : (float, float)
        Range of the box's share of the image's area, drawn uniformly.
    ratio : (float, float)
        Range of the box's height / width; its logarithm is drawn uniformly.
    value : float, (float, float, float) or 'random'
        The new values: one number, or red, green and blue, on the scale of the result; "random" is ``mode="pixel"``.
    inplace : bool
        Without effect; torchvision has it.
    mode : {'const', 'rand', 'pixel'}
        timm's modes: `value`; one colour per box whose channels are normal random numbers of mean 0 and deviation 1; or
        such numbers for each pixel. The last two suit normalised results: a dataset of dtype uint8 refuses them.
    min_count, max_count : int
        timm's number of boxes, drawn from this range; each has its part of the area. `max_count` is `min_count` by
        default.

    Examples
    --------
    >>> from slipring import images
    >>> steps = [images.RandomResizedCrop(24), images.RandomErasing(p=1)]
    >>> pixels, label = images.Folder("train/", steps, dtype="float32")[0]
    >>> pixels.shape
    (24, 24, 3)
    """

    max_count: int
    is_last: bool = True

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] | Literal["random"] = 0.0,
        inplace: bool = False,
        *,
        mode: Literal["const", "rand", "pixel"] = "const",
        min_count: int = 1,
        max_count: int | None = None,
    ) -> None:
        super().__init__(p)
        self.is_random: bool = self.p > 0
        self.scale: tuple[float, float] = span("scale", scale, 0, 1, "two numbers from 0 to 1, the smaller first")
        self.ratio: tuple[float, float] = positive_range("ratio", ratio)
        self._log_ratio = math.log(self.ratio[0]), math.log(self.ratio[1])
        flag("inplace", inplace)
        one_of("mode", mode, ("const", "rand", "pixel"))
        self._values = _values(value)
        if mode != "const" and value not in (0, "random"):
            raise ValueError(f"value must be left out with mode={mode!r}, which draws the values, not {shown(value)}")
        if mode == "rand" and self._values is None:
            raise ValueError("value must be left out with mode='rand', not 'random', which is mode='pixel'")
        self.value: float | tuple[float, ...] | str = (
            value if isinstance(value, str) else tuple(value) if isinstance(value, (tuple, list)) else value
        )
        self.mode: Literal["const", "rand", "pixel"] = "pixel" if self._values is None else mode
        self.min_count: int = integer("min_count", min_count, 1, 1 << 16)
        self.max_count = self.min_count
        if max_count is not None:
            self.max_count = integer("max_count", max_count, self.min_count, 1 << 16)

    def check(self, dtype: str) -> None:
        if self.mode != "const" and dtype == "uint8":
            raise ValueError(
                f"mode must be 'const' for a dataset of dtype uint8, not {self.mode!r}: the random values are those of "
                "normalised images; give the dataset dtype='float32', mean= and std="
            )

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        height, width = recipe.height, recipe.width
        count = self.min_count + draws.below(self.max_count - self.min_count + 1)
        for _ in range(count):
            for _ in range(10):
                area = draws.uniform(*self.scale) * height * width / count
                ratio = math.exp(draws.uniform(*self._log_ratio))
                h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
                if h < height and w < width:
                    top, left = draws.below(height - h + 1), draws.below(width - w + 1)
                    self._erase(recipe, draws, top, left, h, w)
                    break

    def _erase(self, recipe, draws, top, left, height, width):
        if self.mode == "rand":
            values = [draws.normal() for _ in range(3)]
        else:
            values = None if self.mode == "pixel" else self._values
        seed = draws.bits() if values is None else 0
        if height and width:
            recipe.erase(top, left, height, width, values, seed)

    def __repr__(self) -> str:
        return self._shown("p", "scale", "ratio", "value", "mode", "min_count", "max_count")


def _values(value: Any) -> tuple[float, ...] | None:
    """Return `value` as red, green and blue; None for random ones."""
    if isinstance(value, str) and value == "random":
        return None
    try:
        listed = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        found = tuple(real("value", one) for one in listed)
    except TypeError:
        found = ()
    if len(found) not in (1, 3) or not all(map(math.isfinite, found)):
        raise ValueError(f"value must be a number, three numbers or 'random', not {shown(value)}")
    return found if len(found) == 3 else found * 3
