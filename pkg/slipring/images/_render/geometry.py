"""Maps from the result's pixels to the image's, as torchvision and Pillow compute them, added to a recipe."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from slipring.images._render.ops import AffineOp
from slipring.images._render.view import NEAREST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipring.images._render.recipe import Recipe

Matrix = tuple[float, float, float, float, float, float]


def inverse_affine(
    center: Sequence[float], angle: float, translate: Sequence[float], scale: float, shear: Sequence[float]
) -> Matrix:
    """Return the map from places of the result to places of the image: x = a x + b y + c, y = d x + e y + f.

    The image is sheared (in x, then in y), scaled and turned about `center`, then moved by `translate`. The order of
    the floating-point operations is torchvision's: the nearest pixel depends on the last bit.
    """
    turn, in_x, in_y = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    tangent, cosine, rest = math.tan(in_x), math.cos(in_y), turn - in_y
    # The forward matrix without its scale, whose determinant is 1.
    xx = math.cos(rest) / cosine
    xy = -(xx * tangent + math.sin(turn))
    yx = math.sin(rest) / cosine
    yy = math.cos(turn) - yx * tangent
    a, b, d, e = yy / scale, -xy / scale, -yx / scale, xx / scale
    x, y = center[0] + translate[0], center[1] + translate[1]
    return a, b, center[0] - a * x - b * y, d, e, center[1] - d * x - e * y


def add_affine(recipe: Recipe, matrix: Matrix, how: int, fill: Sequence[float]) -> None:
    """Map the image by the inverse `matrix`; the size stays."""
    a, b, c, d, e, f = matrix
    if a == 1 and e == 1 and b == 0 and d == 0 and c % 1 == 0 and f % 1 == 0:  # a move by whole pixels
        recipe.crop(int(f), int(c), recipe.height, recipe.width, fill)
    else:
        recipe.op(AffineOp(how, recipe.height, recipe.width, matrix, fill))


def add_rotation(
    recipe: Recipe, angle: float, how: int, expand: bool, center: Sequence[float] | None, fill: Sequence[float]
) -> None:
    """Turn the image counter-clockwise by `angle` degrees, as Pillow's ``Image.rotate`` does."""
    height, width = recipe.height, recipe.width
    angle %= 360.0
    if center is None:  # then multiples of 90 degrees move pixels
        if angle == 0:
            return
        if angle == 180:
            recipe.flip()
            recipe.flip_vertically()
            return
        if angle in (90, 270) and (expand or height == width):
            inverse = (0, -1, width, 1, 0, 0) if angle == 90 else (0, 1, 0, -1, 0, height)
            recipe.op(AffineOp(NEAREST, width, height, inverse))
            return
        center = width / 2, height / 2
    turn = -math.radians(angle)
    a, b, d = round(math.cos(turn), 15), round(math.sin(turn), 15), round(-math.sin(turn), 15)
    x, y = center
    c, f = a * -x + b * -y + x, d * -x + a * -y + y
    if expand:
        corners = (0, 0), (width, 0), (width, height), (0, height)
        across = [a * x + b * y + c for x, y in corners]
        down = [d * x + a * y + f for x, y in corners]
        new_width = math.ceil(max(across)) - math.floor(min(across))
        new_height = math.ceil(max(down)) - math.floor(min(down))
        x, y = -(new_width - width) / 2, -(new_height - height) / 2
        c, f = a * x + b * y + c, d * x + a * y + f
        height, width = new_height, new_width
    recipe.op(AffineOp(how, height, width, (a, b, c, d, a, f), fill))


def perspective_coefficients(start: Sequence[Sequence[float]], end: Sequence[Sequence[float]]) -> list[float]:
    """Return the eight numbers of the map from the corners `end` of the result to the corners `start` of the image.

    They are rounded to float32, as torchvision's are. Corners that lie on a line have no exact map.
    """
    rows, places = [], []
    for (x, y), (to_x, to_y) in zip(end, start):
        rows.append([x, y, 1.0, 0.0, 0.0, 0.0, -to_x * x, -to_x * y])
        rows.append([0.0, 0.0, 0.0, x, y, 1.0, -to_y * x, -to_y * y])
        places += [to_x, to_y]
    try:
        found = np.linalg.solve(np.array(rows), np.array(places, float))
    except np.linalg.LinAlgError:
        found = np.linalg.lstsq(np.array(rows), np.array(places, float), rcond=None)[0]
    single: list[float] = found.astype(np.float32).tolist()
    return single
