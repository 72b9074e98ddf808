"""The parts of a sample that follow the geometry of its image: boxes, keypoints and masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slipring.images._render.ops import BLACK
from slipring.images._render.recipe import Recipe, apply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slipring.images._render.ops import Move


def moved(points: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points of shape (..., 2) after a map; see `Move.points`."""
    result = points @ matrix[:2, :2].T + matrix[:2, 2]
    if matrix[2, 0] or matrix[2, 1]:
        result /= (points @ matrix[2, :2] + matrix[2, 2])[..., None]
    elif matrix[2, 2] != 1:
        result /= matrix[2, 2]
    return result


class Boxes:
    """The boxes of one sample, and the rows that the steps so far have kept.

    After each move the boxes are clamped to the image, as torchvision's are.

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

    def keep(self, kept: NDArray[Any]) -> None:
        """Keep only some boxes: a mask, or row numbers."""
        self.xyxy, self.rows = self.xyxy[kept], self.rows[kept]

    def move(self, move: Move, height: int, width: int) -> None:
        matrix = move.points(height, width)
        if not len(self.xyxy):
            return
        if move.upright:
            self.xyxy = moved(self.xyxy.reshape(-1, 2, 2), matrix).reshape(-1, 4)
        else:
            corners = moved(self.xyxy[:, [[0, 1], [2, 1], [2, 3], [0, 3]]], matrix)
            self.xyxy = np.concatenate([corners.min(1), corners.max(1)], axis=1)
        if move.mirrored is not None:
            self.xyxy = self.xyxy[:, move.mirrored]
        else:
            self.clamp(*move.size(height, width))

    def clamp(self, height: int, width: int) -> None:
        """Cut the boxes off at the borders of an image of that size."""
        self.xyxy[:, 0::2] = self.xyxy[:, 0::2].clip(0, width)
        self.xyxy[:, 1::2] = self.xyxy[:, 1::2].clip(0, height)


class Keypoints:
    """The keypoints of one sample.

    Parameters
    ----------
    xy : numpy.ndarray of float64, (..., 2)
        Coordinates in pixels. It is copied. Points that leave the image keep their coordinates outside of it.
    size : (int, int)
        Height and width of the image.
    mirrored : sequence of int, optional
        The order of the last axis but one after a flip, such as left and right hand exchanged.

    Attributes
    ----------
    inside : numpy.ndarray of bool
        Which points have been in the image after each step. A border around a crop does not bring others back.
    """

    def __init__(self, xy: NDArray[np.float64], size: tuple[int, int], mirrored: Sequence[int] | None = None) -> None:
        self.xy: NDArray[np.float64] = xy.copy()
        self.inside: NDArray[np.bool_] = self._are_in(*size)
        self.mirrored = mirrored
        self.is_mirrored = False

    def move(self, move: Move, height: int, width: int) -> None:
        self.xy = moved(self.xy, move.points(height, width))
        self.inside &= self._are_in(*move.size(height, width))
        if move.mirrored is not None:
            self.is_mirrored = not self.is_mirrored

    def _are_in(self, height, width):
        return ((self.xy >= 0) & (self.xy <= (width, height))).all(-1)

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
        self._moves: list[Move] = []

    def move(self, move: Move, height: int, width: int) -> None:
        self._moves.append(move)

    def result(self, rows: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """Return the mask after the moves; of several masks only `rows`, if given."""
        values = self.values if rows is None or self.values.ndim == 2 else self.values[rows]
        size = values.shape[-2:]
        if self._moves and (maps := axis_maps(self._moves, *size)) is not None:
            return gathered(values, *maps, self.fill)
        for move in self._moves:
            size = move.size(*size)
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
        for move in self._moves:
            move.add_for_mask(recipe, fill)
        return recipe


def _planes(values):
    """Return the bytes of each value as arrays of height × width: views, for each mask its bytes in memory order."""
    bytes_ = values.view(np.uint8).reshape(*values.shape, values.itemsize)
    return [plane for mask in (bytes_ if values.ndim == 3 else bytes_[None]) for plane in np.moveaxis(mask, -1, 0)]


def axis_maps(moves: Sequence[Move], height: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the source row of each row of the result, and the source column of each column; -1: outside.

    The numbers rise or fall; those outside are first or last. None: a move is of another kind.
    """
    rows, columns = np.arange(height), np.arange(width)
    for move in moves:
        maps = move.axes(rows, columns)
        if maps is None:
            return None
        rows, columns = maps
    return rows, columns


def gathered(values: NDArray[Any], rows: NDArray[np.int64], columns: NDArray[np.int64], fill: int) -> NDArray[Any]:
    """Return the mask, or the masks, made of these rows and columns.

    Only the part around an object is gathered, if the fill is 0: most of its mask is 0.
    """
    shape = *values.shape[:-2], len(rows), len(columns)
    planes = values if values.ndim == 3 else values[None]
    fills = np.array(fill).astype(values.dtype)
    result = np.full(shape, fills) if fills else np.zeros(shape, values.dtype)
    for to, plane in zip(result if values.ndim == 3 else result[None], planes):
        box = (0, plane.shape[0]), (0, plane.shape[1])
        if values.ndim == 3 and not fills:
            box = _nonzero(plane)
        down, across = _between(rows, *box[0]), _between(columns, *box[1])
        if down and across:
            to[down[0] : down[1], across[0] : across[1]] = _taken(plane, rows[slice(*down)], columns[slice(*across)])
    return result


def _nonzero(plane):
    """Return the range of rows and the range of columns that have values other than 0."""
    rows = plane.any(1).nonzero()[0]
    if not len(rows):
        return (0, 0), (0, 0)
    columns = plane[rows[0] : rows[-1] + 1].any(0).nonzero()[0]
    return (rows[0], rows[-1] + 1), (columns[0], columns[-1] + 1)


def _between(positions, first, end):
    """Return the range of the positions from `first` to `end`, or None."""
    found = ((positions >= first) & (positions < end)).nonzero()[0]
    return (found[0], found[-1] + 1) if len(found) else None


def _taken(plane, rows, columns):
    """Return these rows and columns; columns cost more, so that the smaller number of rows is taken first."""
    first, last = sorted((int(rows[0]), int(rows[-1])))
    if last + 1 - first < len(rows):
        return plane[first : last + 1].take(columns, 1).take(rows - first, 0)
    return plane.take(rows, 0).take(columns, 1)
