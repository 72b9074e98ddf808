"""MixUp of two samples with all their boxes, for training as in YOLOX and its successors."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import numpy as np

from slipring._core.options.checks import real
from slipring.errors import shown
from slipring.images import _decode
from slipring.images._steps.checks import fill_of
from slipring.images._steps.sample import Sample, SampleMix, joined, paint, placed_masks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._steps.sample import MixSources


class SampleMixUp(SampleMix):
    """Mix the image with another one of the dataset, and keep the boxes of both, as in YOLOX.

    The share of the image is drawn from Beta(alpha, alpha). If the images differ in size, both lie at the top left of a
    canvas that holds them. A mask of the whole image is taken from the image with the larger share. `MixUp`
    mixes the images and labels of a batch.

    Parameters
    ----------
    alpha : float
        Above 0. With a large number, the share is close to one half.
    fill : float or (float, float, float)
        Colour of the canvas around an image, from 0 to 255.
    p : float
        Probability.

    Examples
    --------
    >>> from slipring import images
    >>> samples = [
    ...     {"image": f"train/cat/{n}.jpg", "boxes": [[2, 3, 30, 20]], "labels": [n]} for n in range(2)
    ... ]
    >>> steps = [images.Resize((48, 48)), images.SampleMixUp(p=1)]
    >>> data = images.Annotated(samples, steps, boxes="boxes", rows="labels")
    >>> data[0]["boxes"].shape
    (2, 4)
    """

    alpha: float
    fill: float | Sequence[float] | None

    def __init__(self, alpha: float = 32.0, fill: float | Sequence[float] | None = 114, p: float = 1.0) -> None:
        super().__init__(p)
        self.alpha = real("alpha", alpha)
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha must be above 0, not {shown(alpha)}")
        self.fill, self._fill = fill, fill_of(fill)
        self.is_random: bool = self.p > 0

    def combine(self, sources: MixSources, draws: Draws, mask_fill: int) -> Sample:
        share = random.Random(draws.bits()).betavariate(self.alpha, self.alpha)
        samples = [sources.main(), sources.other()]
        sizes = [next(iter(sample.images.values())).shape[:2] for sample in samples]
        size = max(sizes[0][0], sizes[1][0]), max(sizes[0][1], sizes[1][1])
        images = {}
        for name, image in samples[0].images.items():
            mine, other = (self._enlarged(one, size) for one in (image, samples[1].images[name]))
            _decode.mix(mine, other, _decode.TYPES["uint8"], share, 1.0 - share)
            images[name] = mine
        boxes, rows, points = joined(samples)
        return Sample(images, self._masks(samples, size, share, mask_fill), boxes, rows, points, is_stored=False)

    def _enlarged(self, image, size):
        """Return an image at the top left of a canvas."""
        height, width = image.shape[:2]
        if (height, width) == size:
            return image
        canvas = np.empty((*size, 3), np.uint8)
        canvas[:height, :width] = image
        paint(canvas[:height, width:], self._fill)
        paint(canvas[height:], self._fill)
        return canvas

    def _masks(self, samples, size, share, mask_fill):
        """Return the masks of both samples."""
        places = (0, 0), (0, 0)
        both = placed_masks(samples, places, size, mask_fill)
        seen = placed_masks([samples[0 if share >= 0.5 else 1]], places[:1], size, mask_fill)
        return {name: seen[name].astype(mask.dtype) if mask.ndim == 2 else mask for name, mask in both.items()}
