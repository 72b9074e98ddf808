"""The parts of a stored sample, which are files, arrays and lists, as a `Sample`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slipring._core.options.checks import integer
from slipring.errors import shown
from slipring.images._render.decode import DecodedImage, decode
from slipring.images._sources.folder import read_file
from slipring.images._sources.rows import encoded_bytes
from slipring.images._steps.sample import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slipring.images._sources.annotated import Annotated
    from slipring.images._sources.renderer import Renderer

BoxFormat = Literal["xyxy", "xywh", "cxcywh"]
FORMATS = ("xyxy", "xywh", "cxcywh")


def contents(value: Any, index: int) -> Any:
    """Return the encoded bytes of an image or a mask, which may be in a file, or the array that it is."""
    if isinstance(value, (str, os.PathLike)):
        return read_file(value)
    return value if isinstance(value, np.ndarray) and value.ndim != 1 else encoded_bytes(value, index)


def _mask_of(key, value, index, fill):
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


def _row_values(key, value):
    """Return one value per box as an array; an empty list has no dtype of its own and counts as whole numbers."""
    try:
        values = np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"{key!r} must be an array, or a list of numbers or texts: {error}") from None
    return values if values.size or hasattr(value, "dtype") else values.astype(np.int64)


def _points_of(value, order):
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


def check_keys(data: Annotated, index: int, stored: Any) -> None:
    """Raise an error if a stored sample is no mapping, or lacks a key that `data` names."""
    if not isinstance(stored, Mapping):
        raise TypeError(f"sample {index} must be a mapping such as {{'image': ...}}, not {shown(stored)}")
    named = [*data.images, *data.masks, *data.rows, *filter(None, (data.boxes, data.keypoints, data.target))]
    missing = [key for key in named if key not in stored]
    if missing:
        raise KeyError(f"sample {index} has no {', '.join(map(shown, missing))}: it has {', '.join(stored)}")


def sample_of(
    data: Annotated, renderer: Renderer, index: int, stored: Mapping[str, Any], turned: Mapping[str, int]
) -> Sample:
    """Return the parts of a stored sample of `data`; raise ValueError if they do not match.

    `turned` has EXIF's orientations of images that are arrays.
    """
    sample = Sample(
        {key: _image_of(renderer, stored[key], index, turned.get(key, 1)) for key in data.images},
        {key: _mask_of(key, stored[key], index, data.mask_fill) for key in data.masks},
        None if data.boxes is None else _to_xyxy(stored[data.boxes], data.box_format),
        {key: _row_values(key, stored[key]) for key in data.rows},
        None if data.keypoints is None else _points_of(stored[data.keypoints], data._flip_order),
    )
    if sample.boxes is None:
        return sample
    n = len(sample.boxes)
    lengths = {key: len(values) if values.ndim else 0 for key, values in sample.rows.items()}
    lengths |= {key: len(mask) for key, mask in sample.masks.items() if mask.ndim == 3}
    if sample.keypoints is not None:
        lengths[data.keypoints] = len(sample.keypoints)
    for key, length in lengths.items():
        if length != n:
            raise ValueError(f"{key!r} has {length} rows, and {data.boxes!r} has {n}: there must be one row per box")
    return sample


def _image_of(renderer, value, index, orientation):
    """Return an image of a stored sample: encoded, or an array of pixels."""
    data = contents(value, index)
    if not isinstance(data, np.ndarray) or data.ndim == 1:
        return renderer.image(data)
    if data.dtype != np.uint8 or data.shape[2:] != (3,):
        raise ValueError(
            f"an image must be a height x width x 3 array of uint8, not of {data.dtype}, shape {data.shape}"
        )
    return DecodedImage(np.ascontiguousarray(data), orientation)


# ---- boxes


def _to_xyxy(value, box_format):
    """Return boxes of a format as left, top, right and bottom: float64, boxes × 4; no boxes may have any shape."""
    boxes = np.array(value, np.float64)
    if not boxes.size:
        return np.empty((0, 4))
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"boxes must be numbers of shape (boxes, 4), not of shape {boxes.shape}")
    if box_format == "cxcywh":
        boxes[:, :2] -= boxes[:, 2:] / 2
    if box_format != "xyxy":
        boxes[:, 2:] += boxes[:, :2]
    return boxes


def from_xyxy(boxes: NDArray[np.float64], box_format: BoxFormat) -> NDArray[np.float32]:
    """Return boxes in a format, as float32."""
    boxes = boxes.copy()
    if box_format != "xyxy":
        boxes[:, 2:] -= boxes[:, :2]
    if box_format == "cxcywh":
        boxes[:, :2] += boxes[:, 2:] / 2
    return boxes.astype(np.float32)


def valid(boxes: NDArray[np.float64], height: int, width: int) -> NDArray[np.bool_]:
    """Return which boxes are finite, have an area, and lie at least partly in an image of that size."""
    left, top, right, bottom = boxes.T
    inside = (left < width) & (top < height) & (right > 0) & (bottom > 0)
    valid: NDArray[np.bool_] = np.isfinite(boxes).all(1) & (right > left) & (bottom > top) & inside
    return valid
