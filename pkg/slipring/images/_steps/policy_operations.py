"""Single operations of the policies, such as AutoAugment, by name, with torchvision's magnitudes."""

from __future__ import annotations

import functools
import math
import struct
from typing import TYPE_CHECKING

from slipring.images._render import ops
from slipring.images._render.geometry import add_affine, add_rotation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe

    Operation = Callable[[Recipe, float, int, Sequence[float]], None]
    Magnitudes = Callable[[int], tuple[float, ...]] | None

_SINGLE = struct.Struct("f")


def _single(value):
    """Return a number rounded to float32."""
    return _SINGLE.unpack(_SINGLE.pack(value))[0]


@functools.lru_cache(maxsize=4096)
def spaced(start: float, end: float, count: int, place: int) -> float:
    """Return one of `count` evenly spaced numbers, with the rounding of torch's ``linspace`` in float32.

    The rounding matters: a move is cut to whole pixels, and a threshold is compared with pixel values.
    """
    start, end = _single(start), _single(end)
    step = _single(_single(end - start) / (count - 1)) if count > 1 else 0.0
    return _single(start + step * place if place < count // 2 else end - step * (count - 1 - place))


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

    Parameters
    ----------
    name : str
    most : float or None
        Strength of the last step; the first has 0. None: the operation has no strength.
    count : int
        Number of steps.
    share : float, optional
        In place of `most`, for moves: the share of the image's width or height.
    """

    __slots__ = ("_count", "_signed", "_strengths", "_vertical", "name", "share")

    def __init__(self, name: str, most: float | None, count: int, share: float | None = None) -> None:
        self.name, self.share, self._count = name, share, count
        self._vertical = name == "TranslateY"
        self._signed = name not in _UNSIGNED
        self._strengths = None
        if most is not None:
            self._strengths = tuple(spaced(0.0, most, count, place) for place in range(count))
        if name == "Solarize":
            self._strengths = tuple(spaced(1.0, 0.0, count, place) for place in range(count))

    @classmethod
    def posterize(cls, bits: int, lost: int, count: int) -> Choice:
        """Return the posterizing operation that keeps from `bits` to `bits` - `lost` bits."""
        made = cls("Posterize", None, count)
        made._strengths = tuple(float(round(bits - _single(place / ((count - 1) / lost)))) for place in range(count))
        return made

    def strength(self, recipe: Recipe, place: int, draws: Draws) -> float:
        """Return the strength of a step for an image, with the sign that is drawn."""
        if self.share is not None:
            most = self.share * (recipe.height if self._vertical else recipe.width)
            found = spaced(0.0, most, self._count, place)
        elif self._strengths is None:
            return 0.0
        else:
            found = self._strengths[place]
        return -found if self._signed and draws.chance(0.5) else found

    @property
    def has_strength(self) -> bool:
        return self.share is not None or self._strengths is not None


def space(
    count: int, most: dict[str, float], moves: tuple[float | None, float | None], posterize: tuple[int, int]
) -> dict[str, Choice]:
    """Return the operations of a policy by name.

    Parameters
    ----------
    count : int
        Number of steps of the strengths.
    most : dict of str to float
        Largest strength of "Shear", "Rotate" and "Color", which counts for the four colour operations.
    moves : (pixels or None, share or None)
        Largest move, in pixels or as a share of the side.
    posterize : (bits, lost)
    """
    made = [Choice("Identity", None, count)]
    made += [Choice(f"Shear{axis}", most["Shear"], count) for axis in "XY"]
    made += [Choice(f"Translate{axis}", moves[0], count, moves[1]) for axis in "XY"]
    made.append(Choice("Rotate", most["Rotate"], count))
    made += [Choice(name, most["Color"], count) for name in ("Brightness", "Color", "Contrast", "Sharpness")]
    made.append(Choice.posterize(*posterize, count))
    made += [Choice(name, None, count) for name in ("Solarize", "AutoContrast", "Equalize", "Invert")]
    return {one.name: one for one in made}
