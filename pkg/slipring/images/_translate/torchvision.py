"""Translations of torchvision's classes, of v1 and v2, whose attributes mostly have the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipring.images._steps.color import (
    ColorJitter,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from slipring.images._steps.combine import RandomApply, RandomChoice, RandomOrder
from slipring.images._steps.crops import Pad, RandomCrop, RandomVerticalFlip
from slipring.images._steps.detection import RandomIoUCrop, RandomPhotometricDistort, RandomZoomOut
from slipring.images._steps.erasing import RandomErasing
from slipring.images._steps.policies import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from slipring.images._steps.resized import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from slipring.images._steps.sizes import RandomResize, RandomShortestSize, ScaleJitter
from slipring.images._steps.warps import ElasticTransform, GaussianBlur, RandomAffine, RandomPerspective, RandomRotation
from slipring.images._translate.kept import IMAGE, PIL, TENSOR

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipring.images._translate.lists import Translation

    Translate = Callable[[Translation, Any], None]

MODULES = "torchvision.transforms", "torchvision.transforms.v2", "torchvision.transforms._presets", "torch.nn"
_POLICY = "interpolation", "fill"


def _same(kind: Any, *names: str) -> Translate:
    """Return the translation of a class whose arguments have slipring's names."""

    def translate(made: Translation, step: Any) -> None:
        made.append(step, made.make(step, kind, names))

    return translate


def _warp(kind: Any, *names: str) -> Translate:
    """Return the translation of a class that fills places outside of the image."""

    def translate(made: Translation, step: Any) -> None:
        made.parts.add_fill(step)
        made.append(step, made.make(step, kind, (*names, "fill")))

    return translate


def _resizing(kind: Any, *names: str) -> Translate:
    """Return the translation of a class that scales."""

    def translate(made: Translation, step: Any) -> None:
        how = made.interpolation(step, step.interpolation, resizes=True)
        arguments = {name: made.argument(step, name) for name in names}
        made.append(step, made.build(step, kind, interpolation=how, **arguments))

    return translate


def _flip(kind: Any) -> Translate:
    return lambda made, step: made.append(step, kind(step.p), moves=True)


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


def _resize(made: Translation, step: Any) -> None:
    how = made.interpolation(step, step.interpolation, resizes=True)
    arguments = {"size": size_of(step.size), "max_size": getattr(step, "max_size", None)}
    made.append(step, made.build(step, Resize, interpolation=how, **arguments))


def center_crop(made: Translation, step: Any) -> None:
    made.append(step, made.build(step, CenterCrop, size=size_of(step.size)), moves=True)


def random_resized_crop(made: Translation, step: Any, how: str) -> None:
    arguments = {"size": size_of(step.size), "scale": step.scale, "ratio": step.ratio, "interpolation": how}
    made.append(step, made.build(step, RandomResizedCrop, flip=0, **arguments))


def _random_resized_crop(made: Translation, step: Any) -> None:
    random_resized_crop(made, step, made.interpolation(step, step.interpolation, resizes=True))


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
    arguments = {name: made.argument(step, name) for name in ("pad_if_needed", "fill", "padding_mode")}
    crop = made.build(step, RandomCrop, size=size_of(step.size), padding=padding, **arguments)
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
    arguments = {name: made.argument(step, name) for name in names}
    crop = made.build(step, RandomIoUCrop, sampler_options=made.argument(step, "options"), **arguments)
    made.append(step, crop, moves=True)


def _color_jitter(made: Translation, step: Any) -> None:
    jitter = made.make(step, ColorJitter, ("brightness", "contrast", "saturation", "hue"))
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


STEPS: dict[str, Translate] = {
    "Compose": _all,
    "Sequential": _all,
    "Identity": _nothing,
    "RGB": _nothing,
    "ImageClassification": _classification,
    "Resize": _resize,
    "CenterCrop": center_crop,
    "RandomResizedCrop": _random_resized_crop,
    "RandomHorizontalFlip": _flip(RandomHorizontalFlip),
    "RandomVerticalFlip": _flip(RandomVerticalFlip),
    "RandomCrop": _random_crop,
    "Pad": _pad,
    "ColorJitter": _color_jitter,
    "Grayscale": _same(Grayscale, "num_output_channels"),
    "RandomGrayscale": _same(RandomGrayscale, "p"),
    "RandomSolarize": _same(RandomSolarize, "threshold", "p"),
    "RandomPosterize": _same(RandomPosterize, "bits", "p"),
    "RandomEqualize": _same(RandomEqualize, "p"),
    "RandomAutocontrast": _same(RandomAutocontrast, "p"),
    "RandomInvert": _same(RandomInvert, "p"),
    "RandomChannelPermutation": _same(RandomChannelPermutation),
    "RandomAdjustSharpness": _same(RandomAdjustSharpness, "sharpness_factor", "p"),
    "GaussianBlur": _same(GaussianBlur, "kernel_size", "sigma"),
    "RandomAffine": _warp(RandomAffine, "degrees", "translate", "scale", "shear", "interpolation", "center"),
    "RandomRotation": _warp(RandomRotation, "degrees", "interpolation", "expand", "center"),
    "RandomPerspective": _warp(RandomPerspective, "distortion_scale", "p", "interpolation"),
    "ElasticTransform": _warp(ElasticTransform, "alpha", "sigma", "interpolation"),
    "RandomIoUCrop": _iou_crop,
    "RandomZoomOut": _zoom_out,
    "RandomPhotometricDistort": _same(RandomPhotometricDistort, "brightness", "contrast", "saturation", "hue", "p"),
    "ScaleJitter": _resizing(ScaleJitter, "target_size", "scale_range"),
    "RandomShortestSize": _resizing(RandomShortestSize, "min_size", "max_size"),
    "RandomResize": _resizing(RandomResize, "min_size", "max_size"),
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
