"""torch's DataLoader with torchvision's v2 transforms on tensors; Pillow decodes."""

from __future__ import annotations

from typing import Any

import torch

from bench.baselines._torchvision import v2
from bench.baselines.recipes import MEAN, SIDE, STD, Recipe, torchvision_pil
from bench.baselines.recipes._dataset import opened_by_pillow, torch_loader
from bench.workloads.epochs import Pictures

STEPS = {key: steps for key, steps in torchvision_pil.STEPS.items() if not key.startswith("dino")} | {
    "three": lambda: [
        v2.RandomChoice(  # the kernel is the widest that a radius of 2 needs, because Pillow's filter takes no tensor
            [v2.RandomGrayscale(1.0), v2.RandomSolarize(128, 1.0), v2.GaussianBlur(13, (0.1, 2.0))]
        ),
        v2.ColorJitter(0.3, 0.3, 0.3),
    ],
}


def opened(path: str) -> torch.Tensor:
    """Decode a file to a uint8 tensor, channels first."""
    return v2.functional.pil_to_tensor(opened_by_pillow(path))


def loader(recipe: Recipe, pictures: Pictures, workers: int) -> Any:
    interpolation = v2.InterpolationMode(recipe.interpolation)
    steps = [v2.RandomResizedCrop(SIDE, interpolation=interpolation), v2.RandomHorizontalFlip(), *STEPS[recipe.key]()]
    if recipe.normalised:
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    if recipe.mixed:
        steps += [v2.RandomErasing(0.1)]
    return torch_loader(recipe, pictures, workers, opened, v2.Compose(steps))
