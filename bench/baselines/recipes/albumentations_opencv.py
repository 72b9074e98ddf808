"""torch's DataLoader with Albumentations' transforms on OpenCV's arrays, which OpenCV decodes.

Albumentations has no TrivialAugmentWide or RandAugment: the same operations are drawn by `OneOf` and `SomeOf`. Of
these, sharpness is another filter, and magnitudes of RandAugment are drawn up to the given one. Crops are made smaller
by OpenCV's area filter, because its other filters alias.
"""

from __future__ import annotations

from typing import Any

import albumentations as A
import cv2
import numpy as np
import torch

from bench.baselines.recipes import MEAN, SIDE, STD, Recipe
from bench.baselines.recipes._dataset import torch_loader
from bench.workloads.epochs import Pictures


def _operations(scale: float, tilt: float, shift: int, turn: float, bits: tuple[int, int], how: int) -> list[Any]:
    """Return torchvision's fourteen operations, with magnitudes up to the given ones."""

    def jitter(what: str) -> Any:
        off = {"brightness": (1, 1), "contrast": (1, 1), "saturation": (1, 1), "hue": (0, 0)}
        return A.ColorJitter(**(off | {what: (1 - scale, 1 + scale)}), p=1)

    return [
        A.NoOp(),
        *(A.Affine(shear={"x": x, "y": y}, interpolation=how, p=1) for x, y in _either(tilt)),
        *(A.Affine(translate_px={"x": x, "y": y}, interpolation=how, p=1) for x, y in _either(shift)),
        A.Rotate((-turn, turn), interpolation=how, p=1),
        *(jitter(what) for what in ("brightness", "saturation", "contrast")),
        A.Sharpen((0, scale), p=1),
        A.Posterize(bits, p=1),
        A.Solarize((1 - scale, 1), p=1),
        A.AutoContrast(method="pil", p=1),
        A.Equalize(mode="pil", p=1),
    ]


def _either(most: float) -> tuple[Any, Any]:
    return ((-most, most), (0, 0)), ((0, 0), (-most, most))


def _trivial() -> list[Any]:
    return [A.OneOf(_operations(0.99, 44.7, 32, 135, (2, 8), cv2.INTER_NEAREST), p=1)]


STEPS: dict[str, Any] = {
    "crop": lambda: [],
    "trivial": _trivial,
    "mixed": _trivial,
    "kept": _trivial,
    "rand": lambda: [A.SomeOf(_operations(0.27, 5.1, 30, 9, (7, 8), cv2.INTER_LINEAR), n=2, replace=True)],
    "three": lambda: [
        A.OneOf(
            [A.ToGray(p=1), A.Solarize((0.5, 0.5), p=1), A.GaussianBlur(blur_limit=0, sigma_limit=(0.1, 2.0), p=1)],
            p=1,
        ),
        A.ColorJitter((0.7, 1.3), (0.7, 1.3), (0.7, 1.3), (0, 0), p=1),
    ],
    "simclr": lambda: [
        A.ColorJitter((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1), p=0.8),
        A.ToGray(p=0.2),
        A.GaussianBlur(blur_limit=(23, 23), sigma_limit=(0.1, 2.0), p=0.5),
    ],
}


def opened(path: str) -> Any:
    """Decode a file to an array of red, green and blue."""
    return cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB)


def loader(recipe: Recipe, pictures: Pictures, workers: int) -> Any:
    cv2.setNumThreads(0)  # the workers are the threads, as in Albumentations' own benchmark
    how = cv2.INTER_CUBIC if recipe.interpolation == "bicubic" else cv2.INTER_LINEAR
    steps = [
        A.RandomResizedCrop((SIDE, SIDE), interpolation=how, area_for_downscale="image"),
        A.HorizontalFlip(),
        *STEPS[recipe.key](),
    ]
    if recipe.normalised:
        steps += [A.Normalize(MEAN, STD)]
    if recipe.mixed:
        steps += [A.Erasing(p=0.1)]
    composed = A.Compose(steps)

    def transform(array: Any) -> torch.Tensor:
        pixels = composed(image=array)["image"]
        if recipe.normalised:
            pixels = pixels.transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(pixels))

    return torch_loader(recipe, pictures, workers, opened, transform)
