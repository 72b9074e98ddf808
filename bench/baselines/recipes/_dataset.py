"""The part that the candidates in torch's loader share: a dataset of (image, label), and its loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.baselines.recipes import BATCH, CLASSES, Recipe
from bench.workloads.epochs import Pictures


class Transformed:
    """Class folders of JPEGs, as (image, label): a usual class around a function that opens, and a transform."""

    def __init__(self, pictures: Pictures, opened: Callable[[str], Any], transform: Callable[[Any], Any], kept: bool):
        self.sources = pictures.files
        self.opened = opened
        self.transform = transform
        # Before the workers start: they inherit the images, and none of them decodes.
        self.kept = [opened(path) for path, _ in self.sources] if kept else None

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.sources[index]
        return self.transform(self.opened(path) if self.kept is None else self.kept[index]), label


def torch_loader(
    recipe: Recipe,
    pictures: Pictures,
    workers: int,
    opened: Callable[[str], Any],
    transform: Callable[[Any], Any],
) -> Any:
    """Return torch's DataLoader; if the recipe mixes, its `collate_fn` does, as torchvision's page on MixUp shows."""
    from torch.utils.data import DataLoader

    return DataLoader(
        Transformed(pictures, opened, transform, recipe.kept),  # type: ignore[arg-type]
        BATCH,
        sampler=pictures.order,
        num_workers=workers,
        persistent_workers=True,
        collate_fn=_mixing() if recipe.mixed else None,
    )


def _mixing() -> Callable[[Any], Any]:
    from torch.utils.data import default_collate

    from bench.baselines._torchvision import v2

    mix = v2.RandomChoice([v2.MixUp(alpha=0.2, num_classes=CLASSES), v2.CutMix(alpha=1.0, num_classes=CLASSES)])
    return lambda samples: mix(*default_collate(samples))


def opened_by_pillow(path: str) -> Any:
    """Decode a file as torchvision's ImageFolder does."""
    from PIL import Image

    with Image.open(path) as image:
        return image.convert("RGB")
