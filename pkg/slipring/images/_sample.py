"""A sample with several parts, and the steps that make one sample of several."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring.images._transform import RandomStep

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from slipring.images._draws import Draws
    from slipring.images._recipe import Recipe


@dataclasses.dataclass(slots=True)
class Sample:
    """A sample between two steps.

    Attributes
    ----------
    images : dict of str to bytes-like or numpy.ndarray
        The images, all of one size: encoded, or as height × width × 3 arrays of uint8. The first is the main one.
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
    """

    images: dict[str, Buffer | NDArray[np.uint8]]
    masks: dict[str, NDArray[Any]]
    boxes: NDArray[np.float64] | None
    rows: dict[str, NDArray[Any]]
    keypoints: NDArray[np.float64] | None
    is_stored: bool = True

    def take(self, rows: NDArray[Any]) -> None:
        """Keep the boxes of these rows, in that order, with the values, masks and keypoints that belong to them."""
        if self.boxes is None:
            return
        self.boxes = self.boxes[rows]
        self.rows = {name: values[rows] for name, values in self.rows.items()}
        self.masks = {name: mask[rows] if mask.ndim == 3 else mask for name, mask in self.masks.items()}
        if self.keypoints is not None:
            self.keypoints = self.keypoints[rows]


class SampleMix(RandomStep):
    """A step that combines a sample with others of the dataset, with probability `p`.

    All images are height × width × 3 arrays then. The other samples went through the steps before this one, too, with
    random numbers of their own.

    Attributes
    ----------
    others : int
        How many other samples it needs.
    """

    needs_parts = True
    others: int = 1

    @abc.abstractmethod
    def combine(self, samples: list[Sample], draws: Draws, mask_fill: int) -> Sample:
        """Return one sample made of the sample itself and the others; it may change their arrays.

        `mask_fill` is the value of a mask at places that no sample covers.
        """

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        raise TypeError(
            f"{type(self).__name__} combines samples: it must be in the dataset's list itself, not in another transform"
        )


def joined(samples: list[Sample]) -> tuple[NDArray[Any] | None, dict[str, NDArray[Any]], NDArray[Any] | None]:
    """Return the boxes, rows and keypoints of all samples, one sample after another."""
    first = samples[0]
    boxes = None if first.boxes is None else np.concatenate([sample.boxes for sample in samples])
    rows = {name: np.concatenate([sample.rows[name] for sample in samples]) for name in first.rows}
    points = None if first.keypoints is None else np.concatenate([sample.keypoints for sample in samples])
    return boxes, rows, points
