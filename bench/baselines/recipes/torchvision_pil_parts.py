"""torch's DataLoader with torchvision's v2 transforms on Pillow's images, boxes and masks, as in its references.

torchvision has no mosaic: four images are scaled and pasted by Pillow. Its references have FixedSizeCrop as a file.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from bench.annotated_photos import IGNORED, AnnotatedPhotos
from bench.baselines._torchvision import tv_tensors, v2
from bench.baselines.recipes import MEAN, STD, Recipe
from bench.baselines.recipes._dataset import opened_by_pillow
from bench.baselines.recipes._parts_dataset import parts_loader

FILL = tuple(round(255 * level) for level in MEAN)
GREY = (114, 114, 114)  # outside of the images of a mosaic


class FixedSizeCrop(v2.Transform):
    """Crop at a random place, and pad at the right and the bottom where the image is smaller."""

    def __init__(self, side: int, fill: tuple[int, ...]) -> None:
        super().__init__()
        self.side, self.fill = side, {tv_tensors.Mask: 0, "others": list(fill)}

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        height, width = v2.functional.get_size(flat_inputs[0])
        kept = min(height, self.side), min(width, self.side)
        top, left = int(torch.randint(height - kept[0] + 1, ())), int(torch.randint(width - kept[1] + 1, ()))
        return {"box": (top, left, *kept), "padding": [0, 0, self.side - kept[1], self.side - kept[0]]}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        inpt = v2.functional.crop(inpt, *params["box"])
        if not any(params["padding"]):
            return inpt
        fill = self.fill[tv_tensors.Mask if isinstance(inpt, tv_tensors.Mask) else "others"]
        return v2.functional.pad(inpt, params["padding"], fill)  # type: ignore[arg-type]


STEPS: dict[str, Callable[[], list[Any]]] = {
    "ssd": lambda: [
        v2.RandomPhotometricDistort(),
        v2.RandomZoomOut(fill=list(FILL)),
        v2.RandomIoUCrop(),
        v2.RandomHorizontalFlip(),
        v2.Resize((300, 300)),
    ],
    "lsj": lambda: [v2.ScaleJitter((1024, 1024)), FixedSizeCrop(1024, FILL), v2.RandomHorizontalFlip()],
    "segmentation": lambda: [
        v2.RandomResize(260, 1041),
        v2.RandomHorizontalFlip(),
        v2.RandomCrop(480, pad_if_needed=True, fill={tv_tensors.Mask: IGNORED, "others": 0}),
    ],
    "yolo": lambda: [
        v2.RandomAffine(0, (0.1, 0.1), (0.5, 1.5), interpolation=v2.InterpolationMode.BILINEAR, fill=list(GREY)),
        v2.ColorJitter(0.4, 0.0, 0.7, 0.015),
        v2.RandomHorizontalFlip(),
    ],
}


def wrapped(image: Any, targets: dict[str, Any]) -> dict[str, Any]:
    """Return targets as torchvision's tensors, which follow the image's geometry."""
    found = {name: torch.from_numpy(array) for name, array in targets.items()}
    height, width = v2.functional.get_size(image)
    if "boxes" in found:
        found["boxes"] = tv_tensors.BoundingBoxes(found["boxes"], format="XYXY", canvas_size=(height, width))
    for name in {"mask", "masks"} & found.keys():
        found[name] = tv_tensors.Mask(found[name])
    return found


def mosaic(image: Any, targets: dict[str, Any], other: Callable[[], Any], side: int) -> tuple[Any, dict[str, Any]]:
    """Paste four images around a random centre of a square of twice the side, and return its middle."""
    x, y = (int(random.uniform(0.5, 1.5) * side) for _ in range(2))
    canvas = Image.new("RGB", (2 * side, 2 * side), GREY)
    boxes, labels = [], []
    for place, (one, its) in enumerate([(image, targets), other(), other(), other()]):
        scale = side / max(one.size)
        width, height = (round(length * scale) for length in one.size)
        left, top = x - width * (place % 2 == 0), y - height * (place < 2)
        canvas.paste(one.resize((width, height), Image.Resampling.BILINEAR), (left, top))
        boxes.append(torch.from_numpy(its["boxes"]) * scale + torch.tensor([left, top, left, top]))
        labels.append(torch.from_numpy(its["labels"]))
    found = tv_tensors.BoundingBoxes(  # type: ignore[call-overload]
        torch.cat(boxes), format="XYXY", canvas_size=(2 * side, 2 * side)
    )
    middle = v2.CenterCrop(side)
    return middle(canvas, {"boxes": found, "labels": torch.cat(labels)})


def finishing(recipe: Recipe) -> list[Any]:
    """Return the steps that make tensors of images and remove empty boxes."""
    steps: list[Any] = [v2.ToImage()]
    if recipe.normalised:
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    if "boxes" in recipe.parts:
        steps += [v2.SanitizeBoundingBoxes()]
    return [*steps, v2.ToPureTensor()]


def loader(recipe: Recipe, photos: AnnotatedPhotos, workers: int) -> Any:
    composed = v2.Compose([*STEPS[recipe.key](), *finishing(recipe)])

    def transform(image: Any, targets: dict[str, Any], other: Callable[[], Any]) -> Any:
        if recipe.key == "yolo":
            return composed(*mosaic(image, targets, other, recipe.side))
        return composed(image, wrapped(image, targets))

    return parts_loader(recipe, photos, workers, opened_by_pillow, transform)
