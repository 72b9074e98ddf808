"""The part of an image that is decoded, and how it is scaled: one pass for all crops, resizes and flips."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Literal, NamedTuple

from slipring._core.options.checks import one_of

INTERPOLATIONS = ("bilinear", "bicubic", "nearest")  # in the order of csrc/images/resize.h's filters
NEAREST = INTERPOLATIONS.index("nearest")
Interpolation = Literal["bilinear", "bicubic", "nearest"]
InterpolationOrRandom = Literal["bilinear", "bicubic", "nearest", "random"]  # "random": drawn for each sample


class Placement(NamedTuple):
    """How a part of an image becomes an array: a box is scaled, and the array is a window of the result.

    Attributes
    ----------
    box : (top, left, height, width) or None
        In pixels of the image; None: the whole image.
    to : (height, width) or None
        The size to which the box is scaled; None: that of the array.
    window : (top, left)
        Where the array begins in the scaled box.
    flip : bool
        Exchange left and right at the end.
    filter : int
        A number of `INTERPOLATIONS`.
    """

    box: tuple[int, int, int, int] | None = None
    to: tuple[int, int] | None = None
    window: tuple[int, int] = (0, 0)
    flip: bool = False
    filter: int = 0


WHOLE = Placement()


@dataclasses.dataclass(slots=True)
class CropSpec:
    """The part of an image that becomes the sample. Sizes are (height, width) and positions (top, left), in pixels.

    Attributes
    ----------
    box : (top, left, height, width)
        The part of the image that is decoded.
    to : (int, int)
        The size to which the box is scaled.
    window : (top, left, height, width)
        The part of the scaled box that becomes the sample. Outside of the box, the sample is black.
    flip : bool
        Left and right are exchanged at the end.
    vertical_flip : bool
        Top and bottom are exchanged at the end.
    operations : tuple of (str, tuple of numbers)
        The operations that follow, in order, each with its numbers: ("brightness", (1.2,)). They are the arguments of
        the function in `slipring.images.functional`, such as a factor; "affine" has the interpolation, the height and
        width of the result, six coefficients that map it to the image, and the fill; "perspective" has eight
        coefficients. A function has its name and no numbers. Last come the boxes ("erase", (top, left, height,
        width)).

    Examples
    --------
    >>> from slipring import images
    >>> spec = images.Folder("train/", images.RandomResizedCrop(24)).crop_spec(0, seed=7)
    >>> spec.to
    (24, 24)
    >>> images.Folder("train/", images.RandomPosterize(5, p=1)).crop_spec(0, seed=7).operations
    (('posterize', (5,)),)
    """

    box: tuple[int, int, int, int]
    to: tuple[int, int]
    window: tuple[int, int, int, int]
    flip: bool = False
    vertical_flip: bool = False
    operations: tuple[tuple[str, tuple[float, ...]], ...] = ()

    @classmethod
    def whole(cls, height: int, width: int) -> CropSpec:
        """Return the crop spec of a whole image."""
        return cls((0, 0, height, width), (height, width), (0, 0, height, width))

    @property
    def scaled(self) -> bool:
        return self.to != self.box[2:]

    @property
    def can_resize(self) -> bool:
        """bool: whether `resize` is possible: nothing is scaled so far, and the window lies in the image."""
        top, left, rows, columns = self.window
        return not self.scaled and top >= 0 and left >= 0 and top + rows <= self.to[0] and left + columns <= self.to[1]

    def allows(self, top: int, left: int, height: int, width: int) -> bool:
        """Return whether `crop` is possible: it needs no pixels that an earlier crop has removed, and shows some."""
        top, left = self._unmirrored(top, left, height, width)
        rows, columns = (self.window[0], self.window[2], self.to[0]), (self.window[1], self.window[3], self.to[1])
        return _allows(top, height, *rows) and _allows(left, width, *columns)

    def _unmirrored(self, top, left, height, width):
        """Return the position of a part of the window before the flips."""
        return (
            self.window[2] - top - height if self.vertical_flip else top,
            self.window[3] - left - width if self.flip else left,
        )

    def crop(self, top: int, left: int, height: int, width: int) -> None:
        """Narrow the window to a part of itself, which `allows` accepts."""
        top, left = self._unmirrored(top, left, height, width)
        self.window = self.window[0] + top, self.window[1] + left, height, width

    def resize(self, height: int, width: int) -> None:
        """Scale the window, if `can_resize`."""
        top, left, rows, columns = self.window
        self.box = self.box[0] + top, self.box[1] + left, rows, columns
        self.to = height, width
        self.window = 0, 0, height, width


def _allows(first, size, seen_first, seen, whole):
    """Return whether a crop of one axis is possible: `seen` pixels of the `whole` are seen, from `seen_first` on."""
    if first < 0 < seen_first or (first + size > seen and seen_first + seen < whole):
        return False
    return -size < seen_first + first < whole


def interpolation_name(value: Any, others: tuple[str, ...] = ()) -> Interpolation:
    """Return the name of an interpolation, which may be a member of torchvision's or Pillow's enumeration.

    An error message lists the words of `others`, too.
    """
    name = value
    if isinstance(value, enum.Enum):  # torchvision's two kinds of nearest are the same on Pillow's images
        name = value.name.lower().removesuffix("_exact")
    elif isinstance(value, str):
        name = value.removesuffix("-exact")
    if not isinstance(name, str) or name not in INTERPOLATIONS:
        one_of("interpolation", name, INTERPOLATIONS + others)
    return name
