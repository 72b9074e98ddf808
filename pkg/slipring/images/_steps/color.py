"""Transforms of values: torchvision's colours with its results on PIL images, and random erasing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from slipring._core.options.checks import flag, integer, one_of, real
from slipring.errors import shown
from slipring.images._render import ops
from slipring.images._steps.base import RandomStep, Transform, positive_range
from slipring.images._steps.checks import not_negative, number, sequence, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe


class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue by factors that are drawn uniformly, in a random order.

    Parameters
    ----------
    brightness, contrast, saturation : float or (float, float), optional
        Range of the factor, from 0; one number x is the range from ``max(0, 1 - x)`` to ``1 + x``. The factor 1
        changes nothing.
    hue : float or (float, float), optional
        Range of the turn, within -0.5 to 0.5 (half a turn); one number x is the range from -x to x.

    Examples
    --------
    >>> from slipring import images
    >>> steps = [images.Resize((24, 24)), images.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)]
    >>> data = images.Folder("train/", steps)
    """

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
    ) -> None:
        self.brightness: tuple[float, float] | None = _factors("brightness", brightness, 1, 0, math.inf)
        self.contrast: tuple[float, float] | None = _factors("contrast", contrast, 1, 0, math.inf)
        self.saturation: tuple[float, float] | None = _factors("saturation", saturation, 1, 0, math.inf)
        self.hue: tuple[float, float] | None = _factors("hue", hue, 0, -0.5, 0.5)
        self._ranges = (
            (ops.BrightnessOp, self.brightness),
            (ops.ContrastOp, self.contrast),
            (ops.SaturationOp, self.saturation),
            (ops.HueOp, self.hue),
        )
        self.is_random: bool = any(found is not None for _, found in self._ranges)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        order = draws.permutation(4)
        drawn = [None if found is None else kind(draws.uniform(*found)) for kind, found in self._ranges]
        for index in order:
            if (operation := drawn[index]) is not None:
                recipe.op(operation)


def _factors(name: str, value: Any, neutral: int, least: float, most: float) -> tuple[float, float] | None:
    """Return the range of a factor; None if it is always `neutral`."""
    within = f"within {least} to {most}" if most < math.inf else f"of at least {least}"
    what = f"a number of at least 0, or two numbers {within}, the smaller first, or None"
    if value is None:
        return None
    if isinstance(value, (tuple, list)):
        low, high = sequence(name, value, (2,), what)
    else:
        reach = number(name, value, 0, math.inf, what)
        low, high = neutral - reach, neutral + reach
        low = max(low, 0.0) if neutral else low
    if not least <= low <= high <= most:
        raise ValueError(f"{name} must be {what}, not {shown(value)}")
    return None if low == high == neutral else (low, high)


class Grayscale(Transform):
    """Make the image grey, in three equal channels.

    Parameters
    ----------
    num_output_channels : int
        Must be 3: the samples of `slipring.images` have three channels. torchvision's default is 1.

    Examples
    --------
    >>> from slipring import images
    >>> steps = [images.Resize((24, 24)), images.Grayscale(num_output_channels=3)]
    >>> pixels, label = images.Folder("train/", steps)[0]
    >>> bool((pixels[..., 0] == pixels[..., 2]).all())
    True
    """

    def __init__(self, num_output_channels: int = 1) -> None:
        if integer("num_output_channels", num_output_channels) != 3:
            raise ValueError(
                f"num_output_channels must be 3, not {shown(num_output_channels)}: the samples of slipring.images have "
                "three channels, and Grayscale(num_output_channels=3) makes them equal; take one of them in the model"
            )
        self.num_output_channels: int = 3

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        recipe.op(ops.GrayscaleOp())


class RandomGrayscale(RandomStep):
    """Make the image grey, in three equal channels, with probability `p`.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.RandomGrayscale(p=0.2)])
    """

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p)

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        recipe.op(ops.GrayscaleOp())


class RandomSolarize(RandomStep):
    """Invert all pixel values that are at least `threshold` (0 to 256), with probability `p`.

    DINO and 3-Augment use ``threshold=128``.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.RandomSolarize(threshold=128, p=0.2)])
    """

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.threshold: float = number("threshold", threshold, 0, 256, "a number from 0 to 256")

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        recipe.op(ops.SolarizeOp(self.threshold))


class RandomPosterize(RandomStep):
    """Keep the upper `bits` (0 to 8) of each pixel value, with probability `p`.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.RandomPosterize(bits=4)])
    """

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(p)
        self.bits: int = integer("bits", bits, 0, 8)

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        recipe.op(ops.PosterizeOp(self.bits))


class RandomAdjustSharpness(RandomStep):
    """Change the sharpness by a factor, with probability `p`.

    Parameters
    ----------
    sharpness_factor : float
        From 0: 0 blurs the image, 1 changes nothing, 2 doubles the sharpness.
    p : float

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.RandomAdjustSharpness(sharpness_factor=2)])
    """

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.sharpness_factor: float = not_negative("sharpness_factor", sharpness_factor)

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        recipe.op(ops.SharpnessOp(self.sharpness_factor))


class RandomAutocontrast(RandomStep):
    """Stretch each channel to the full range of pixel values, with probability `p`.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.RandomAutocontrast()])
    """

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        recipe.op(ops.AutocontrastOp())


class RandomEqualize(RandomStep):
    """Equalize the histogram of each channel, with probability `p`.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.RandomEqualize()])
    """

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        recipe.op(ops.EqualizeOp())


class RandomInvert(RandomStep):
    """Replace each pixel value x by 255 - x, with probability `p`.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.RandomInvert()])
    """

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        recipe.op(ops.InvertOp())


class RandomChannelPermutation(Transform):
    """Exchange the channels: red, green and blue come in an order that is drawn for each sample.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.RandomChannelPermutation()])
    """

    is_random: bool = True

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        recipe.op(ops.PermuteChannelsOp(draws.permutation(3)))


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
