"""Decoders alone, on one core: ``python -m bench.decode``.

Question
    What does a training crop cost, from the bytes of a JPEG to 224 × 224 × 3 uint8, and how far is it from Pillow's?
Data
    JPEGs (quality 90, 4:2:0) of 500 × 375 and of 1600 × 1200, made of the photographs of question (a); the same
    boxes of RandomResizedCrop for all, half of them mirrored. Question (a)'s centre crop, too.
Machine, command, result
    Printed: CPU microseconds per image, median (and range) of the rounds; all take turns in each round.
Bias
    The bytes are in memory and warm. One thread; what the library starts by itself is held to one.
"""

from __future__ import annotations

import argparse
import io
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.machine import describe
from bench.photos import ensure, image_files

SIDE = 224
Job = tuple[bytes, tuple[int, int, int, int], bool]
Decoder = Callable[[bytes, tuple[int, int, int, int], bool], Any]


def with_pillow() -> Decoder:
    """What torchvision's ImageFolder and RandomResizedCrop do."""
    from PIL import Image

    def decode(data: bytes, box: tuple[int, int, int, int], flip: bool) -> Any:
        top, left, height, width = box
        image = Image.open(io.BytesIO(data)).convert("RGB").crop((left, top, left + width, top + height))
        image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return np.array(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image)

    return decode


def with_slipring(gap: float | None = None) -> Decoder:
    from slipring import images

    out = np.empty((SIDE, SIDE, 3), np.uint8)

    def decode(data: bytes, box: tuple[int, int, int, int], flip: bool) -> Any:
        images.decode_into(data, out, box, flip, reducing_gap=gap)
        return out

    return decode


def with_simplejpeg() -> Decoder:
    """The whole picture by libjpeg-turbo, the fast inexact DCT, then OpenCV's area filter: FFCV's way."""
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)

    def decode(data: bytes, box: tuple[int, int, int, int], flip: bool) -> Any:
        top, left, height, width = box
        pixels = simplejpeg.decode_jpeg(data, fastdct=True, fastupsample=False)
        crop = pixels[top : top + height, left : left + width]
        out = cv2.resize(crop, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        return cv2.flip(out, 1) if flip else out

    return decode


def with_torchvision() -> Decoder:
    import torch
    from torchvision.io import decode_jpeg
    from torchvision.transforms.v2 import functional

    torch.set_num_threads(1)

    def decode(data: bytes, box: tuple[int, int, int, int], flip: bool) -> Any:
        pixels = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        crop = functional.resized_crop(pixels, *box, [SIDE, SIDE], antialias=True)
        return (crop.flip(-1) if flip else crop).permute(1, 2, 0).numpy()

    return decode


WAYS: dict[str, Callable[[], Decoder]] = {
    "Pillow": with_pillow,
    "slipring": with_slipring,
    "slipring, reducing_gap=2": lambda: with_slipring(2.0),
    "simplejpeg + OpenCV INTER_AREA": with_simplejpeg,
    "torchvision decode_jpeg + antialias": with_torchvision,
}


def crop_box(draw: random.Random, height: int, width: int) -> tuple[int, int, int, int]:
    """Draw a box as RandomResizedCrop does."""
    while True:
        area = height * width * draw.uniform(0.08, 1)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, height - h), draw.randint(0, width - w), h, w


def jobs(height: int, width: int, n: int, centre: bool = False) -> list[Job]:
    """Return `n` JPEGs of that size with a box each."""
    from PIL import Image

    draw = random.Random(0)
    made = []
    for path, _ in image_files()[:n]:
        with Image.open(path) as opened:
            picture = opened.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=90, subsampling="4:2:0")
        side = int(0.875 * min(height, width))
        box = (
            ((height - side) // 2, (width - side) // 2, side, side)
            if centre
            else crop_box(draw, height, width)
        )
        made.append((file.getvalue(), box, not centre and draw.random() < 0.5))
    return made


def measure(title: str, made: list[Job], rounds: int) -> None:
    """Time every way on the same jobs, in turn, and print the table."""
    ways: dict[str, Decoder] = {}
    for name, make in WAYS.items():
        try:
            ways[name] = make()
        except ImportError as error:
            print(f"  {name}: left out, {error}")
    exact = [ways["Pillow"](*job).astype(int) for job in made]
    errors = {
        name: [np.abs(way(*job) - want) for job, want in zip(made, exact)] for name, way in ways.items()
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.process_time()
            for job in made:
                way(*job)
            times[name].append((time.process_time() - begin) / len(made) * 1e6)
    base = statistics.median(times["Pillow"])
    print(f"\n{title}: {len(made)} images, {rounds} rounds")
    print(f"  {'':38} {'µs of CPU':>22} {'× Pillow':>9} {'mean error':>11} {'largest':>8}")
    for name in ways:
        middle = statistics.median(times[name])
        spread = f"{middle:,.0f} ({min(times[name]):,.0f} - {max(times[name]):,.0f})"
        mean, largest = np.mean([e.mean() for e in errors[name]]), max(int(e.max()) for e in errors[name])
        print(f"  {name:38} {spread:>22} {base / middle:9.2f} {mean:11.2f} {largest:8}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.decode", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=100)
    arguments = parser.parse_args()
    ensure()
    from slipring import images

    for key, value in describe(module="bench.decode").items():
        print(f"{key}: {value}")
    print(images.backend())
    n, rounds = arguments.images, arguments.rounds
    measure("500 × 375, RandomResizedCrop", jobs(375, 500, n), rounds)
    measure("500 × 375, centre crop", jobs(375, 500, n, centre=True), rounds)
    measure("1600 × 1200, RandomResizedCrop", jobs(1200, 1600, max(1, n // 5)), rounds)


if __name__ == "__main__":
    main()
