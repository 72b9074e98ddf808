"""Folders of JPEGs, of ImageNet's sizes and of 1600 × 1200, cut from the photographs in scikit-image's wheel."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import tarfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

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
PER_SOURCE = {DATA: 92, LARGE: 12}
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
    if root.exists():
        return
    spec = find_spec("skimage")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("scikit-image is not installed: see bench/requirements.txt")
    images = Path(spec.origin).parent / "data"
    unfinished = root.with_name(f"{root.name}.{os.getpid()}")
    cut = _cut if root == DATA else _cut_large
    try:
        with ProcessPoolExecutor() as pool:
            for name in SOURCES:
                (unfinished / Path(name).stem).mkdir(parents=True)
            list(pool.map(cut, *zip(*((images / name, unfinished) for name in SOURCES))))
        unfinished.rename(root)  # atomically: an interrupted run leaves no unfinished folder
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _cut(source: Path, root: Path) -> None:
    """Cut images of various sizes out of one photograph."""
    from PIL import Image, ImageOps

    draw = random.Random(source.name)  # the same files on every machine
    with Image.open(source) as opened:
        photo = opened.convert("RGB")
    for number in range(PER_SOURCE[DATA]):
        size = draw.choice(SIZES)
        picture = photo.resize(size, Image.Resampling.LANCZOS, box=random_box(draw, photo.size, size))
        if draw.random() < 0.5:
            picture = ImageOps.mirror(picture)
        picture.save(root / source.stem / f"{number:03}.jpg", quality=draw.randint(86, 94))


def _cut_large(source: Path, root: Path) -> None:
    """Cut images of 1600 x 1200 out of one photograph, with some noise: enlarged ones are too smooth to decode."""
    import numpy as np
    from PIL import Image

    draw, noise = random.Random(source.name), np.random.default_rng(0)
    with Image.open(source) as opened:
        photo = opened.convert("RGB")
    for number in range(PER_SOURCE[LARGE]):
        size = 1600, 1200
        picture = photo.resize(size, Image.Resampling.LANCZOS, box=random_box(draw, photo.size, size))
        levels = np.asarray(picture) + noise.normal(0, 2, (1200, 1600, 1))
        picture = Image.fromarray(levels.clip(0, 255).astype(np.uint8))
        picture.save(root / source.stem / f"{number:03}.jpg", quality=90)


def random_box(draw: random.Random, of: tuple[int, int], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return a random box of a shape."""
    scale = min(of[0] / size[0], of[1] / size[1]) * draw.uniform(0.6, 1.0)
    width, height = size[0] * scale, size[1] * scale
    left, top = draw.uniform(0, of[0] - width), draw.uniform(0, of[1] - height)
    return left, top, left + width, top + height


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
