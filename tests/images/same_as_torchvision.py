"""slipring.images.functional against torchvision on PIL images: ``python -m tests.images.same_as_torchvision``.

Random images from 1 × 1 to 2,000 × 1,500 pixels, and random arguments. For each operation it prints how many images it
compared, the largest difference in levels, and the mean difference. torchvision must load.
"""

import argparse
import math
import random
from collections import defaultdict

import numpy as np
from PIL import Image

from slipring.images import functional as ours
from tests.support.pictures import pixels
from tests.support.torchvision_classes import torchvision

MODES = ("constant", "edge", "reflect", "symmetric")


def warped(draw, height, width):
    """Return four corners of an image, each moved by at most a third of its size."""
    return [
        [round(x + draw.uniform(-width, width) / 3), round(y + draw.uniform(-height, height) / 3)]
        for x, y in ((0, 0), (width - 1, 0), (width - 1, height - 1), (0, height - 1))
    ]


def case(draw, height, width):
    """Return (kind, name, arguments, keyword arguments) of a random operation."""
    way = draw.choice(("nearest", "bilinear", "bicubic"))
    fill = [draw.randrange(256) for _ in range(3)]
    corners = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    factor = draw.choice((0.0, 1.0, draw.uniform(0, 3)))
    small = min(height, width)
    border = [draw.randrange(0, max(1, small // 2)) for _ in range(4)]
    size = [draw.randint(1, 600), draw.randint(1, 600)]
    taps = 2 * draw.randint(0, min(15, (small - 1) // 2)) + 1
    name, args, kwargs = draw.choice(
        [(f"adjust_{each}", (factor,), {}) for each in ("brightness", "contrast", "saturation", "sharpness")]
        + [("adjust_hue", (draw.uniform(-0.5, 0.5),), {})]
        + [(each, (), {}) for each in ("autocontrast", "equalize", "invert", "horizontal_flip", "vertical_flip")]
        + [
            ("rgb_to_grayscale", (3,), {}),
            ("posterize", (draw.randint(1, 8),), {}),
            ("solarize", (draw.randint(0, 255),), {}),
            ("pad", (border, fill, draw.choice(MODES)), {}),
            ("center_crop", (size,), {}),
            ("gaussian_blur", ([taps, taps], [draw.uniform(0.1, 5)] * 2), {}),
            ("resize", (size,), {"interpolation": way}),
            (
                "affine",
                (draw.uniform(-180, 180), [draw.randint(-50, 50), draw.randint(-50, 50)], draw.uniform(0.3, 3)),
                {"shear": [draw.uniform(-40, 40), draw.uniform(-40, 40)], "interpolation": way, "fill": fill},
            ),
            (
                "rotate",
                (draw.choice((0, 90, 180, draw.uniform(-360, 360))),),
                {"interpolation": way, "expand": draw.random() < 0.5, "fill": fill},
            ),
        ]
        + [("perspective", (corners, warped(draw, height, width)), {"interpolation": way, "fill": fill})] * (small > 7)
    )
    return kwargs.get("interpolation", ""), name, args, kwargs


def compared(count, seed):
    """Return {operation: list of (largest, mean) difference}, and the largest difference with its description."""
    torchvision()  # it imports a wheel without its compiled library, too
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional as theirs

    draw, found, worst = random.Random(seed), defaultdict(list), (-1, None)
    for number in range(count):
        height = round(math.exp(draw.uniform(0, math.log(1500))))
        width = round(math.exp(draw.uniform(0, math.log(2000))))
        image = pixels(height, width, number, noise=draw.random() < 0.5)
        way, name, args, kwargs = case(draw, height, width)
        ours_made = getattr(ours, name)(image, *args, **kwargs)
        if way:
            kwargs = {**kwargs, "interpolation": InterpolationMode(way)}
        made = np.asarray(getattr(theirs, name)(Image.fromarray(image), *args, **kwargs))
        assert made.shape == ours_made.shape, (name, args, kwargs, made.shape, ours_made.shape)
        levels = np.abs(made.astype(np.int16) - ours_made)
        found[f"{name} {way}".strip()].append((int(levels.max()), float(levels.mean())))
        if levels.max() > worst[0]:
            worst = int(levels.max()), (number, height, width, name, args, kwargs)
    return found, worst


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.images.same_as_torchvision", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found, worst = compared(options.count, options.seed)
    print("| operation | images | largest difference | mean difference |\n|---|---:|---:|---:|")
    for name, differences in sorted(found.items()):
        most, mean = max(most for most, _ in differences), np.mean([mean for _, mean in differences])
        print(f"| {name} | {len(differences)} | {most} | {mean:.2g} |")
    print(f"\nThe largest: {worst[0]} levels, {worst[1]}")


if __name__ == "__main__":
    main()
