"""Decoders alone, on one core: ``python -m bench.decode``.

Purpose
    What does a training crop cost, from the bytes of a JPEG to 224 × 224 × 3 uint8, and how far is it from Pillow's?
Data
    JPEGs (quality 90, 4:2:0) of 500 × 375 and of 1600 × 1200, made of the photographs of workload (a); the same
    boxes of RandomResizedCrop for all, half of them mirrored. Also the files of workload (a) with its centre crop.
Machine, command, result
    Printed: CPU microseconds per image, median (and range) of the rounds; all decoders take turns in each round.
Bias
    The bytes are in memory and warm. One thread: libraries are limited to one.
"""

from __future__ import annotations

import argparse
import io
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.decoders import (
    Box,
    Decoder,
    Pick,
    crop_box,
    with_opencv,
    with_pillow,
    with_simplejpeg,
    with_slipring,
    with_torchvision,
)
from bench.machine import describe
from bench.photos import ensure, image_files
from bench.record import Table, finish, option, rounded, spread
from bench.workloads.photos import KEEP

Job = tuple[bytes, Pick]

WAYS: dict[str, Callable[[], Decoder]] = {
    "Pillow": with_pillow,
    "slipring": with_slipring,
    "slipring, reducing_gap=2": lambda: with_slipring(2.0),
    "simplejpeg + OpenCV INTER_AREA": with_simplejpeg,
    "the same, inexact DCT (FFCV's way)": lambda: with_simplejpeg(fast=True),
    "OpenCV + INTER_AREA": with_opencv,
    "torchvision decode_jpeg + antialias": with_torchvision,
}


def random_crops(height: int, width: int, n: int) -> list[Job]:
    """Return `n` JPEGs of that size with a box of RandomResizedCrop each."""
    from PIL import Image

    draw = random.Random(0)
    made = []
    for path, _ in image_files()[:n]:
        with Image.open(path) as opened:
            picture = opened.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=90, subsampling="4:2:0")
        box, flip = crop_box(draw, height, width), draw.random() < 0.5
        made.append((file.getvalue(), lambda height, width, picked=(box, flip): picked))
    return made


def centre_crops(n: int) -> list[Job]:
    """Return the first `n` files of workload (a), each with the square at its centre."""
    return [(Path(path).read_bytes(), centre) for path, _ in image_files()[:n]]


def centre(height: int, width: int) -> tuple[Box, bool]:
    """Return workload (a)'s crop of an image."""
    side = round(min(height, width) * KEEP)
    return ((height - side) // 2, (width - side) // 2, side, side), False


def measure(title: str, made: list[Job], rounds: int) -> Table:
    """Time every way on the same jobs, in turn."""
    ways: dict[str, Decoder] = {}
    for name, make in WAYS.items():
        try:
            ways[name] = make()
        except ImportError as error:
            print(f"  {name}: left out, {error}")
    exact = [ways["Pillow"](*job).astype(int) for job in made]
    errors = {name: [np.abs(way(*job) - want) for job, want in zip(made, exact)] for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.process_time()
            for job in made:
                way(*job)
            times[name].append((time.process_time() - begin) / len(made) * 1e6)
    base = statistics.median(times["Pillow"])
    print(f"\n{title}: {len(made)} images, {rounds} rounds")
    table = Table("decoder", "µs of CPU", "× Pillow", "mean error", "largest")
    for name in ways:
        middle = statistics.median(times[name])
        mean, largest = float(np.mean([e.mean() for e in errors[name]])), max(int(e.max()) for e in errors[name])
        table.add(name, spread(times[name]), rounded(base / middle), round(mean, 2), largest)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.decode", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=100)
    option(parser)
    arguments = parser.parse_args()
    ensure()
    from slipring import images

    about = describe((), "pillow", "simplejpeg", "opencv-python-headless")
    about["decoder"] = images.backend().jpeg
    n, rounds = arguments.images, arguments.rounds
    jobs = {
        "500 × 375, RandomResizedCrop": random_crops(375, 500, n),
        "the files of workload (a), centre crop": centre_crops(n),
        "1600 × 1200, RandomResizedCrop": random_crops(1200, 1600, max(1, n // 5)),
    }
    finish(arguments.record, about, {title: measure(title, made, rounds) for title, made in jobs.items()})


if __name__ == "__main__":
    main()
