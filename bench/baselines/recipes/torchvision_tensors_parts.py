"""torch's DataLoader with torchvision's v2 transforms on tensors, boxes and masks; Pillow decodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.annotated_photos import AnnotatedPhotos
from bench.baselines._torchvision import tv_tensors, v2
from bench.baselines.recipes import Recipe, torchvision_pil_parts
from bench.baselines.recipes._parts_dataset import parts_loader
from bench.baselines.recipes.torchvision_pil_parts import finishing, wrapped
from bench.baselines.recipes.torchvision_tensors import opened

STEPS = {key: steps for key, steps in torchvision_pil_parts.STEPS.items() if key != "yolo"}


def loader(recipe: Recipe, photos: AnnotatedPhotos, workers: int) -> Any:
    composed = v2.Compose([*STEPS[recipe.key](), *finishing(recipe)])

    def transform(image: Any, targets: dict[str, Any], other: Callable[[], Any]) -> Any:
        return composed(tv_tensors.Image(image), wrapped(image, targets))

    return parts_loader(recipe, photos, workers, opened, transform)
