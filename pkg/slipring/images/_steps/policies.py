"""torchvision's policies, such as AutoAugment, with its results on PIL images."""

from __future__ import annotations

import enum
import functools
import inspect
import math
import struct
from typing import TYPE_CHECKING, Any

from slipring._core.options.checks import flag, integer, one_of
from slipring.images._render import ops
from slipring.images._render.ops import add_affine, add_rotation
from slipring.images._steps.checks import number
from slipring.images._steps.policy_tables import AUTO_AUGMENT
from slipring.images._steps.warps import Filling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe
    from slipring.images._render.view import InterpolationOrRandom
    from slipring.images._steps.warps import Fill

    Operation = Callable[[Recipe, float, int, Sequence[float]], None]

_SINGLE = struct.Struct("f")


def _single(value):
    """Return a number rounded to float32."""
    return _SINGLE.unpack(_SINGLE.pack(value))[0]


@functools.lru_cache(maxsize=4096)
def spaced(start: float, end: float, count: int, level: int) -> float:
    """Return one of `count` evenly spaced numbers, with the rounding of torch's ``linspace`` in float32.

    The rounding matters: a move is cut to whole pixels, and a threshold is compared with pixel values.
    """
    start, end = _single(start), _single(end)
    step = _single(_single(end - start) / (count - 1)) if count > 1 else 0.0
    return _single(start + step * level if level < count // 2 else end - step * (count - 1 - level))


# ---- the operations: (recipe, magnitude, filter, fill)


def _shear_x(recipe, magnitude, how, fill):
    # torchvision goes through an angle in degrees.
    shear = math.tan(math.radians(math.degrees(math.atan(magnitude))))
    add_affine(recipe, (1.0, shear, 0.0, 0.0, 1.0, 0.0), how, fill)


def _shear_y(recipe, magnitude, how, fill):
    angle = math.radians(math.degrees(math.atan(magnitude)))
    add_affine(recipe, (1.0, 0.0, 0.0, math.sin(angle) / math.cos(angle), 1.0, 0.0), how, fill)


def _translate_x(recipe, magnitude, how, fill):
    recipe.crop(0, -int(magnitude), recipe.height, recipe.width, fill)


def _translate_y(recipe, magnitude, how, fill):
    recipe.crop(-int(magnitude), 0, recipe.height, recipe.width, fill)


def _rotate(recipe, magnitude, how, fill):
    add_rotation(recipe, magnitude, how, False, None, fill)


def _plain(make):
    """Return the operation that adds ``make(magnitude)``."""
    return lambda recipe, magnitude, how, fill: recipe.op(make(magnitude))


OPERATIONS: dict[str, Operation] = {
    "Identity": lambda recipe, magnitude, how, fill: None,
    "ShearX": _shear_x,
    "ShearY": _shear_y,
    "TranslateX": _translate_x,
    "TranslateY": _translate_y,
    "Rotate": _rotate,
    "Brightness": _plain(lambda magnitude: ops.BrightnessOp(1.0 + magnitude)),
    "Color": _plain(lambda magnitude: ops.SaturationOp(1.0 + magnitude)),
    "Contrast": _plain(lambda magnitude: ops.ContrastOp(1.0 + magnitude)),
    "Sharpness": _plain(lambda magnitude: ops.SharpnessOp(1.0 + magnitude)),
    "Posterize": _plain(lambda magnitude: ops.PosterizeOp(int(magnitude))),
    "Solarize": _plain(lambda magnitude: ops.SolarizeOp(255.0 * magnitude)),
    "AutoContrast": _plain(lambda _: ops.AutocontrastOp()),
    "Equalize": _plain(lambda _: ops.EqualizeOp()),
    "Invert": _plain(lambda _: ops.InvertOp()),
}
_UNSIGNED = {"Identity", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert"}


class Choice:
    """One operation of a policy: what it does, and how strong it is in each of `count` steps.

    The strength grows from 0 in the first step to `most` in the last one. With `most=None`, the operation has no
    strength. Translations may have a `share` of the image's width or height in place of `most`.
    """

    __slots__ = ("_count", "_signed", "_strengths", "_vertical", "name", "share")

    def __init__(self, name: str, most: float | None, count: int, share: float | None = None) -> None:
        self.name, self.share, self._count = name, share, count
        self._vertical = name == "TranslateY"
        self._signed = name not in _UNSIGNED
        self._strengths = None
        if most is not None:
            self._strengths = tuple(spaced(0.0, most, count, level) for level in range(count))
        if name == "Solarize":
            self._strengths = tuple(spaced(1.0, 0.0, count, level) for level in range(count))

    @classmethod
    def posterize(cls, bits: int, lost: int, count: int) -> Choice:
        """Return the posterizing operation that keeps from `bits` to `bits` - `lost` bits."""
        made = cls("Posterize", None, count)
        made._strengths = tuple(float(round(bits - _single(level / ((count - 1) / lost)))) for level in range(count))
        return made

    def strength(self, recipe: Recipe, level: int, draws: Draws) -> float:
        """Return the strength of a step for an image, with the sign that is drawn."""
        if self.share is not None:
            most = self.share * (recipe.height if self._vertical else recipe.width)
            found = spaced(0.0, most, self._count, level)
        elif self._strengths is None:
            return 0.0
        else:
            found = self._strengths[level]
        return -found if self._signed and draws.chance(0.5) else found

    @property
    def has_strength(self) -> bool:
        return self.share is not None or self._strengths is not None


def space(
    count: int, most: dict[str, float], moves: tuple[float | None, float | None], posterize: tuple[int, int]
) -> dict[str, Choice]:
    """Return the operations of a policy by name, with `count` steps of strength.

    `most` has the largest strength of "Shear", "Rotate" and "Color", which counts for the four colour operations.
    `moves` is the largest move, in pixels or as a share of the side. `posterize` has the bits of the first step, and
    how many the last one has lost.
    """
    made = [Choice("Identity", None, count)]
    made += [Choice(f"Shear{axis}", most["Shear"], count) for axis in "XY"]
    made += [Choice(f"Translate{axis}", moves[0], count, moves[1]) for axis in "XY"]
    made.append(Choice("Rotate", most["Rotate"], count))
    made += [Choice(name, most["Color"], count) for name in ("Brightness", "Color", "Contrast", "Sharpness")]
    made.append(Choice.posterize(*posterize, count))
    made += [Choice(name, None, count) for name in ("Solarize", "AutoContrast", "Equalize", "Invert")]
    return {one.name: one for one in made}


_MOST = {"Shear": 0.3, "Rotate": 30.0, "Color": 0.9}
_GEOMETRY = ["ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"]
_COLORS = ["Brightness", "Color", "Contrast", "Sharpness"]
_OTHERS = ["Posterize", "Solarize", "AutoContrast", "Equalize"]
_MOST_BINS = 1 << 16


class _Policy(Filling):
    """A step that draws operations."""

    is_random: bool = True

    def _perform(self, recipe: Recipe, draws: Draws, choice: Choice, level: int) -> None:
        strength = choice.strength(recipe, level, draws)
        OPERATIONS[choice.name](recipe, strength, self._drawn_filter(draws), self._fill)

    def __repr__(self) -> str:
        names = inspect.signature(type(self)).parameters
        return self._shown("interpolation", *(name for name in names if name != "interpolation"))


class TrivialAugmentWide(_Policy):
    """Apply one operation of random strength, drawn from 14: TrivialAugment with its wide ranges.

    Parameters
    ----------
    num_magnitude_bins : int
        Number of strengths to draw from, from 2.
    interpolation : {'nearest', 'bilinear', 'bicubic', 'random'}
        'random', which is timm's, draws one of bilinear and bicubic for each operation.
    fill : float or (float, float, float), optional
        Colour where the result shows no part of the image, from 0 to 255; None is black.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.RandomResizedCrop(24), images.TrivialAugmentWide()])
    """

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: InterpolationOrRandom | enum.Enum = "nearest",
        fill: Fill = None,
    ) -> None:
        self._set_filling(interpolation, fill)
        self.num_magnitude_bins: int = integer("num_magnitude_bins", num_magnitude_bins, 2, _MOST_BINS)
        most = {"Shear": 0.99, "Rotate": 135.0, "Color": 0.99}
        known = space(self.num_magnitude_bins, most, (32.0, None), (8, 6))
        self._choices = [known[name] for name in ["Identity", *_GEOMETRY, *_COLORS, *_OTHERS]]

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        choice = self._choices[draws.below(14)]
        level = draws.below(self.num_magnitude_bins) if choice.has_strength else 0
        self._perform(recipe, draws, choice, level)


class RandAugment(_Policy):
    """Apply several operations of one strength, each drawn from 14.

    Parameters
    ----------
    num_ops : int
        Number of operations.
    magnitude : int
        Strength, from 0 to `num_magnitude_bins` - 1.
    num_magnitude_bins : int
        Number of strengths, from 2.
    interpolation, fill
        As in `TrivialAugmentWide`.

    See Also
    --------
    rand_augment_transform : timm's RandAugment.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.RandomResizedCrop(24), images.RandAugment(num_ops=2, magnitude=9)])
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: InterpolationOrRandom | enum.Enum = "nearest",
        fill: Fill = None,
    ) -> None:
        self._set_filling(interpolation, fill)
        self.num_ops: int = integer("num_ops", num_ops, 0, 1 << 10)
        self.num_magnitude_bins: int = integer("num_magnitude_bins", num_magnitude_bins, 2, _MOST_BINS)
        self.magnitude: int = integer("magnitude", magnitude, 0, self.num_magnitude_bins - 1)
        known = space(self.num_magnitude_bins, _MOST, (None, 150.0 / 331.0), (8, 4))
        self._choices = [known[name] for name in ["Identity", *_GEOMETRY, *_COLORS, *_OTHERS]]

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        for _ in range(self.num_ops):
            choice = self._choices[draws.below(14)]
            self._perform(recipe, draws, choice, self.magnitude)


class AutoAugment(_Policy):
    """Apply one of 25 pairs of operations, which AutoAugment found for a dataset.

    Parameters
    ----------
    policy : {'imagenet', 'cifar10', 'svhn'}
        The dataset. Members of torchvision's ``AutoAugmentPolicy`` count as their values.
    interpolation, fill
        As in `TrivialAugmentWide`.

    See Also
    --------
    auto_augment_transform : timm's AutoAugment.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.RandomResizedCrop(24), images.AutoAugment("imagenet")])
    """

    def __init__(
        self,
        policy: Any = "imagenet",
        interpolation: InterpolationOrRandom | enum.Enum = "nearest",
        fill: Fill = None,
    ) -> None:
        self._set_filling(interpolation, fill)
        name = policy.value if isinstance(policy, enum.Enum) else policy
        one_of("policy", name, tuple(AUTO_AUGMENT))
        self.policy: str = name
        known = space(10, _MOST, (None, 150.0 / 331.0), (8, 4))
        self._pairs = [
            [(known[operation], probability, level) for operation, probability, level in pair]
            for pair in AUTO_AUGMENT[name]
        ]

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        for choice, probability, level in self._pairs[draws.below(len(self._pairs))]:
            if draws.chance(probability):
                self._perform(recipe, draws, choice, level)


class AugMix(_Policy):
    """Mix the image with several chains of random operations on it.

    torchvision operates on tensors here, and mixes them. This class applies the operations as on PIL images,
    and rounds the mix, which torchvision cuts.

    Parameters
    ----------
    severity : int
        Largest strength of an operation, from 1 to 10.
    mixture_width : int
        Number of chains.
    chain_depth : int
        Number of operations of each chain; -1 draws 1 to 3.
    alpha : float
        Parameter, above 0, of the Dirichlet distributions of the weights.
    all_ops : bool
        Use brightness, colour, contrast and sharpness, too.
    interpolation, fill
        As in `TrivialAugmentWide`.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.RandomResizedCrop(24), images.AugMix()])
    """

    def __init__(
        self,
        severity: int = 3,
        mixture_width: int = 3,
        chain_depth: int = -1,
        alpha: float = 1.0,
        all_ops: bool = True,
        interpolation: InterpolationOrRandom | enum.Enum = "bilinear",
        fill: Fill = None,
    ) -> None:
        self._set_filling(interpolation, fill)
        self.severity: int = integer("severity", severity, 1, 10)
        self.mixture_width: int = integer("mixture_width", mixture_width, 1, 1 << 10)
        self.chain_depth: int = integer("chain_depth", chain_depth, -1, 1 << 10)
        self.alpha: float = number("alpha", alpha, math.nextafter(0, 1), math.inf, "a number above 0")
        flag("all_ops", all_ops)
        self.all_ops: bool = bool(all_ops)
        known = space(10, _MOST, (None, 1 / 3), (4, 4))
        names = [*_GEOMETRY, *_OTHERS, *(_COLORS if self.all_ops else ())]
        self._choices = [known[name] for name in names]

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        original, mixed = draws.dirichlet(self.alpha, 2)
        weights = draws.dirichlet(self.alpha, self.mixture_width)
        add_mix(recipe, draws, self.chain_depth, original, [weight * mixed for weight in weights], self._add)

    def _add(self, recipe, draws):
        choice = self._choices[draws.below(len(self._choices))]
        level = draws.below(self.severity) if choice.has_strength else 0
        self._perform(recipe, draws, choice, level)


def add_mix(
    recipe: Recipe,
    draws: Draws,
    depth: int,
    original: float,
    weights: Sequence[float],
    add: Callable[[Recipe, Draws], None],
) -> None:
    """Add the sum of the image and of chains of operations, with their weights; `add` adds one operation to a chain.

    If `depth` is not above 0, each chain has 1 to 3 operations.
    """
    recipe.op(ops.KeepOp())
    recipe.op(ops.AddToSumOp(original))
    for weight in weights:
        for _ in range(depth if depth > 0 else 1 + draws.below(3)):
            add(recipe, draws)
        recipe.op(ops.AddToSumOp(weight))
    recipe.op(ops.TakeSumOp())
