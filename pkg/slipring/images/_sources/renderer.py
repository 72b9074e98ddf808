"""From the bytes or pixels of an image to the arrays of a sample: a dataset's transforms, layout and values."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from slipring._core.codec._codec import AsTensor
from slipring._core.options.checks import integer, one_of
from slipring._core.ring._ring import mix
from slipring._core.ring._slot import DECODE, part_begun, spent
from slipring.errors import shown
from slipring.images._decode import Target
from slipring.images._render.decode import DecodedImage, EncodedImage, ImageReading, write
from slipring.images._render.draws import Draws
from slipring.images._render.recipe import Recipe, scratch
from slipring.images._render.values import bfloat16_of_numpy, dtype_name, table_of
from slipring.images._render.view import INTERPOLATIONS, Placement
from slipring.images._steps.base import UserStep, chain, final_size
from slipring.images._steps.batch import Images, labels_of
from slipring.images._steps.outputs import MultiCrop, Patches

if TYPE_CHECKING:
    from slipring.images._steps.base import Transform

_LAYOUTS = ("NHWC", "NCHW")
_BATCH = 0x4241544348  # keeps the numbers of a batch apart from those of its samples
_OF_PATCHES = "patches", "patch_coord", "patch_valid"  # the keys of a sample


class Renderer:
    """Makes the arrays of images; see `ImageDataset` for the parameters.

    `followers` are the keys of the parts of a sample that follow its images; None: a sample has images only.

    Attributes
    ----------
    steps : tuple of Transform
    groups : sequence of (int, tuple of Transform)
        The number of crops of each group, and their steps.
    shapes : tuple of tuples of int, or None
        The shape of each array of a sample; None: it depends on the image.
    storages : tuple of str
        The dtype of each array's memory.
    size : (int, int), int or None
        Height and width of the results, if a sample is one array and they do not depend on the image; or the number of
        patches.
    side : int or None
        The shorter side to which images are shrunk first.
    is_single : bool
        A sample is one array, not several.
    reading, whole : ImageReading
        How an image is decoded, and how it is decoded as a whole and as it is stored, in order to be cropped later.
    dtype, storage : str
        Of the values, and of their memory: numpy itself has no bfloat16.
    """

    steps: tuple[Transform, ...]

    def __init__(
        self, transform, *, layout, dtype, mean, std, reducing_gap, exif, truncated, max_pixels, grey16, side=None,
        followers=None,
    ):  # fmt: skip
        one_of("layout", layout, _LAYOUTS)
        self.layout, self.dtype = layout, dtype_name(dtype)
        self.storage = "uint16" if self.dtype == "bfloat16" else self.dtype
        self._extension = bfloat16_of_numpy(dtype) if self.dtype == "bfloat16" else None
        self.table = table_of(self.dtype, mean, std)
        self.side = integer("side", side, 1, 1 << 24, optional=True)
        self._followers = followers
        self._patches = transform if isinstance(transform, Patches) else None
        self.is_single = not isinstance(transform, (MultiCrop, Patches))
        if followers is not None and not self.is_single:
            name = type(transform).__name__
            raise TypeError(f"images.Annotated cannot have {name}: masks and boxes follow one crop of an image")
        if isinstance(transform, MultiCrop):
            self.groups, self.steps = transform.groups, tuple(transform.steps)
        else:
            self.steps = chain(transform if self.is_single else transform.steps)
            self.groups = ((1, self.steps),)
        self._check(self.steps)
        sizes = [final_size(steps) for _, steps in self.groups]
        self.size, self.shapes, self.storages = None, None, (self.storage,) * len(sizes)
        if self._patches is not None:
            if layout != "NHWC":
                raise ValueError(f"layout must be 'NHWC' with Patches, which have no channels first, not {layout!r}")
            self.size = count = transform.max_patches
            self.shapes = (count, transform.patch_size**2 * 3), (count, 2), (count,)
            self.storages = self.storage, "int64", "bool"
        elif self.is_single:
            self.size = sizes[0]
            self.shapes = None if self.size is None else (self._arranged(*self.size),)
        else:
            self.shapes = tuple((count, *self._arranged(*size)) for (count, _), size in zip(self.groups, sizes))
        self.reading = ImageReading("bilinear", reducing_gap, exif, truncated, max_pixels, grey16)
        ways = (step.interpolation for step in self.steps if step.resizes)
        way = next((name for name in ways if name in INTERPOLATIONS), "bilinear")  # it may be drawn
        self.whole = ImageReading(way, reducing_gap, False, truncated, max_pixels, grey16)

    def with_steps(self, steps):
        """Return a copy with another list of transforms, which leaves images of the same size."""
        made = copy.copy(self)
        made.steps = chain(steps)
        made.groups = ((1, made.steps),)
        made._check(made.steps)
        return made

    def of_crops(self, *, converts):
        """Return a copy that makes an array of each crop, of any size; without `converts`, of the pixel values."""
        made = copy.copy(self)
        made.is_single, made.shapes, made._patches = True, None, None
        if not converts:
            made.layout, made.dtype, made.storage, made.table = "NHWC", "uint8", "uint8", None
        return made

    def _check(self, steps):
        """Raise TypeError or ValueError if a step does not suit these samples."""
        for step in steps:
            step.check(self.dtype)
            if step.needs_parts and self._followers is None:
                raise TypeError(f"{shown(step)} is for samples with boxes or masks, which images.Annotated has")
            if self._followers and (spatial := _moves_pixels(step)) is not None:
                raise TypeError(
                    f"transform has Albumentations' {type(spatial).__name__}, which may move pixels: the dataset's "
                    f"{', '.join(map(shown, self._followers))} would stay behind. Use a transform of slipring.images, "
                    "such as RandomAffine, in its place"
                )

    def _arranged(self, height, width):
        return (height, width, 3) if self.layout == "NHWC" else (3, height, width)

    # ---- samples

    def render(self, image, out, draws):
        """Return the sample of an image.

        Parameters
        ----------
        image : Image
        out : list of numpy.ndarray, or None
            Memory for the arrays of the sample.
        draws : Draws
        """
        recipes = self._drawn(image.size, draws)
        out = self.memory(recipes) if out is None else out
        begun = part_begun()
        if len(recipes) > 1 and image.stage == DECODE:
            image = self._decoded_together(image, recipes)
        self._run(recipes, image, out)
        spent(image.stage, begun)
        return self.sample_of(out)

    def image(self, data):
        """Return an encoded image as the steps get it: shrunk to `side`, if there is one."""
        return EncodedImage(data, self.reading) if self.side is None else self.decode(data)

    def decode(self, data):
        """Return the `DecodedImage` of a whole image as it is stored, shrunk to `side`."""
        image = EncodedImage(data, self.reading)
        pixels = np.empty((*self._shrunk(*image.stored), 3), np.uint8)
        begun = part_begun()
        write(data, Placement(filter=self.whole.filter), Target(pixels), self.whole)
        spent(DECODE, begun)
        return DecodedImage(pixels, image.orientation)

    def crop_spec(self, data, draws):
        """Return the `CropSpec` of an encoded image; of the first crop, if a sample has several."""
        image = EncodedImage(data, self.reading)
        image.stored = self._shrunk(*image.stored)
        return self._drawn(image.size, draws)[0].drawn()

    def measure(self, data, times, in_memory, seed):
        """Add the times of an encoded image to `times`, a `StepTimes`; `in_memory`: it is decoded before."""
        size = self.image(data).size
        kept = self.decode(data) if in_memory else None
        times.add(
            lambda renderer: renderer.render(kept or renderer.image(data), None, None),
            lambda: Recipe(*size, self.dtype),
            seed,
        )

    def _shrunk(self, height, width):
        """Return the size of an image after `side`, as torchvision's Resize computes it."""
        shorter = min(width, height)
        if self.side is None or shorter <= self.side:
            return height, width
        return tuple(max(1, self.side * n // shorter) for n in (height, width))

    def _drawn(self, size, draws):
        """Return the `Recipe` of each crop that the transforms draw for an image of that (height, width)."""
        recipes = []
        for count, steps in self.groups:
            for _ in range(count):
                recipe = Recipe(*size, self.dtype)
                for step in steps:
                    step.apply(recipe, draws)
                recipes.append(recipe)
        return recipes

    def memory(self, recipes):
        """Return memory for the arrays of a sample."""
        if self.shapes is None:
            return [np.empty(self._arranged(recipe.height, recipe.width), self.storage) for recipe in recipes]
        return list(map(np.empty, self.shapes, self.storages))

    def rows(self, out):
        """Return the memory of each crop as height × width × 3."""
        rows = out if self.is_single else [row for array in out for row in array]
        return rows if self.layout == "NHWC" else [row.transpose(1, 2, 0) for row in rows]

    def _run(self, recipes, image, out):
        if self._patches is not None:
            self._run_patches(recipes[0], image, *out)
            return
        for recipe, row in zip(recipes, self.rows(out)):
            recipe.run(image, row, self.table)

    def _run_patches(self, recipe, image, patches, positions, valid):
        side, memory = self._patches.patch_size, np.dtype(self.storage)
        rows, columns = recipe.height // side, recipe.width // side
        pixels = scratch(recipe.height, recipe.width * memory.itemsize).reshape(-1).view(memory)
        recipe.run(image, pixels.reshape(recipe.height, recipe.width, 3), self.table)
        count = rows * columns
        to = patches[:count].reshape(rows, columns, side, side, 3)
        to[...] = pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
        number = np.arange(count)
        positions[:count, 0], positions[:count, 1] = number // columns, number % columns
        patches[count:], positions[count:] = 0, 0
        valid[:count], valid[count:] = True, False

    def _decoded_together(self, image, recipes):
        """Decode the part of an image that contains all crops, and let the recipes crop from there."""
        specs = [recipe.crop_spec for recipe in recipes]
        top, left = min(spec.box[0] for spec in specs), min(spec.box[1] for spec in specs)
        bottom, right = (max(spec.box[n] + spec.box[n + 2] for spec in specs) for n in (0, 1))
        pixels = scratch(bottom - top, right - left)
        image.write(Placement((top, left, *pixels.shape[:2])), Target(pixels))
        for spec in specs:
            spec.box = spec.box[0] - top, spec.box[1] - left, *spec.box[2:]
        return DecodedImage(pixels)

    # ---- values

    def sample_of(self, arrays):
        """Return the arrays of a sample or a batch in the form that users get."""
        if self._patches is not None:
            return dict(zip(_OF_PATCHES, arrays))
        return arrays[0] if self.is_single else tuple(arrays)

    def shown(self, arrays):
        """Return the arrays of a sample or a batch with the dtype that users see."""
        if self.dtype != "bfloat16":
            return arrays
        if isinstance(arrays, tuple):
            return tuple(map(self.shown, arrays))
        if isinstance(arrays, dict):
            return {**arrays, "patches": self.shown(arrays["patches"])}
        if self._extension is not None:
            return arrays.view(self._extension)
        import torch

        return torch.from_numpy(arrays).view(torch.bfloat16)

    def stored(self, images):
        """Return an array or tensor as an array of `storage` over the same memory; the reverse of `shown`."""
        if isinstance(images, AsTensor):  # of the workers that share a batch
            return images.array
        if type(images).__module__ == "torch":
            import torch

            return (images.view(torch.uint16) if images.dtype == torch.bfloat16 else images).numpy()
        if self._extension is not None and getattr(images, "dtype", None) == self._extension:
            return images.view(np.uint16)
        return images

    def mixed(self, transform, images, targets, seed, what="images"):
        """Mix the images or clips of a batch in place by a `BatchTransform`; return the mixed targets."""
        memory = self.stored(images)
        axes = 4 if what == "images" else 5
        if not isinstance(memory, np.ndarray) or memory.dtype != self.storage or memory.ndim != axes:
            raise ValueError(
                f"batch_transform needs one array of all {what} of a batch: they have different sizes, or collate_fn "
                f"changed them, to {shown(images)}"
            )
        batch, labels = Images(memory, self.layout, self.dtype), labels_of(targets, len(memory))
        mixed = transform.mix(batch, labels, Draws(mix(seed, _BATCH)))
        if isinstance(images, np.ndarray):
            return mixed
        import torch

        return torch.from_numpy(mixed)


def _moves_pixels(step):
    """Return the first transform of Albumentations in a step, or in a step's list, that may move pixels, or None.

    Albumentations derives all transforms that also change masks or boxes from ``DualTransform``.
    """
    step = step.function if isinstance(step, UserStep) else step
    if any(kind.__name__ == "DualTransform" for kind in type(step).__mro__):
        return step
    nested = getattr(step, "transforms", None)
    nested = nested if isinstance(nested, (list, tuple)) else ()
    return next((found for found in map(_moves_pixels, nested) if found is not None), None)
