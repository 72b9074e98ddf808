"""The levels of the images of batches, normalised or not."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bench.baselines.recipes import MEAN, STD


def levels(batches: Iterable[list[np.ndarray]]) -> dict[str, float]:
    """Return the mean and the standard deviation of all pixel values; each batch has one array or several."""
    values = []
    for arrays in batches:
        found = np.concatenate([unnormalised(array).astype(np.float64).ravel() for array in arrays])
        values.append((found.mean(), (found**2).mean()))
    mean, square = np.mean(values, axis=0)
    return {"mean": mean, "deviation": (square - mean**2) ** 0.5}


def unnormalised(array: np.ndarray) -> np.ndarray:
    """Return the levels, from 0 to 255, of images or of normalised images."""
    if array.dtype == np.uint8:
        return array
    scale, shift = (np.array(numbers).reshape(3, 1, 1) for numbers in (STD, MEAN))
    return (array * scale + shift) * 255
