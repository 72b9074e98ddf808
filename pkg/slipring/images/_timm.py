"""timm's RandAugment and AutoAugment, from timm's strings."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from slipring._core.arguments import real
from slipring.errors import shown
from slipring.images import _decode
from slipring.images._checks import fill_of, filter_of, interpolation_or_random
from slipring.images._geometry import add_affine, add_rotation
from slipring.images._policy_tables import TIMM
from slipring.images._transform import Transform

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable, Mapping, Sequence

    from slipring.images._draws import Draws
    from slipring.images._recipe import Recipe
    from slipring.images._view import InterpolationOrRandom

_GREY = (128, 128, 128)
_MOST = 10.0  # the level that means full strength
_HPARAMS = ("translate_const", "translate_pct", "magnitude_std", "magnitude_max", "img_mean", "interpolation")


class _Op:
    """One operation: with its probability, at a level that may be drawn around its magnitude."""

    __slots__ = ("_fill", "_filter", "_most", "_std", "level", "name", "p", "reach")

    def __init__(self, name: str, p: float, level: float, options: _Options) -> None:
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
        _OPERATIONS[self.name](self, recipe, draws, level / _MOST)

    def affine(self, recipe: Recipe, draws: Draws, matrix: tuple[float, float, float, float, float, float]) -> None:
        add_affine(recipe, matrix, self.filter(draws), self._fill)

    def rotate(self, recipe: Recipe, draws: Draws, share: float) -> None:
        angle = _signed(share * 30.0, draws)
        add_rotation(recipe, angle, self.filter(draws), False, None, self._fill)

    def filter(self, draws: Draws) -> int:
        return draws.below(2) if self._filter is None else self._filter

    def __repr__(self) -> str:
        return f"{self.name}(p={self.p}, m={self.level})"


# ---- the operations: (the `_Op`, recipe, draws, its level as a share of the full strength)


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


def _plain(code):
    return lambda op, recipe, draws, share: recipe.op(code)


def _enhanced(code):
    """Return the operation whose factor grows with the level, from 0.1."""
    return lambda op, recipe, draws, share: recipe.op(code, (), (share * 1.8 + 0.1,))


def _enhanced_more(code):
    """Return the operation whose factor moves away from 1 with the level, to either side."""
    return lambda op, recipe, draws, share: recipe.op(code, (), (max(0.1, 1.0 + _signed(share * 0.9, draws)),))


def _posterized(bits):
    """Return the operation that keeps ``bits(level)`` bits."""

    def operation(op, recipe, draws, share):
        kept = max(0, bits(int(share * 4)))
        if kept < 8:
            recipe.op(_decode.OP_POSTERIZE, (kept,))

    return operation


def _solarized(threshold):
    return lambda op, recipe, draws, share: recipe.op(
        _decode.OP_SOLARIZE, (), (float(threshold(min(256, int(share * 256)))),)
    )


def _solarize_add(op, recipe, draws, share):
    recipe.op(_decode.OP_SOLARIZE_ADD, (min(128, int(share * 110)), 128))


def _desaturate(op, recipe, draws, share):
    factor = max(0.5, min(1.0, 0.5 + 0.5 * share))
    recipe.op(_decode.OP_SATURATION, (), (min(1.0, max(0.0, 1.0 - factor)),))


def _blur(op, recipe, draws, share):
    _blurred(recipe, max(0.1, min(2.0, 0.1 + 1.9 * share)))


def _blur_rand(op, recipe, draws, share):
    _blurred(recipe, draws.uniform(0.1, 2.0 * max(0.0, min(1.0, share))))


def _blurred(recipe, radius):
    recipe.op(_decode.OP_PIL_BLUR, (), (radius, radius))


_OPERATIONS: dict[str, Callable[[_Op, Recipe, Draws, float], None]] = {
    "AutoContrast": _plain(_decode.OP_AUTOCONTRAST),
    "Equalize": _plain(_decode.OP_EQUALIZE),
    "Invert": _plain(_decode.OP_INVERT),
    "Rotate": _Op.rotate,
    "Posterize": _posterized(lambda n: n),
    "PosterizeIncreasing": _posterized(lambda n: 4 - n),
    "PosterizeOriginal": _posterized(lambda n: 4 + n),
    "Solarize": _solarized(lambda n: n),
    "SolarizeIncreasing": _solarized(lambda n: 256 - n),
    "SolarizeAdd": _solarize_add,
    "Color": _enhanced(_decode.OP_SATURATION),
    "ColorIncreasing": _enhanced_more(_decode.OP_SATURATION),
    "Contrast": _enhanced(_decode.OP_CONTRAST),
    "ContrastIncreasing": _enhanced_more(_decode.OP_CONTRAST),
    "Brightness": _enhanced(_decode.OP_BRIGHTNESS),
    "BrightnessIncreasing": _enhanced_more(_decode.OP_BRIGHTNESS),
    "Sharpness": _enhanced(_decode.OP_SHARPNESS),
    "SharpnessIncreasing": _enhanced_more(_decode.OP_SHARPNESS),
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
_DECREASING = [*_PLAIN, "Posterize", "Solarize", "SolarizeAdd", *_ENHANCING, *_GEOMETRY]
_INCREASING = [
    *_PLAIN,
    *("PosterizeIncreasing", "SolarizeIncreasing", "SolarizeAdd"),
    *(f"{name}Increasing" for name in _ENHANCING),
    *_GEOMETRY,
]
_SETS: dict[str, Sequence[str] | Mapping[str, float]] = {
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


class _Options:
    """What all operations of a policy share."""

    def __init__(self, hparams, interpolation, fill, std, most):
        unknown = next((name for name in hparams if name not in _HPARAMS), None)
        if unknown is not None:
            raise ValueError(f"hparams must have names of {', '.join(_HPARAMS)}, not {shown(unknown)}")
        self.interpolation = interpolation_or_random(hparams.get("interpolation", interpolation))
        self.filter = filter_of(self.interpolation)
        self.fill = fill_of(hparams.get("img_mean", fill))
        self.std = _setting(hparams, "magnitude_std", std or 0.0)
        self.most = _setting(hparams, "magnitude_max", most or 0.0) or _MOST
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


class _TimmPolicy(Transform):
    """A step that timm's string describes."""

    is_random: bool = True

    def __init__(self, text: str, options: _Options | None) -> None:
        self._text, self._options = text, options

    def __repr__(self) -> str:
        if self._options is None:
            return self._text
        name = "rand_augment_transform" if isinstance(self, _RandAugment) else "auto_augment_transform"
        return f"{name}({self._text!r}, interpolation={self._options.interpolation!r})"


class _RandAugment(_TimmPolicy):
    """Several operations, drawn with replacement, or without it by their weights."""

    def __init__(
        self, text: str, options: _Options | None, ops: list[_Op], count: int, weights: list[float] | None
    ) -> None:
        super().__init__(text, options)
        self._ops, self._count, self._weights = ops, count, weights

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        if self._weights is None:
            drawn = [draws.below(len(self._ops)) for _ in range(self._count)]
        else:
            drawn, weights = [], list(self._weights)
            for _ in range(self._count):
                drawn.append(draws.choice(weights))
                weights[drawn[-1]] = 0.0
        for place in drawn:
            self._ops[place].apply(recipe, draws)


class _AutoAugment(_TimmPolicy):
    """One of several lists of operations."""

    def __init__(self, text: str, options: _Options | None, lists: list[list[_Op]]) -> None:
        super().__init__(text, options)
        self._lists = lists

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        for op in self._lists[draws.below(len(self._lists))]:
            op.apply(recipe, draws)


def rand_augment_transform(
    config_str: str,
    hparams: Mapping[str, Any] | None = None,
    transforms: str | Sequence[str] | Mapping[str, float] | None = None,
    *,
    interpolation: InterpolationOrRandom | enum.Enum = "random",
    fill: float | Sequence[float] | None = _GREY,
) -> Transform:
    """Return timm's RandAugment: several operations, drawn from 15.

    Parameters
    ----------
    config_str : str
        "rand" and parts that "-" separates, such as "rand-m9-mstd0.5-inc1":

        - "m": level of all operations, 10 by default
        - "n": number of operations, 2 by default
        - "p": probability of each, 0.5 by default
        - "mstd": standard deviation of the level; above 100, the level is uniform from 0 to "m"
        - "mmax": largest level, 10 by default
        - "inc": 1 for operations whose effect grows with the level
        - "t": a set of operations: "weights", "3a" or "3aw"

        Parts without a number are ignored, as timm does.
    hparams : mapping, optional
        timm's: "translate_const", "translate_pct", "magnitude_std", "magnitude_max", "img_mean" (in place of `fill`)
        and "interpolation".
    transforms : str, sequence of str or mapping of str to float, optional
        Names of operations, or their weights, or the name of a set; in place of the part "t".
    interpolation : {'random', 'nearest', 'bilinear', 'bicubic'}
        'random' draws one of bilinear and bicubic for each operation.
    fill : float or (float, float, float), optional
        Colour where the result shows no part of the image, from 0 to 255. timm's ``create_transform`` gives the mean
        colour.

    Raises
    ------
    ValueError
        timm would refuse the string; the message names the part.

    Examples
    --------
    >>> from slipring import images
    >>> policy = images.rand_augment_transform("rand-m9-mstd0.5-inc1", interpolation="bicubic")
    >>> pixels, label = images.Folder("train/", [images.RandomResizedCrop(24), policy])[0]
    >>> pixels.shape
    (24, 24, 3)
    """
    head, parts = _parts(config_str)
    if head != "rand":
        raise ValueError(f"config_str must begin with 'rand', not {shown(config_str)}: {head!r} is its first part")
    found: dict[str, float] = {}
    chosen: Any = None
    for part in parts:
        if part.startswith("t"):
            chosen = part[1:] if chosen is None else chosen
        else:
            _read(config_str, part, {"mstd": float, "mmax": int, "inc": int, "m": int, "n": int, "p": float}, found)
    std = found.get("mstd", 0.0)
    options = _Options(hparams or {}, interpolation, fill, math.inf if std > 100 else std, found.get("mmax"))
    if transforms is not None:
        chosen = transforms
    if chosen is None or isinstance(chosen, str):
        chosen = _SETS.get(chosen or "", _INCREASING if found.get("inc") else _DECREASING)
    names, weights = _names(chosen)
    count, p, level = found.get("n", 2), found.get("p", 0.5), found.get("m", _MOST)
    if weights is not None and count > sum(weight > 0 for weight in weights):
        raise ValueError(f"config_str must have n of at most {len(names)} with weights, not {shown(config_str)}")
    return _RandAugment(config_str, options, [_Op(name, p, level, options) for name in names], int(count), weights)


def auto_augment_transform(
    config_str: str,
    hparams: Mapping[str, Any] | None = None,
    *,
    interpolation: InterpolationOrRandom | enum.Enum = "random",
    fill: float | Sequence[float] | None = _GREY,
) -> Transform:
    """Return timm's AutoAugment: one of several lists of operations.

    Parameters
    ----------
    config_str : str
        A policy, "original", "originalr", "v0", "v0r" or "3a" (3-Augment), and optionally the standard deviation of
        levels: "original-mstd0.5".
    hparams, interpolation, fill
        As in `rand_augment_transform`.

    Raises
    ------
    ValueError
        timm would refuse the string; the message names the part.

    Examples
    --------
    >>> from slipring import images
    >>> pixels, label = images.Folder("train/", [images.RandomResizedCrop(24), images.auto_augment_transform("3a")])[0]
    >>> pixels.shape
    (24, 24, 3)
    """
    head, parts = _parts(config_str)
    found: dict[str, float] = {}
    for part in parts:
        _read(config_str, part, {"mstd": float}, found)
    if head not in TIMM:
        raise ValueError(f"config_str must begin with one of {', '.join(TIMM)}, not {shown(config_str)}")
    options = _Options(hparams or {}, interpolation, fill, found.get("mstd"), None)
    lists = [[_Op(name, p, level, options) for name, p, level in line] for line in TIMM[head]]
    return _AutoAugment(config_str, options, lists)


_Given = tuple[str, float, float, dict[str, Any]]  # an operation's name, probability, level and hparams


def rand_augment_of(ops: Sequence[_Given], count: int, weights: list[float] | None) -> Transform:
    """Return the step of timm's RandAugment object: `count` of the operations; `weights` as in timm."""
    if weights is not None and count > sum(weight > 0 for weight in weights):
        raise ValueError(f"num_layers must be at most the number of operations with a weight, not {count}")
    made = [_op_of(one) for one in ops]
    return _RandAugment(f"RandAugment(num_layers={count}, ops={made})", None, made, count, weights)


def auto_augment_of(lists: Sequence[Sequence[_Given]]) -> Transform:
    """Return the step of timm's AutoAugment object."""
    made = [[_op_of(one) for one in line] for line in lists]
    return _AutoAugment(f"AutoAugment(policy={made})", None, made)


def _op_of(given):
    name, p, level, hparams = given
    _names([name])
    return _Op(name, p, level, _Options(hparams, "random", _GREY, None, None))


def _parts(text):
    if not isinstance(text, str):
        raise TypeError(f"config_str must be a string such as 'rand-m9-mstd0.5-inc1', not {shown(text)}")
    head, *parts = text.split("-")
    return head, parts


def _read(text, part, known, found):
    """Read a part's number into `found`."""
    key, *value = re.split(r"(\d.*)", part)[:2]
    if not value:
        return
    if key not in known:
        raise ValueError(f"config_str must have parts of {', '.join(known)}, not {shown(text)}: {part!r} is none")
    try:
        number = known[key](value[0])
    except ValueError:
        what = "a whole number" if known[key] is int else "a number"
        raise ValueError(f"config_str must have {what} after {key!r}, not {shown(text)}: see {part!r}") from None
    if key in ("mstd", "mmax"):  # timm keeps the first one of these
        found.setdefault(key, number)
    else:
        found[key] = number


def _names(chosen):
    """Return the names of operations, and their weights or None."""
    what = f"names of operations ({', '.join(_OPERATIONS)}), or a mapping of them to weights"
    try:
        names = list(chosen)
        weights = [float(chosen[name]) for name in names] if hasattr(chosen, "keys") else None
    except (TypeError, ValueError):
        raise ValueError(f"transforms must be {what}, not {shown(chosen)}") from None
    unknown = next((name for name in names if not isinstance(name, str) or name not in _OPERATIONS), None)
    if unknown is not None or not names:
        raise ValueError(f"transforms must be {what}, not {shown(chosen if unknown is None else unknown)}")
    if weights is not None and not (all(w >= 0 for w in weights) and 0 < sum(weights) < math.inf):
        raise ValueError(f"transforms must have weights of at least 0, with a sum above 0, not {shown(chosen)}")
    return names, weights
