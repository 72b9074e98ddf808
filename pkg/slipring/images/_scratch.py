"""Memory for images between two steps, which each thread uses again and again."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KEPT = 2  # arrays per thread: a step's image, and that of the step after it
_thread = threading.local()


def _references(arrays, place):
    return sys.getrefcount(arrays[place])


_ALONE = _references([np.empty(1)], 0)  # the count depends on the release of Python


def scratch(height: int, width: int) -> NDArray[np.uint8]:
    """Return a C-contiguous height × width × 3 array with undefined values.

    Its memory belongs to the thread, which uses it again when no array, view or tensor refers to it any more. So a
    user's step may keep the array.
    """
    count = 3 * height * width
    kept = _thread.__dict__.setdefault("kept", [])
    free = [place for place in range(len(kept)) if _references(kept, place) == _ALONE]
    place = next((place for place in free if kept[place].size >= count), None)
    if place is None:
        memory = np.empty(count, np.uint8)
        if free:
            kept[free[0]] = memory
        elif len(kept) < _KEPT:
            kept.append(memory)
        return memory.reshape(height, width, 3)
    found: NDArray[np.uint8] = kept[place][:count].reshape(height, width, 3)
    return found
