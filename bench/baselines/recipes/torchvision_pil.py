"""torch's DataLoader with torchvision's v2 transforms on Pillow's images, as in its reference training."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from bench.baselines._torchvision import v2
from bench.baselines.recipes import MEAN, SIDE, STD, VIEWS, Recipe
from bench.baselines.recipes._dataset import opened_by_pillow, torch_loader
from bench.workloads.epochs import Pictures


class PillowBlur:
    """Blur with Pillow's filter, of a random radius: 3-Augment's step, which torchvision does not have."""

    def __call__(self, image: Any) -> Any:
        from PIL import ImageFilter

        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


class Views:
    """Make DINO's views of an image, as its DataAugmentationDINO does; `blur` is its blur."""

    def __init__(self, blur: Any) -> None:
        colors = [v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8), v2.RandomGrayscale(0.2)]
        ends = [
            [blur],
            [v2.RandomApply([blur], 0.1), v2.RandomSolarize(128, 0.2)],
            [v2.RandomApply([blur], 0.5)],
        ]
        self.views = []
        for (count, side, scale), end in zip(VIEWS, ends):
            crop = v2.RandomResizedCrop(side, scale, interpolation=v2.InterpolationMode.BICUBIC)
            self.views += [v2.Compose([crop, v2.RandomHorizontalFlip(), *colors, *end, as_tensor])] * count

    def __call__(self, image: Any) -> list[torch.Tensor]:
        return [view(image) for view in self.views]


def as_tensor(image: Any) -> torch.Tensor:
    """Return Pillow's pixels, channels last: the way to a tensor with the fewest copies."""
    return torch.from_numpy(np.array(image))


STEPS: dict[str, Any] = {
    "crop": lambda: [],
    "trivial": lambda: [v2.TrivialAugmentWide()],
    "mixed": lambda: [v2.TrivialAugmentWide()],
    "kept": lambda: [v2.TrivialAugmentWide()],
    "rand": lambda: [v2.RandAugment(2, 9, interpolation=v2.InterpolationMode.BILINEAR)],
    "three": lambda: [
        v2.RandomChoice([v2.RandomGrayscale(1.0), v2.RandomSolarize(128, 1.0), PillowBlur()]),
        v2.ColorJitter(0.3, 0.3, 0.3),
    ],
    "dino": lambda: Views(PillowBlur()),
    "dino_blur": lambda: Views(v2.GaussianBlur(23, (0.1, 2.0))),
    "simclr": lambda: [
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
        v2.RandomGrayscale(0.2),
        v2.RandomApply([v2.GaussianBlur(23, (0.1, 2.0))], 0.5),
    ],
}


def loader(recipe: Recipe, pictures: Pictures, workers: int) -> Any:
    if recipe.views:
        return torch_loader(recipe, pictures, workers, opened_by_pillow, STEPS[recipe.key]())
    interpolation = v2.InterpolationMode(recipe.interpolation)
    steps = [v2.RandomResizedCrop(SIDE, interpolation=interpolation), v2.RandomHorizontalFlip(), *STEPS[recipe.key]()]
    if recipe.normalised:
        steps += [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    else:
        steps += [as_tensor]
    if recipe.mixed:
        steps += [v2.RandomErasing(0.1)]
    return torch_loader(recipe, pictures, workers, opened_by_pillow, v2.Compose(steps))
