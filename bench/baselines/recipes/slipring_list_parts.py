"""slipring.images.Annotated: the recipe as a list of transforms, in slipring.Loader, with its own defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.annotated_photos import IGNORED, AnnotatedPhotos
from bench.baselines.recipes import MEAN, STD, Recipe
from bench.levels import unnormalised
from slipring import Loader, images

FILL = tuple(round(255 * level) for level in MEAN)
GREY = (114, 114, 114)

STEPS: dict[str, Callable[[], list[Any]]] = {
    "ssd": lambda: [
        images.RandomPhotometricDistort(),
        images.RandomZoomOut(fill=FILL),
        images.RandomIoUCrop(),
        images.RandomHorizontalFlip(),
        images.Resize((300, 300)),
    ],
    "lsj": lambda: [
        images.ScaleJitter((1024, 1024)),
        images.FixedSizeCrop((1024, 1024), fill=FILL),
        images.RandomHorizontalFlip(),
    ],
    "segmentation": lambda: [
        images.RandomResize(260, 1041),
        images.RandomHorizontalFlip(),
        images.RandomCrop(480, pad_if_needed=True),
    ],
    "yolo": lambda: [
        images.Mosaic(640),
        images.CenterCrop(640),
        images.RandomAffine(0, translate=(0.1, 0.1), scale=(0.5, 1.5), interpolation="bilinear", fill=GREY),
        images.ColorJitter(0.4, 0.0, 0.7, 0.015),
        images.RandomHorizontalFlip(),
    ],
}


class Stored:
    """A map dataset of the samples as they are stored: a path, arrays and encoded masks."""

    def __init__(self, photos: AnnotatedPhotos, parts: tuple[str, ...]) -> None:
        self.photos, self.parts = photos, parts

    def __len__(self) -> int:
        return self.photos.distinct

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample: dict[str, Any] = {"image": self.photos.paths[index]}
        if "boxes" in self.parts:
            sample["boxes"], sample["labels"] = self.photos.boxes(index)
        if "masks" in self.parts:
            sample["masks"] = self.photos.masks(index)
        if "mask" in self.parts:
            sample["mask"] = self.photos.palette(index)
        return sample


class Pairs:
    """The batches of a loader as (images, targets), as those of the other candidates are."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        for batch in self.loader:
            yield batch.pop("image"), batch


def dataset(recipe: Recipe, photos: AnnotatedPhotos, steps: list[Any]) -> Any:
    """Return the dataset with the recipe's options."""
    options: dict[str, Any] = {}
    if recipe.normalised:
        options = {"dtype": "float32", "layout": "NCHW", "mean": MEAN, "std": STD}
    if "boxes" in recipe.parts:
        options |= {"boxes": "boxes", "rows": "labels"}
    if masks := [name for name in recipe.parts if name in ("mask", "masks")]:
        options |= {"masks": masks, "mask_fill": IGNORED if "mask" in masks else 0}
    return images.Annotated(Stored(photos, recipe.parts), steps, **options)


def loader(recipe: Recipe, photos: AnnotatedPhotos, workers: int) -> Any:
    annotated = dataset(recipe, photos, STEPS[recipe.key]())
    return Pairs(Loader(annotated, recipe.batch, sampler=photos.order, num_workers=workers))


def parts_errors(recipe: Recipe, photos: AnnotatedPhotos, most: int) -> dict[str, float]:
    """Return the differences from torchvision on PIL after a resize, a crop and a flip, for up to `most` samples.

    "mean" and "worst" are differences of images in levels, "boxes" is the largest difference in pixels, and "masks" the
    share of equal values of masks.
    """
    from bench.baselines._torchvision import v2
    from bench.baselines.recipes._dataset import opened_by_pillow
    from bench.baselines.recipes._parts_dataset import targets
    from bench.baselines.recipes.torchvision_pil_parts import finishing, wrapped

    side, larger = recipe.side, (recipe.side + 57, recipe.side + 119)
    flipped = dataset(
        recipe, photos, [images.Resize(larger), images.CenterCrop(side), images.RandomHorizontalFlip(p=1.0)]
    )
    exact = v2.Compose([v2.Resize(larger), v2.CenterCrop(side), v2.RandomHorizontalFlip(1.0), *finishing(recipe)])
    means, found = [], {"worst": 0.0}
    equal: list[float] = []
    for index in range(min(most, len(photos))):
        image = opened_by_pillow(photos.paths[index])
        wanted, others = exact(image, wrapped(image, targets(photos, recipe.parts, index)))
        sample = flipped[index]
        pixels = sample["image"] if recipe.normalised else sample["image"].transpose(2, 0, 1)
        off = np.abs(unnormalised(pixels).astype(float) - unnormalised(wanted.numpy()))
        means.append(off.mean())
        found["worst"] = max(found["worst"], float(off.max()))
        if "boxes" in recipe.parts:
            off = np.abs(sample["boxes"] - others["boxes"].numpy())
            found["boxes"] = max(found.get("boxes", 0.0), float(off.max(initial=0)))
        equal += [float((sample[name] == others[name].numpy()).mean()) for name in ("mask", "masks") if name in sample]
    if equal:
        found["masks"] = min(equal)
    return {"mean": float(np.mean(means)), **found}
