"""The options that all datasets of images take by name."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from slipring._core.options.rule import suggesting

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from numpy.typing import ArrayLike, DTypeLike

    from slipring.cache import Cache
    from slipring.images._steps.base import BatchTransform
    from slipring.images._steps.combine import RandomChoice

_Made = TypeVar("_Made", bound=type)


class ImageOptions(TypedDict, total=False):
    """The keyword options of all image datasets; see `ImageDataset`."""

    layout: Literal["NHWC", "NCHW"]
    dtype: DTypeLike | torch.dtype
    mean: ArrayLike | None
    std: ArrayLike | None
    reducing_gap: float | None
    exif: bool
    truncated: Literal["raise", "fill"]
    grey16: Literal["clip", "scale"]
    max_pixels: int
    on_error: Literal["raise", "skip"]
    side: int | None
    cache: int | str | Cache | None
    what: Literal["pixels", "encoded"]
    target_transform: Callable[[Any], Any] | None
    batch_transform: BatchTransform | RandomChoice | None


def suggests_options(made: _Made) -> _Made:
    """Make the constructor of a class with ``**options`` suggest a known option for an unknown one."""
    init = made.__init__
    own = [p for p in inspect.signature(init).parameters.values() if p.kind is not p.VAR_KEYWORD]
    named = {p.name for p in own}
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
        for name in ImageOptions.__annotations__
        if name not in named
    ]
    made.__init__ = suggesting(inspect.Signature([*own, *options]))(init)
    return made
