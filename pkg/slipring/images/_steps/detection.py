"""Transforms of the single-shot detector (SSD): torchvision's, which move or select boxes with the image."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from slipring._core.options.checks import integer, real
from slipring.errors import shown
from slipring.images._render import ops
from slipring.images._steps.base import RandomStep, Transform, probability_of
from slipring.images._steps.checks import fill_of, number, span

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe

_OPTIONS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_ROUNDS = 200  # options that are tried; without a possible crop, torchvision tries forever


class RandomIoUCrop(Transform):
    """Crop a box that overlaps one of the sample's boxes enough, as SSD does; only `Annotated` has boxes.

    An overlap is drawn from `sampler_options` with equal probabilities; 1 or more leaves the image as it is. Up to
    `trials` random crops are tried. A crop is taken if it contains the centre of a box, and if one of these boxes has
    at least that overlap with the crop (area of the intersection / area of the union). If no crop is, another overlap
    is drawn. Boxes whose centre is outside of the crop are removed with their labels.

    Parameters
    ----------
    min_scale, max_scale : float
        Range of the crop's height and width as shares of the image's, from 0 to 1.
    min_aspect_ratio, max_aspect_ratio : float
        Range of the crop's width / height.
    sampler_options : sequence of float, optional
        The smallest overlaps; by default 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
    trials : int
        Number of crops to try for each overlap.

    Notes
    -----
    If no crop was possible for 200 drawn overlaps, the image stays as it is; torchvision would try forever.

    Examples
    --------
    >>> from slipring import images
    >>> samples = [{"image": "train/cat/0.jpg", "boxes": [[2, 3, 30, 20]], "labels": [7]}]
    >>> data = images.Annotated(samples, images.RandomIoUCrop(), boxes="boxes", rows="labels")
    >>> data[0]["boxes"].shape, data[0]["labels"]
    ((1, 4), array([7]))
    """

    is_random: bool = True
    needs_parts: bool = True

    def __init__(
        self,
        min_scale: float = 0.3,
        max_scale: float = 1.0,
        min_aspect_ratio: float = 0.5,
        max_aspect_ratio: float = 2.0,
        sampler_options: Sequence[float] | None = None,
        trials: int = 40,
    ) -> None:
        least = math.nextafter(0, 1)
        self.max_scale: float = number("max_scale", max_scale, least, 1, "a number above 0 and at most 1")
        self.min_scale: float = number(
            "min_scale", min_scale, least, self.max_scale, "a number above 0, at most max_scale"
        )
        what = "a number above 0"
        self.max_aspect_ratio: float = number("max_aspect_ratio", max_aspect_ratio, least, math.inf, what)
        what += ", at most max_aspect_ratio"
        self.min_aspect_ratio: float = number("min_aspect_ratio", min_aspect_ratio, least, self.max_aspect_ratio, what)
        self.sampler_options: tuple[float, ...] = _OPTIONS if sampler_options is None else _overlaps(sampler_options)
        self.trials: int = integer("trials", trials, 1, 1 << 20)

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        if recipe.boxes is None:
            raise ValueError("RandomIoUCrop needs boxes: give boxes=, the key of the boxes")
        for _ in range(_ROUNDS):
            overlap = self.sampler_options[draws.below(len(self.sampler_options))]
            seed = draws.bits()
            if overlap >= 1 or not len(recipe.boxes.xyxy):
                return
            found = self._crop(recipe.height, recipe.width, recipe.boxes.xyxy, overlap, _uniform(seed, self.trials))
            if found is not None:
                kept, crop = found
                recipe.boxes.keep(kept)
                recipe.crop(*crop)
                return

    def _crop(self, height, width, boxes, overlap, drawn):
        """Return the boxes that the first possible crop keeps, and its (top, left, height, width); or None.

        All trials are computed at once: arrays have the shape of the trials, or trials × boxes.
        """
        scales = self.min_scale + (self.max_scale - self.min_scale) * drawn[:, :2]
        widths, heights = (width * scales[:, 0]).astype(int), (height * scales[:, 1]).astype(int)
        ratios = widths / np.maximum(heights, 1)
        possible = (widths > 0) & (heights > 0)
        possible &= (self.min_aspect_ratio <= ratios) & (ratios <= self.max_aspect_ratio)
        lefts, tops = ((width - widths) * drawn[:, 2]).astype(int), ((height - heights) * drawn[:, 3]).astype(int)
        crops = np.stack([lefts, tops, lefts + widths, tops + heights], 1)[:, None]
        centers = 0.5 * (boxes[:, :2] + boxes[:, 2:])
        kept = ((crops[..., :2] < centers) & (centers < crops[..., 2:])).all(-1)
        shared = np.minimum(boxes[:, 2:], crops[..., 2:]) - np.maximum(boxes[:, :2], crops[..., :2])
        common = shared.clip(0).prod(-1)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1) + (widths * heights)[:, None]
        possible &= (kept & (common >= overlap * (areas - common))).any(1)
        if not possible.any():
            return None
        index = int(possible.argmax())
        return kept[index], (int(tops[index]), int(lefts[index]), int(heights[index]), int(widths[index]))

    def result_size(self, size: tuple[int, int] | None) -> None:
        return None


def _overlaps(value: Any) -> tuple[float, ...]:
    what = "a list of overlaps, numbers of at least 0"
    if not isinstance(value, (tuple, list)) or not value:
        raise ValueError(f"sampler_options must be {what}, not {shown(value)}")
    found = tuple(real("sampler_options", one, what) for one in value)
    if not all(one >= 0 for one in found):
        raise ValueError(f"sampler_options must be {what}, not {shown(value)}")
    return found


def _uniform(seed: int, trials: int) -> NDArray[np.float64]:
    """Return trials × 4 uniform numbers from [0, 1): those of `Draws` (splitmix64) for a seed, computed at once."""
    z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, 4 * trials + 1, dtype=np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    uniform: NDArray[np.float64] = ((z >> np.uint64(11)) / (1 << 53)).reshape(trials, 4)
    return uniform


class RandomZoomOut(RandomStep):
    """Place the image at random in a larger one of its aspect, with probability `p`, as SSD does.

    Parameters
    ----------
    fill : float or (float, float, float), optional
        Colour around the image, from 0 to 255; None is black.
    side_range : (float, float)
        Range of the factor between the sides, at least 1, drawn uniformly.
    p : float

    Examples
    --------
    >>> from slipring import images
    >>> steps = [images.RandomZoomOut(fill=(124, 116, 104), side_range=(1, 2), p=1), images.Resize((24, 24))]
    >>> pixels, label = images.Folder("train/", steps)[0]
    >>> pixels.shape
    (24, 24, 3)
    """

    fill: float | Sequence[float] | None

    def __init__(
        self,
        fill: float | Sequence[float] | None = 0,
        side_range: Sequence[float] = (1.0, 4.0),
        p: float = 0.5,
    ) -> None:
        super().__init__(p)
        self.is_random: bool = self.p > 0
        self.fill, self._fill = fill, fill_of(fill)
        self.side_range: tuple[float, float] = span(
            "side_range", side_range, 1, math.inf, "two numbers of at least 1, the smaller first"
        )

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        ratio, x, y = draws.uniform(*self.side_range), draws.uniform(0, 1), draws.uniform(0, 1)
        height, width = int(recipe.height * ratio), int(recipe.width * ratio)
        left, top = int((width - recipe.width) * x), int((height - recipe.height) * y)
        recipe.crop(-top, -left, height, width, self._fill)

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return size if self.p == 0 or self.side_range[1] == 1 else None

    def __repr__(self) -> str:
        return Transform.__repr__(self)


class RandomPhotometricDistort(Transform):
    """Change brightness, contrast, saturation, hue and the order of the channels, each with probability `p`.

    The order is brightness, contrast, saturation, hue, or with probability 0.5 brightness, saturation, hue, contrast.
    The channels follow at the end. Factors are drawn uniformly.

    Parameters
    ----------
    brightness, contrast, saturation : (float, float)
        Range of the factor, from 0; 1 changes nothing.
    hue : (float, float)
        Range of the turn, within -0.5 to 0.5 (half a turn).
    p : float

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.Resize((24, 24)), images.RandomPhotometricDistort()])
    """

    def __init__(
        self,
        brightness: Sequence[float] = (0.875, 1.125),
        contrast: Sequence[float] = (0.5, 1.5),
        saturation: Sequence[float] = (0.5, 1.5),
        hue: Sequence[float] = (-0.05, 0.05),
        p: float = 0.5,
    ) -> None:
        what = "two numbers of at least 0, the smaller first"
        self.brightness: tuple[float, float] = span("brightness", brightness, 0, math.inf, what)
        self.contrast: tuple[float, float] = span("contrast", contrast, 0, math.inf, what)
        self.saturation: tuple[float, float] = span("saturation", saturation, 0, math.inf, what)
        self.hue: tuple[float, float] = span("hue", hue, -0.5, 0.5, "two numbers within -0.5 to 0.5, the smaller first")
        self.p: float = probability_of("p", p)
        self.is_random: bool = self.p > 0

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        ranges = self.brightness, self.contrast, self.saturation, self.hue
        chances = [draws.chance(self.p) for _ in ranges]
        brightness, contrast, saturation, hue = (
            draws.uniform(*one) if chance else None for one, chance in zip(ranges, chances)
        )
        first, permutes = draws.chance(0.5), draws.chance(self.p)
        for kind, factor in (
            (ops.BrightnessOp, brightness),
            (ops.ContrastOp, contrast if first else None),
            (ops.SaturationOp, saturation),
            (ops.HueOp, hue),
            (ops.ContrastOp, None if first else contrast),
        ):
            if factor is not None:
                recipe.op(kind(factor))
        if permutes:
            recipe.op(ops.PermuteChannelsOp(draws.permutation(3)))
