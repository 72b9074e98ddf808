"""The values of a stored sample: files, arrays and lists, as the parts of a `Sample`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._core.options.checks import integer
from slipring.errors import shown
from slipring.images._render.decode import decode
from slipring.images._sources.folder import read_file
from slipring.images._sources.wrapped import encoded_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray


def contents(value: Any, index: int) -> Any:
    """Return the encoded bytes of an image or a mask, which may be in a file, or the array that it is."""
    if isinstance(value, (str, os.PathLike)):
        return read_file(value)
    return value if isinstance(value, np.ndarray) and value.ndim != 1 else encoded_bytes(value, index)


def mask_of(key: str, value: Any, index: int, fill: int) -> NDArray[Any]:
    """Return a mask of a stored sample as an array."""
    value = contents(value, index)
    if not isinstance(value, np.ndarray) or value.ndim == 1:
        value = decode(value, mode="unchanged")
    if value.ndim not in (2, 3) or value.dtype.kind not in "biu":
        raise ValueError(
            f"the mask {key!r} must be height x width or masks x height x width integers or bools, not of "
            f"{value.dtype}, shape {value.shape}"
        )
    if value.ndim == 2 and np.array(fill).astype(value.dtype) != fill:
        raise ValueError(f"mask_fill={fill} does not fit the mask {key!r}, which has {value.dtype}")
    return np.ascontiguousarray(value)


def row_values(key: str, value: Any) -> NDArray[Any]:
    """Return one value per box as an array; an empty list has no dtype of its own and counts as whole numbers."""
    try:
        values = np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"{key!r} must be an array, or a list of numbers or texts: {error}") from None
    return values if values.size or hasattr(value, "dtype") else values.astype(np.int64)


def points_of(value: Any, order: list[int] | None) -> NDArray[np.float64]:
    points = np.asarray(value, np.float64)
    if not points.size and points.ndim < 3:  # a sample without objects
        return np.empty((0, len(order or ()), 3))
    if points.ndim < 1 or points.shape[-1] not in (2, 3):
        raise ValueError(f"keypoints must be numbers of shape (..., 2) or (..., 3), not of shape {points.shape}")
    return points


def order_of(value: Any) -> list[int] | None:
    """Return `flip_order` as a list; None if there is none."""
    if value is None:
        return None
    order = [integer("flip_order", n, 0, len(value) - 1) for n in value]
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"flip_order must have each number from 0 to {len(order) - 1} once, not {shown(value)}")
    return order
