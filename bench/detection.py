"""How fast do detection batches of Tensor subclasses come? ``python -m bench.detection``.

Purpose
    Batches per second of torch's loader and of slipring's drop-in, with samples like those of torchvision's v2
    transforms: an image, and a dict of boxes, masks and labels, collated as a list.
Data
    3 × 480 × 640 uint8 images with 1 to 10 objects each, 8 per batch; each is a new copy, as from a decoder.
Machine, command, result
    Printed. Each way runs in its own process, and they take turns in each round; ratios are formed within a round.
Bias
    The subclasses stand for torchvision's, which need not be installed: like those they have their own attributes
    and are made by ``as_subclass``. A worker only copies, so the transport counts for more than with
    real decoding. The consumer reads the first element of each tensor.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from typing import Any

import torch

from bench.machine import describe
from bench.record import Table, finish, option, spread

BATCH, WARM, SIZE = 8, 10, (480, 640)
WAYS = ("torch", "slipring", "slipring, plain tensors")


class Image(torch.Tensor):
    """Like tv_tensors.Image."""


class Mask(torch.Tensor):
    """Like tv_tensors.Mask."""


class BoundingBoxes(torch.Tensor):
    """Like tv_tensors.BoundingBoxes."""

    format: str
    canvas_size: tuple[int, int]


class Detection(torch.utils.data.Dataset[Any]):
    """Samples of an image and its targets; ``plain`` ones have no subclass."""

    def __init__(self, plain: bool) -> None:
        chance = random.Random(1)
        self.plain = plain
        self.objects = [chance.randint(1, 10) for _ in range(1 << 12)]
        self.image = torch.full((3, *SIZE), 7, dtype=torch.uint8)
        self.masks = torch.ones((10, *SIZE), dtype=torch.bool)

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        n = self.objects[index]
        image, masks = self.image.clone(), self.masks[:n].clone()
        boxes, labels = torch.rand(n, 4), torch.arange(n)
        if not self.plain:
            image, masks, boxes = image.as_subclass(Image), masks.as_subclass(Mask), self.with_canvas(boxes)
        return image, {"boxes": boxes, "masks": masks, "labels": labels}

    def with_canvas(self, boxes: torch.Tensor) -> BoundingBoxes:
        """Return boxes as a subclass with attributes."""
        made = boxes.as_subclass(BoundingBoxes)
        made.format, made.canvas_size = "XYXY", SIZE
        return made


def as_list(samples: list[Any]) -> tuple[Any, ...]:
    """Collate as torchvision's references for detection do."""
    return tuple(zip(*samples))


def rate(way: str, batches: int, workers: int) -> float:
    """Return the batches per second of one way, in this process."""
    if way == "torch":
        from torch.utils.data import DataLoader
    else:
        from slipring.torch import DataLoader  # type: ignore[assignment]
    dataset = Detection(way.endswith("plain tensors"))
    iterator = iter(DataLoader(dataset, BATCH, num_workers=workers, collate_fn=as_list))
    kind = torch.Tensor if dataset.plain else BoundingBoxes
    for number in range(WARM + batches):
        if number == WARM:
            begin = time.perf_counter()
        images, targets = next(iterator)
        for image, target in zip(images, targets):
            assert type(target["boxes"]) is kind
            for tensor in (image, *target.values()):
                tensor.view(-1)[0].item()
    return batches / (time.perf_counter() - begin)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser("python -m bench.detection")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--batches", type=int, default=200, metavar="N")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    option(parser)
    options = parser.parse_args()
    if options.way:
        print(rate(options.way, options.batches, options.workers))
        return
    about = describe((), "torch")
    command = [sys.executable, "-m", "bench.detection", "--workers", str(options.workers)]
    command += ["--batches", str(options.batches), "--way"]
    rounds = [
        [float(subprocess.run([*command, way], check=True, stdout=subprocess.PIPE).stdout) for way in WAYS]
        for _ in range(options.rounds)
    ]
    table = Table("loader", "batches/s", "÷ torch")
    for column, way in enumerate(WAYS):
        rates, ratios = [row[column] for row in rounds], [row[column] / row[0] for row in rounds]
        table.add(way, spread(rates), spread(ratios) if column else None)
    finish(options.record, about, {"detection": table})


if __name__ == "__main__":
    main()
