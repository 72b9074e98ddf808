"""The part that the candidates in torch's loader share for samples with boxes or masks."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from bench.annotated_photos import AnnotatedPhotos
from bench.baselines.recipes import Recipe


class Annotations:
    """A usual dataset: `transform` gets the opened image and its targets, as arrays, and returns both as tensors.

    Parameters
    ----------
    photos, parts
        The photographs, and the parts that the recipe needs.
    opened
        Opens the image at a path.
    transform
        ``transform(image, targets, other)``; ``other()`` returns another (image, targets), drawn at random.
    """

    def __init__(
        self,
        photos: AnnotatedPhotos,
        parts: tuple[str, ...],
        opened: Callable[[str], Any],
        transform: Callable[..., Any],
    ) -> None:
        self.photos, self.parts = photos, parts
        self.opened, self.transform = opened, transform

    def __len__(self) -> int:
        return self.photos.distinct

    def stored(self, index: int) -> tuple[Any, dict[str, Any]]:
        """Return the sample before the transform."""
        return self.opened(self.photos.paths[index]), targets(self.photos, self.parts, index)

    def other(self) -> tuple[Any, dict[str, Any]]:
        return self.stored(int(torch.randint(len(self), ())))

    def __getitem__(self, index: int) -> Any:
        return self.transform(*self.stored(index), self.other)


def targets(photos: AnnotatedPhotos, parts: tuple[str, ...], index: int) -> dict[str, Any]:
    """Return the parts of a sample, except its image, as arrays."""
    found: dict[str, Any] = {}
    if "boxes" in parts:
        found["boxes"], found["labels"] = photos.boxes(index)
    if "masks" in parts:
        found["masks"] = photos.masks(index)
    if "mask" in parts:
        found["mask"] = np.array(Image.open(io.BytesIO(photos.palette(index))))
    return found


def parts_loader(
    recipe: Recipe,
    photos: AnnotatedPhotos,
    workers: int,
    opened: Callable[[str], Any],
    transform: Callable[..., Any],
) -> Any:
    """Return torch's DataLoader, with a `collate_fn` as in torchvision's reference training."""
    return DataLoader(
        Annotations(photos, recipe.parts, opened, transform),  # type: ignore[arg-type]
        recipe.batch,
        sampler=photos.order,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=_collated,
    )


def _collated(samples: list[Any]) -> Any:
    first = samples[0][1]
    parts = {name: [sample[1][name] for sample in samples] for name in first}
    if "mask" in parts:
        parts["mask"] = torch.stack(parts["mask"])
    return torch.stack([sample[0] for sample in samples]), parts
