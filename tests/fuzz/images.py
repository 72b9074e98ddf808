"""Fuzz the decoding of images: ``python -m tests.fuzz.images``; `make fuzz` does so under the address sanitizer.

A broken JPEG must give pixels or `ImageError`, never a crash, a read beyond the bytes or another exception. The
bytes end at a page without read permission. A second thread changes bytes during decoding: a header that is
read twice may be another one the second time.
"""

import argparse
import ctypes
import mmap
import random
import sys
import threading
import time
from pathlib import Path

import numpy as np

from slipring import images
from slipring.errors import ImageError
from tests.support.inside import Draws, ImageReading, Placement, Recipe, Target, write
from tests.support.pictures import any_jpeg

LAST = Path("build/fuzz/last.jpg")
ROOM = 1 << 22
MARKERS = [0xC0, 0xC1, 0xC2, 0xC4, 0xC9, 0xD0, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xE0, 0xE1, 0xEE, 0xFE]


class Edge:
    """Memory that ends at an unreadable page."""

    def __init__(self):
        self.memory = mmap.mmap(-1, ROOM + mmap.PAGESIZE)
        self.bytes = np.frombuffer(self.memory, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        guard = ctypes.c_void_p(self.bytes.ctypes.data + ROOM)
        if libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def put(self, data):
        """Return a copy of the bytes at the end of the memory."""
        image = self.bytes[ROOM - len(data) : ROOM]
        image[:] = np.frombuffer(data, np.uint8)
        return image


def mutated(draw, data):
    """Return the bytes with a few faults, most of them where the headers are."""
    data = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 4, 16])):
        at = draw.randrange(min(len(data), draw.choice([32, 400, 700, len(data)])))
        kind = draw.randrange(8)
        if kind == 0:
            data[at] = draw.randrange(256)
        elif kind == 1:
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 2:
            data[at : at + 2] = bytes([0xFF, draw.choice(MARKERS)])
        elif kind == 3:
            data[at : at + 2] = draw.choice([0, 1, 2, 8, 255, 256, 4096, 65500, 65535]).to_bytes(2, "big")
        elif kind == 4:
            del data[at : at + draw.randint(1, 64)]
        elif kind == 5:
            data[at:at] = data[at : at + draw.randint(1, 200)]
        elif kind == 6:
            del data[draw.randrange(len(data)) :]
        else:
            data[at:at] = draw.randbytes(draw.randint(1, 8))
        if not data:
            data = bytearray(b"\xff")
    return bytes(data[:ROOM])


class Fuzzer:
    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.valid = [any_jpeg(self.draw)[0] for _ in range(60)]
        self.edge = Edge()
        self.read = self.refused = 0
        LAST.parent.mkdir(parents=True, exist_ok=True)

    def reading(self):
        draw = self.draw
        return ImageReading(
            draw.choice(["bilinear", "bicubic", "nearest"]),
            draw.choice([None, 1.0, 2.0]),
            draw.random() < 0.5,
            draw.choice(["raise", "fill"]),
            draw.choice([1 << 18, 1 << 20]),
        )

    def one(self, data):
        """Decode the bytes with random arguments."""
        draw = self.draw
        LAST.write_bytes(data)
        out = np.empty((draw.randint(1, 60), draw.randint(1, 60), 3), np.uint8)
        image = self.edge.put(data)
        try:
            height, width = images.size(image)
            if height * width > 1 << 20:
                raise ImageError("too large for this test")
            recipe = Recipe(max(1, height + draw.choice([0, 0, -1, 1])), max(1, width + draw.choice([0, 0, -1, 1])))
            recipe.crop(0, 0, draw.randint(1, recipe.height), draw.randint(1, recipe.width))
            images.RandomResizedCrop(out.shape[:2]).apply(recipe, Draws(draw.getrandbits(64)))
            spec = recipe.crop_spec
            reading = self.reading()
            write(image, Placement(spec.box, spec.to, spec.window[:2], spec.flip, reading.filter), Target(out), reading)
            self.read += 1
        except ImageError:
            self.refused += 1

    def changing(self, seconds):
        """Decode bytes that another thread changes at the same time."""
        stop = threading.Event()
        draw = random.Random(self.draw.random())
        image = self.edge.put(self.valid[0])
        original = image.copy()

        def change():
            while not stop.is_set():
                at = draw.randrange(min(700, len(image)))
                image[at] = draw.randrange(256)
                image[at] = original[at]

        thread = threading.Thread(target=change)
        thread.start()
        end, rounds = time.monotonic() + seconds, 0
        out = np.empty((40, 50, 3), np.uint8)
        try:
            while time.monotonic() < end:
                rounds += 1
                try:
                    images.decode_into(image, out, exif=rounds % 2 == 0, max_pixels=1 << 20, truncated="fill")
                    self.read += 1
                except ImageError:
                    self.refused += 1
        finally:
            stop.set()
            thread.join()
        return rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--replay", type=Path, help="decode one saved file in many ways")
    arguments = parser.parse_args()
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    fuzzer = Fuzzer(seed)
    if arguments.replay:
        for _ in range(200):
            fuzzer.one(arguments.replay.read_bytes())
        print("this file is handled")
        return
    print(f"fuzzing images for {arguments.seconds:g} s, --seed {seed}; a crash leaves {LAST}; {images.backend()}")
    sys.stdout.flush()
    end, cases = time.monotonic() + arguments.seconds * 0.8, 0
    while time.monotonic() < end:
        fuzzer.one(mutated(fuzzer.draw, fuzzer.draw.choice(fuzzer.valid)))
        cases += 1
    rounds = fuzzer.changing(arguments.seconds * 0.2)
    print(f"{cases} files and {rounds} that changed meanwhile: {fuzzer.refused} refused, {fuzzer.read} read")
    assert fuzzer.read and fuzzer.refused, "every file was refused, or none: nothing was tested"


if __name__ == "__main__":
    main()
