"""The operations of timm's policies, and the sets of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from slipring._core.options.checks import real
from slipring.errors import shown
from slipring.images._render import ops
from slipring.images._render.ops import add_affine, add_rotation
from slipring.images._steps.checks import fill_of, filter_of, interpolation_or_random

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe

MOST = 10.0  # the level that means full strength
_HPARAMS = ("translate_const", "translate_pct", "magnitude_std", "magnitude_max", "img_mean", "interpolation")


class Op:
    """One operation: with its probability, at a level that may be drawn around its magnitude."""

    __slots__ = ("_fill", "_filter", "_most", "_std", "level", "name", "p", "reach")

    def __init__(self, name: str, p: float, level: float, options: PolicyOptions) -> None:
        self.name, self.p, self.level = name, p, level
        self._std, self._most = options.std, options.most
        self._filter, self._fill = options.filter, options.fill
        self.reach = options.reach if name.endswith("Rel") else options.pixels

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        if self.p < 1 and not draws.chance(self.p):
            return
        level = self.level
        if self._std == math.inf:
            level = draws.uniform(0, level)
        elif self._std > 0:
            level = draws.normal(level, self._std)
        level = max(0.0, min(level, self._most))
        OPERATIONS[self.name](self, recipe, draws, level / MOST)

    def affine(self, recipe: Recipe, draws: Draws, matrix: tuple[float, float, float, float, float, float]) -> None:
        add_affine(recipe, matrix, self.filter(draws), self._fill)

    def rotate(self, recipe: Recipe, draws: Draws, share: float) -> None:
        angle = _signed(share * 30.0, draws)
        add_rotation(recipe, angle, self.filter(draws), False, None, self._fill)

    def filter(self, draws: Draws) -> int:
        return draws.below(2) if self._filter is None else self._filter

    def __repr__(self) -> str:
        return f"{self.name}(p={self.p}, m={self.level})"


# ---- the operations: (the `Op`, recipe, draws, its level as a share of the full strength)


def _signed(value, draws):
    return -value if draws.chance(0.5) else value


def _shear_x(op, recipe, draws, share):
    op.affine(recipe, draws, (1.0, _signed(share * 0.3, draws), 0.0, 0.0, 1.0, 0.0))


def _shear_y(op, recipe, draws, share):
    op.affine(recipe, draws, (1.0, 0.0, 0.0, _signed(share * 0.3, draws), 1.0, 0.0))


def _move_x(op, recipe, draws, share):
    op.affine(recipe, draws, (1.0, 0.0, _signed(share * op.reach, draws), 0.0, 1.0, 0.0))


def _move_y(op, recipe, draws, share):
    op.affine(recipe, draws, (1.0, 0.0, 0.0, 0.0, 1.0, _signed(share * op.reach, draws)))


def _move_x_rel(op, recipe, draws, share):
    op.affine(recipe, draws, (1.0, 0.0, _signed(share * op.reach, draws) * recipe.width, 0.0, 1.0, 0.0))


def _move_y_rel(op, recipe, draws, share):
    op.affine(recipe, draws, (1.0, 0.0, 0.0, 0.0, 1.0, _signed(share * op.reach, draws) * recipe.height))


def _plain(kind):
    return lambda op, recipe, draws, share: recipe.op(kind())


def _enhanced(kind):
    """Return the operation whose factor grows with the level, from 0.1."""
    return lambda op, recipe, draws, share: recipe.op(kind(share * 1.8 + 0.1))


def _enhanced_more(kind):
    """Return the operation whose factor moves away from 1 with the level, to either side."""
    return lambda op, recipe, draws, share: recipe.op(kind(max(0.1, 1.0 + _signed(share * 0.9, draws))))


def _posterized(bits):
    """Return the operation that keeps ``bits(level)`` bits."""

    def operation(op, recipe, draws, share):
        kept = max(0, bits(int(share * 4)))
        if kept < 8:
            recipe.op(ops.PosterizeOp(kept))

    return operation


def _solarized(threshold):
    return lambda op, recipe, draws, share: recipe.op(ops.SolarizeOp(float(threshold(min(256, int(share * 256))))))


def _solarize_add(op, recipe, draws, share):
    recipe.op(ops.SolarizeAddOp(min(128, int(share * 110)), 128))


def _desaturate(op, recipe, draws, share):
    factor = max(0.5, min(1.0, 0.5 + 0.5 * share))
    recipe.op(ops.SaturationOp(min(1.0, max(0.0, 1.0 - factor))))


def _blur(op, recipe, draws, share):
    _blurred(recipe, max(0.1, min(2.0, 0.1 + 1.9 * share)))


def _blur_rand(op, recipe, draws, share):
    _blurred(recipe, draws.uniform(0.1, 2.0 * max(0.0, min(1.0, share))))


def _blurred(recipe, radius):
    recipe.op(ops.PilGaussianBlurOp((radius, radius)))


OPERATIONS: dict[str, Callable[[Op, Recipe, Draws, float], None]] = {
    "AutoContrast": _plain(ops.AutocontrastOp),
    "Equalize": _plain(ops.EqualizeOp),
    "Invert": _plain(ops.InvertOp),
    "Rotate": Op.rotate,
    "Posterize": _posterized(lambda n: n),
    "PosterizeIncreasing": _posterized(lambda n: 4 - n),
    "PosterizeOriginal": _posterized(lambda n: 4 + n),
    "Solarize": _solarized(lambda n: n),
    "SolarizeIncreasing": _solarized(lambda n: 256 - n),
    "SolarizeAdd": _solarize_add,
    "Color": _enhanced(ops.SaturationOp),
    "ColorIncreasing": _enhanced_more(ops.SaturationOp),
    "Contrast": _enhanced(ops.ContrastOp),
    "ContrastIncreasing": _enhanced_more(ops.ContrastOp),
    "Brightness": _enhanced(ops.BrightnessOp),
    "BrightnessIncreasing": _enhanced_more(ops.BrightnessOp),
    "Sharpness": _enhanced(ops.SharpnessOp),
    "SharpnessIncreasing": _enhanced_more(ops.SharpnessOp),
    "ShearX": _shear_x,
    "ShearY": _shear_y,
    "TranslateX": _move_x,
    "TranslateY": _move_y,
    "TranslateXRel": _move_x_rel,
    "TranslateYRel": _move_y_rel,
    "Desaturate": _desaturate,
    "GaussianBlur": _blur,
    "GaussianBlurRand": _blur_rand,
}

_GEOMETRY = ["ShearX", "ShearY", "TranslateXRel", "TranslateYRel"]
_PLAIN = ["AutoContrast", "Equalize", "Invert", "Rotate"]
_ENHANCING = ["Color", "Contrast", "Brightness", "Sharpness"]
DECREASING = [*_PLAIN, "Posterize", "Solarize", "SolarizeAdd", *_ENHANCING, *_GEOMETRY]
INCREASING = [
    *_PLAIN,
    *("PosterizeIncreasing", "SolarizeIncreasing", "SolarizeAdd"),
    *(f"{name}Increasing" for name in _ENHANCING),
    *_GEOMETRY,
]
SETS: dict[str, Sequence[str] | Mapping[str, float]] = {
    "3a": ["SolarizeIncreasing", "Desaturate", "GaussianBlur"],
    "3aw": {
        **dict.fromkeys(["SolarizeIncreasing", "Desaturate", "GaussianBlur"], 6),
        **{"Rotate": 3, "ShearX": 2, "ShearY": 2, "PosterizeIncreasing": 1, "AutoContrast": 1, "ColorIncreasing": 1},
        **dict.fromkeys(["SharpnessIncreasing", "ContrastIncreasing", "BrightnessIncreasing", "Equalize", "Invert"], 1),
    },
    "weights": {
        **{"Rotate": 3, "ShearX": 2, "ShearY": 2, "TranslateXRel": 1, "TranslateYRel": 1},
        **dict.fromkeys(["ColorIncreasing", "SharpnessIncreasing", "AutoContrast"], 0.25),
        **dict.fromkeys(["SolarizeIncreasing", "SolarizeAdd", "ContrastIncreasing", "BrightnessIncreasing"], 0.05),
        **dict.fromkeys(["Equalize", "PosterizeIncreasing", "Invert"], 0.05),
    },
}
AUGMIX = [
    *("AutoContrast", "Equalize", "Rotate", "PosterizeIncreasing", "SolarizeIncreasing"),
    *(f"{name}Increasing" for name in _ENHANCING),
    *_GEOMETRY,
]


class PolicyOptions:
    """What all operations of a policy share."""

    def __init__(self, hparams, interpolation, fill, std, most):
        unknown = next((name for name in hparams if name not in _HPARAMS), None)
        if unknown is not None:
            raise ValueError(f"hparams must have names of {', '.join(_HPARAMS)}, not {shown(unknown)}")
        self.interpolation = interpolation_or_random(hparams.get("interpolation", interpolation))
        self.filter = filter_of(self.interpolation)
        self.fill = fill_of(hparams.get("img_mean", fill))
        self.std = _setting(hparams, "magnitude_std", std or 0.0)
        self.most = _setting(hparams, "magnitude_max", most or 0.0) or MOST
        self.pixels = _setting(hparams, "translate_const", 250.0)
        self.reach = _setting(hparams, "translate_pct", 0.45)


def _setting(hparams, name, default):
    value = hparams.get(name)
    if value is None:
        return default
    found = real(f"hparams[{name!r}]", value)
    if not found >= 0:
        raise ValueError(f"hparams[{name!r}] must be a number of at least 0, not {shown(value)}")
    return found
