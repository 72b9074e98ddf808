"""Formats of boxes, and the check of boxes that a dataset stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BoxFormat = Literal["xyxy", "xywh", "cxcywh"]
FORMATS = ("xyxy", "xywh", "cxcywh")


def to_xyxy(value: Any, box_format: BoxFormat) -> NDArray[np.float64]:
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
