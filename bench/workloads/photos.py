"""(a) Does the loader's time matter, compared with decoding JPEGs?

Data
    The user's class folders (``--data``), or a folder of JPEGs cut from real photographs, each decoded by
    Pillow, cropped at the centre and scaled to 224 x 224 (uint8, HWC), with its class number.
Machine, command, result
    In the file that ``python -m bench a`` writes to ``bench/results/``.
Bias
    Decoding takes most of the time, so all good loaders are about equal; this is intended. The files stay in
    the page cache. The cut photographs have fewer bytes than ImageNet's, so decoding is cheaper and the
    loader's share is rather overestimated. The crop is the only augmentation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.photos import ensure, image_files
from bench.workload import Dataset, Target, Workload

SIDE = 224
KEEP = 0.875  # share of the shorter side: the usual 224 of 256


class Photos(Dataset):
    """Class folders of JPEGs, as (image, label)."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.sources[index]
        return decode(path), label


def decode(path: str) -> Any:
    """Decode one file, crop its centre and scale it."""
    from PIL import Image  # imported here, so that only children that decode load it

    with Image.open(path) as image:
        rgb = image.convert("RGB")
    width, height = rgb.size
    side = min(width, height) * KEEP
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    # np.array, not asarray: the latter is read-only here, and torch warns about that.
    return np.array(rgb.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box))


def dataset(data: str | None) -> Photos:
    return Photos(image_files(data))


def prepare(data: str | None) -> None:
    if data is None:
        ensure()


WORKLOAD = Workload(
    key="a",
    title="JPEG photographs to 32 × 224 × 224 × 3 uint8, label",
    purpose="Does the loader cost anything next to decoding?",
    batch_size=32,
    dataset=dataset,
    prepare=prepare,
    targets=(Target("roofline", 0.97), Target("cpu", 20)),
    decode_only=True,
    window_scale=2.0,
)
