"""torch's DataLoader with the transforms of timm's `create_transform`, which work on Pillow's images."""

from __future__ import annotations

from typing import Any

from PIL import Image
from timm.data import auto_augment, create_transform  # after bench.baselines._torchvision: they import torchvision

from bench.baselines.recipes import MEAN, SIDE, STD, Recipe
from bench.baselines.recipes._dataset import opened_by_pillow, torch_loader
from bench.workloads.epochs import Pictures

STEPS: dict[str, Any] = {
    "timm": lambda: {"auto_augment": "rand-m9-mstd0.5-inc1"},
    "three": lambda: {"auto_augment": "3a", "color_jitter": 0.3},
}


def _posterized(image: Any, bits: int, **_: Any) -> Any:
    return auto_augment.posterize(image, bits) if bits else Image.new(image.mode, image.size)


# A magnitude of 10 leaves 0 bits. Pillow 13 refuses that, and earlier versions return black.
auto_augment.NAME_TO_OP["PosterizeIncreasing"] = _posterized


def loader(recipe: Recipe, pictures: Pictures, workers: int) -> Any:
    transform = create_transform(
        SIDE,
        is_training=True,
        interpolation=recipe.interpolation,
        mean=MEAN,
        std=STD,
        normalize=recipe.normalised,  # otherwise the levels, as uint8
        **STEPS[recipe.key](),
    )
    return torch_loader(recipe, pictures, workers, opened_by_pillow, transform)
