"""The images of a batch in the slot, for transforms that mix them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipring.images import _decode

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Images:
    """The images of a batch, for a transform that changes them in place.

    Parameters
    ----------
    memory : numpy.ndarray
        Images × the three axes of `layout`, C-contiguous; bfloat16 as uint16.
    layout : {'NHWC', 'NCHW'}
    dtype : {'uint8', 'float32', 'float16', 'bfloat16'}

    Attributes
    ----------
    pixels : numpy.ndarray
        A view: images × height × width × 3.
    """

    memory: NDArray[Any]
    pixels: NDArray[Any]
    _type: int

    def __init__(self, memory: NDArray[Any], layout: str, dtype: str) -> None:
        self.memory, self._type = memory, _decode.TYPES[dtype]
        self.pixels = memory if layout == "NHWC" else memory.transpose(0, 2, 3, 1)

    def mix_with_previous(self, share: float) -> None:
        """Replace each image by ``share`` of it and the rest of the previous one; the last one precedes the first."""
        rows = self.memory
        last = rows[-1].copy()
        for n in range(len(rows) - 1, -1, -1):
            _decode.mix(rows[n], rows[n - 1] if n else last, self._type, share, 1.0 - share)

    def paste_from_previous(self, top: int, left: int, bottom: int, right: int) -> None:
        """Replace a box in each image by that of the previous one; the last one precedes the first."""
        box = self.pixels[:, top:bottom, left:right]
        last = box[-1].copy()
        for n in range(len(box) - 1, 0, -1):
            box[n] = box[n - 1]
        box[0] = last
