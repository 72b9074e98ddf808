"""Recipes that depend on the size of a batch, which a sampler gives with each index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from slipring.errors import shown
from slipring.images._steps.base import pair, pixels

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipring.images._sources.renderer import Renderer
    from slipring.images._steps.base import Size


class Sized(NamedTuple):
    """The index of an image, and the size to which it is rendered.

    `SizedBatchSampler` yields such indices. The dataset's `transform` is then a dict that has the transforms of each
    size.

    Examples
    --------
    >>> from slipring import images
    >>> buckets = [(24, 32), (32, 24)]
    >>> data = images.Folder("train/", {size: images.CoverCrop(size) for size in buckets})
    >>> pixels, label = data[images.Sized(0, (32, 24))]
    >>> pixels.shape
    (32, 24, 3)
    """

    index: int
    size: int | tuple[int, int]


def size_of(name: str, value: Any) -> Size:
    """Return a size, as a number or as (height, width); raise ValueError if it is none."""
    return pair(name, value) if isinstance(value, (tuple, list)) else pixels(name, value)


def renderers_of(transform: Any, make: Callable[[Any], Renderer]) -> dict[Size | None, Renderer]:
    """Return the renderer of each size; {None: renderer} for transforms that do not depend on it."""
    if not isinstance(transform, Mapping):
        return {None: make(transform)}
    if not transform:
        raise ValueError("transform must have the transforms of at least one size, not an empty dict")
    found: dict[Size | None, Renderer] = {}
    for key, steps in transform.items():
        size = size_of("each size in transform", key)
        renderer = found[size] = make(steps)
        if renderer.shapes is None:
            raise ValueError(
                f"transform[{key!r}] leaves images of different sizes, which fit no batch: end with CoverCrop, "
                "RandomResizedCrop, or another transform that gives one size"
            )
        made = renderer.size
        if made is not None and made not in (size, (size, size)):
            raise ValueError(f"transform[{key!r}] makes the size {made}: it must be the same")
    first = next(iter(found.values()))
    for renderer in found.values():
        renderer.whole = first.whole  # a cache keeps an image once for all sizes
    return found


def renderer_for(renderers: dict[Size | None, Renderer], index: Any, transform: Any) -> tuple[int, Renderer]:
    """Return (plain index, renderer) for an index of a dataset with these renderers."""
    plain, size = index if isinstance(index, Sized) else (index, None)
    renderer = renderers.get(size)
    if renderer is not None:
        return plain, renderer
    if None in renderers:
        raise ValueError(
            f"the index {index} asks for the size {size}, and transform={shown(transform)} does not depend on it: give "
            f"a dict with the transforms of each size, transform={{{size}: ...}}"
        )
    listed = ", ".join(map(str, renderers))
    if size is None:
        raise ValueError(
            f"the index {shown(index)} has no size, and transform has those of {listed}: take the indices from "
            f"images.SizedBatchSampler, or as images.Sized({shown(index)}, {next(iter(renderers))})"
        )
    raise ValueError(f"the index {index} asks for the size {size}, and transform has only {listed}")
