"""What the transforms do to one sample: which part of the image is decoded, and the operations that follow.

A step that crops, scales or mirrors only changes the `CropSpec`, as long as no operation came before it. The crop is
decoded in one pass. All other steps add operations, which csrc/images applies to the scaled crop, without the GIL.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._core.ring._slot import USER, part_begun, spent
from slipring.errors import ImageError, shown
from slipring.images import _decode
from slipring.images._decode import Target
from slipring.images._render.decode import LONGEST, DecodedImage
from slipring.images._render.ops import BLACK, CropOp, HorizontalFlipOp, KeepOp, ResizeOp, VerticalFlipOp
from slipring.images._render.view import INTERPOLATIONS, NEAREST, WHOLE, CropSpec, Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from numpy.typing import NDArray

    from slipring.images._render.decode import Image
    from slipring.images._render.ops import Move, Operation
    from slipring.images._render.parts import Boxes

    class Part(Protocol):
        """A part of a sample that follows the image's geometry, such as its boxes."""

        def move(self, move: Move, height: int, width: int) -> None:
            """Follow an operation on an image of that size; raise ValueError if that is impossible."""


_ERASURE = struct.Struct("<6iQ3d")  # sr_erasure
_FLIP = VerticalFlipOp().pack()


class Recipe:
    """The crop and the operations of one sample; transforms add to it.

    Parameters
    ----------
    height, width : int
        Size of the image, in pixels.
    dtype : {'uint8', 'float32', 'float16', 'bfloat16'}
        Of the result.
    parts : sequence of Part
        The parts of the sample that follow the image's geometry.

    Attributes
    ----------
    height, width : int
        Size after the steps so far.
    crop_spec : CropSpec
    dtype : str
        Of the result.
    boxes : Boxes or None
        The boxes among `parts`, for steps that depend on them.
    filter : int
        How the crop is scaled: a number of `INTERPOLATIONS`.
    calls : int
        The number of users' functions so far, also of the recipes before this one; each has random numbers of its own.
    """

    __slots__ = (
        "_calls",
        "_erasures",
        "_last_crop",
        "_ops",
        "boxes",
        "calls",
        "crop_spec",
        "dtype",
        "filter",
        "height",
        "parts",
        "width",
    )

    def __init__(self, height: int, width: int, dtype: str = "uint8", parts: Sequence[Part] = ()) -> None:
        self.crop_spec: CropSpec = CropSpec.whole(height, width)
        self.height: int = height
        self.width: int = width
        self.filter: int = 0
        self.dtype: str = dtype
        self.parts: Sequence[Part] = parts
        self.boxes: Boxes | None = None
        self.calls: int = 0
        self._ops: list[Operation] = []
        self._erasures: list[bytes] = []
        self._calls: list[tuple[int, Callable[..., Any], tuple[int, int]]] = []
        # The number of steps before the last crop; the size before it, its position and its fill.
        self._last_crop: tuple[int, int, int, int, int, Sequence[float]] | None = None

    @property
    def is_crop_only(self) -> bool:
        """bool: whether no operation follows the crop."""
        return not (self._ops or self._calls or self._erasures)

    @property
    def _is_per_pixel(self):
        """bool: whether all operations after the crop may also run after a flip."""
        return not (self._calls or self._erasures) and all(op.per_pixel for op in self._ops)

    # ---- steps

    def op(self, operation: Operation) -> None:
        """Add an operation."""
        if operation.moves:
            for part in self.parts:
                part.move(operation, self.height, self.width)
            self.height, self.width = operation.size(self.height, self.width)
        elif self.parts and isinstance(operation, KeepOp):
            raise ValueError(
                "AugMix mixes several geometries of an image, which masks, boxes and keypoints cannot follow"
            )
        self._ops.append(operation)

    def _move_parts(self, kind, *numbers):
        move = kind(*numbers)
        for part in self.parts:
            part.move(move, self.height, self.width)

    def crop(self, top: int, left: int, height: int, width: int, fill: Sequence[float] = BLACK) -> None:
        """Show a part only; where it reaches beyond the image, `fill` (red, green, blue; 0 to 255) is shown."""
        if self.parts:
            self._move_parts(CropOp, top, left, height, width)
        if self._last_crop and self._last_crop[0] == self._steps and self._shows(top, left, height, width):
            _, self.height, self.width, first, begin, fill = self._last_crop
            self._last_crop = None
            self._ops.pop()  # a crop of a crop is one crop, so that no large border is filled
            top, left = top + first, left + begin
        self._crop(top, left, height, width, fill)
        self.height, self.width = height, width

    @property
    def _steps(self):
        return len(self._ops) + len(self._calls)

    def _shows(self, top, left, height, width):
        """Return whether a part lies in the image."""
        return 0 <= top <= self.height - height and 0 <= left <= self.width - width

    def _crop(self, top, left, height, width, fill):
        inside = self._shows(top, left, height, width)
        if self.is_crop_only and (inside or not any(fill)) and self.crop_spec.allows(top, left, height, width):
            self.crop_spec.crop(top, left, height, width)
            return
        first, begin = max(0, top), max(0, left)
        rows, columns = min(self.height, top + height) - first, min(self.width, left + width) - begin
        if self._crop_before_colors(first, begin, rows, columns):
            top, left, self.height, self.width = top - first, left - begin, rows, columns
        if (top, left, height, width) != (0, 0, self.height, self.width):
            self._ops.append(CropOp(top, left, height, width, fill))
            self._last_crop = self._steps, self.height, self.width, top, left, fill

    def _crop_before_colors(self, top, left, height, width):
        """Crop before the last operations, if each result pixel depends on one pixel; return whether it was possible.

        Fewer pixels are computed then, and perhaps decoded.
        """
        index = len(self._ops)
        least = self._calls[-1][0] if self._calls else 0
        while index > least and self._ops[index - 1].per_pixel:
            index -= 1
        if index == len(self._ops) or height < 1 or width < 1 or (height, width) == (self.height, self.width):
            return False
        if index == 0 and not self._calls and self.crop_spec.allows(top, left, height, width):
            self.crop_spec.crop(top, left, height, width)
        else:
            self._ops.insert(index, CropOp(top, left, height, width))
        return True

    def resize(self, height: int, width: int, interpolation: str) -> None:
        """Scale to a size."""
        numbers = height, width, INTERPOLATIONS.index(interpolation)
        if self.parts:
            self._move_parts(ResizeOp, *numbers)
        spec = self.crop_spec
        # The nearest pixels of a mirrored image are not always those of the image.
        is_mirrored = interpolation == "nearest" and (spec.flip or spec.vertical_flip)
        if self.is_crop_only and spec.can_resize and not is_mirrored:
            spec.resize(height, width)
            self.filter = numbers[2]
        elif (height, width) != (self.height, self.width):
            self._ops.append(ResizeOp(*numbers))
        self.height, self.width = height, width

    def flip(self) -> None:
        """Exchange left and right."""
        self._mirror(HorizontalFlipOp, "flip")

    def flip_vertically(self) -> None:
        """Exchange top and bottom."""
        self._mirror(VerticalFlipOp, "vertical_flip")

    def _mirror(self, kind, name):
        if self.parts:
            self._move_parts(kind)
        if self._is_per_pixel:
            setattr(self.crop_spec, name, not getattr(self.crop_spec, name))
        else:
            self._ops.append(kind())

    def call(self, function: Callable[[NDArray[np.uint8]], Any]) -> None:
        """Call ``function(image)``; `image` is a writable height × width × 3 array, which it may change."""
        self._calls.append((len(self._ops), function, (self.height, self.width)))
        self.calls += 1

    def erase(
        self, top: int, left: int, height: int, width: int, values: Sequence[float] | None, seed: int = 0
    ) -> None:
        """Overwrite a rectangle of the result.

        Parameters
        ----------
        top, left, height, width : int
        values : sequence of 3 floats, or None
            Red, green and blue in values of the result, which may be normalised; None: normal numbers from `seed`.
        """
        noise = values is None
        box = top, left, height, width, noise, _decode.TYPES[self.dtype]
        self._erasures.append(_ERASURE.pack(*box, seed, *(BLACK if values is None else values)))

    def drawn(self) -> CropSpec:
        """Return the crop spec with its `operations`."""
        made, calls = [], list(self._calls)
        for index in range(len(self._ops) + 1):
            while calls and calls[0][0] == index:
                function = calls.pop(0)[1]
                made.append((getattr(function, "__name__", shown(function)), ()))
            if index < len(self._ops):
                made.append((self._ops[index].name, self._ops[index].numbers))
        made += [("erase", _ERASURE.unpack(erasure)[:4]) for erasure in self._erasures]
        return dataclasses.replace(self.crop_spec, operations=tuple(made))

    # ---- running it

    def run(self, image: Image, out: NDArray[Any], table: NDArray[Any] | None = None) -> None:
        """Write the sample of an image to `out`: height × width × 3, of any strides.

        `table` has the values of `out` for the 256 pixel values of each channel. A recipe can be run for several
        images.
        """
        spec = self.crop_spec
        if max(spec.to) > LONGEST:
            raise ImageError(
                f"the image would be scaled to {spec.to[0]} x {spec.to[1]} pixels, a side may have {LONGEST}"
            )
        top, left, height, width = spec.window
        first, last = max(0, -top), min(height, spec.to[0] - top)
        begin, end = max(0, -left), min(width, spec.to[1] - left)
        columns = width - end if spec.flip else begin
        rows = height - last if spec.vertical_flip else first
        part = rows, columns, last - first, end - begin
        box = spec.box
        if self.filter == NEAREST and spec.scaled and image.orientation not in (1, 5):  # mirrored before it is scaled
            pixels = scratch(*box[2:])
            image.write(Placement(box), Target(pixels))
            image, box = DecodedImage(pixels), None
        placement = Placement(box, spec.to, (top + first, left + begin), spec.flip, self.filter)
        if self.is_crop_only:
            if part[2:] != (height, width):  # the window reaches beyond the image
                out[...] = 0 if table is None else table[:, 0]
                out = out[rows : rows + last - first, columns : columns + end - begin]
            image.write(placement, Target(out[::-1] if spec.vertical_flip else out, table))
            return
        ops, calls = [operation.pack() for operation in self._ops], self._calls
        if spec.vertical_flip:  # the operations' own image is not written upside down
            ops = [_FLIP, *ops]
            calls = [(n + 1, function, size) for n, function, size in calls]
            part = first, *part[1:]
        done, size = 0, (height, width)
        for upto, function, after in calls:
            memory = scratch(*after)
            image.write(placement, Target(memory, None, size, part, b"".join(ops[done:upto])))
            image, placement = DecodedImage(_called(function, memory)), WHOLE
            done, size, part = upto, after, (0, 0, *after)
        image.write(placement, Target(out, table, size, part, b"".join(ops[done:]), b"".join(self._erasures)))


class WrongResult(ValueError):
    """A user's step returned something else than an image."""


def _called(function, image):
    """Call a user's step; return its result, or the image that it changed."""
    begun = part_begun()
    result = function(image)
    spent(USER, begun)
    if result is None:
        return image
    if not isinstance(result, np.ndarray) or result.dtype != np.uint8 or result.shape != image.shape:
        got = f"an array of {result.dtype}, shape {result.shape}" if isinstance(result, np.ndarray) else shown(result)
        raise WrongResult(
            f"the step {shown(function)} returned {got}: it must return None, or an array of uint8 with the shape of "
            f"the image, {image.shape}"
        )
    return np.ascontiguousarray(result)


def apply(pixels: NDArray[np.uint8], recipe: Recipe) -> NDArray[np.uint8]:
    """Return a new array with the operations applied to an image: C-contiguous, height × width × 3, uint8."""
    out = np.empty((recipe.height, recipe.width, 3), np.uint8)
    recipe.run(DecodedImage(pixels), out)
    return out


# ---- memory between two steps, which each thread uses again and again

_KEPT = 2  # arrays per thread: a step's image, and that of the step after it
_LARGEST = 1 << 25  # bytes of an array; a larger one is freed after its image
per_thread = threading.local()


def references_to(arrays, index):
    return sys.getrefcount(arrays[index])


_ALONE = references_to([np.empty(1)], 0)  # the count depends on the release of Python


def scratch(height: int, width: int) -> NDArray[np.uint8]:
    """Return a C-contiguous height × width × 3 array with undefined values.

    Its memory belongs to the thread, which uses it again when no array, view or tensor refers to it any more. So a
    user's step may keep the array.
    """
    count = 3 * height * width
    if count > _LARGEST:
        return np.empty((height, width, 3), np.uint8)
    kept = per_thread.__dict__.setdefault("kept", [])
    small = None
    for index in range(len(kept)):
        # The array exists before the references are counted: a signal handler may decode an image in between.
        found: NDArray[np.uint8] = kept[index][:count]
        if references_to(kept, index) == _ALONE + 1:
            if found.size == count:
                return found.reshape(height, width, 3)
            small = index
    memory = np.empty(count, np.uint8)
    if small is not None:
        kept[small] = memory
    elif len(kept) < _KEPT:
        kept.append(memory)
    return memory.reshape(height, width, 3)
