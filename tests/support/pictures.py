"""Pictures for the tests: smooth ones with sharp edges, noise, and Pillow's results for them."""

import io
import platform
import struct

import numpy as np
from PIL import Image

# The subsampling that Pillow writes, and how the luma's blocks are rearranged.
SAMPLINGS = {
    "4:4:4": ("4:4:4", None),
    "4:2:2": ("4:2:2", None),
    "4:2:0": ("4:2:0", None),
    "4:4:0": ("4:2:2", (1, 2)),
    "4:1:1": ("4:2:0", (4, 1)),
    "4:1:0 upright": ("4:2:0", (1, 4)),
    "grey": (None, None),
}


def pixels(height, width, seed=0, noise=False):
    """Return height × width × 3 levels: waves of all lengths with hard edges; or noise, the worst for rounding."""
    draw = np.random.RandomState(seed)
    if noise:
        return draw.randint(0, 256, (height, width, 3), dtype=np.uint8)
    y, x = np.arange(height)[:, None], np.arange(width)[None, :]

    def waves(a, b):
        """Return sin(a * x + b * y), with far fewer sines."""
        return np.sin(a * x) * np.cos(b * y) + np.cos(a * x) * np.sin(b * y)

    edges = (y // 17 + x // 29) % 5 == 0
    planes = []
    for _ in range(3):
        a, b, c = draw.uniform(0.005, 0.4, 3)
        plane = 127 + 80 * waves(a, b) + 60 * waves(c, -a)
        plane[edges] += 120  # and clipped values
        planes.append(plane)
    return np.clip(np.stack(planes, axis=-1), 0, 255).astype(np.uint8)


def encoded(array, format="JPEG", **options):
    """Return an image file's bytes; an H × W array is grey."""
    file = io.BytesIO()
    Image.fromarray(array).save(file, format, **options)
    return file.getvalue()


def by_pillow(data, box=None, size=None, flip=False, bicubic=False):
    """Return Pillow's result: crop, then resize."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    if box is not None:
        top, left, height, width = box
        image = image.crop((left, top, left + width, top + height))
    if size is not None:
        how = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
        image = image.resize((size[1], size[0]), how)
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)


# Pillow's wheels for arm64 multiply and add in one step where those for x86-64, and slipring everywhere, round twice:
# where a factor is applied, the results may be one level apart.
FUSED = platform.machine() == "aarch64"


def error(ours, theirs):
    """Return the largest difference of two pixel values."""
    return int(np.abs(ours.astype(int) - theirs).max())


def box_in(draw, height, width):
    """Return a random box, often at a border, sometimes the whole image."""
    if draw.random() < 0.15:
        return 0, 0, height, width
    h, w = draw.randint(1, height), draw.randint(1, width)
    return (
        draw.choice([0, height - h, draw.randint(0, height - h)]),
        draw.choice([0, width - w, draw.randint(0, width - w)]),
        h,
        w,
    )


def resampled(data, sampling, exact):
    """Return a JPEG with the same blocks in another arrangement, which Pillow does not write, and its (height, width).

    A unit of 4:2:2 has two blocks of luma side by side; one of 4:4:0 has one above the other. The same holds for the
    four of 4:2:0. So the blocks of a valid file make another valid one with another size and more edges. `exact`: no
    block is cut off; the separate scans of a progressive file need this.
    """
    at = 2
    while data[at + 1] not in (0xC0, 0xC1, 0xC2):
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    height, width = struct.unpack(">HH", data[at + 5 : at + 9])
    h, v = divmod(data[at + 11], 16)
    assert h * v == sampling[0] * sampling[1], "the units must have as many blocks"
    down, across = -(-height // (8 * v)), -(-width // (8 * h))
    height, width = down * 8 * sampling[1], across * 8 * sampling[0]
    if not exact:
        height, width = height - 3 % (8 * sampling[1]), width - 5 % (8 * sampling[0])
    made = bytearray(data)
    made[at + 5 : at + 9] = struct.pack(">HH", height, width)
    made[at + 11] = sampling[0] * 16 + sampling[1]
    return bytes(made), (height, width)


def any_jpeg(draw, large=False):
    """Return a random JPEG of any kind: (bytes, height, width, description)."""
    height, width = draw.choice(
        [(1, 1), (draw.randint(1, 40), draw.randint(1, 40)), (375, 500), (draw.randint(1, 900), draw.randint(1, 900))]
    )
    if large:
        height, width = draw.choice([(3000, 4000), (draw.randint(900, 3000), draw.randint(900, 4000))])
    sampling = draw.choice(list(SAMPLINGS))
    written, blocks = SAMPLINGS[sampling]
    options = {"quality": draw.randint(10, 100), "optimize": draw.random() < 0.3, "progressive": draw.random() < 0.25}
    exact = options["progressive"]
    if blocks is not None and exact:
        height, width = -(-height // 16) * 16, -(-width // 16) * 16
    array = pixels(height, width, draw.randrange(1 << 30), noise=draw.random() < 0.3)
    if sampling == "grey":
        array = array[..., 0]
    else:
        options["subsampling"] = written
    if draw.random() < 0.2:
        options["restart_marker_blocks"] = draw.randint(1, 20)
    try:
        data = encoded(array, **options)
    except OSError:  # Pillow's buffer is too small for some noise: try another image
        return any_jpeg(draw, large)
    if blocks is not None:
        data, (height, width) = resampled(data, blocks, exact)
    return data, height, width, options | {"sampling": sampling}
