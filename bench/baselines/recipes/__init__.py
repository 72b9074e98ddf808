"""Training recipes, and the candidates that make them: one file each, with the same names.

``STEPS``
    {key of a recipe: a function without arguments that returns the candidate's transform}. A recipe that is missing
    cannot be expressed.
``loader(recipe, images, workers)``
    An iterable of (images, labels), over the order of `pictures`.

Recipes with boxes or masks are in a candidate's file with the ending ``_parts``. Their `pictures` are of the class
`AnnotatedPhotos`, and their batches are (images, {"boxes", "labels", "masks": lists with one array per sample, "mask":
an array}).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from bench.baselines.baseline import Baseline

# torchvision and timm, as the Makefile installs them: without their dependencies, apart from the tests' packages.
sys.path.append(str(Path(__file__).parents[3] / "build/bench/no-deps"))

BATCH = 64
SIDE = 224
VIEWS = ((1, 224, (0.4, 1.0)), (1, 224, (0.4, 1.0)), (6, 96, (0.05, 0.4)))  # DINO's: count, side, share of the area
CLASSES = 1000  # of soft labels, as for ImageNet
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Recipe:
    """One recipe.

    Parameters
    ----------
    key, title
        Its name; its description in the table.
    interpolation
        Of the random resized crop.
    normalised
        Whether batches are float32, normalised and NCHW; otherwise they are uint8.
    mixed
        Whether MixUp or CutMix follows, so that labels are soft.
    kept
        Whether decoded images are kept in memory.
    views
        Whether each image becomes several crops, those of `VIEWS`.
    parts
        Which parts follow the geometry of the image: "boxes", "masks" (one per box), "mask".
    batch
        Samples per batch.
    side
        Height and width of the images, in pixels.
    compares_crops
        Whether the error of slipring's crops is measured: once for each interpolation.
    reference
        The candidate that the others are compared with.
    """

    key: str
    title: str
    interpolation: str = "bilinear"
    normalised: bool = False
    mixed: bool = False
    kept: bool = False
    views: bool = False
    parts: tuple[str, ...] = ()
    batch: int = BATCH
    side: int = SIDE
    compares_crops: bool = False
    reference: str = "pil"


RECIPES = {
    recipe.key: recipe
    for recipe in (
        Recipe("crop", "crop and flip, uint8", compares_crops=True),
        Recipe("trivial", "TrivialAugmentWide, uint8"),
        Recipe(
            "mixed",
            "TrivialAugmentWide, RandomErasing(0.1), MixUp or CutMix, float32",
            normalised=True,
            mixed=True,
        ),
        Recipe("rand", "RandAugment(2, 9), bilinear, uint8"),
        Recipe(
            "timm",
            "timm's rand-m9-mstd0.5-inc1, bicubic, float32",
            interpolation="bicubic",
            normalised=True,
            reference="timm",
        ),
        Recipe("three", "3-Augment, bicubic, uint8", interpolation="bicubic", compares_crops=True),
        Recipe("simclr", "ColorJitter, grayscale and Gaussian blur as in SimCLR, uint8"),
        Recipe("dino", "DINO, 2 × 224 and 6 × 96, bicubic, uint8", interpolation="bicubic", views=True),
        Recipe(
            "dino_blur", "DINO with torchvision's blur of 23 taps, bicubic, uint8", interpolation="bicubic", views=True
        ),
        Recipe("kept", "TrivialAugmentWide of decoded images in memory, uint8", kept=True),
        Recipe(
            "ssd",
            "ssd: photometric distortion, zoom out, IoU crop, 300 × 300, float32; boxes",
            normalised=True,
            parts=("boxes",),
            batch=32,
            side=300,
        ),
        Recipe(
            "lsj", "large scale jitter, 1024 × 1024, uint8; boxes, masks", parts=("boxes", "masks"), batch=4, side=1024
        ),
        Recipe(
            "segmentation",
            "segmentation: resize to 260 - 1040, crop 480 × 480, float32; a palette mask",
            normalised=True,
            parts=("mask",),
            batch=16,
            side=480,
        ),
        Recipe("yolo", "mosaic, affine, colours, 640 × 640, uint8; boxes", parts=("boxes",), batch=16, side=640),
    )
}

_REMEDY = "make bench installs it, or see bench/requirements-images.txt"
_TORCHVISION = "bench.baselines._torchvision"

CANDIDATES = {
    candidate.key: candidate
    for candidate in (
        Baseline("slipring", "slipring.images", "recipes.slipring_list", ("slipring.images",), ("slipring",)),
        Baseline(
            "pil",
            "torch, torchvision on PIL",
            "recipes.torchvision_pil",
            ("torch", _TORCHVISION),
            ("torch", "torchvision"),
            remedy=_REMEDY,
        ),
        Baseline(
            "tensors",
            "torch, torchvision on tensors",
            "recipes.torchvision_tensors",
            ("torch", _TORCHVISION),
            ("torch", "torchvision"),
            remedy=_REMEDY,
        ),
        Baseline(
            "timm",
            "torch, timm",
            "recipes.timm_factory",
            ("torch", _TORCHVISION, "timm.data"),
            ("timm",),
            remedy=_REMEDY,
        ),
        Baseline(
            "albumentations",
            "torch, Albumentations and OpenCV",
            "recipes.albumentations_opencv",
            ("torch", "cv2", "albumentations"),
            ("albumentations", "opencv-python-headless"),
            remedy=_REMEDY,
        ),
        Baseline(
            "kornia",
            "torch, kornia",
            "recipes.kornia_tensors",
            ("torch", "kornia"),
            ("kornia",),
            remedy=_REMEDY,
        ),
        Baseline(
            "dali",
            "DALI on the CPU",
            "recipes.dali_cpu",
            ("nvidia.dali",),
            ("nvidia-dali-cuda120",),
            remedy="see bench/requirements-dali.txt",
        ),
    )
}
