"""Steps that combine samples, with their boxes and masks: mosaic, mixup and copy-paste."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import numpy as np

from slipring._core.options.checks import flag
from slipring.images import _decode
from slipring.images._render import ops
from slipring.images._render.recipe import Recipe, apply
from slipring.images._steps.base import Transform, pixels
from slipring.images._steps.checks import fill_of, number, sequence
from slipring.images._steps.sample import Sample, SampleMix, joined, paint, placed_masks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipring.images._render.draws import Draws
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
        Range of the centre's position in both directions, as multiples of `size`; above 0 and below 2.
    fill : float or (float, float, float)
        Colour of the canvas, from 0 to 255.
    p : float
        Probability of a mosaic. Below 1, images have different sizes, if no later step scales them to one size.

    Examples
    --------
    >>> from slipring import images
    >>> samples = [{"image": f"train/cat/{n}.jpg", "boxes": [[2, 3, 30, 20]], "labels": [n]} for n in range(2)]
    >>> steps = [images.Mosaic(32), images.RandomHorizontalFlip()]
    >>> data = images.Annotated(samples, steps, boxes="boxes", rows="labels")
    >>> data[0]["image"].shape
    (64, 64, 3)
    """

    fill: float | Sequence[float] | None

    def __init__(
        self,
        size: int,
        center: Sequence[float] = (0.5, 1.5),
        fill: float | Sequence[float] | None = 114,
        p: float = 1.0,
    ) -> None:
        super().__init__(p)
        self.size: int = pixels("size", size)
        what = "two numbers above 0 and below 2, the smaller first"
        low, high = sequence("center", center, (2,), what)
        if not 0 < low <= high < 2:
            raise ValueError(f"center must be {what}, not {center!r}")
        self.center: tuple[float, float] = low, high
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
            def positions(count, height, width):
                canvases.extend(np.empty((side, side, 3), np.uint8) for _ in range(count - len(canvases)))
                return [_around(canvas[quarter(n)], n, height, width, self._fill) for canvas in canvases]

            return positions

        samples, positions = [], []
        for n in range(4):
            rows, columns = quarter(n)
            tile = _Tile(self.size, (len(range(side)[rows]), len(range(side)[columns])), n)
            sample = (sources.other if n else sources.main)(tile, memory=memory(n))
            height, width = next(iter(sample.images.values())).shape[:2]
            top, left = corner(n, height, width)
            sample.move(top, left)
            samples.append(sample)
            positions.append((top, left))
        boxes, values, points = joined(samples)
        masks = placed_masks(samples, positions, (side, side), mask_fill)
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
    """Scale an image to a longest side of `size`, and show the part next to the centre that fits into `limit`."""

    resizes = True

    def __init__(self, size, limit, n):
        self.size, self.limit, self.n = size, limit, n

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        scale = self.size / max(recipe.height, recipe.width)
        height, width = (min(math.ceil(length * scale), self.size) for length in (recipe.height, recipe.width))
        recipe.resize(height, width, "bilinear")
        rows, columns = min(height, self.limit[0]), min(width, self.limit[1])
        recipe.crop(0 if self.n > 1 else height - rows, 0 if self.n % 2 else width - columns, rows, columns)


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
    >>> samples = [{"image": f"train/cat/{n}.jpg", "boxes": [[2, 3, 30, 20]], "labels": [n]} for n in range(2)]
    >>> steps = [images.Resize((48, 48)), images.SampleMixUp(p=1)]
    >>> data = images.Annotated(samples, steps, boxes="boxes", rows="labels")
    >>> data[0]["boxes"].shape
    (2, 4)
    """

    fill: float | Sequence[float] | None

    def __init__(self, alpha: float = 32.0, fill: float | Sequence[float] | None = 114, p: float = 1.0) -> None:
        super().__init__(p)
        self.alpha: float = number("alpha", alpha, math.nextafter(0, 1), math.inf, "a number above 0")
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
        positions = (0, 0), (0, 0)
        both = placed_masks(samples, positions, size, mask_fill)
        seen = placed_masks([samples[0 if share >= 0.5 else 1]], positions[:1], size, mask_fill)
        return {name: seen[name].astype(mask.dtype) if mask.ndim == 2 else mask for name, mask in both.items()}


_RADIUS, _SIGMA = 2, 2.0  # of the filter that smooths the edges, in pixels


class CopyPaste(SampleMix):
    """Paste objects of another sample into the image (Ghiasi et al., 2021, "Simple Copy-Paste").

    The dataset needs boxes and one mask per box. As in torchvision's ``SimpleCopyPaste``, the objects to paste are
    drawn with replacement, with as many draws as the other sample has objects. If the images differ in size, the other
    one is scaled. Pasted objects cover the image's own objects. The covered pixels are removed from their masks, and
    their boxes are fitted to the remaining masks. Objects that are covered completely are removed. Other values, such
    as an object's area, are not computed again.

    Parameters
    ----------
    blending : bool
        Blend the edges of the pasted objects by a Gaussian filter of 5 × 5 pixels with a deviation of 2.
    p : float
        Probability.

    Examples
    --------
    >>> import numpy as np
    >>> from slipring import images
    >>> samples = []
    >>> for n in range(2):
    ...     mask = np.zeros((1, 48, 48), bool)
    ...     mask[0, 10 * n : 10 * n + 5, :20] = True
    ...     image = np.full((48, 48, 3), 100 * n, np.uint8)
    ...     samples.append({"image": image, "boxes": [[0, 10 * n, 20, 10 * n + 5]], "masks": mask})
    >>> data = images.Annotated(samples, images.CopyPaste(p=1), boxes="boxes", masks="masks")
    >>> data[0]["masks"].dtype
    dtype('bool')
    """

    def __init__(self, blending: bool = True, p: float = 0.5) -> None:
        super().__init__(p)
        flag("blending", blending)
        self.blending: bool = bool(blending)
        self.is_random: bool = self.p > 0

    def combine(self, sources: MixSources, draws: Draws, mask_fill: int) -> Sample:
        main = sources.main()
        self._masks_of_objects(main)
        size = next(iter(main.images.values())).shape[:2]
        pasted = sources.other(_ScaledTo(size))
        count = len(self._masks_of_objects(pasted))
        if not count:
            return main
        pasted.take(np.unique([draws.below(count) for _ in range(count)]))
        covered = (self._masks_of_objects(pasted) != 0).any(0)
        if not covered.any():
            return main
        self._paste(main, pasted, covered)
        self._cover(main, covered)
        boxes, rows, points = joined([main, pasted])
        masks = {name: _both(mask, pasted.masks[name], covered) for name, mask in main.masks.items()}
        made = Sample(main.images, masks, boxes, rows, points, is_stored=False)
        made.drop_empty()
        return made

    def _masks_of_objects(self, sample):
        """Return the first masks with one per box."""
        for mask in sample.masks.values():
            if mask.ndim == 3 and sample.boxes is not None:
                return mask
        raise ValueError("it needs boxes=, and masks= with one mask per box")

    def _paste(self, main, pasted, covered):
        """Write the pasted objects into the images."""
        margin = 2 * _RADIUS if self.blending else 0  # the filter mirrors the mask at borders: only zeros inside
        rows, columns = _spanned(covered, margin)
        weight = covered[rows, columns]
        for name, image in main.images.items():
            there, new = image[rows, columns], pasted.images[name][rows, columns]
            if self.blending:
                alpha = _blurred(weight).astype(np.uint16)
                there[...] = (there * (255 - alpha) + new * alpha + 127) // 255
            else:
                there[weight] = new[weight]

    def _cover(self, main, covered):
        """Remove the covered pixels of the image's own objects; fit their boxes to the remaining pixels."""
        objects = self._masks_of_objects(main)
        rows, columns = _spanned(covered, 0)
        hit = np.flatnonzero((objects[:, rows, columns] != 0)[:, covered[rows, columns]].any(1))
        for mask in main.masks.values():
            if mask.ndim == 3:
                mask[:, covered] = 0
        left = np.ones(len(objects), bool)
        for n in hit:
            rest = objects[n] != 0
            left[n] = rest.any()
            if left[n]:
                rows, columns = _spanned(rest, 0)
                main.boxes[n] = columns.start, rows.start, columns.stop, rows.stop
        if not left.all():
            main.take(left)


def _both(mask, pasted, covered):
    """Return the masks of both samples; of masks of the whole image, the pasted one where it covers the image."""
    if mask.ndim != pasted.ndim:
        raise ValueError("one sample has a mask of the whole image, and the other one per box")
    if mask.ndim == 3:
        return np.concatenate([mask, pasted])
    mask = mask.astype(np.result_type(mask, pasted), copy=False)
    mask[covered] = pasted[covered]
    return mask


def _spanned(mask, margin):
    """Return the rows and columns of the smallest box around a mask that is not empty, with a margin."""
    found = []
    for axis in (1, 0):
        line = np.flatnonzero(mask.any(axis))
        found.append(slice(max(0, int(line[0]) - margin), min(mask.shape[1 - axis], int(line[-1]) + 1 + margin)))
    return found[0], found[1]


def _blurred(mask):
    """Return the weights, 0 to 255, of a mask with smooth edges; height × width × 3."""
    recipe = Recipe(*mask.shape)
    recipe.op(ops.GaussianBlurOp((2 * _RADIUS + 1,) * 2, (_SIGMA, _SIGMA)))
    weights = np.repeat(mask[..., None].view(np.uint8) * np.uint8(255), 3, axis=2)
    return apply(weights, recipe)


class _ScaledTo(Transform):
    """Scale an image to the size of another one, which is known only at run time."""

    resizes = True

    def __init__(self, size):
        self.size = size

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        if (recipe.height, recipe.width) != self.size:
            recipe.resize(*self.size, "bilinear")
