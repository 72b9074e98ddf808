"""torch's DataLoader with Albumentations' transforms on OpenCV's arrays, boxes and masks.

Albumentations has no IoU crop: a crop that keeps all boxes, scaled in the same step, stands for it. Its random choice
of a longest or a shortest side is ScaleJitter or RandomResize. Images are scaled by OpenCV's bilinear filter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import albumentations as A
import cv2
import numpy as np
import torch

from bench.annotated_photos import IGNORED, AnnotatedPhotos
from bench.baselines.recipes import MEAN, STD, Recipe
from bench.baselines.recipes._parts_dataset import parts_loader
from bench.baselines.recipes.albumentations_opencv import opened

FILL = tuple(round(255 * level) for level in MEAN)
GREY = (114, 114, 114)

STEPS: dict[str, Callable[[], list[Any]]] = {
    "ssd": lambda: [
        A.ColorJitter((0.875, 1.125), (0.5, 1.5), (0.5, 1.5), (-0.05, 0.05), p=0.9),
        A.ChannelShuffle(p=0.5),
        A.CropAndPad(percent=(0, 1.5), keep_size=False, fill=FILL, p=0.5),
        A.RandomSizedBBoxSafeCrop(300, 300),
        A.HorizontalFlip(),
    ],
    "lsj": lambda: [
        A.LongestMaxSize(max_size=list(range(102, 2049)), p=1),
        A.PadIfNeeded(1024, 1024, position="top_left", fill=FILL, p=1),
        A.RandomCrop(1024, 1024, p=1),
        A.HorizontalFlip(),
    ],
    "segmentation": lambda: [
        A.SmallestMaxSize(max_size=list(range(260, 1041)), p=1),
        A.HorizontalFlip(),
        A.RandomCrop(480, 480, pad_if_needed=True, fill=0, fill_mask=IGNORED, p=1),
    ],
    "yolo": lambda: [
        A.Mosaic(target_size=(640, 640), cell_shape=(640, 640), fill=GREY, p=1),
        A.Affine(translate_percent=(-0.1, 0.1), scale=(0.5, 1.5), fill=GREY, p=1),
        A.ColorJitter((0.6, 1.4), (1, 1), (0.3, 1.7), (-0.015, 0.015), p=1),
        A.HorizontalFlip(),
    ],
}


def loader(recipe: Recipe, photos: AnnotatedPhotos, workers: int) -> Any:
    cv2.setNumThreads(0)  # the workers are the threads, as in Albumentations' own benchmark
    steps = STEPS[recipe.key]()
    if recipe.normalised:
        steps += [A.Normalize(MEAN, STD)]
    has_boxes, has_masks = "boxes" in recipe.parts, "masks" in recipe.parts
    fields = ["labels", "rows"] if has_masks else ["labels"]
    boxes = A.BboxParams("pascal_voc", label_fields=fields, min_area=1) if has_boxes else None
    composed = A.Compose(steps, bbox_params=boxes)

    def transform(image: Any, targets: dict[str, Any], other: Callable[[], Any]) -> Any:
        given = dict(targets)
        if recipe.key == "yolo":
            others = [other() for _ in range(3)]
            given["mosaic_metadata"] = [
                {"image": one, "bboxes": its["boxes"], "labels": its["labels"]} for one, its in others
            ]
        if has_boxes:
            given["bboxes"] = given.pop("boxes")
        if has_masks:
            given["masks"] = given["masks"].view(np.uint8)
            given["rows"] = np.arange(len(given["masks"]))
        made = composed(image=image, **given)
        pixels = made["image"].transpose(2, 0, 1) if recipe.normalised else made["image"]
        found: dict[str, Any] = {}
        if has_boxes:
            found["boxes"] = torch.from_numpy(np.asarray(made["bboxes"], np.float32).reshape(-1, 4))
            found["labels"] = torch.from_numpy(np.asarray(made["labels"], np.int64))
        if has_masks:  # Albumentations does not remove the masks of removed boxes
            left = np.asarray(made["rows"], np.int64)
            found["masks"] = torch.from_numpy(np.asarray(made["masks"])[left])
        if "mask" in made:
            found["mask"] = torch.from_numpy(np.ascontiguousarray(made["mask"]))
        return torch.from_numpy(np.ascontiguousarray(pixels)), found

    return parts_loader(recipe, photos, workers, opened, transform)
