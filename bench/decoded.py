"""Decoded images, one after the other in one file, as in FFCV's raw mode, but without FFCV."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.photos import HERE, told_by

DECODED = HERE / "data" / "decoded"


def decoded(files: Sequence[tuple[str, int]]) -> tuple[Any, list[tuple[int, int, int]]]:
    """Return the pixels of (path, label) as one mapped array, and each image's (offset, height, width).

    The file is made if it does not exist. This may take a while, and as much space on the disk as the pixels.
    """
    file = DECODED / f"{told_by(files)}.rgb"
    extents = file.with_suffix(".npy")
    if not extents.exists():
        DECODED.mkdir(parents=True, exist_ok=True)
        unfinished = [path.with_name(f"{path.name}.{os.getpid()}") for path in (file, extents)]
        try:
            found = _write(files, unfinished[0])
            with unfinished[1].open("wb") as table:
                np.save(table, found)
            for path, done in zip(unfinished, (file, extents)):  # the extents last: if they exist, both files do
                path.rename(done)
        finally:
            for path in unfinished:
                path.unlink(missing_ok=True)
    pixels = np.asarray(np.memmap(file, np.uint8, "r"))  # slices of a memmap are slow
    return pixels, [tuple(extent) for extent in np.load(extents).tolist()]


def _write(files: Sequence[tuple[str, int]], to: Any) -> np.ndarray:
    from PIL import Image

    extents, at = [], 0
    with to.open("wb") as file:
        for path, _ in files:
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
            file.write(pixels.tobytes())
            extents.append((at, *pixels.shape[:2]))
            at += pixels.nbytes
    return np.array(extents, np.int64)


def decoded_bytes(files: Sequence[tuple[str, int]]) -> list[int]:
    """Return how many bytes the pixels of each image take."""
    from slipring import images

    return [3 * height * width for height, width in map(_size(images), files)]


def _size(images: Any) -> Any:
    def size(source: tuple[str, int]) -> tuple[int, int]:
        with open(source[0], "rb") as file:
            return images.size(file.read())

    return size
