"""The promise of slipring.images against Pillow, over thousands of random files: ``python -m tests.images.exact``.

Every file is of a random kind, size and quality; every result has a random box, often at a border, and a random size.
"""

import argparse
import random
from collections import Counter

import numpy as np

from slipring import images
from tests.support.pictures import any_jpeg, box_in, by_pillow, error


def off(draw, bicubic, large=False):
    """Compare a random file, box and size; return (largest difference, kind, description)."""
    data, height, width, what = any_jpeg(draw, large)
    box = box_in(draw, height, width)
    size = draw.choice([(224, 224), (draw.randint(1, 300), draw.randint(1, 300)), box[2:]])
    if size[0] * size[1] > 1 << 22:
        size = (224, 224)
    flip = draw.random() < 0.5
    out = np.full((*size, 3), 77, np.uint8)
    images.decode_into(data, out, box, flip, interpolation="bicubic" if bicubic else "bilinear")
    return (
        error(out, by_pillow(data, box, size, flip, bicubic)),
        what["sampling"] + (" progressive" if what["progressive"] else ""),
        (what, (height, width), box, size, flip),
    )


def worst(files, seed, large=0.02):
    """Compare so many files; return the largest error, its file, and the number of files of each kind."""
    draw, most, where, kinds = random.Random(seed), -1, None, Counter()
    for _ in range(files):
        levels, kind, what = off(draw, draw.random() < 0.25, draw.random() < large)
        kinds[kind] += 1
        if levels > most:
            most, where = levels, what
    return most, where, kinds


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.images.exact", description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    most, where, kinds = worst(arguments.files, arguments.seed)
    print(images.backend())
    print("; ".join(f"{kind}: {n}" for kind, n in sorted(kinds.items())))
    print(f"{arguments.files} files, seed {arguments.seed}: at most {most} levels off, by {where}")
    raise SystemExit(most > 1)


if __name__ == "__main__":
    main()
