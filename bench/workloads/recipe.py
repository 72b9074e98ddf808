"""(h) A dataset as users write it: how fast is a training recipe in Pillow and numpy?

Data
    The JPEGs of (a), or the user's (``--data``). A random crop, resized to 224 x 224, and a flip, both by Pillow; then
    float32 from 0 to 1, normalised, channels first, by numpy. The crop depends only on the index, so that every
    baseline's batches can be compared.
Machine, command, result
    In the file that ``python -m bench h`` writes to ``bench/results/``.
Bias
    Nothing is tuned: three copies of each image, as in most tutorials. The files stay in the page cache.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from bench.photos import image_files
from bench.workload import Dataset, Workload
from bench.workloads.photos import prepare

SIDE = 224
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)


class Recipe(Dataset):
    """Class folders of JPEGs, as (float32 CHW, label)."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image  # imported here, so that only children that decode load it

        path, label = self.sources[index]
        draw = random.Random(index)
        with Image.open(path) as file:
            image = file.convert("RGB")
        width, height = image.size
        side = int(min(width, height) * draw.uniform(0.5, 1.0))
        left, top = draw.randint(0, width - side), draw.randint(0, height - side)
        image = image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        if draw.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        array = np.asarray(image, np.float32) / 255
        return np.ascontiguousarray(((array - MEAN) / STD).transpose(2, 0, 1)), label


WORKLOAD = Workload(
    key="h",
    title="Pillow and numpy as users write them, 64 × 3 × 224 × 224 float32, label",
    purpose="What does a training recipe in Pillow and numpy cost?",
    batch_size=64,
    dataset=lambda data: Recipe(image_files(data)),
    prepare=prepare,
    decode_only=True,
    window_scale=4.0,
    quick_batch_size=16,
)
