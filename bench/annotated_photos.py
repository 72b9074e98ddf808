"""Photographs with boxes, labels, instance masks and a palette mask, as in COCO: the data of recipes with parts."""

from __future__ import annotations

import io
import math
import random
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.photos import image_files, make_photos, resized_part
from bench.workloads.epochs import Epochs

if TYPE_CHECKING:
    from PIL import Image

DATA = Path(__file__).parents[1] / "build/bench/annotated"
SIZES = ((640, 480), (640, 480), (640, 480), (480, 640), (640, 427), (427, 640), (500, 375), (375, 500))
LIMIT = 168  # the masks lie in memory, and the photographs in the page cache
MOST_BOXES = 20
CATEGORIES = 90
IGNORED = 255  # the palette mask's value at the borders of objects
SEGMENTS = 21  # classes of the palette masks, with the background


def ensure() -> None:
    """Make our own photographs unless they exist."""
    make_photos(DATA, 24, _cut)


def _cut(draw: random.Random, photo: Image.Image) -> tuple[Image.Image, int]:
    """Cut an image of one of COCO's sizes."""
    return resized_part(draw, photo, draw.choice(SIZES)), draw.randint(88, 95)


class AnnotatedPhotos:
    """Photographs with annotations, which depend only on the place in the list and on the photograph's size.

    Parameters
    ----------
    data
        A folder with one folder of JPEGs per class. None: our own folder, which must exist.

    Attributes
    ----------
    paths
        The path of each photograph.
    order
        A loader's sampler.
    distinct
        The number of photographs.
    """

    def __init__(self, data: str | None) -> None:
        from PIL import Image

        self.paths = [path for path, _ in image_files(data or str(DATA))[:LIMIT]]
        self.distinct = len(self.paths)
        self.order = Epochs(self.distinct)
        self._sizes, self._boxes, self._labels, self._masks, self._palettes = [], [], [], [], []
        for number, path in enumerate(self.paths):
            with Image.open(path) as image:
                width, height = image.size
            draw = random.Random(number)
            outlines = [_outline(draw, width, height) for _ in range(draw.randint(1, MOST_BOXES))]
            masks = np.stack([_drawn(outline, width, height) for outline in outlines])
            labels = np.array([draw.randint(1, CATEGORIES) for _ in outlines])
            self._sizes.append((height, width))
            self._boxes.append(np.array([_enclosing(mask) for mask in masks], np.float32))
            self._labels.append(labels)
            self._masks.append(np.packbits(masks, axis=None))
            self._palettes.append(_palette(masks, labels))

    def __len__(self) -> int:
        return self.distinct

    def boxes(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the boxes (left, top, right, bottom; float32) and the labels (int64) of a photograph."""
        return self._boxes[index], self._labels[index]

    def masks(self, index: int) -> np.ndarray:
        """Return the bool mask of each box. They are stored as bits: unpacking costs as much as decoding COCO's."""
        height, width = self._sizes[index]
        n = len(self._boxes[index])
        bits = np.unpackbits(self._masks[index], count=n * height * width)
        return bits.view(bool).reshape(n, height, width)

    def palette(self, index: int) -> bytes:
        """Return a PNG whose palette numbers are classes, and `IGNORED` at borders."""
        return self._palettes[index]


def _outline(draw: random.Random, width: int, height: int) -> list[tuple[float, float]]:
    """Return a polygon around a random place; few objects are large, as in COCO."""
    radius = min(width, height) * 0.5 * draw.uniform(0.18, 0.95) ** 2 + 4
    x, y, aspect = draw.uniform(0, width), draw.uniform(0, height), draw.uniform(0.5, 1.5)
    corners = draw.randint(12, 40)
    outline = []
    for corner in range(corners):
        angle, distance = 2 * math.pi * corner / corners, radius * draw.uniform(0.6, 1.0)
        outline.append((x + math.cos(angle) * distance * aspect, y + math.sin(angle) * distance))
    return [(min(max(x, 0), width - 1), min(max(y, 0), height - 1)) for x, y in outline]


def _drawn(outline: list[tuple[float, float]], width: int, height: int) -> np.ndarray:
    from PIL import Image, ImageDraw

    mask = Image.new("1", (width, height))
    ImageDraw.Draw(mask).polygon(outline, fill=1, outline=1)
    return np.array(mask)


def _enclosing(mask: np.ndarray) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


def _palette(masks: np.ndarray, labels: np.ndarray) -> bytes:
    """Return the masks as one PNG with a palette: the first of overlapping objects is in front."""
    from PIL import Image

    classes = np.zeros(masks.shape[1:], np.uint8)
    for mask, label in zip(masks[::-1], labels[::-1]):
        inside = mask.copy()
        inside[1:-1, 1:-1] &= mask[:-2, 1:-1] & mask[2:, 1:-1] & mask[1:-1, :-2] & mask[1:-1, 2:]
        classes[mask] = IGNORED
        classes[inside] = 1 + label % (SEGMENTS - 1)
    image = Image.fromarray(classes)
    image.putpalette(bytes(level * 37 % 256 for level in range(768)))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
