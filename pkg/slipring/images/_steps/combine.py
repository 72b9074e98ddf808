"""Transforms that choose from lists of transforms, or their order: torchvision's."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from slipring._core.options.checks import real
from slipring.errors import shown
from slipring.images._steps.base import BatchTransform, RandomStep, Transform, chain, final_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipring.images._render.draws import Draws
    from slipring.images._render.recipe import Recipe
    from slipring.images._steps.base import Step


class _OfTransforms(Transform):
    """A step that applies steps of a list."""

    transforms: tuple[Any, ...]

    def _take_needs(self) -> None:
        self.is_last: bool = any(step.is_last for step in self.transforms)
        self.needs_parts: bool = any(step.needs_parts for step in self.transforms)

    def check(self, dtype: str) -> None:
        for step in self.transforms:
            if step.combines_samples:
                raise TypeError(
                    f"{shown(step)} combines samples, so it must be in the dataset's own list, not in another "
                    "transform; it has a p= of its own"
                )
            step.check(dtype)


class RandomApply(_OfTransforms, RandomStep):
    """Apply all transforms of a list with probability `p`.

    Parameters
    ----------
    transforms : sequence of transforms
        Functions of an image's array, too, as in a dataset's `transform`.
    p : float

    Examples
    --------
    >>> from slipring import images
    >>> blur = images.RandomApply([images.GaussianBlur(5)], p=0.3)
    >>> data = images.Folder("train/", [images.Resize((24, 24)), blur])
    """

    def __init__(self, transforms: Sequence[Step], p: float = 0.5) -> None:
        super().__init__(p)
        self.transforms: tuple[Transform, ...] = chain(_listed(transforms), "transforms")
        self.is_random: bool = self.p > 0 and (self.p < 1 or any(step.is_random for step in self.transforms))
        self._take_needs()

    def perform(self, recipe: Recipe, draws: Draws) -> None:
        for step in self.transforms:
            step.apply(recipe, draws)

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        applied = final_size(self.transforms, size)
        return applied if self.p == 1 or applied == size else size if self.p == 0 else None

    def __repr__(self) -> str:
        return Transform.__repr__(self)


class RandomChoice(_OfTransforms):
    """Apply one transform of a list, which is drawn for each sample.

    Parameters
    ----------
    transforms : sequence of transforms
        Functions of an image's array, too, as in a dataset's `transform`. With MixUp and CutMix alone it is a
        ``batch_transform``, and is drawn for each batch.
    p : sequence of floats, optional
        Weight of each transform; by default they are equal.

    Examples
    --------
    >>> from slipring import images
    >>> one = images.RandomChoice([images.RandomGrayscale(p=1), images.RandomSolarize(128, p=1)], p=[0.7, 0.3])
    >>> data = images.Folder("train/", [images.Resize((24, 24)), one])
    """

    transforms: tuple[Transform, ...] | tuple[BatchTransform, ...]
    p: tuple[float, ...]
    is_random: bool = True

    def __init__(self, transforms: Sequence[Step] | Sequence[BatchTransform], p: Sequence[float] | None = None) -> None:
        if all(isinstance(step, BatchTransform) for step in _each(transforms)):
            self.transforms, self.p = tuple(transforms), _weights(p, len(transforms))
            self.mixes_batch: bool = True
            return
        # Each is a list of its own: none follows another.
        self.transforms = tuple(chain(step, "transforms")[0] for step in _each(transforms))
        self.p = _weights(p, len(self.transforms))
        self._take_needs()

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        self.transforms[draws.choice(self.p)].apply(recipe, draws)

    def mix(self, images: Any, targets: Any, draws: Draws) -> Any:
        """Mix a batch, if the transforms of the list do so."""
        return self.transforms[draws.choice(self.p)].mix(images, targets, draws)

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        sizes = {step.result_size(size) for step in self.transforms}
        return sizes.pop() if len(sizes) == 1 else None


def _listed(transforms):
    """Return a list of transforms, which must not be empty."""
    if not isinstance(transforms, (tuple, list)) or not transforms:
        raise ValueError(f"transforms must be a list of at least one transform, not {shown(transforms)}")
    return transforms


def _each(transforms):
    """Return a list of single transforms."""
    for step in _listed(transforms):
        if isinstance(step, (tuple, list)) or step is None:
            raise TypeError(f"transforms must be single transforms, not {shown(step)}")
    return transforms


def _weights(p, count):
    """Return probabilities in proportion to the weights `p`."""
    if p is None:
        return (1 / count,) * count
    what = f"{count} numbers of at least 0, one for each of transforms, with a sum above 0"
    try:
        found = tuple(real("p", one) for one in p)
    except TypeError:
        raise ValueError(f"p must be {what}, not {shown(p)}") from None
    total = sum(found)
    if len(found) != count or not all(one >= 0 for one in found) or not 0 < total < math.inf:
        raise ValueError(f"p must be {what}, not {shown(p)}")
    return tuple(one / total for one in found)


class RandomOrder(_OfTransforms):
    """Apply all transforms of a list, in an order that is drawn for each sample.

    Parameters
    ----------
    transforms : sequence of transforms
        Functions of an image's array, too, as in a dataset's `transform`.

    Examples
    --------
    >>> from slipring import images
    >>> both = images.RandomOrder([images.RandomRotation(15), images.RandomInvert()])
    >>> data = images.Folder("train/", [images.Resize((24, 24)), both])
    """

    is_random: bool = True

    def __init__(self, transforms: Sequence[Step]) -> None:
        self.transforms: tuple[Transform, ...] = tuple(chain(step, "transforms")[0] for step in _each(transforms))
        self._take_needs()
        other = next((step for step in self.transforms if not step.is_last), None)
        if self.is_last and other is not None:
            raise ValueError(
                f"transforms must not have {shown(other)} in a random order with a step that changes the normalised "
                "result, because nothing can follow that step"
            )

    def apply(self, recipe: Recipe, draws: Draws) -> None:
        for index in draws.permutation(len(self.transforms)):
            self.transforms[index].apply(recipe, draws)

    def result_size(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        if all(step.result_size(size) == size for step in self.transforms):
            return size
        if len(self.transforms) > 4:
            return None  # too many orders to try
        sizes = {final_size(order, size) for order in itertools.permutations(self.transforms)}
        return sizes.pop() if len(sizes) == 1 else None
