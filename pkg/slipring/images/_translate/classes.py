"""Translations of single classes: of torchvision, v1 and v2, which mostly have slipring's names, and of timm."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from slipring.errors import shown
from slipring.images._steps import color
from slipring.images._steps.color import RandomErasing
from slipring.images._steps.combine import RandomApply, RandomChoice, RandomOrder
from slipring.images._steps.crops import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
)
from slipring.images._steps.detection import RandomIoUCrop, RandomPhotometricDistort, RandomZoomOut
from slipring.images._steps.policies import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from slipring.images._steps.sizes import RandomResize, RandomShortestSize, Resize, ScaleJitter
from slipring.images._steps.timm import aug_mix_of, auto_augment_of, rand_augment_of
from slipring.images._steps.warps import ElasticTransform, GaussianBlur, RandomAffine, RandomPerspective, RandomRotation

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipring.images._translate.lists import Translation

    Translate = Callable[[Translation, Any], None]

# Classes of images: of Pillow, of torch, and of torchvision's v2.
PIL, TENSOR, IMAGE = "PIL.Image.Image", "torch.Tensor", "torchvision.tv_tensors._image.Image"
_POLICY = "interpolation", "fill"


def _same(kind: Any, *names: str, moves: bool = False, **more: Any) -> Translate:
    """Return the translation of a class whose arguments have slipring's names; `moves` as in `Translation.append`."""

    def translate(made: Translation, step: Any) -> None:
        made.append(step, made.make(step, kind, names, **more), moves=moves)

    return translate


def _warp(kind: Any, *names: str) -> Translate:
    """Return the translation of a class that fills pixels outside of the image."""

    def translate(made: Translation, step: Any) -> None:
        made.parts.add_fill(step)
        made.append(step, made.make(step, kind, (*names, "fill")))

    return translate


def _all(made: Translation, step: Any) -> None:
    for one in getattr(step, "transforms", step):  # torch's Sequential is iterable itself
        made.add(one)


def _nothing(made: Translation, step: Any) -> None:
    """Translate a transform without effect on images of uint8 in RGB."""


def size_of(size: Any) -> Any:
    """Return a size in slipring's form: torchvision may have a single number in a list."""
    if isinstance(size, (tuple, list)):
        size = tuple(size)
        return size[0] if len(size) == 1 else size
    return size


_center_crop = _same(CenterCrop, "size", moves=True)
_random_resized_crop = _same(RandomResizedCrop, "interpolation", "size", "scale", "ratio", flip=0)


def _pad(made: Translation, step: Any) -> None:
    border = made.make(step, Pad, ("padding", "fill", "padding_mode"))
    if any(border.padding):
        if border.padding_mode == "constant":
            made.parts.add_fill(step)
        made.append(step, border, moves=_is_black(border))


def _random_crop(made: Translation, step: Any) -> None:
    padding = made.argument(step, "padding")
    if isinstance(padding, tuple) and len(padding) == 4 and hasattr(step, "_fill"):
        left, right, top, bottom = padding  # the order in which v2 keeps them
        padding = left, top, right, bottom
    crop = made.make(step, RandomCrop, ("size", "pad_if_needed", "fill", "padding_mode"), padding=padding)
    if crop.padding_mode == "constant" and (crop.padding is not None or crop.pad_if_needed):
        made.parts.add_fill(step)
    made.append(step, crop, moves=_is_black(crop))


def _is_black(step: Any) -> bool:
    """Return whether a border has the same colour as image of floats: 0."""
    constant = getattr(step, "padding_mode", "constant") == "constant"
    return not constant or not any(step.fill if isinstance(step.fill, tuple) else (step.fill,))


def _zoom_out(made: Translation, step: Any) -> None:
    made.parts.add_fill(step)
    zoom = made.make(step, RandomZoomOut, ("fill", "side_range", "p"))
    made.append(step, zoom, moves=_is_black(zoom))


def _iou_crop(made: Translation, step: Any) -> None:
    names = "min_scale", "max_scale", "min_aspect_ratio", "max_aspect_ratio", "trials"
    crop = made.make(step, RandomIoUCrop, names, sampler_options=made.argument(step, "options"))
    made.append(step, crop, moves=True)


def _color_jitter(made: Translation, step: Any) -> None:
    jitter = made.make(step, color.ColorJitter, ("brightness", "contrast", "saturation", "hue"))
    if jitter.is_random:  # without a range it has no effect
        made.append(step, jitter)


def _random_apply(made: Translation, step: Any) -> None:
    steps = made.nested(step, step.transforms)
    if step.p == 1:
        made.steps.extend(steps)
    elif steps and step.p > 0:
        made.steps.append(made.build(step, RandomApply, transforms=steps, p=step.p))


def _alternatives(made: Translation, step: Any) -> list[Any]:
    """Return one step for each of the transforms of a list."""
    found = []
    for one in step.transforms:
        steps = made.nested(step, [one])
        if len(steps) != 1:
            steps = [RandomApply(steps, p=1) if steps else RandomHorizontalFlip(0)]
        found.append(steps[0])
    return found


def _random_choice(made: Translation, step: Any) -> None:
    made.steps.append(made.build(step, RandomChoice, transforms=_alternatives(made, step), p=step.p))


def _random_order(made: Translation, step: Any) -> None:
    made.steps.append(made.build(step, RandomOrder, transforms=_alternatives(made, step)))


def _random_erasing(made: Translation, step: Any) -> None:
    value = "random" if step.value is None else size_of(step.value)  # v2 has a number in a list
    arguments = {"p": step.p, "scale": tuple(step.scale), "ratio": tuple(step.ratio), "value": value}
    made.erase(step, made.build(step, RandomErasing, **arguments))


def _to_dtype(made: Translation, step: Any) -> None:
    dtype = made.of_image(step, "dtype", step.dtype) if isinstance(step.dtype, dict) else step.dtype
    if dtype is not None:
        made.convert(dtype, scale=bool(step.scale))


def _to_pure_tensor(made: Translation, step: Any) -> None:
    if made.kind != PIL:
        made.to_tensor(TENSOR)


def _to_pil(made: Translation, step: Any) -> None:
    if step.mode not in (None, "RGB"):
        raise ValueError(f"ToPILImage has mode={step.mode!r}; the images of slipring are RGB")
    made.to_pil(step)


def _classification(made: Translation, step: Any) -> None:
    """Translate what the weights of torchvision's models have as transforms."""
    how = made.interpolation(step, step.interpolation, resizes=True)
    made.append(step, made.build(step, Resize, size=size_of(step.resize_size), interpolation=how))
    made.append(step, made.build(step, CenterCrop, size=size_of(step.crop_size)))
    made.to_tensor(TENSOR)
    made.convert("float32", scale=True)
    made.normalize(step, step.mean, step.std)


_TORCHVISIONS: dict[str, Translate] = {
    "Compose": _all,
    "Sequential": _all,
    "Identity": _nothing,
    "RGB": _nothing,
    "ImageClassification": _classification,
    "Resize": _same(Resize, "interpolation", "size", "max_size"),
    "CenterCrop": _center_crop,
    "RandomResizedCrop": _random_resized_crop,
    "RandomHorizontalFlip": _same(RandomHorizontalFlip, "p", moves=True),
    "RandomVerticalFlip": _same(RandomVerticalFlip, "p", moves=True),
    "RandomCrop": _random_crop,
    "Pad": _pad,
    "ColorJitter": _color_jitter,
    "Grayscale": _same(color.Grayscale, "num_output_channels"),
    "RandomGrayscale": _same(color.RandomGrayscale, "p"),
    "RandomSolarize": _same(color.RandomSolarize, "threshold", "p"),
    "RandomPosterize": _same(color.RandomPosterize, "bits", "p"),
    "RandomEqualize": _same(color.RandomEqualize, "p"),
    "RandomAutocontrast": _same(color.RandomAutocontrast, "p"),
    "RandomInvert": _same(color.RandomInvert, "p"),
    "RandomChannelPermutation": _same(color.RandomChannelPermutation),
    "RandomAdjustSharpness": _same(color.RandomAdjustSharpness, "sharpness_factor", "p"),
    "GaussianBlur": _same(GaussianBlur, "kernel_size", "sigma"),
    "RandomAffine": _warp(RandomAffine, "degrees", "translate", "scale", "shear", "interpolation", "center"),
    "RandomRotation": _warp(RandomRotation, "degrees", "interpolation", "expand", "center"),
    "RandomPerspective": _warp(RandomPerspective, "distortion_scale", "p", "interpolation"),
    "ElasticTransform": _warp(ElasticTransform, "alpha", "sigma", "interpolation"),
    "RandomIoUCrop": _iou_crop,
    "RandomZoomOut": _zoom_out,
    "RandomPhotometricDistort": _same(RandomPhotometricDistort, "brightness", "contrast", "saturation", "hue", "p"),
    "ScaleJitter": _same(ScaleJitter, "interpolation", "target_size", "scale_range"),
    "RandomShortestSize": _same(RandomShortestSize, "interpolation", "min_size", "max_size"),
    "RandomResize": _same(RandomResize, "interpolation", "min_size", "max_size"),
    "SanitizeBoundingBoxes": lambda made, step: made.parts.sanitize_boxes(step),
    "ConvertBoundingBoxFormat": lambda made, step: made.parts.convert_boxes(step),
    "ClampBoundingBoxes": _nothing,  # `Annotated` clamps boxes after each step
    "TrivialAugmentWide": _same(TrivialAugmentWide, "num_magnitude_bins", *_POLICY),
    "RandAugment": _same(RandAugment, "num_ops", "magnitude", "num_magnitude_bins", *_POLICY),
    "AutoAugment": _same(AutoAugment, "policy", *_POLICY),
    "AugMix": _same(AugMix, "severity", "mixture_width", "chain_depth", "alpha", "all_ops", *_POLICY),
    "RandomApply": _random_apply,
    "RandomChoice": _random_choice,
    "RandomOrder": _random_order,
    "RandomErasing": _random_erasing,
    "ToTensor": lambda made, step: made.to_tensor(TENSOR, "float32"),
    "PILToTensor": lambda made, step: made.to_tensor(TENSOR),
    "ToImage": lambda made, step: made.to_tensor(IMAGE),
    "ToPureTensor": _to_pure_tensor,
    "ToPILImage": _to_pil,
    "ToDtype": _to_dtype,
    "ConvertImageDtype": lambda made, step: made.convert(step.dtype, scale=True),
    "Normalize": lambda made, step: made.normalize(step, step.mean, step.std),
}


# ---- timm's


def _center_crop_or_pad(made: Translation, step: Any) -> None:
    fill = step.fill if isinstance(step.fill, (tuple, list)) else (step.fill,)
    if step.padding_mode != "constant" or any(fill):
        raise ValueError(
            f"CenterCropOrPad has fill={step.fill}, padding_mode={step.padding_mode!r}; slipring's border is black"
        )
    _center_crop(made, step)


def _timms_erasing(made: Translation, step: Any) -> None:
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
    settings["interpolation"] = made.interpolation(op, op.kwargs["resample"])
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


def _maybe_to_tensor(dtype: str) -> Translate:
    return lambda made, step: made.to_tensor(TENSOR, dtype) if made.kind == PIL else None


_TIMMS: dict[str, Translate] = {
    "RandomResizedCropAndInterpolation": _random_resized_crop,
    "CenterCropOrPad": _center_crop_or_pad,
    "RandAugment": _rand_augment,
    "AutoAugment": _auto_augment,
    "AugMixAugment": _aug_mix,
    "RandomErasing": _timms_erasing,
    "ToTensor": _to_float,
    "ToNumpy": lambda made, step: made.to_tensor(TENSOR),
    "MaybeToTensor": _maybe_to_tensor("float32"),
    "MaybePILToTensor": _maybe_to_tensor("uint8"),
}

_V2 = "torchvision.transforms.v2", "torchvision.transforms._presets", "torch.nn"
# The modules of each library, and the translations of their classes.
LIBRARIES = (
    (("torchvision.transforms", *_V2), _TORCHVISIONS),
    (("timm.data.transforms", "timm.data.auto_augment", "timm.data.random_erasing"), _TIMMS),
)
