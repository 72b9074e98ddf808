"""The parts of a sample that follow the geometry of its image: boxes, keypoints and masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slipring.images import _decode
from slipring.images._render.mask_moves import axis_maps, gathered
from slipring.images._render.recipe import BLACK, Recipe, apply
from slipring.images._render.view import NEAREST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Operations whose numbers begin with an interpolation.
_INTERPOLATED = {_decode.OP_AFFINE, _decode.OP_PERSPECTIVE, _decode.OP_ELASTIC}
_MIRRORS = {_decode.OP_HORIZONTAL_FLIP, _decode.OP_VERTICAL_FLIP}


def _refuse_copies(code):
    if code == _decode.OP_KEEP:
        raise ValueError("AugMix mixes several geometries of an image, which masks, boxes and keypoints cannot follow")


def point_map(code: int, n: Sequence[int], v: Sequence[float], height: int, width: int) -> NDArray[np.float64]:
    """Return the 3 × 3 matrix from points (x, y, 1) of an image to points of an operation's result.

    Points lie in pixels; the top left corner of the image is (0, 0). The result of a matrix with another last row than
    (0, 0, 1) is to be divided by its third number.
    """
    made = np.eye(3)
    if code == _decode.OP_CROP:
        made[:2, 2] = -n[1], -n[0]
    elif code == _decode.OP_PAD:
        made[:2, 2] = n[0], n[1]
    elif code == _decode.OP_RESIZE:
        made[0, 0], made[1, 1] = n[1] / width, n[0] / height
    elif code == _decode.OP_HORIZONTAL_FLIP:
        made[0] = -1, 0, width
    elif code == _decode.OP_VERTICAL_FLIP:
        made[1] = 0, -1, height
    elif code in (_decode.OP_AFFINE, _decode.OP_PERSPECTIVE):
        count = 6 if code == _decode.OP_AFFINE else 8
        made.flat[:count] = v[:count]
        try:
            made = np.linalg.inv(made)
        except np.linalg.LinAlgError:
            raise ValueError("the image is mapped to a line, so that boxes and keypoints have no place") from None
    else:
        raise ValueError("ElasticTransform moves each pixel differently, which boxes and keypoints cannot follow")
    return made


def result_size(code: int, n: Sequence[int], height: int, width: int) -> tuple[int, int]:
    """Return the size of an operation's result for an image of that size."""
    if code == _decode.OP_CROP:
        return n[2], n[3]
    if code == _decode.OP_PAD:
        return height + n[1] + n[3], width + n[0] + n[2]
    if code == _decode.OP_RESIZE:
        return n[0], n[1]
    if code == _decode.OP_AFFINE:
        return n[1], n[2]
    return height, width


def moved(points: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points of shape (..., 2) after a map; see `point_map`."""
    result = points @ matrix[:2, :2].T + matrix[:2, 2]
    if matrix[2, 0] or matrix[2, 1]:
        result /= (points @ matrix[2, :2] + matrix[2, 2])[..., None]
    elif matrix[2, 2] != 1:
        result /= matrix[2, 2]
    return result


class Boxes:
    """The boxes of one sample, and the rows that the steps so far have kept.

    After each operation the boxes are clamped to the image, as torchvision's are.

    Parameters
    ----------
    xyxy : numpy.ndarray of float64, boxes × 4
        Left, top, right, bottom in pixels. It is copied.

    Attributes
    ----------
    xyxy : numpy.ndarray of float64, boxes × 4
        After the steps so far.
    rows : numpy.ndarray of int64
        The original row of each box.
    """

    def __init__(self, xyxy: NDArray[np.float64]) -> None:
        self.xyxy: NDArray[np.float64] = xyxy.copy()
        self.rows: NDArray[np.int64] = np.arange(len(xyxy))

    def keep(self, which: NDArray[Any]) -> None:
        """Keep only some boxes: a mask, or row numbers."""
        self.xyxy, self.rows = self.xyxy[which], self.rows[which]

    def move(self, code: int, n: Sequence[int], v: Sequence[float], height: int, width: int) -> None:
        _refuse_copies(code)
        matrix = point_map(code, n, v, height, width)
        if not len(self.xyxy):
            return
        if code in _INTERPOLATED:
            corners = self.xyxy[:, [[0, 1], [2, 1], [2, 3], [0, 3]]]
            corners = moved(corners, matrix)
            self.xyxy = np.concatenate([corners.min(1), corners.max(1)], axis=1)
        else:  # it leaves boxes upright
            self.xyxy = moved(self.xyxy.reshape(-1, 2, 2), matrix).reshape(-1, 4)
            if code == _decode.OP_HORIZONTAL_FLIP:
                self.xyxy = self.xyxy[:, [2, 1, 0, 3]]
            elif code == _decode.OP_VERTICAL_FLIP:
                self.xyxy = self.xyxy[:, [0, 3, 2, 1]]
        if code not in _MIRRORS:
            self.clamp(*result_size(code, n, height, width))

    def clamp(self, height: int, width: int) -> None:
        """Cut the boxes off at the borders of an image of that size."""
        self.xyxy[:, 0::2] = self.xyxy[:, 0::2].clip(0, width)
        self.xyxy[:, 1::2] = self.xyxy[:, 1::2].clip(0, height)


class Keypoints:
    """The keypoints of one sample.

    Parameters
    ----------
    xy : numpy.ndarray of float64, (..., 2)
        Places in pixels. It is copied. Points that leave the image keep their places outside of it.
    mirrored : sequence of int, optional
        The order of the last axis but one after a flip, such as left and right hand exchanged.
    """

    def __init__(self, xy: NDArray[np.float64], mirrored: Sequence[int] | None = None) -> None:
        self.xy: NDArray[np.float64] = xy.copy()
        self.mirrored = mirrored
        self.is_mirrored = False

    def move(self, code: int, n: Sequence[int], v: Sequence[float], height: int, width: int) -> None:
        _refuse_copies(code)
        self.xy = moved(self.xy, point_map(code, n, v, height, width))
        if code in _MIRRORS:
            self.is_mirrored = not self.is_mirrored

    def order(self, count: int) -> Sequence[int] | slice:
        """Return the order of an object's `count` points after all flips."""
        if self.mirrored is None:
            return slice(None)
        if len(self.mirrored) != count:
            raise ValueError(f"flip_order has {len(self.mirrored)} numbers, and an object has {count} keypoints")
        return self.mirrored if self.is_mirrored else slice(None)


class Mask:
    """A mask of one sample, of any dtype: its values are moved by nearest interpolation, never mixed.

    Parameters
    ----------
    values : numpy.ndarray, height × width or masks × height × width
    fill : int
        The value of pixels outside of the mask.
    """

    def __init__(self, values: NDArray[Any], fill: int = 0) -> None:
        self.values, self.fill = values, fill
        self._moves: list[tuple[int, Sequence[int], Sequence[float]]] = []

    def move(self, code: int, n: Sequence[int], v: Sequence[float], height: int, width: int) -> None:
        _refuse_copies(code)
        self._moves.append((code, n, v))

    def result(self, rows: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Return the mask after the moves; of several masks only `rows`, if given."""
        values = self.values if rows is None or self.values.ndim == 2 else self.values[rows]
        size = values.shape[-2:]
        if self._moves and (maps := axis_maps(self._moves, *size)) is not None:
            return gathered(values, *maps, self.fill)
        for code, n, _ in self._moves:
            size = result_size(code, n, *size)
        result = np.empty((*values.shape[:-2], *size), values.dtype)
        if not self._moves:
            result[...] = values
            return result
        # The operations move pixels of three bytes, so three planes of bytes are moved at once.
        source, target = _planes(values), _planes(result)
        fill = [*np.array(self.fill).astype(values.dtype).tobytes()] * max(1, len(values) if values.ndim == 3 else 1)
        for first in range(0, len(source), 3):
            there = range(first, min(first + 3, len(source)))
            pixels = np.zeros((*values.shape[-2:], 3), np.uint8)
            for channel, plane in enumerate(there):
                pixels[..., channel] = source[plane]
            colors = [float(fill[plane]) for plane in there]
            moved = apply(pixels, self._recipe((*colors, *BLACK)[:3]))
            for channel, plane in enumerate(there):
                target[plane][...] = moved[..., channel]
        return result

    def _recipe(self, fill):
        """Return the moves as a recipe; its filter is "nearest", and `fill` is its colour."""
        recipe = Recipe(*self.values.shape[-2:])
        for code, n, v in self._moves:
            if code == _decode.OP_CROP:
                recipe.crop(*n, fill)
            elif code == _decode.OP_RESIZE:
                recipe.resize(*n, "nearest")
            elif code == _decode.OP_HORIZONTAL_FLIP:
                recipe.flip()
            elif code == _decode.OP_VERTICAL_FLIP:
                recipe.flip_vertically()
            else:
                if code in _INTERPOLATED:
                    n = NEAREST, *n[1:]
                v = (*v[: _NUMBERS_BEFORE_FILL[code]], *fill)
                recipe.resized_op(*result_size(code, n, recipe.height, recipe.width), code, n, v)
        return recipe


_NUMBERS_BEFORE_FILL = {_decode.OP_PAD: 0, _decode.OP_AFFINE: 6, _decode.OP_PERSPECTIVE: 8, _decode.OP_ELASTIC: 4}


def _planes(values):
    """Return the bytes of each value as arrays of height × width: views, for each mask its bytes in memory order."""
    bytes_ = values.view(np.uint8).reshape(*values.shape, values.itemsize)
    return [plane for mask in (bytes_ if values.ndim == 3 else bytes_[None]) for plane in np.moveaxis(mask, -1, 0)]
