"""A sample with several parts, and the steps that make one sample of several."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from slipring.images._steps.base import RandomStep, Transform

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from slipring.images._render.decode import Image
    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe

    Memory: TypeAlias = Callable[[int, int, int], list[NDArray[np.uint8]]]


@dataclasses.dataclass(slots=True)
class Sample:
    """A sample between two steps.

    Attributes
    ----------
    images : dict of str to Image or numpy.ndarray
        The images, all of one size: as they are stored, or height × width × 3 arrays of uint8. The first is the main
        one.
    masks : dict of str to numpy.ndarray
        Height × width, or boxes × height × width, which has one mask per box.
    boxes : numpy.ndarray of float64, boxes × 4, or None
        Left, top, right, bottom in pixels.
    rows : dict of str to numpy.ndarray
        Values with one row per box, such as labels.
    keypoints : numpy.ndarray of float64, or None
        (..., 2) or (..., 3): x and y in pixels, and perhaps the visibility. If the sample has boxes, one row per box.
    is_stored : bool
        No step has been applied yet, so the boxes are still to be checked.
    calls : int
        The number of users' functions that have been called for the sample.
    """

    images: dict[str, Image | NDArray[np.uint8]]
    masks: dict[str, NDArray[Any]]
    boxes: NDArray[np.float64] | None
    rows: dict[str, NDArray[Any]]
    keypoints: NDArray[np.float64] | None
    is_stored: bool = True
    calls: int = 0

    def take(self, rows: NDArray[Any]) -> None:
        """Keep the boxes of these rows, in that order, with the values, masks and keypoints that belong to them."""
        if self.boxes is None:
            return
        self.boxes = self.boxes[rows]
        self.rows = {name: values[rows] for name, values in self.rows.items()}
        self.masks = {name: mask[rows] if mask.ndim == 3 else mask for name, mask in self.masks.items()}
        if self.keypoints is not None:
            self.keypoints = self.keypoints[rows]

    def move(self, top: int, left: int) -> None:
        """Move the boxes and keypoints by whole pixels, as the image is placed on a canvas."""
        if self.boxes is not None:
            self.boxes += left, top, left, top
        if self.keypoints is not None:
            self.keypoints[..., :2] += left, top

    def drop_empty(self) -> None:
        """Remove the boxes that have no area."""
        if self.boxes is not None:
            full = (self.boxes[:, 2:] > self.boxes[:, :2]).all(1)
            if not full.all():
                self.take(full)


class MixSources(Protocol):
    """The samples that a `SampleMix` combines. Each is rendered on request."""

    def main(self, *steps: Transform, memory: Memory | None = None) -> Sample:
        """Return the sample itself after the steps before the mix, and after `steps`; its images are uint8 arrays.

        ``memory(count, height, width)`` returns arrays for its `count` images, of any strides.
        """

    def other(self, *steps: Transform, memory: Memory | None = None) -> Sample:
        """Return another sample of the dataset in the same way; it draws numbers of its own."""


class SampleMix(RandomStep):
    """A step that combines a sample with others of the dataset, with probability `p`.

    The other samples went through the steps before this one, too. Its random numbers are drawn apart, so it does not
    change the numbers of the other steps.
    """

    needs_parts = True
    combines_samples = True

    def __repr__(self) -> str:
        return Transform.__repr__(self)

    @abc.abstractmethod
    def combine(self, sources: MixSources, draws: Draws, mask_fill: int) -> Sample:
        """Return one sample made of the sample itself and others; it may change their arrays.

        `mask_fill` is the value of a mask of the whole image where no sample covers it.
        """

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        raise TypeError(f"{type(self).__name__} combines samples, so a recipe of one sample cannot have it")


def joined(samples: Sequence[Sample]) -> tuple[NDArray[Any] | None, dict[str, NDArray[Any]], NDArray[Any] | None]:
    """Return the boxes, rows and keypoints of all samples, one sample after another."""
    first = samples[0]
    boxes = None if first.boxes is None else np.concatenate([sample.boxes for sample in samples])
    rows = {name: _concatenated([sample.rows[name] for sample in samples]) for name in first.rows}
    points = None
    if first.keypoints is not None:
        points = _concatenated([np.atleast_2d(sample.keypoints) for sample in samples])
    return boxes, rows, points


def _concatenated(arrays):
    """Concatenate arrays along the first axis; those without rows may have any shape and dtype."""
    full = [array for array in arrays if len(array)]
    return np.concatenate(full) if full else arrays[0]


def paint(area: NDArray[np.uint8], color: Sequence[float]) -> None:
    """Fill a part of an image with one colour: by a number or by rows, which is far faster than by pixels."""
    if len(set(color)) == 1:
        area[...] = color[0]
    elif area.size:
        area[0] = color
        area[1:] = area[0]


def placed_masks(
    samples: Sequence[Sample], positions: Sequence[tuple[int, int]], size: tuple[int, int], mask_fill: int
) -> dict[str, NDArray[Any]]:
    """Return the masks of all samples on a canvas of `size`; `positions` are the (top, left) of each sample.

    A mask of the whole image has `mask_fill` where no sample lies; a later sample covers an earlier one. A mask per box
    is 0 there.
    """
    made = {}
    for name, first in samples[0].masks.items():
        masks = [sample.masks[name] for sample in samples]
        if len({mask.ndim for mask in masks}) > 1:
            raise ValueError(f"{name!r} has masks of whole images and masks per box: a combination needs one kind")
        dtype = np.result_type(*masks)
        if first.ndim == 2:
            canvas = np.full(size, mask_fill, dtype)
            parts = [canvas] * len(masks)
        else:
            canvas = np.zeros((sum(map(len, masks)), *size), dtype)
            ends = np.cumsum([len(mask) for mask in masks])
            parts = np.split(canvas, ends[:-1])
        for mask, part, (top, left) in zip(masks, parts, positions):
            height, width = mask.shape[-2:]
            part[..., top : top + height, left : left + width] = mask
        made[name] = canvas
    return made
