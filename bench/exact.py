"""The difference of a baseline's decoder from Pillow's crop and resize, in pixel values."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from bench.decoders import SIDE, Decoder, Pick, crop_box, with_pillow

SAMPLES = 12


def error(decoder: Decoder, files: list[tuple[str, int]], *, whole: bool) -> tuple[float, int]:
    """Return the mean and the largest difference for some files, each with a random box or as a `whole` image."""
    draw, exact = random.Random(0), with_pillow()
    means, largest = [], 0
    for path, _ in files[:SAMPLES]:
        data = Path(path).read_bytes()
        pick = _pick(draw, data, whole)
        off = np.abs(np.asarray(decoder(data, pick)).astype(int) - exact(data, pick))
        means.append(off.mean())
        largest = max(largest, int(off.max()))
    return float(np.mean(means)), largest


def _pick(draw: random.Random, data: bytes, whole: bool) -> Pick:
    """Return a `pick` function that always returns the same box and flip."""
    from slipring import images

    height, width = images.size(data)
    box = (0, 0, height, width) if whole else crop_box(draw, height, width)
    flip = not whole and draw.random() < 0.5
    return lambda *_: (box, flip)


def check_form(leaves: list[np.ndarray], batch_size: int) -> str | None:
    """Return the error of a batch of random crops, or None: a wrong shape, or images without contrast."""
    pictures = leaves[0]
    if pictures.shape not in ((batch_size, SIDE, SIDE, 3), (batch_size, 3, SIDE, SIDE)):
        return f"pictures of shape {pictures.shape}"
    if any(leaf.size != batch_size for leaf in leaves[1:]):
        return f"labels of shape {leaves[1].shape}"
    blank = sum(picture.min() == picture.max() for picture in pictures)
    return f"{blank} of {batch_size} pictures are blank" if blank > batch_size // 8 else None
