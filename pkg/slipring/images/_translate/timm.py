"""Translations of timm's classes, which ``timm.data.create_transform`` puts into torchvision's Compose."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from slipring.errors import shown
from slipring.images._steps.checks import RANDOM
from slipring.images._steps.erasing import RandomErasing
from slipring.images._steps.timm import aug_mix_of, auto_augment_of, rand_augment_of
from slipring.images._translate.kept import PIL, TENSOR
from slipring.images._translate.torchvision import center_crop, random_resized_crop

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipring.images._translate.lists import Translation

    Translate = Callable[[Translation, Any], None]

MODULES = "timm.data.transforms", "timm.data.auto_augment", "timm.data.random_erasing"


def _interpolation(made: Translation, step: Any, value: Any) -> str:
    """Return the name of an interpolation; timm has a tuple of two for a random one."""
    if not isinstance(value, (tuple, list)):
        return made.interpolation(step, value)
    names = {made.interpolation(step, one) for one in value}
    if names != {"bilinear", "bicubic"}:
        raise ValueError(
            f"{type(step).__name__} draws one of {', '.join(sorted(names))}; slipring draws one of bilinear and bicubic"
        )
    return RANDOM


def _random_resized_crop(made: Translation, step: Any) -> None:
    random_resized_crop(made, step, _interpolation(made, step, step.interpolation))


def _center_crop_or_pad(made: Translation, step: Any) -> None:
    fill = step.fill if isinstance(step.fill, (tuple, list)) else (step.fill,)
    if step.padding_mode != "constant" or any(fill):
        raise ValueError(
            f"CenterCropOrPad has fill={step.fill}, padding_mode={step.padding_mode!r}; slipring's border is black"
        )
    center_crop(made, step)


def _random_erasing(made: Translation, step: Any) -> None:
    if step.num_splits > 1:
        raise ValueError(
            f"RandomErasing has num_splits={step.num_splits}: timm leaves the first part of each batch as it is, but "
            "slipring erases in every sample"
        )
    arguments = {
        "p": step.probability,
        "scale": (step.min_area, step.max_area),
        "ratio": tuple(math.exp(one) for one in step.log_aspect_ratio),
        "mode": step.mode or "const",
        "min_count": step.min_count,
        "max_count": step.max_count,
    }
    made.erase(step, made.build(step, RandomErasing, **arguments))


def _op(made: Translation, op: Any) -> tuple[str, float, float, dict[str, Any]]:
    """Return name, probability, magnitude and settings of an operation."""
    if type(op) is not getattr(sys.modules.get("timm.data.auto_augment"), "AugmentOp", None):
        raise TypeError(
            f"a policy's operations must be timm's AugmentOp, not {shown(op)}, which slipring would not call"
        )
    settings = {name: op.hparams[name] for name in ("translate_const", "translate_pct") if name in op.hparams}
    settings["magnitude_std"], settings["magnitude_max"] = op.magnitude_std, op.magnitude_max
    settings["img_mean"] = op.kwargs["fillcolor"]
    settings["interpolation"] = _interpolation(made, op, op.kwargs["resample"])
    return op.name, op.prob, op.magnitude, settings


def _rand_augment(made: Translation, step: Any) -> None:
    weights = None if step.choice_weights is None else [float(one) for one in step.choice_weights]
    ops = [_op(made, op) for op in step.ops]
    made.append(step, made.build(step, rand_augment_of, ops=ops, count=step.num_layers, weights=weights))


def _auto_augment(made: Translation, step: Any) -> None:
    lists = [[_op(made, op) for op in line] for line in step.policy]
    made.append(step, made.build(step, auto_augment_of, lists=lists))


def _aug_mix(made: Translation, step: Any) -> None:
    ops = [_op(made, op) for op in step.ops]
    made.append(step, made.build(step, aug_mix_of, ops=ops, width=step.width, depth=step.depth, alpha=step.alpha))


def _to_float(made: Translation, step: Any) -> None:
    made.to_tensor(TENSOR)
    made.convert(step.dtype, scale=False)


def _maybe_to_tensor(made: Translation, step: Any) -> None:
    if made.kind == PIL:
        made.to_tensor(TENSOR, "float32")


def _maybe_pil_to_tensor(made: Translation, step: Any) -> None:
    if made.kind == PIL:
        made.to_tensor(TENSOR)


STEPS: dict[str, Translate] = {
    "RandomResizedCropAndInterpolation": _random_resized_crop,
    "CenterCropOrPad": _center_crop_or_pad,
    "RandAugment": _rand_augment,
    "AutoAugment": _auto_augment,
    "AugMixAugment": _aug_mix,
    "RandomErasing": _random_erasing,
    "ToTensor": _to_float,
    "ToNumpy": lambda made, step: made.to_tensor(TENSOR),
    "MaybeToTensor": _maybe_to_tensor,
    "MaybePILToTensor": _maybe_pil_to_tensor,
}
