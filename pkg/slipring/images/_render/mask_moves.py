"""Crops, borders, flips and nearest resizing of masks: each value of a result comes from one row and one column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slipring.images._render.ops import Move

_OUTSIDE = -1


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


def window(places: NDArray[np.int64], first: int, count: int) -> NDArray[np.int64]:
    """Return `count` of the places from the `first` one on; there are none before 0 and after the last."""
    made = np.full(count, _OUTSIDE)
    begin, end = max(0, first), min(len(places), first + count)
    if begin < end:
        made[begin - first : end - first] = places[begin:end]
    return made


def nearest(size: int, to: int) -> NDArray[np.int64]:
    """Return the pixel of each pixel of the result. Like Pillow, add the scale up, with the same rounding."""
    scale = size / to
    steps = np.full(to, scale)
    steps[0] = 0.5 * scale
    return np.minimum(np.add.accumulate(steps).astype(np.int64), size - 1)


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


def _between(places, first, end):
    """Return the range of the places from `first` to `end`, or None."""
    found = ((places >= first) & (places < end)).nonzero()[0]
    return (found[0], found[-1] + 1) if len(found) else None


def _taken(plane, rows, columns):
    """Return these rows and columns; columns cost more, so that the smaller number of rows is taken first."""
    first, last = sorted((int(rows[0]), int(rows[-1])))
    if last + 1 - first < len(rows):
        return plane[first : last + 1].take(columns, 1).take(rows - first, 0)
    return plane.take(rows, 0).take(columns, 1)
