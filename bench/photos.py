"""A folder of JPEGs of ImageNet's sizes, cut from the real photographs that scikit-image's wheel carries."""

from __future__ import annotations

import os
import random
import shutil
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
DATA = HERE / "data" / "photos"
LIMIT = 1024  # of the user's own files: few enough to stay in the page cache

# Colour photographs only, and only those inside the wheel: the others would be downloaded.
SOURCES = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "rocket.jpg",
)
PER_SOURCE = 92
SIZES = ((500, 375), (500, 375), (500, 375), (375, 500), (500, 333), (333, 500), (500, 400), (640, 480))


def image_files(data: str | None = None) -> list[tuple[str, int]]:
    """List (path, label) of the JPEGs in class folders, shuffled; at most `LIMIT` of them.

    Parameters
    ----------
    data
        A folder with one folder per class. None for our own, which must have been made.
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
    # Shuffled, the same each time, so that any short stretch of them is as hard to decode as any other.
    random.Random(0).shuffle(files)
    return files[:LIMIT]


def ensure() -> None:
    """Make our own folder, unless it is there."""
    if DATA.exists():
        return
    spec = find_spec("skimage")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("scikit-image is not installed: see bench/requirements.txt")
    images = Path(spec.origin).parent / "data"
    unfinished = DATA.with_name(f"{DATA.name}.{os.getpid()}")
    try:
        with ProcessPoolExecutor() as pool:
            for name in SOURCES:
                (unfinished / Path(name).stem).mkdir(parents=True)
            list(pool.map(_cut, *zip(*((images / name, unfinished) for name in SOURCES))))
        unfinished.rename(DATA)  # in one step: an interrupted run leaves nothing half made
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _cut(source: Path, root: Path) -> None:
    """Cut `PER_SOURCE` pictures of various sizes out of one photograph."""
    from PIL import Image, ImageOps

    draw = random.Random(source.name)  # the same files on every machine
    with Image.open(source) as opened:
        photo = opened.convert("RGB")
    for number in range(PER_SOURCE):
        size = draw.choice(SIZES)
        largest = min(photo.width / size[0], photo.height / size[1])
        scale = largest * draw.uniform(0.6, 1.0)
        width, height = size[0] * scale, size[1] * scale
        left, top = draw.uniform(0, photo.width - width), draw.uniform(0, photo.height - height)
        picture = photo.resize(size, Image.Resampling.LANCZOS, box=(left, top, left + width, top + height))
        if draw.random() < 0.5:
            picture = ImageOps.mirror(picture)
        picture.save(root / source.stem / f"{number:03}.jpg", quality=draw.randint(86, 94))
