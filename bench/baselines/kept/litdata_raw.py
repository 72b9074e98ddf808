"""LitData, from a folder of chunks of decoded images, written once; Pillow scales the crop.

An epoch contains each image many times, so that its ends show no more than with other baselines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.baselines._torch import endless
from bench.baselines.images.torch_pillow import pick
from bench.decoded import DECODED
from bench.decoders import SIDE, with_pillow
from bench.photos import told_by
from bench.workload import Workload

decoder = with_pillow


def whole(source: tuple[str, int]) -> tuple[Any, int]:
    """Return the cached form of an image."""
    from PIL import Image

    path, label = source
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")), label


def cropped(sample: tuple[Any, int]) -> tuple[Any, int]:
    """Return a crop of a cached image."""
    from PIL import Image

    pixels, label = sample
    (top, left, height, width), flip = pick(*pixels.shape[:2])
    crop = Image.fromarray(pixels[top : top + height, left : left + width])
    crop = crop.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.array(crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else crop), label


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    import litdata

    folder = DECODED / f"{told_by(dataset.files)}.litdata"
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        litdata.optimize(
            whole,
            dataset.files,
            str(unfinished),
            chunk_bytes="64MB",
            num_workers=workers,
            start_method="fork",
        )
        unfinished.rename(folder)
    streamed = litdata.StreamingDataset(
        str(folder),
        shuffle=True,
        drop_last=True,
        transform=cropped,
        subsample=len(dataset.order) / dataset.distinct,
    )
    loader = litdata.StreamingDataLoader(
        streamed, batch_size=workload.batch_size, num_workers=workers, persistent_workers=True
    )
    yield from endless(loader)
