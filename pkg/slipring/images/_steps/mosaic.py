"""The mosaic of four samples, for training as in YOLO."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from slipring.images._steps.base import Transform, pixels
from slipring.images._steps.checks import fill_of, sequence
from slipring.images._steps.sample import Sample, SampleMix, joined, paint, placed_masks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe
    from slipring.images._steps.sample import MixSources


class Mosaic(SampleMix):
    """Place the image and three others of the dataset around a random centre, as YOLOv4 and its successors do.

    Each image is scaled so that its longer side has `size` pixels. The four images meet at the centre, on a canvas of
    ``2 * size`` × ``2 * size`` pixels, and the parts outside of it are cut off. Boxes are clipped to the canvas, and
    boxes without an area are removed. Later steps usually scale and crop the canvas to `size`.

    Parameters
    ----------
    size : int
        Pixels of the longer side of each image, and half the side of the canvas.
    center : (float, float)
        Range of the centre's place in both directions, as multiples of `size`; above 0 and below 2.
    fill : float or (float, float, float)
        Colour of the canvas, from 0 to 255.
    p : float
        Probability of a mosaic. Below 1, images have different sizes, if no later step scales them to one size.

    Examples
    --------
    >>> from slipring import images
    >>> samples = [
    ...     {"image": f"train/cat/{n}.jpg", "boxes": [[2, 3, 30, 20]], "labels": [n]} for n in range(2)
    ... ]
    >>> steps = [images.Mosaic(32), images.RandomHorizontalFlip()]
    >>> data = images.Annotated(samples, steps, boxes="boxes", rows="labels")
    >>> data[0]["image"].shape
    (64, 64, 3)
    """

    size: int
    center: tuple[float, float]
    fill: float | Sequence[float] | None

    def __init__(
        self,
        size: int,
        center: Sequence[float] = (0.5, 1.5),
        fill: float | Sequence[float] | None = 114,
        p: float = 1.0,
    ) -> None:
        super().__init__(p)
        self.size = pixels("size", size)
        what = "two numbers above 0 and below 2, the smaller first"
        low, high = sequence("center", center, (2,), what)
        if not 0 < low <= high < 2:
            raise ValueError(f"center must be {what}, not {center!r}")
        self.center = low, high
        self.fill, self._fill = fill, fill_of(fill)
        self.is_random: bool = self.p > 0

    def combine(self, sources: MixSources, draws: Draws, mask_fill: int) -> Sample:
        side = 2 * self.size
        down, across = (self._center(draws) for _ in range(2))
        canvases: list[np.ndarray] = []

        def quarter(n):
            """Return the rows and columns of the canvas for the n-th sample."""
            return slice(down, side) if n > 1 else slice(down), slice(across, side) if n % 2 else slice(across)

        def corner(n, height, width):
            """Return where a tile of that size begins."""
            return down if n > 1 else down - height, across if n % 2 else across - width

        def memory(n):
            def places(count, height, width):
                canvases.extend(np.empty((side, side, 3), np.uint8) for _ in range(count - len(canvases)))
                return [_around(canvas[quarter(n)], n, height, width, self._fill) for canvas in canvases]

            return places

        samples, places = [], []
        for n in range(4):
            rows, columns = quarter(n)
            tile = _Tile(self.size, (len(range(side)[rows]), len(range(side)[columns])), n)
            sample = (sources.other if n else sources.main)(tile, memory=memory(n))
            height, width = next(iter(sample.images.values())).shape[:2]
            top, left = corner(n, height, width)
            sample.move(top, left)
            samples.append(sample)
            places.append((top, left))
        boxes, values, points = joined(samples)
        masks = placed_masks(samples, places, (side, side), mask_fill)
        made = Sample(dict(zip(samples[0].images, canvases)), masks, boxes, values, points, is_stored=False)
        made.drop_empty()
        return made

    def _center(self, draws):
        return min(
            max(1, int(draws.uniform(self.center[0] * self.size, self.center[1] * self.size))), 2 * self.size - 1
        )

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        made = 2 * self.size, 2 * self.size
        return made if self.p == 1 or size == made else size if self.p == 0 else None


def _around(quarter, n, height, width, fill):
    """Return the part of a quarter for a tile, which lies at the centre of the canvas; fill the rest."""
    rows, columns = quarter.shape[:2]
    if n < 2:
        paint(quarter[: rows - height], fill)
        band = quarter[rows - height :]
    else:
        paint(quarter[height:], fill)
        band = quarter[:height]
    if n % 2:
        paint(band[:, width:], fill)
        return band[:, :width]
    paint(band[:, : columns - width], fill)
    return band[:, columns - width :]


class _Tile(Transform):
    """Scale an image to a longest side of `size`, and show the part next to the centre that fits into `room`."""

    resizes = True

    def __init__(self, size, room, n):
        self.size, self.room, self.n = size, room, n

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        scale = self.size / max(recipe.height, recipe.width)
        height, width = (min(math.ceil(length * scale), self.size) for length in (recipe.height, recipe.width))
        recipe.resize(height, width, "bilinear")
        rows, columns = min(height, self.room[0]), min(width, self.room[1])
        recipe.crop(0 if self.n > 1 else height - rows, 0 if self.n % 2 else width - columns, rows, columns)
