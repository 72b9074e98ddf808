"""slipring.images: the recipe as a list of transforms, in slipring.Loader, with its own defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from bench.baselines.recipes import BATCH, CLASSES, MEAN, SIDE, STD, VIEWS, Recipe
from bench.workloads.epochs import Pictures
from slipring import Cache, Loader, images


def _views(blur: Callable[[float], Any]) -> Any:
    """Return DINO's crops; ``blur(p)`` is its blur."""
    colors = [images.RandomApply([images.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8), images.RandomGrayscale(0.2)]
    ends = [
        [blur(1.0)],
        [blur(0.1), images.RandomSolarize(128, 0.2)],
        [blur(0.5)],
    ]
    groups = []
    for (count, side, scale), end in zip(VIEWS, ends):
        crop = images.RandomResizedCrop(side, scale=scale, interpolation="bicubic")
        groups.append((count, [crop, *colors, *end]))
    return images.MultiCrop(groups)


STEPS: dict[str, Any] = {
    "crop": lambda: [],
    "trivial": lambda: [images.TrivialAugmentWide()],
    "mixed": lambda: [images.TrivialAugmentWide(), images.RandomErasing(0.1)],
    "kept": lambda: [images.TrivialAugmentWide()],
    "rand": lambda: [images.RandAugment(2, 9, interpolation="bilinear")],
    "timm": lambda: [
        images.rand_augment_transform(
            "rand-m9-mstd0.5-inc1", interpolation="bicubic", fill=[round(255 * level) for level in MEAN]
        )
    ],
    "three": lambda: [
        images.RandomChoice(
            [images.RandomGrayscale(1.0), images.RandomSolarize(128, 1.0), images.PILGaussianBlur((0.1, 2.0), 1.0)]
        ),
        images.ColorJitter(0.3, 0.3, 0.3),
    ],
    "dino": lambda: _views(lambda p: images.PILGaussianBlur((0.1, 2.0), p)),
    "dino_blur": lambda: _views(lambda p: images.RandomApply([images.GaussianBlur(23, (0.1, 2.0))], p)),
    "simclr": lambda: [
        images.RandomApply([images.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
        images.RandomGrayscale(0.2),
        images.RandomApply([images.GaussianBlur(23, (0.1, 2.0))], 0.5),
    ],
}


def loader(recipe: Recipe, pictures: Pictures, workers: int) -> Any:
    options: dict[str, Any] = {}
    if recipe.normalised:
        options = {"dtype": "float32", "layout": "NCHW", "mean": MEAN, "std": STD}
    if recipe.kept:
        options["cache"] = Cache(pictures.decoded_bytes)
    if recipe.mixed:
        options["batch_transform"] = images.RandomChoice(
            [images.MixUp(alpha=0.2, num_classes=CLASSES), images.CutMix(alpha=1.0, num_classes=CLASSES)]
        )
    steps = STEPS[recipe.key]()
    if not recipe.views:
        steps = [images.RandomResizedCrop(SIDE, interpolation=recipe.interpolation), *steps]
    folder = images.Folder.of("", [], {}, pictures.files, steps, **options)
    return Loader(folder, BATCH, sampler=pictures.order, num_workers=workers)


def crop_error(recipe: Recipe, pictures: Pictures, most: int) -> tuple[float, int]:
    """Return the mean and the worst difference of crops from torchvision's on PIL, in levels of up to `most` images.

    Both have the same box and flip.
    """
    filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    crop = images.RandomResizedCrop(SIDE, interpolation=recipe.interpolation)
    folder = images.Folder.of("", [], {}, pictures.files, crop)
    means, worst = [], 0
    for index, (path, _) in enumerate(pictures.files[:most]):
        spec, sample = folder.crop_spec(index, seed=index), folder.try_sample(index, seed=index)
        assert sample is not None
        top, left, height, width = spec.box
        with Image.open(path) as image:
            exact = image.convert("RGB").crop((left, top, left + width, top + height))
        exact = exact.resize((SIDE, SIDE), filters[recipe.interpolation])
        if spec.flip:
            exact = exact.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        off = np.abs(sample[0].astype(int) - np.asarray(exact))
        means.append(off.mean())
        worst = max(worst, int(off.max()))
    return float(np.mean(means)), worst
