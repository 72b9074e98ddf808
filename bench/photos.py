"""Folders of JPEGs, of ImageNet's sizes and of 1600 × 1200, cut from the photographs in scikit-image's wheel."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

    Cut = Callable[[random.Random, Image.Image], tuple[Image.Image, int]]

HERE = Path(__file__).parent
DATA = HERE / "data" / "photos"
LARGE = HERE / "data" / "large"
SHARDS = HERE / "data" / "shards"
LIMIT = 1024  # for the user's own files: few enough to stay in the page cache

# Only colour photographs, and only those in the wheel: others would be downloaded.
SOURCES = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "rocket.jpg",
)
SIZES = ((500, 375), (500, 375), (500, 375), (375, 500), (500, 333), (333, 500), (500, 400), (640, 480))


def image_files(data: str | None = None) -> list[tuple[str, int]]:
    """List (path, label) of the JPEGs in class folders, shuffled; at most `LIMIT` of them.

    Parameters
    ----------
    data
        A folder with one folder per class. None: our own folder, which must exist.
    """
    root = Path(data) if data else DATA
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    files = [
        (str(path), label)
        for label, name in enumerate(classes)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in (".jpg", ".jpeg")
    ]
    if not files:
        raise FileNotFoundError(f"no .jpg or .jpeg in the class folders of {root}")
    # Shuffled, always in the same order, so that all short ranges are equally hard to decode.
    random.Random(0).shuffle(files)
    return files[:LIMIT]


def ensure(root: Path = DATA) -> None:
    """Make our own folder, `DATA` or `LARGE`, unless it exists."""
    make_photos(root, 92, _cut) if root == DATA else make_photos(root, 12, _cut_large)


def make_photos(root: Path, per_source: int, cut: Cut) -> None:
    """Make a folder of JPEGs, unless it exists, with a folder for each photograph of scikit-image's wheel.

    Parameters
    ----------
    root
        The folder.
    per_source
        JPEGs per photograph.
    cut
        Returns an image that it cuts out of a photograph, and the quality of its JPEG. A function of a module, because
        other processes call it.
    """
    if root.exists():
        return
    spec = find_spec("skimage")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("scikit-image is not installed: see bench/requirements.txt")
    sources = [Path(spec.origin).parent / "data" / name for name in SOURCES]
    unfinished = root.with_name(f"{root.name}.{os.getpid()}")
    try:
        for source in sources:
            (unfinished / source.stem).mkdir(parents=True)
        with ProcessPoolExecutor() as pool:
            list(pool.map(partial(_cut_all, folder=unfinished, count=per_source, cut=cut), sources))
        unfinished.rename(root)  # atomically: an interrupted run leaves no unfinished folder
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _cut_all(source: Path, folder: Path, count: int, cut: Cut) -> None:
    """Cut all images out of one photograph."""
    from PIL import Image

    draw = random.Random(source.name)  # the same files on every machine
    with Image.open(source) as opened:
        photo = opened.convert("RGB")
    for number in range(count):
        image, quality = cut(draw, photo)
        image.save(folder / source.stem / f"{number:03}.jpg", quality=quality)


def _cut(draw: random.Random, photo: Image.Image) -> tuple[Image.Image, int]:
    """Cut an image of one of ImageNet's sizes."""
    from PIL import ImageOps

    image = resized_part(draw, photo, draw.choice(SIZES))
    if draw.random() < 0.5:
        image = ImageOps.mirror(image)
    return image, draw.randint(86, 94)


def _cut_large(draw: random.Random, photo: Image.Image) -> tuple[Image.Image, int]:
    """Cut an image of 1600 x 1200, with some noise: enlarged ones are too smooth to decode."""
    import numpy as np
    from PIL import Image

    image = resized_part(draw, photo, (1600, 1200))
    noise = np.random.default_rng(0).normal(0, 2, (1200, 1600, 1))
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8)), 90


def resized_part(draw: random.Random, photo: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return a random part of a photograph, resized to (width, height)."""
    from PIL.Image import Resampling

    scale = min(photo.width / size[0], photo.height / size[1]) * draw.uniform(0.6, 1.0)
    width, height = size[0] * scale, size[1] * scale
    left, top = draw.uniform(0, photo.width - width), draw.uniform(0, photo.height - height)
    return photo.resize(size, Resampling.LANCZOS, box=(left, top, left + width, top + height))


def told_by(files: Sequence[tuple[str, int]]) -> str:
    """Return a digest of these (path, label), which also changes if the files change."""
    told = hashlib.sha256(str([(path, label, os.path.getmtime(path)) for path, label in files]).encode())
    return told.hexdigest()[:16]


def shard(files: Sequence[tuple[str, int]], at_least: int = 2048) -> Path:
    """Return a tar file of (path, label) in webdataset's layout, repeated up to so many samples."""
    shard = SHARDS / f"{told_by(files)}.tar"
    if shard.exists():
        return shard
    SHARDS.mkdir(parents=True, exist_ok=True)
    unfinished = shard.with_suffix(f".{os.getpid()}")
    try:
        with tarfile.open(unfinished, "w") as tar:
            for number in range(max(1, at_least // len(files)) * len(files)):
                path, label = files[number % len(files)]
                for ending, data in ("jpg", Path(path).read_bytes()), ("cls", str(label).encode()):
                    member = tarfile.TarInfo(f"{number:06}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        unfinished.rename(shard)
    finally:
        unfinished.unlink(missing_ok=True)
    return shard
