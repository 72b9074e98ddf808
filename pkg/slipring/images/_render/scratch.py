"""Memory for images between two steps, which each thread uses again and again."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KEPT = 2  # arrays per thread: a step's image, and that of the step after it
_LARGEST = 1 << 25  # bytes of an array; a larger one is freed after its image
per_thread = threading.local()


def references_to(arrays, place):
    return sys.getrefcount(arrays[place])


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
    for place in range(len(kept)):
        # The array exists before the references are counted: a signal handler may decode an image in between.
        found: NDArray[np.uint8] = kept[place][:count]
        if references_to(kept, place) == _ALONE + 1:
            if found.size == count:
                return found.reshape(height, width, 3)
            small = place
    memory = np.empty(count, np.uint8)
    if small is not None:
        kept[small] = memory
    elif len(kept) < _KEPT:
        kept.append(memory)
    return memory.reshape(height, width, 3)
