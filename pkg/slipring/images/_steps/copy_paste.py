"""Copy-paste: objects of another sample are pasted into the image, with their masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slipring._core.options.checks import flag
from slipring.images._render import ops
from slipring.images._render.recipe import Recipe, apply
from slipring.images._steps.base import Transform
from slipring.images._steps.sample import Sample, SampleMix, joined

if TYPE_CHECKING:
    from slipring.images._render.draws import Draws
    from slipring.images._steps.sample import MixSources

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

    blending: bool

    def __init__(self, blending: bool = True, p: float = 0.5) -> None:
        super().__init__(p)
        flag("blending", blending)
        self.blending = bool(blending)
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
    levels = np.repeat(mask[..., None].view(np.uint8) * np.uint8(255), 3, axis=2)
    return apply(levels, recipe)


class _ScaledTo(Transform):
    """Scale an image to the size of another one, which is known only at run time."""

    resizes = True

    def __init__(self, size):
        self.size = size

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        if (recipe.height, recipe.width) != self.size:
            recipe.resize(*self.size, "bilinear")
