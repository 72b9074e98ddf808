"""timm's RandAugment, AutoAugment and AugMix, from timm's strings."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from slipring.errors import shown
from slipring.images._render import ops
from slipring.images._steps.base import Transform
from slipring.images._steps.policy_tables import TIMM
from slipring.images._steps.timm_operations import (
    AUGMIX,
    DECREASING,
    INCREASING,
    MOST,
    OPERATIONS,
    SETS,
    Op,
    PolicyOptions,
)

if TYPE_CHECKING:
    import enum
    from collections.abc import Mapping, Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe
    from slipring.images._render.view import InterpolationOrRandom

_GREY = (128, 128, 128)


class _TimmPolicy(Transform):
    """A step that timm's string describes."""

    is_random: bool = True

    def __init__(self, text: str, options: PolicyOptions | None) -> None:
        self._text, self._options = text, options

    def __repr__(self) -> str:
        if self._options is None:
            return self._text
        name = "rand_augment_transform" if isinstance(self, _RandAugment) else "auto_augment_transform"
        return f"{name}({self._text!r}, interpolation={self._options.interpolation!r})"


class _RandAugment(_TimmPolicy):
    """Several operations, drawn with replacement, or without it by their weights."""

    def __init__(
        self, text: str, options: PolicyOptions | None, ops: list[Op], count: int, weights: list[float] | None
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

    def __init__(self, text: str, options: PolicyOptions | None, lists: list[list[Op]]) -> None:
        super().__init__(text, options)
        self._lists = lists

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        for op in self._lists[draws.below(len(self._lists))]:
            op.apply(recipe, draws)


class _AugMix(_TimmPolicy):
    """A weighted sum of the image and of several chains of operations."""

    def __init__(
        self, text: str, options: PolicyOptions | None, ops: list[Op], width: int, depth: int, alpha: float
    ) -> None:
        super().__init__(text, options)
        self._ops, self._width, self._depth, self._alpha = ops, width, depth, alpha

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        weights = draws.dirichlet(self._alpha, self._width)
        mixed, original = draws.dirichlet(self._alpha, 2)
        recipe.op(ops.KeepOp())
        recipe.op(ops.AddToSumOp(original))
        for weight in weights:
            for _ in range(self._depth if self._depth > 0 else 1 + draws.below(3)):
                self._ops[draws.below(len(self._ops))].apply(recipe, draws)
            recipe.op(ops.AddToSumOp(weight * mixed))
        recipe.op(ops.TakeSumOp())


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
    options = PolicyOptions(hparams or {}, interpolation, fill, math.inf if std > 100 else std, found.get("mmax"))
    if transforms is not None:
        chosen = transforms
    if chosen is None or isinstance(chosen, str):
        chosen = SETS.get(chosen or "", INCREASING if found.get("inc") else DECREASING)
    names, weights = _names(chosen)
    count, p, level = found.get("n", 2), found.get("p", 0.5), found.get("m", MOST)
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
    >>> pixels, label = images.Folder("train/", [images.RandomResizedCrop(24), images.auto_augment_transform("3a")])[0]
    >>> pixels.shape
    (24, 24, 3)
    """
    head, parts = _parts(config_str)
    found: dict[str, float] = {}
    known = {"mstd": float, "m": int, "w": int, "d": int, "a": float, "b": int} if head == "augmix" else {"mstd": float}
    for part in parts:
        _read(config_str, part, known, found)
    if head == "augmix":
        options = PolicyOptions(hparams or {}, interpolation, fill, found.get("mstd", math.inf), None)
        return _aug_mix(config_str, options, found)
    if head not in TIMM:
        raise ValueError(f"config_str must begin with one of {', '.join(TIMM)}, augmix, not {shown(config_str)}")
    options = PolicyOptions(hparams or {}, interpolation, fill, found.get("mstd"), None)
    lists = [[Op(name, p, level, options) for name, p, level in line] for line in TIMM[head]]
    return _AutoAugment(config_str, options, lists)


def _aug_mix(text, options, found):
    width, alpha = int(found.get("w", 3)), found.get("a", 1.0)
    if not 1 <= width <= 1 << 10:
        raise ValueError(f"config_str must have w from 1 to {1 << 10}, not {shown(text)}")
    if not 0 < alpha < math.inf:
        raise ValueError(f"config_str must have a above 0, not {shown(text)}")
    ops = [Op(name, 1.0, found.get("m", 3), options) for name in AUGMIX]
    return _AugMix(text, options, ops, width, int(found.get("d", -1)), alpha)


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
    return Op(name, p, level, PolicyOptions(hparams, "random", _GREY, None, None))


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
    what = f"names of operations ({', '.join(OPERATIONS)}), or a mapping of them to weights"
    try:
        names = list(chosen)
        weights = [float(chosen[name]) for name in names] if hasattr(chosen, "keys") else None
    except (TypeError, ValueError):
        raise ValueError(f"transforms must be {what}, not {shown(chosen)}") from None
    unknown = next((name for name in names if not isinstance(name, str) or name not in OPERATIONS), None)
    if unknown is not None or not names:
        raise ValueError(f"transforms must be {what}, not {shown(chosen if unknown is None else unknown)}")
    if weights is not None and not (all(w >= 0 for w in weights) and 0 < sum(weights) < math.inf):
        raise ValueError(f"transforms must have weights of at least 0, with a sum above 0, not {shown(chosen)}")
    return names, weights
