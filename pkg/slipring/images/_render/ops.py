"""The operations of a recipe: one class for each operation of csrc/images/augment.h, and torchvision's maps."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import struct
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from slipring.images._render.view import NEAREST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from slipring.images._render.recipe import Recipe

    Axes = tuple[NDArray[np.int64], NDArray[np.int64]] | None


BLACK = (0.0, 0.0, 0.0)


class Operation:
    """An operation on an image. Each subclass is a frozen dataclass; its fields are the numbers of C's ``sr_op``.

    A subclass gives its `code` and how many whole numbers `n` and then floats `v` its fields have, tuples included.

    Attributes
    ----------
    name : str
        As in `CropSpec.operations`: that of the function in `slipring.images.functional`.
    per_pixel : bool
        Each pixel of the result depends on one pixel only, so a crop or a flip may run before the operation.
    moves : bool
        It is a `Move`.
    """

    code: ClassVar[int]
    name: ClassVar[str]
    per_pixel: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    _layout: ClassVar[struct.Struct]
    _has_sequences: ClassVar[bool]

    def __init_subclass__(cls, code: int = -1, n: int = 0, v: int = 0, per_pixel: bool = False) -> None:
        cls.code, cls.per_pixel = code, per_pixel
        cls.name = re.sub(r"\B[A-Z]", r"_\g<0>", cls.__name__.removesuffix("Op")).lower()
        cls._layout = struct.Struct(f"<i{n}i{4 * (7 - n)}x{v}d{8 * (12 - v)}x")
        dataclasses.dataclass(frozen=True)(cls)
        cls._has_sequences = len(dataclasses.fields(cls)) < n + v

    def pack(self) -> bytes:
        """Return the operation as ``sr_op``."""
        numbers: Iterable[float] = self.__dict__.values()
        if self._has_sequences:
            lists = (value if isinstance(value, (tuple, list)) else (value,) for value in self.__dict__.values())
            numbers = itertools.chain.from_iterable(lists)
        return self._layout.pack(self.code, *numbers)

    @property
    def numbers(self) -> tuple[float, ...]:
        """tuple of numbers: as C gets them."""
        return self._layout.unpack(self.pack())[1:]


def _of_values(name: str, code: int, fields: str = "", **numbers: Any) -> type[Operation]:
    """Return the class of an operation that moves no pixels."""
    of_fields = {"__annotations__": dict.fromkeys(fields.split(), "Any"), "__module__": __name__}
    return type(name, (Operation,), of_fields, code=code, **numbers)


BrightnessOp = _of_values("BrightnessOp", 0, "factor", v=1, per_pixel=True)
ContrastOp = _of_values("ContrastOp", 1, "factor", v=1)
SaturationOp = _of_values("SaturationOp", 2, "factor", v=1, per_pixel=True)
HueOp = _of_values("HueOp", 3, "factor", v=1, per_pixel=True)
GrayscaleOp = _of_values("GrayscaleOp", 4, per_pixel=True)
PosterizeOp = _of_values("PosterizeOp", 5, "bits", n=1, per_pixel=True)
SolarizeOp = _of_values("SolarizeOp", 6, "threshold", v=1, per_pixel=True)
SolarizeAddOp = _of_values("SolarizeAddOp", 7, "addend threshold", n=2, per_pixel=True)
InvertOp = _of_values("InvertOp", 8, per_pixel=True)
AutocontrastOp = _of_values("AutocontrastOp", 9)
EqualizeOp = _of_values("EqualizeOp", 10)
PermuteChannelsOp = _of_values("PermuteChannelsOp", 11, "channels", n=3, per_pixel=True)
SharpnessOp = _of_values("SharpnessOp", 16, "factor", v=1)
GaussianBlurOp = _of_values("GaussianBlurOp", 17, "kernel_size sigma", n=2, v=2)
PilGaussianBlurOp = _of_values("PilGaussianBlurOp", 18, "radius", v=2)
KeepOp = _of_values("KeepOp", 64)
AddToSumOp = _of_values("AddToSumOp", 65, "weight", v=1)
TakeSumOp = _of_values("TakeSumOp", 66)


class Move(Operation):
    """An operation that moves pixels, so that boxes, keypoints and masks follow it."""

    moves = True
    upright: ClassVar[bool] = True  # boxes stay upright
    mirrored: ClassVar[list[int] | None] = None  # the order of left, top, right and bottom, if it exchanges sides

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the result for an image of that size."""
        return height, width

    def points(self, height: int, width: int) -> NDArray[np.float64]:
        """Return the 3 × 3 matrix from points (x, y, 1) of an image of that size to points of the result.

        Points lie in pixels; the top left corner of the image is (0, 0). The result of a matrix with another last row
        than (0, 0, 1) is to be divided by its third number.
        """
        raise NotImplementedError

    def axes(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Axes:
        """Return those of the `rows` and `columns` that the result shows; None: it does not consist of such."""
        return None

    def add_for_mask(self, recipe: Recipe, fill: Sequence[float]) -> None:
        """Add the operation with another `fill`, and without interpolation, to the recipe of a mask."""
        recipe.op(self._with(fill=fill))

    def _with(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)


def _scaled(x, y, move_x=0, move_y=0):
    return np.array([[x, 0.0, move_x], [0.0, y, move_y], [0.0, 0.0, 1.0]])


def _window(positions, first, count):
    """Return `count` of the positions from the `first` one on; -1 before 0 and after the last."""
    made = np.full(count, -1)
    begin, end = max(0, first), min(len(positions), first + count)
    if begin < end:
        made[begin - first : end - first] = positions[begin:end]
    return made


def _nearest(size, to):
    """Return the pixel of each pixel of the result. Like Pillow, add the scale up, with the same rounding."""
    scale = size / to
    steps = np.full(to, scale)
    steps[0] = 0.5 * scale
    return np.minimum(np.add.accumulate(steps).astype(np.int64), size - 1)


class HorizontalFlipOp(Move, code=32):
    mirrored = [2, 1, 0, 3]  # noqa: RUF012

    def points(self, height, width):
        return _scaled(-1.0, 1.0, move_x=width)

    def axes(self, rows, columns):
        return rows, columns[::-1]

    def add_for_mask(self, recipe, fill):
        recipe.flip()


class VerticalFlipOp(Move, code=33):
    mirrored = [0, 3, 2, 1]  # noqa: RUF012

    def points(self, height, width):
        return _scaled(1.0, -1.0, move_y=height)

    def axes(self, rows, columns):
        return rows[::-1], columns

    def add_for_mask(self, recipe, fill):
        recipe.flip_vertically()


class CropOp(Move, code=34, n=4, v=3):
    top: int
    left: int
    height: int
    width: int
    fill: Sequence[float] = BLACK

    def size(self, height, width):
        return self.height, self.width

    def points(self, height, width):
        return _scaled(1.0, 1.0, -self.left, -self.top)

    def axes(self, rows, columns):
        return _window(rows, self.top, self.height), _window(columns, self.left, self.width)

    def add_for_mask(self, recipe, fill):
        recipe.crop(self.top, self.left, self.height, self.width, fill)


class PadOp(Move, code=35, n=5, v=3):
    left: int
    top: int
    right: int
    bottom: int
    mode: int  # of PADDING_MODES
    fill: Sequence[float] = BLACK

    def size(self, height, width):
        return height + self.top + self.bottom, width + self.left + self.right

    def points(self, height, width):
        return _scaled(1.0, 1.0, self.left, self.top)

    def axes(self, rows, columns):
        height, width = self.size(len(rows), len(columns))
        return (_window(rows, -self.top, height), _window(columns, -self.left, width)) if self.mode == 0 else None


class ResizeOp(Move, code=36, n=3):
    height: int
    width: int
    filter: int

    def size(self, height, width):
        return self.height, self.width

    def points(self, height, width):
        return _scaled(self.width / width, self.height / height)

    def axes(self, rows, columns):
        return rows[_nearest(len(rows), self.height)], columns[_nearest(len(columns), self.width)]

    def add_for_mask(self, recipe, fill):
        recipe.resize(self.height, self.width, "nearest")


class Warp(Move):
    """A move by a map from the result to the image, which is interpolated."""

    upright = False

    def points(self, height, width):
        made = np.eye(3)
        made.flat[: len(self.inverse)] = self.inverse
        try:
            return np.linalg.inv(made)
        except np.linalg.LinAlgError:
            raise ValueError("the image is mapped to a line, so that boxes and keypoints have no position") from None

    def add_for_mask(self, recipe, fill):
        recipe.op(self._with(filter=NEAREST, fill=fill))


class AffineOp(Warp, code=48, n=3, v=9):
    filter: int
    height: int
    width: int
    inverse: Sequence[float]
    fill: Sequence[float] = BLACK

    def size(self, height, width):
        return self.height, self.width


class PerspectiveOp(Warp, code=49, n=1, v=11):
    filter: int
    inverse: Sequence[float]
    fill: Sequence[float] = BLACK


class ElasticOp(Warp, code=50, n=3, v=7):
    filter: int
    seed: Sequence[int]  # its lower half first
    alpha: Sequence[float]
    sigma: Sequence[float]
    fill: Sequence[float] = BLACK

    def points(self, height, width):
        raise ValueError("ElasticTransform moves each pixel differently, which boxes and keypoints cannot follow")


Matrix = tuple[float, float, float, float, float, float]


def inverse_affine(
    center: Sequence[float], angle: float, translate: Sequence[float], scale: float, shear: Sequence[float]
) -> Matrix:
    """Return the map from points of the result to points of the image: x = a x + b y + c, y = d x + e y + f.

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
    rows, positions = [], []
    for (x, y), (to_x, to_y) in zip(end, start):
        rows.append([x, y, 1.0, 0.0, 0.0, 0.0, -to_x * x, -to_x * y])
        rows.append([0.0, 0.0, 0.0, x, y, 1.0, -to_y * x, -to_y * y])
        positions += [to_x, to_y]
    try:
        found = np.linalg.solve(np.array(rows), np.array(positions, float))
    except np.linalg.LinAlgError:
        found = np.linalg.lstsq(np.array(rows), np.array(positions, float), rcond=None)[0]
    single: list[float] = found.astype(np.float32).tolist()
    return single
