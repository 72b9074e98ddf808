"""Checks of batches with boxes and masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.baselines.recipes import Recipe
from bench.collate import as_array
from bench.levels import levels


def check(recipe: Recipe, batches: Sequence[Any]) -> dict[str, float]:
    """Raise ValueError if a batch does not have the recipe's form; return the levels of the images."""
    found = []
    for images, targets in batches:
        array = as_array(images)
        wanted = (recipe.batch, 3, recipe.side, recipe.side)
        shapes = {wanted} if recipe.normalised else {wanted, (*wanted[:1], *wanted[2:], 3)}
        if array.shape not in shapes or array.dtype != (np.float32 if recipe.normalised else np.uint8):
            raise ValueError(f"{recipe.key}: images of {array.dtype}{array.shape}")
        for name in recipe.parts:
            _check_part(recipe, name, targets)
        found.append([array])
    return levels(found)


def _check_part(recipe: Recipe, name: str, targets: dict[str, Any]) -> None:
    values = [as_array(part) for part in targets[name]]
    if len(values) != recipe.batch:
        raise ValueError(f"{recipe.key}: {name} of {len(values)} samples")
    for i, value in enumerate(values):
        n = None if name == "mask" else len(as_array(targets["labels"][i]))
        shape = {"boxes": (n, 4), "masks": (n, recipe.side, recipe.side), "mask": (recipe.side, recipe.side)}[name]
        if value.shape != shape:
            raise ValueError(f"{recipe.key}: {name} of shape {value.shape}")
        if name == "boxes" and n and not (value.min() >= 0 and value.max() <= recipe.side):
            raise ValueError(f"{recipe.key}: boxes from {value.min()} to {value.max()}")
