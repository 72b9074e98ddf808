"""From stored samples with several parts to finished ones: all parts follow the geometry of the image."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._core.ring._check import from_handler
from slipring._core.ring._slot import DECODE, part_begun, spent
from slipring.errors import ImageError, shown
from slipring.images._render.decode import DecodedImage, Image
from slipring.images._render.draws import Draws
from slipring.images._render.parts import Boxes, Keypoints, Mask
from slipring.images._render.recipe import Recipe
from slipring.images._sources.stored_parts import valid
from slipring.images._steps.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from slipring.images._sources.renderer import Renderer
    from slipring.images._sources.step_times import StepTimes
    from slipring.images._steps.base import Transform

    Other: TypeAlias = Callable[[Draws, Callable[[Sample], Sample]], Sample]

_MIX = 0x4D4958 << 32  # keeps the numbers of a mix apart from those of users' steps


class SampleRenderer:
    """Makes finished samples: the images by a `Renderer`, and the parts that follow them; see `Annotated`."""

    def __init__(self, mask_fill: int, flip_order: list[int] | None, min_box_size: float, invalid_boxes: str) -> None:
        self._mask_fill, self._flip_order = mask_fill, flip_order
        self._min_box_size, self._invalid_boxes = min_box_size, invalid_boxes

    def finish(
        self, renderer: Renderer, sample: Sample, out: Sequence[NDArray[Any]] | None, draws: Draws, other: Other
    ) -> Sample:
        """Return a sample after the steps of `renderer`, its images as that makes them.

        Parameters
        ----------
        renderer : Renderer
        sample : Sample
        out : sequence of numpy.ndarray, or None
            Memory for the images.
        draws : Draws
        other : callable
            ``other(draws, finish)`` returns ``finish(sample)`` for another sample of the dataset, which it draws.
        """
        steps = renderer.steps
        sample, begin = self.combined(renderer, sample, len(steps), draws, other)
        finished = self.after(renderer, sample, steps[begin:], draws, out)
        if finished.boxes is not None:
            size = finished.boxes[:, 2:] - finished.boxes[:, :2]
            large = ((size >= self._min_box_size) & (size > 0)).all(1)
            if not large.all():
                finished.take(large)
        return finished

    def combined(self, renderer: Renderer, sample: Sample, end: int, draws: Draws, other: Other) -> tuple[Sample, int]:
        """Apply the steps before `end` up to the last one that combines samples.

        Return the sample and the index of the next step. Steps that only follow are not run yet: they are part of one
        pass with the later ones.
        """
        begin = 0
        for index, step in enumerate(renderer.steps[:end]):
            if not step.combines_samples:
                continue
            own = Draws(draws.apart(_MIX + index))
            if own.chance(step.p):
                sources = _MixSources(self, renderer, sample, (begin, index), draws, own, other)
                try:
                    sample, begin = step.combine(sources, own, self._mask_fill), index + 1
                    sample.calls = sources.calls
                except ValueError as error:
                    if error is sources.failure:  # a step before this one has failed
                        raise
                    _raise_named(step, error)
        return sample, begin

    def after(
        self, renderer: Renderer, sample: Sample, steps: Sequence[Transform], draws: Draws, out: Any = None
    ) -> Sample:
        """Return a sample after `steps`, in one pass; `out` is memory for its images, or a function: see `Memory`."""
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
        recipe = _recipe(height, width, parts, renderer.dtype)
        recipe.calls = sample.calls
        for step in steps:
            if step.combines_samples:
                continue
            try:
                step.apply(recipe, draws)
            except ValueError as error:
                _raise_named(step, error)
        # The rows of the boxes that the steps have kept; None: all, or there are no boxes.
        rows = None if boxes is None or np.array_equal(boxes.rows, np.arange(len(sample.boxes))) else boxes.rows
        return Sample(
            _rendered(renderer, images, recipe, out),
            {name: mask.result(rows if mask.values.ndim == 3 else None) for name, mask in masks.items()},
            None if boxes is None else boxes.xyxy,
            sample.rows if rows is None else {name: values[rows] for name, values in sample.rows.items()},
            _keypoints(sample, points, rows),
            is_stored=False,
            calls=recipe.calls,
        )

    def measure(self, renderer: Renderer, sample: Sample, times: StepTimes, seed: int, other: Other) -> None:
        """Add the times of a stored sample to `times`."""
        height, width = next(iter(sample.images.values())).size
        if sample.boxes is not None:
            self._check_boxes(sample, height, width)
        times.add(
            lambda measured: self.finish(measured, sample, None, Draws(seed), other),
            lambda: _recipe(height, width, self._parts(sample, height, width), renderer.dtype),
            seed,
        )

    def _check_boxes(self, sample, height, width):
        """Raise ValueError if a box is not valid, or drop such boxes."""
        good = valid(sample.boxes, height, width)
        if good.all():
            return
        if self._invalid_boxes == "raise":
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
            points = Keypoints(sample.keypoints[..., :2], (height, width), self._flip_order)
        for name, mask in sample.masks.items():
            if mask.shape[-2:] != (height, width):
                raise ValueError(
                    f"the mask {name!r} has {mask.shape[-2]} x {mask.shape[-1]} pixels, and the image {height} x "
                    f"{width}: a mask must have the size of its image"
                )
        masks = {
            name: Mask(mask, self._mask_fill if mask.ndim == 2 else 0)  # no object is outside of the image
            for name, mask in sample.masks.items()
        }
        return boxes, points, masks


def _recipe(height, width, parts, dtype):
    boxes, points, masks = parts
    recipe = Recipe(height, width, dtype, [part for part in (boxes, points, *masks.values()) if part is not None])
    recipe.boxes = boxes
    return recipe


def _rendered(renderer, images, recipe, out):
    """Return the images of a sample after its recipe."""
    if out is None:
        out = [renderer.memory([recipe])[0] for _ in images]
    elif callable(out):
        out = out(len(images), recipe.height, recipe.width)
    begun = part_begun()
    for (name, image), row in zip(images.items(), renderer.rows(out)):
        try:
            recipe.run(image, row, renderer.table)
        except ImageError as error:
            raise ImageError(f"{name!r}: {error}") from error
    spent(DECODE, begun)
    return dict(zip(images, out))


def _keypoints(sample, points, rows):
    """Return the keypoints after the steps; those that have left the image are not visible."""
    if points is None:
        return None
    result = sample.keypoints.copy()
    result[..., :2] = points.xy
    if result.shape[-1] == 3:
        result[..., 2] *= points.inside
    if result.ndim > 1 and result.size:
        result = result[..., points.order(result.shape[-2]), :]
    return result if rows is None else result[rows]


class _MixSources:
    """The samples for a `SampleMix`; see `MixSources`."""

    def __init__(self, samples, renderer, sample, bounds, draws, own, other):
        self._samples, self._renderer, self._pixels = samples, renderer, renderer.of_crops(converts=False)
        self._sample, self._bounds = sample, bounds  # of the first step after the last mix, and of this mix
        self._draws, self._own, self._other = draws, own, other
        self.calls = sample.calls  # of users' functions for the main sample
        self.failure = None  # the error of a step before the mix

    def main(self, *steps, memory=None):
        with self._noting_failure():
            made = self._after(self._sample, self._bounds[0], steps, self._draws, memory)
        self.calls = made.calls
        return made

    def other(self, *steps, memory=None):
        def finish(stored):
            sample, begin = self._samples.combined(self._renderer, stored, self._bounds[1], self._own, self._other)
            return self._after(sample, begin, steps, self._own, memory)

        with self._noting_failure():
            return self._other(self._own, finish)

    def _after(self, sample, begin, more, draws, memory):
        steps = *self._renderer.steps[begin : self._bounds[1]], *more
        return self._samples.after(self._pixels, sample, steps, draws, memory)

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
