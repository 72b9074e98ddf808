"""From stored samples with several parts to finished ones: all parts follow the geometry of the image."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from slipring._core.ring._check import from_handler
from slipring._core.ring._slot import DECODE, part_begun, spent
from slipring.errors import ImageError, shown
from slipring.images._render.boxes import valid
from slipring.images._render.decode import DecodedImage, Image
from slipring.images._render.draws import Draws
from slipring.images._render.parts import Boxes, Keypoints, Mask
from slipring.images._render.recipe import Recipe
from slipring.images._sources.renderer import Renderer
from slipring.images._steps.base import UserStep
from slipring.images._steps.multicrop import MultiCrop
from slipring.images._steps.patches import Patches
from slipring.images._steps.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from slipring.images._sources.step_times import StepTimes
    from slipring.images._steps.base import Transform

    Other: TypeAlias = Callable[[Draws, Callable[[Sample], Sample]], Sample]

_MIX = 0x4D4958 << 32  # keeps the numbers of a mix apart from those of users' steps


class SampleRenderer(Renderer):
    """Makes the parts of samples; see `Annotated` for the parameters."""

    has_parts = True

    def __init__(self, transform, *, followers, mask_fill, flip_order, min_box_size, invalid_boxes, **options):
        if isinstance(transform, (MultiCrop, Patches)):
            name = type(transform).__name__
            raise TypeError(f"images.Annotated cannot have {name}: masks and boxes follow one crop of an image")
        self.followers = followers  # the keys of the parts that follow the image
        super().__init__(transform, side=None, **options)
        self.mask_fill, self.flip_order = mask_fill, flip_order
        self.min_box_size, self.invalid_boxes = min_box_size, invalid_boxes

    def _check(self, steps):
        super()._check(steps)
        for step in steps if self.followers else ():
            if (spatial := _moves_pixels(step)) is not None:
                raise TypeError(
                    f"transform has Albumentations' {type(spatial).__name__}, which may move pixels: the dataset's "
                    f"{', '.join(map(shown, self.followers))} would stay behind. Use a transform of slipring.images, "
                    "such as RandomAffine, in its place"
                )

    def finish(self, sample: Sample, out: Sequence[NDArray[Any]] | None, draws: Draws, other: Other) -> Sample:
        """Return a sample after all steps; its images are arrays of the dataset's dtype and layout.

        Parameters
        ----------
        sample : Sample
        out : sequence of numpy.ndarray, or None
            Memory for the images.
        draws : Draws
        other : callable
            ``other(draws, finish)`` returns ``finish(sample)`` for another sample of the dataset, which it draws.
        """
        sample, begin = self._combined(sample, len(self.steps), draws, other)
        return self._run_steps(sample, self.steps[begin:], draws, out)

    def _combined(self, sample, end, draws, other):
        """Apply the steps before `end` up to the last one that combines; return the sample and the next step's place.

        Steps that only follow are not run yet: they are part of one pass with the later ones.
        """
        begin = 0
        for place, step in enumerate(self.steps[:end]):
            if not step.combines_samples:
                continue
            own = Draws(draws.apart(_MIX + place))
            if own.chance(step.p):
                sources = _MixSources(self, sample, (begin, place), draws, own, other)
                try:
                    sample, begin = step.combine(sources, own, self.mask_fill), place + 1
                    sample.calls = sources.calls
                except ValueError as error:
                    if error is sources.failure:  # a step before this one has failed
                        raise
                    _raise_named(step, error)
        return sample, begin

    def pixels(self, sample, begin, end, draws, more, memory):
        """Return a sample after the steps from `begin` to `end` and `more`, its images as arrays of uint8."""
        return self._run_steps(sample, (*self.steps[begin:end], *more), draws, memory, between=True)

    def _run_steps(
        self, sample: Sample, steps: Sequence[Transform], draws: Draws, out: Any, between: bool = False
    ) -> Sample:
        """Apply steps in one pass. `between`: other steps follow, so the images become arrays of uint8.

        `out` is memory for the images; `between` steps it is a function that returns the memory, see `MixSources`.
        """
        images = {
            name: image if isinstance(image, Image) else DecodedImage(np.ascontiguousarray(image))
            for name, image in sample.images.items()
        }
        height, width = next(iter(images.values())).size
        for name, image in images.items():
            if (size := image.size) != (height, width):
                raise ImageError(
                    f"{name!r} has {size[0]} x {size[1]} pixels, and the first image {height} x {width}: images of a "
                    "sample must have one size"
                )
        if sample.is_stored and sample.boxes is not None:
            self._check_boxes(sample, height, width)
        boxes, points, masks = parts = self._parts(sample, height, width)
        recipe = self._recipe(height, width, parts, "uint8" if between else self.dtype)
        recipe.calls = sample.calls
        for step in steps:
            if not step.combines_samples:
                self._apply(step, recipe, draws)
        images = self._run_images(images, recipe, out, between)
        rows = self._rows_left(sample, boxes)
        finished = Sample(
            images,
            {name: mask.result(rows if mask.values.ndim == 3 else None) for name, mask in masks.items()},
            None if boxes is None else boxes.xyxy,
            sample.rows if rows is None else {name: values[rows] for name, values in sample.rows.items()},
            self._points(sample, points, rows, recipe),
            is_stored=False,
            calls=recipe.calls,
        )
        if not between and boxes is not None:
            size = boxes.xyxy[:, 2:] - boxes.xyxy[:, :2]
            large = ((size >= self.min_box_size) & (size > 0)).all(1)
            if not large.all():
                finished.take(large)
        return finished

    def measure(self, sample: Sample, times: StepTimes, seed: int, other: Other) -> None:
        """Add the times of a stored sample to `times`."""
        height, width = next(iter(sample.images.values())).size
        if sample.boxes is not None:
            self._check_boxes(sample, height, width)
        times.add(
            lambda renderer: renderer.finish(sample, None, Draws(seed), other),
            lambda: self._recipe(height, width, self._parts(sample, height, width), self.dtype),
            seed,
        )

    @staticmethod
    def _recipe(height, width, parts, dtype):
        boxes, points, masks = parts
        recipe = Recipe(height, width, dtype, [part for part in (boxes, points, *masks.values()) if part is not None])
        recipe.boxes = boxes
        return recipe

    @staticmethod
    def _apply(step, recipe, draws):
        try:
            step.apply(recipe, draws)
        except ValueError as error:
            _raise_named(step, error)

    def _check_boxes(self, sample, height, width):
        """Raise ValueError if a box is not valid, or drop such boxes."""
        good = valid(sample.boxes, height, width)
        if good.all():
            return
        if self.invalid_boxes == "raise":
            row = int(np.argmin(good))
            left, top, right, bottom = sample.boxes[row]
            raise ValueError(
                f"box {row}, from ({left:g}, {top:g}) to ({right:g}, {bottom:g}), must be finite, have an area and "
                f"overlap the image of {height} x {width} pixels; invalid_boxes='drop' leaves such boxes out"
            )
        sample.take(good)

    def _parts(self, sample, height, width):
        """Return the boxes, the keypoints and the masks of a sample as parts that follow its geometry."""
        boxes = None if sample.boxes is None else Boxes(sample.boxes)
        if boxes is not None:
            boxes.clamp(height, width)
        points = None
        if sample.keypoints is not None:
            points = Keypoints(sample.keypoints[..., :2], self.flip_order)
        for name, mask in sample.masks.items():
            if mask.shape[-2:] != (height, width):
                raise ValueError(
                    f"the mask {name!r} has {mask.shape[-2]} x {mask.shape[-1]} pixels, and the image {height} x "
                    f"{width}: a mask must have the size of its image"
                )
        masks = {
            name: Mask(mask, self.mask_fill if mask.ndim == 2 else 0)  # no object is outside of the image
            for name, mask in sample.masks.items()
        }
        return boxes, points, masks

    def _run_images(self, images, recipe, out, between):
        """Return the images of a sample after its recipe."""
        if between and out is not None:
            out = out(len(images), recipe.height, recipe.width)
        elif out is None:
            shape = (recipe.height, recipe.width, 3) if between else self._arranged(recipe.height, recipe.width)
            out = [np.empty(shape, "uint8" if between else self.storage) for _ in images]
        rows = out if between else self._rows(out)
        begun = part_begun()
        for (name, image), row in zip(images.items(), rows):
            try:
                recipe.run(image, row, None if between else self._table)
            except ImageError as error:
                raise ImageError(f"{name!r}: {error}") from error
        spent(DECODE, begun)
        return dict(zip(images, out))

    @staticmethod
    def _rows_left(sample, boxes):
        """Return the rows of the boxes that the steps have kept; None: all, or there are no boxes."""
        return None if boxes is None or np.array_equal(boxes.rows, np.arange(len(sample.boxes))) else boxes.rows

    @staticmethod
    def _points(sample, points, rows, recipe):
        """Return the keypoints after the steps; those outside of the image are not visible."""
        if points is None:
            return None
        result = sample.keypoints.copy()
        result[..., :2] = points.xy
        if result.shape[-1] == 3:
            x, y = points.xy[..., 0], points.xy[..., 1]
            inside = (x >= 0) & (y >= 0) & (x <= recipe.width) & (y <= recipe.height)
            result[..., 2] *= inside
        if result.ndim > 1 and result.size:
            result = result[..., points.order(result.shape[-2]), :]
        return result if rows is None else result[rows]


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


class _MixSources:
    """The samples for a `SampleMix`; see `MixSources`."""

    def __init__(self, renderer, sample, places, draws, own, other):
        self._renderer, self._sample, self._places = renderer, sample, places
        self._draws, self._own, self._other = draws, own, other
        self.calls = sample.calls  # of users' functions for the main sample
        self.failure = None  # the error of a step before the mix

    def main(self, *steps, memory=None):
        with self._noting_failure():
            made = self._renderer.pixels(self._sample, *self._places, self._draws, steps, memory)
        self.calls = made.calls
        return made

    def other(self, *steps, memory=None):
        def finish(stored):
            place = self._places[1]
            sample, begin = self._renderer._combined(stored, place, self._own, self._other)
            return self._renderer.pixels(sample, begin, place, self._own, steps, memory)

        with self._noting_failure():
            return self._other(self._own, finish)

    @contextlib.contextmanager
    def _noting_failure(self):
        try:
            yield
        except ValueError as error:
            self.failure = error
            raise


def _raise_named(step, error):
    """Raise an error of a step with the step's name; one that has another type for a reason stays the same."""
    if type(error) is not ValueError or from_handler(error):
        raise error
    raise ValueError(f"{shown(step)}: {error}") from error
