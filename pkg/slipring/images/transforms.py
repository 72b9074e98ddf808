"""Transforms: which part of an image becomes the sample, and how large it is. They draw before anything is decoded.

The transforms are torchvision's, but do not touch pixels. They narrow a `View`: a box of the image, the size to which
the box is scaled, and a window of the scaled box. So a chain of transforms costs one pass over the last window.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import math
from typing import TYPE_CHECKING, Any, Literal

from slipring._core.arguments import integer, one_of, real
from slipring.errors import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERPOLATIONS = ("bilinear", "bicubic", "nearest")  # in the order of csrc/images/resize.h's filters
Interpolation = Literal["bilinear", "bicubic", "nearest"]
_MOST_PIXELS = 1 << 20  # of a side
_BITS = 1 << 64
_ODD = 0x9E3779B97F4A7C15


class Draws:
    """Uniform numbers from 64 random bits, the same on every machine (splitmix64)."""

    state: int

    def __init__(self, seed: int) -> None:
        self.state = seed

    def uniform(self, low: float, high: float) -> float:
        """Return a number from [low, high)."""
        self.state = z = (self.state + _ODD) % _BITS
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % _BITS
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % _BITS
        return low + (high - low) * (((z ^ (z >> 31)) >> 11) / (1 << 53))

    def below(self, n: int) -> int:
        """Return a whole number from 0 to n - 1."""
        return min(int(self.uniform(0, n)), n - 1)


@dataclasses.dataclass(slots=True)
class View:
    """The part of an image that becomes the sample. Sizes are (height, width) and places (top, left), in pixels.

    Attributes
    ----------
    box : (top, left, height, width)
        The part of the image that is decoded.
    to : (int, int)
        The size to which the box is scaled.
    window : (top, left, height, width)
        The part of the scaled box that becomes the sample. Where it reaches beyond the box, the sample is black.
    flip : bool
        Left and right are exchanged at the end.

    Examples
    --------
    >>> from slipring import images
    >>> view = images.Folder("train/", images.RandomResizedCrop(24)).view(0, seed=7)
    >>> view.to
    (24, 24)
    """

    box: tuple[int, int, int, int]
    to: tuple[int, int]
    window: tuple[int, int, int, int]
    flip: bool = False

    @classmethod
    def whole(cls, height: int, width: int) -> View:
        """Return the view of a whole image."""
        return cls((0, 0, height, width), (height, width), (0, 0, height, width))

    @property
    def scaled(self) -> bool:
        return self.to != self.box[2:]

    def crop(self, top: int, left: int, height: int, width: int) -> None:
        """Narrow the window to a part of itself."""
        if self.flip:  # the window is mirrored at the end
            left = self.window[3] - left - width
        there = zip((top, left), (height, width), self.window[:2], self.window[2:], self.to)
        for first, size, seen_first, seen, whole in there:
            if (first < 0 < seen_first) or (first + size > seen and seen_first + seen < whole):
                raise ValueError(
                    "this crop is larger than an earlier crop, which has already removed the pixels around it: leave "
                    "out the earlier crop"
                )
        self.window = self.window[0] + top, self.window[1] + left, height, width

    def resize(self, height: int, width: int) -> None:
        """Scale the window. This can be done once: a second time would need a second pass."""
        top, left, rows, columns = self.window
        if top < 0 or left < 0 or top + rows > self.to[0] or left + columns > self.to[1]:
            raise ValueError("a picture that was padded cannot be resized in the same pass: resize first, then crop")
        if self.scaled:
            raise ValueError("a picture can be resized once; leave out one of the two transforms")
        self.box = self.box[0] + top, self.box[1] + left, rows, columns
        self.to = height, width
        self.window = 0, 0, height, width


class Transform(abc.ABC):
    """One step; `size` is the size of its result, or None if that depends on the image."""

    size: tuple[int, int] | None = None
    resizes: bool = False
    is_random: bool = False  # whether its effect is drawn for each sample

    @abc.abstractmethod
    def apply(self, view: View, draws: Draws) -> None:
        """Narrow `view`, with random numbers from `draws`."""


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
    interpolation : {'bilinear', 'bicubic', 'nearest'}
        torchvision's ``InterpolationMode`` and Pillow's ``Resampling`` count as their names.

    Examples
    --------
    >>> from slipring import images
    >>> pixels, label = images.Folder("train/", images.RandomResizedCrop(24, scale=(0.5, 1.0), flip=0))[0]
    >>> pixels.shape
    (24, 24, 3)
    """

    size: tuple[int, int]
    resizes = is_random = True
    scale: tuple[float, float]
    ratio: tuple[float, float]
    flip: float
    interpolation: Interpolation

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        interpolation: Interpolation | enum.Enum = "bilinear",
    ) -> None:
        self.size = _pair("size", size)
        self.scale = _range("scale", scale)
        self.ratio = _range("ratio", ratio)
        self.flip = _probability("flip", flip)
        self.interpolation = interpolation_name(interpolation)

    def apply(self, view: View, draws: Draws) -> None:
        height, width = view.window[2:]
        view.crop(*self._box(height, width, draws))
        view.resize(*self.size)
        if draws.uniform(0, 1) < self.flip:
            view.flip = not view.flip

    def _box(self, height, width, draws):
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = height * width * draws.uniform(*self.scale)
            ratio = math.exp(draws.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return draws.below(height - h + 1), draws.below(width - w + 1), h, w
        # None of them has fitted: take the largest box of an allowed aspect, in the middle.
        w, h = width, height
        if width < self.ratio[0] * height:
            h = max(1, round(width / self.ratio[0]))
        elif width > self.ratio[1] * height:
            w = max(1, round(height * self.ratio[1]))
        return (height - h) // 2, (width - w) // 2, h, w

    def __repr__(self) -> str:
        return (
            f"RandomResizedCrop({self.size}, scale={self.scale}, ratio={self.ratio}, flip={self.flip}, "
            f"interpolation={self.interpolation!r})"
        )


class Resize(Transform):
    """Scale the image.

    Parameters
    ----------
    size : int or (int, int)
        One number is the new length of the shorter side, and the aspect stays; two numbers are height and width.
    interpolation : {'bilinear', 'bicubic', 'nearest'}
        torchvision's ``InterpolationMode`` and Pillow's ``Resampling`` count as their names.

    Examples
    --------
    >>> from slipring import images
    >>> pixels, label = images.Folder("train/", images.Resize((24, 24)))[0]
    >>> pixels.shape
    (24, 24, 3)
    """

    size: tuple[int, int] | None = None
    resizes = True
    shorter: int | None
    interpolation: Interpolation

    def __init__(self, size: int | Sequence[int], interpolation: Interpolation | enum.Enum = "bilinear") -> None:
        self.shorter = None if isinstance(size, (tuple, list)) else _count("size", size)
        if self.shorter is None:
            self.size = _pair("size", size)
        self.interpolation = interpolation_name(interpolation)

    def apply(self, view: View, draws: Draws) -> None:
        if self.shorter is None:
            view.resize(*self.size)
            return
        height, width = view.window[2:]
        longer = int(self.shorter * max(height, width) / min(height, width))
        view.resize(*((longer, self.shorter) if height > width else (self.shorter, longer)))

    def __repr__(self) -> str:
        return f"Resize({self.shorter or self.size}, interpolation={self.interpolation!r})"


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
        self.size = _pair("size", size)

    def apply(self, view: View, draws: Draws) -> None:
        height, width = self.size
        seen_height, seen_width = view.window[2:]
        # torchvision pads first, with the smaller half at the top and left; then it rounds the place of the crop.
        top = -((height - seen_height) // 2) if height > seen_height else round((seen_height - height) / 2.0)
        left = -((width - seen_width) // 2) if width > seen_width else round((seen_width - width) / 2.0)
        view.crop(top, left, height, width)

    def __repr__(self) -> str:
        return f"CenterCrop({self.size})"


class RandomHorizontalFlip(Transform):
    """Exchange left and right with probability `p`.

    Examples
    --------
    >>> from slipring import images
    >>> steps = [images.Resize((24, 24)), images.RandomHorizontalFlip(p=0.5)]
    >>> pixels, label = images.Folder("train/", steps)[0]
    >>> pixels.shape
    (24, 24, 3)
    """

    p: float

    def __init__(self, p: float = 0.5) -> None:
        self.p = _probability("p", p)
        self.is_random: bool = 0 < self.p < 1

    def apply(self, view: View, draws: Draws) -> None:
        if draws.uniform(0, 1) < self.p:
            view.flip = not view.flip

    def __repr__(self) -> str:
        return f"RandomHorizontalFlip(p={self.p})"


def chain(transform: Transform | Sequence[Transform] | None) -> tuple[Transform, ...]:
    """Return a tuple of the steps of `transform`: one, several, or None for none.

    Raises
    ------
    TypeError
        A step is not a `Transform`.
    ValueError
        More than one of them resizes.
    """
    steps = () if transform is None else tuple(transform) if isinstance(transform, (tuple, list)) else (transform,)
    for step in steps:
        if not isinstance(step, Transform):
            raise TypeError(
                f"transform must be of slipring.images (RandomResizedCrop, Resize, CenterCrop, RandomHorizontalFlip) "
                f"or a list of these, not {shown(step)}; do what else is to be done in a dataset around this one"
            )
    resizing = [step for step in steps if step.resizes]
    if len(resizing) > 1:
        raise ValueError(f"a picture is resized in one pass: leave out {resizing[0]} or {resizing[1]}")
    return steps


def final_size(steps: Sequence[Transform]) -> tuple[int, int] | None:
    """Return the size that all samples have, or None if it depends on the image."""
    for step in reversed(steps):
        if step.size is not None:
            return step.size
        if step.resizes:
            return None
    return None


def interpolation_name(value: Any) -> Interpolation:
    """Return the name of an interpolation, which may be a member of torchvision's or Pillow's enumeration."""
    name = value
    if isinstance(value, enum.Enum):  # torchvision's two kinds of nearest are the same on Pillow's images
        name = value.name.lower().removesuffix("_exact")
    one_of("interpolation", name, INTERPOLATIONS)
    return name


def _count(name, value):
    try:
        return integer(name, value, 1, _MOST_PIXELS)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number of pixels from 1 to {_MOST_PIXELS}, not {shown(value)}") from None


def _pair(name, value):
    if isinstance(value, (tuple, list)):
        if len(value) == 1:
            value = value[0]
        elif len(value) == 2:
            return _count(name, value[0]), _count(name, value[1])
        else:
            raise ValueError(f"{name} must be a number, or height and width, not {shown(value)}")
    return (_count(name, value),) * 2


def _range(name, value):
    try:
        low, high = (real(name, number) for number in value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be two numbers, not {shown(value)}") from None
    if not 0 < low <= high < math.inf:
        raise ValueError(f"{name} must be two numbers above 0, the smaller first, not {shown(value)}")
    return low, high


def _probability(name, value):
    probability = real(name, value, "a probability from 0 to 1")
    if not 0 <= probability <= 1:
        raise ValueError(f"{name} must be a probability from 0 to 1, not {shown(value)}")
    return probability
