"""Fuzz the operations on images, under the address sanitizer: ``make fuzz``.

Lists of operations have sensible numbers or absurd ones. Each list must give an image of the right size, or be refused.
"""

import argparse
import math
import random
import time

import numpy as np

from tests.support.inside import WHOLE, Numbers, Target, _decode, known_operations

CODES = {name: kind.code for name, kind in sorted(known_operations().items())}
LARGEST = 300  # pixels of a side that a test allocates
ABSURD_INTS = [-(1 << 31), (1 << 31) - 1, 1 << 24, -(1 << 24), -1]
ABSURD_FLOATS = [math.nan, math.inf, -math.inf, 1e300, -1e300, 1e-300, 1e19, -1e19, 0.0]


def number(draw):
    kind = draw.randrange(12)
    if kind == 0:
        return draw.choice(ABSURD_INTS)
    return draw.randint(-8, 8) if kind < 6 else draw.randint(0, LARGEST)


def real(draw):
    kind = draw.randrange(12)
    if kind == 0:
        return draw.choice(ABSURD_FLOATS)
    return draw.uniform(-2, 2) if kind < 8 else draw.uniform(-300, 300)


def operation(draw):
    """Return a packed operation; most have numbers that fit."""
    code = draw.choice(list(CODES.values())) if draw.random() < 0.97 else draw.randint(-5, 80)
    n, v = [number(draw) for _ in range(7)], [real(draw) for _ in range(12)]
    if draw.random() < 0.7:
        if code in [CODES[name] for name in ("resize", "affine", "perspective", "elastic")]:
            n[:3] = [draw.randint(0, 2), draw.randint(1, LARGEST), draw.randint(1, LARGEST)]
            if code == CODES["resize"]:
                n[:3] = [*n[1:3], n[0]]
            v[:8] = [draw.uniform(-2, 2), draw.uniform(-1, 1), draw.uniform(-50, 50)] * 2 + [0.001, -0.001]
        elif code == CODES["gaussian_blur"]:
            n[:2], v[:2] = [draw.choice([1, 3, 5, 23]), draw.choice([1, 3, 5, 23])], [draw.uniform(0.1, 5)] * 2
        elif code == CODES["pil_gaussian_blur"]:
            v[:2] = [draw.uniform(0, 9)] * 2
    return Numbers(code, n, v).pack()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = random.randrange(2**32) if arguments.seed is None else arguments.seed
    print(f"fuzzing operations for {arguments.seconds:g} s, --seed {seed}", flush=True)
    draw, done, refused = random.Random(seed), 0, 0
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        size = draw.choice([(1, 1), (1, 7), (9, 1), (draw.randint(1, 60), draw.randint(1, 60))])
        pixels = np.frombuffer(draw.randbytes(size[0] * size[1] * 3), np.uint8).reshape(*size, 3)
        ops = b"".join(operation(draw) for _ in range(draw.randint(1, 5)))
        out = np.empty((*size, 3), np.uint8)
        try:
            _decode.crop_pixels(pixels, Target(out, None, size, (0, 0, *size), ops), WHOLE)
            done += 1
        except (ValueError, MemoryError):
            refused += 1
    print(f"{done} lists of operations done, {refused} refused")
    assert done and refused, "every list was refused, or none: nothing was tested"


if __name__ == "__main__":
    main()
