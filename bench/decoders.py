"""Decoders of training crops: workload (f) and ``bench.decode`` compare results, the latter also times.

A function without arguments makes each decoder. It is called with the file's bytes and with `pick`, which gets the
image's height and width and returns a box (top, left, height, width) and whether to mirror it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np

SIDE = 224
Box = tuple[int, int, int, int]
Pick = Callable[[int, int], tuple[Box, bool]]
Decoder = Callable[[bytes, Pick], Any]


def crop_box(draw: Any, height: int, width: int) -> Box:
    """Draw a box as RandomResizedCrop does, from `random` or a `random.Random`."""
    for _ in range(10):
        area = height * width * draw.uniform(0.08, 1)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, height - h), draw.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def with_pillow() -> Decoder:
    """Decode as torchvision's ImageFolder and RandomResizedCrop do."""
    from PIL import Image

    def decode(data: bytes, pick: Pick) -> Any:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        (top, left, height, width), flip = pick(image.height, image.width)
        image = image.crop((left, top, left + width, top + height))
        image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return np.array(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image)

    return decode


def with_slipring(gap: float | None = None) -> Decoder:
    from slipring import images

    out = np.empty((SIDE, SIDE, 3), np.uint8)

    def decode(data: bytes, pick: Pick) -> Any:
        box, flip = pick(*images.size(data))
        images.decode_into(data, out, box, flip, reducing_gap=gap)
        return out

    return decode


def area(pixels: Any, pick: Pick) -> Any:
    """Crop a decoded image and scale it by OpenCV's only antialiasing filter."""
    import cv2

    (top, left, height, width), flip = pick(*pixels.shape[:2])
    crop = pixels[top : top + height, left : left + width]
    out = cv2.resize(crop, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return cv2.flip(out, 1) if flip else out


def with_area() -> Decoder:
    """Decode with Pillow, then scale with `area`."""
    import cv2
    from PIL import Image

    cv2.setNumThreads(1)
    return lambda data, pick: area(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")), pick)


def with_simplejpeg(*, fast: bool = False) -> Decoder:
    """Decode the whole image with libjpeg-turbo, then use OpenCV's area filter; `fast`: FFCV's inexact DCT."""
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)

    def decode(data: bytes, pick: Pick) -> Any:
        return area(simplejpeg.decode_jpeg(data, fastdct=fast, fastupsample=False), pick)

    return decode


def with_opencv() -> Decoder:
    import cv2

    cv2.setNumThreads(1)

    def decode(data: bytes, pick: Pick) -> Any:
        return area(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB), pick)

    return decode


def with_torchvision() -> Decoder:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2 import functional

    torch.set_num_threads(1)

    def decode(data: bytes, pick: Pick) -> Any:
        pixels = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)
        box, flip = pick(*pixels.shape[-2:])
        crop = functional.resized_crop(pixels, *box, [SIDE, SIDE], antialias=True)
        return (crop.flip(-1) if flip else crop).permute(1, 2, 0).numpy()

    return decode


def spdl_frames(source: bytes | str, pick: Pick) -> Any:
    """Decode and scale one file with FFmpeg, with filters for its box."""
    import spdl.io

    packets = spdl.io.demux_image(source)
    (top, left, height, width), flip = pick(packets.height, packets.width)
    steps = [f"crop={width}:{height}:{left}:{top}:exact=1", f"scale={SIDE}:{SIDE}:flags=bilinear"]
    steps += ["hflip"] * flip
    return spdl.io.decode_packets(packets, filter_desc=",".join([*steps, "format=pix_fmts=rgb24"]))


def with_spdl() -> Decoder:
    import spdl.io

    def decode(data: bytes, pick: Pick) -> Any:
        return spdl.io.to_numpy(spdl.io.convert_frames(spdl_frames(data, pick)))

    return decode
