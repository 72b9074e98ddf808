"""torch's DataLoader with kornia's transforms on float tensors, one image at a time; Pillow decodes.

kornia draws a policy's operation once per batch, hence batches of one image. Its policies have other operations and
ranges than torchvision's. Its bilinear filter aliases, so that a crop costs less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kornia.augmentation as K
import numpy as np
import torch
from kornia.augmentation import auto

from bench.baselines.recipes import MEAN, SIDE, STD, Recipe
from bench.baselines.recipes._dataset import opened_by_pillow, torch_loader
from bench.workloads.epochs import Pictures


def _trivial() -> list[Any]:
    return [auto.TrivialAugment()]


STEPS: dict[str, Callable[[], list[Any]]] = {
    "crop": lambda: [],
    "trivial": _trivial,
    "mixed": _trivial,
    "kept": _trivial,
    "rand": lambda: [auto.RandAugment(2, 9)],
    "three": lambda: [
        K.ImageSequential(
            K.RandomGrayscale(p=1.0),
            K.RandomSolarize(thresholds=(0.5, 0.5), additions=(0.0, 0.0), p=1.0),
            K.RandomGaussianBlur((13, 13), (0.1, 2.0), p=1.0),
            random_apply=1,
        ),
        K.ColorJiggle(0.3, 0.3, 0.3, p=1.0),
    ],
    "simclr": lambda: [
        K.ColorJiggle(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.RandomGaussianBlur((23, 23), (0.1, 2.0), p=0.5),
    ],
}


def opened(path: str) -> torch.Tensor:
    """Decode a file to a uint8 tensor, channels first."""
    return torch.from_numpy(np.array(opened_by_pillow(path))).permute(2, 0, 1)


def loader(recipe: Recipe, pictures: Pictures, workers: int) -> Any:
    steps = [
        K.RandomResizedCrop((SIDE, SIDE), resample=recipe.interpolation),
        K.RandomHorizontalFlip(),
        *STEPS[recipe.key](),
    ]
    if recipe.normalised:
        steps += [K.Normalize(torch.tensor(MEAN), torch.tensor(STD))]
    if recipe.mixed:
        steps += [K.RandomErasing(p=0.1)]
    composed = torch.nn.Sequential(*steps)

    def transform(image: torch.Tensor) -> torch.Tensor:
        (pixels,) = composed(image[None].float() / 255)
        return pixels if recipe.normalised else (pixels * 255).round().clamp(0, 255).to(torch.uint8)

    return torch_loader(recipe, pictures, workers, opened, transform)
