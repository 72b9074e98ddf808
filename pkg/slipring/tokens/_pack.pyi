"""Assign documents to packs: the loops of a plan, over arrays of one window."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_fit", "grouped", "in_sequence"]

def best_fit(
    sizes: NDArray[np.int64], most: NDArray[np.int64], most_open: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]: ...
def in_sequence(sizes: NDArray[np.int64], most: NDArray[np.int64]) -> NDArray[np.int32]: ...
def grouped(
    pack_of: NDArray[np.int32], packs: int, costs: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]: ...
