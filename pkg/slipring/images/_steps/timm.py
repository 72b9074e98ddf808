"""timm's RandAugment, AutoAugment and AugMix, from timm's strings."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Any

from slipring._core.options.checks import real
from slipring.errors import shown
from slipring.images._render import ops
from slipring.images._render.ops import add_affine, add_rotation
from slipring.images._steps.base import Transform
from slipring.images._steps.checks import fill_of, filter_of, interpolation_or_random
from slipring.images._steps.policies import add_mix
from slipring.images._steps.policy_tables import TIMM

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable, Mapping, Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe
    from slipring.images._render.view import InterpolationOrRandom

_MOST = 10.0  # the level that means full strength
_HPARAMS = ("translate_const", "translate_pct", "magnitude_std", "magnitude_max", "img_mean", "interpolation")


class Op:
    """One operation: with its probability, at a level that may be drawn around its magnitude."""

    __slots__ = ("_filter", "_most", "_std", "fill", "level", "name", "p", "reach")

    def __init__(self, name: str, p: float, level: float, options: _Options) -> None:
        self.name, self.p, self.level = name, p, level
        self._std, self._most = options.std, options.most
        self._filter, self.fill = options.filter, options.fill
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

    def rotate(self, recipe: Recipe, draws: Draws, share: float) -> None:
        angle = _signed(share * 30.0, draws)
        add_rotation(recipe, angle, self.filter(draws), False, None, self.fill)

    def filter(self, draws: Draws) -> int:
        return draws.below(2) if self._filter is None else self._filter

    def __repr__(self) -> str:
        return f"{self.name}(p={self.p}, m={self.level})"


# ---- the operations: (the `Op`, recipe, draws, its level as a share of the full strength)


def _signed(value, draws):
    return -value if draws.chance(0.5) else value


def _mapped(index, amount):
    """Return the operation that sets a number of the inverse map to ``amount(op, recipe, share)``, to either side."""

    def operation(op, recipe, draws, share):
        matrix = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
        matrix[index] = _signed(amount(op, recipe, share), draws)
        add_affine(recipe, matrix, op.filter(draws), op.fill)

    return operation


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
    recipe.op(ops.PilGaussianBlurOp((max(0.1, min(2.0, 0.1 + 1.9 * share)),) * 2))


def _blur_rand(op, recipe, draws, share):
    recipe.op(ops.PilGaussianBlurOp((draws.uniform(0.1, 2.0 * max(0.0, min(1.0, share))),) * 2))


_OPERATIONS: dict[str, Callable[[Op, Recipe, Draws, float], None]] = {
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
    "ShearX": _mapped(1, lambda op, recipe, share: share * 0.3),
    "ShearY": _mapped(3, lambda op, recipe, share: share * 0.3),
    "TranslateX": _mapped(2, lambda op, recipe, share: share * op.reach),
    "TranslateY": _mapped(5, lambda op, recipe, share: share * op.reach),
    "TranslateXRel": _mapped(2, lambda op, recipe, share: share * op.reach * recipe.width),
    "TranslateYRel": _mapped(5, lambda op, recipe, share: share * op.reach * recipe.height),
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
_AUGMIX = [
    *("AutoContrast", "Equalize", "Rotate", "PosterizeIncreasing", "SolarizeIncreasing"),
    *(f"{name}Increasing" for name in _ENHANCING),
    *_GEOMETRY,
]


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


_GREY = (128, 128, 128)


@dataclasses.dataclass(eq=False, repr=False)
class _TimmPolicy(Transform):
    """A step that timm's string describes."""

    is_random = True
    text: str
    options: _Options | None

    def __repr__(self) -> str:
        if self.options is None:
            return self.text
        name = "rand_augment_transform" if isinstance(self, _RandAugment) else "auto_augment_transform"
        return f"{name}({self.text!r}, interpolation={self.options.interpolation!r})"


@dataclasses.dataclass(eq=False, repr=False)
class _RandAugment(_TimmPolicy):
    """Several operations, drawn with replacement, or without it by their weights."""

    ops: list[Op]
    count: int
    weights: list[float] | None

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        if self.weights is None:
            drawn = [draws.below(len(self.ops)) for _ in range(self.count)]
        else:
            drawn, weights = [], list(self.weights)
            for _ in range(self.count):
                drawn.append(draws.choice(weights))
                weights[drawn[-1]] = 0.0
        for index in drawn:
            self.ops[index].apply(recipe, draws)


@dataclasses.dataclass(eq=False, repr=False)
class _AutoAugment(_TimmPolicy):
    """One of several lists of operations."""

    lists: list[list[Op]]

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        for op in self.lists[draws.below(len(self.lists))]:
            op.apply(recipe, draws)


@dataclasses.dataclass(eq=False, repr=False)
class _AugMix(_TimmPolicy):
    """A weighted sum of the image and of several chains of operations."""

    ops: list[Op]
    width: int
    depth: int
    alpha: float

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        weights = draws.dirichlet(self.alpha, self.width)
        mixed, original = draws.dirichlet(self.alpha, 2)
        add_mix(recipe, draws, self.depth, original, [weight * mixed for weight in weights], self._add)

    def _add(self, recipe, draws):
        self.ops[draws.below(len(self.ops))].apply(recipe, draws)


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
    >>> data = images.Folder("train/", [images.RandomResizedCrop(24), policy])
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
    return _RandAugment(config_str, options, [Op(name, p, level, options) for name in names], int(count), weights)


def auto_augment_transform(
    config_str: str,
    hparams: Mapping[str, Any] | None = None,
    *,
    interpolation: InterpolationOrRandom | enum.Enum = "random",
    fill: float | Sequence[float] | None = _GREY,
) -> Transform:
    """Return timm's AutoAugment, which is one of several lists of operations, or its AugMix.

    Parameters
    ----------
    config_str : str
        A policy, "original", "originalr", "v0", "v0r" or "3a" (3-Augment), and optionally the standard deviation of
        levels: "original-mstd0.5". Or "augmix" and parts, such as "augmix-m5-w4-d2":

        - "m": level of all operations, 3 by default
        - "w": number of chains, 3 by default
        - "d": number of operations of each chain; 1 to 3 are drawn by default
        - "a": parameter of the distributions of the weights, 1 by default
        - "mstd": standard deviation of the level; without it, the level is uniform from 0 to "m"
        - "b": 0 or 1; both have the same result here

        timm cuts the sum to whole levels; here it is rounded.
    hparams, interpolation, fill
        As in `rand_augment_transform`.

    Raises
    ------
    ValueError
        timm would refuse the string; the message names the part.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Folder("train/", [images.RandomResizedCrop(24), images.auto_augment_transform("3a")])
    """
    head, parts = _parts(config_str)
    found: dict[str, float] = {}
    known = {"mstd": float, "m": int, "w": int, "d": int, "a": float, "b": int} if head == "augmix" else {"mstd": float}
    for part in parts:
        _read(config_str, part, known, found)
    if head == "augmix":
        options = _Options(hparams or {}, interpolation, fill, found.get("mstd", math.inf), None)
        width, alpha = int(found.get("w", 3)), found.get("a", 1.0)
        if not 1 <= width <= 1 << 10:
            raise ValueError(f"config_str must have w from 1 to {1 << 10}, not {shown(config_str)}")
        if not 0 < alpha < math.inf:
            raise ValueError(f"config_str must have a above 0, not {shown(config_str)}")
        chosen = [Op(name, 1.0, found.get("m", 3), options) for name in _AUGMIX]
        return _AugMix(config_str, options, chosen, width, int(found.get("d", -1)), alpha)
    if head not in TIMM:
        raise ValueError(f"config_str must begin with one of {', '.join(TIMM)}, augmix, not {shown(config_str)}")
    options = _Options(hparams or {}, interpolation, fill, found.get("mstd"), None)
    lists = [[Op(name, p, level, options) for name, p, level in line] for line in TIMM[head]]
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


def aug_mix_of(ops: Sequence[_Given], width: int, depth: int, alpha: float) -> Transform:
    """Return the step of timm's AugMixAugment object."""
    made = [_op_of(one) for one in ops]
    return _AugMix(f"AugMixAugment(width={width}, depth={depth}, ops={made})", None, made, width, depth, alpha)


def _op_of(given):
    name, p, level, hparams = given
    _names([name])
    return Op(name, p, level, _Options(hparams, "random", _GREY, None, None))


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
