"""(g) The second epoch, by budget: how fast are training crops of cached images?

Data
    The JPEGs of (f) of ImageNet's sizes, or the user's (``--data``), as many as take a gibibyte when they are
    decoded. RandomResizedCrop and a random flip to 224 x 224 uint8, batches of 256, in random order, epoch after
    epoch. Four epochs pass before the clock starts.
Machine, command, result
    In the file that ``python -m bench g`` writes to ``bench/results/``.
Bias
    A few hundred images: soon every process maps the whole cache, and more of it fits into the CPU's caches
    than with a real dataset. For baselines that decode, the files stay in the page cache: no process waits for a disk.
    The budgets are shares of these pictures' size. FFCV's raw mode is emulated: its file by numpy, its filter by
    OpenCV, in torch's loader. Baselines without lookups have no hits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.baselines.kept import KEPT
from bench.decoded import decoded, decoded_bytes
from bench.photos import ensure, image_files
from bench.workload import Roles, Target, Workload

MOST = 1 << 30  # bytes of decoded images: the memory must hold them several times
ENTRY = 512  # maximum bytes of a cache's entry in addition to its pixels
EPOCH = 1 << 18  # samples of a baseline's epoch: large, so that its ends do not show


class Epochs:
    """A sampler: endless epochs of `n` samples, each in its own order."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return EPOCH // self.n * self.n

    def __iter__(self) -> Iterator[int]:
        for _ in range(EPOCH // self.n):
            yield from random.sample(range(self.n), self.n)


class Pictures:
    """Class folders of JPEGs.

    Attributes
    ----------
    files
        (path, label) of each.
    order
        A loader's sampler.
    decoded_bytes
        The cache size for the pixels of all images. The largest one counts twice, because the cache accepts no
        entry when another one like the last does not fit.
    """

    def __init__(self, files: list[tuple[str, int]]) -> None:
        sizes, total = decoded_bytes(files), 0
        self.files = []
        for file, size in zip(files, sizes):
            if total + size > MOST:
                break
            self.files.append(file)
            total += size
        self.distinct = len(self.files)
        self.decoded_bytes = total + ENTRY * self.distinct + max(sizes)
        self.order = Epochs(self.distinct)


def dataset(data: str | None) -> Pictures:
    return Pictures(image_files(data))


def prepare(data: str | None) -> None:
    if data is None:
        ensure()
    decoded(dataset(data).files)


WORKLOAD = Workload(
    key="g",
    title="the second epoch, by budget: random crops of JPEG photographs",
    purpose="What do training crops cost once pictures are kept?",
    batch_size=256,
    quick_batch_size=64,
    dataset=dataset,
    prepare=prepare,
    targets=(Target("plain", 4), Target("mapped", 3), Target("half", 1.5)),
    baselines=tuple(KEPT),
    quick_baselines=("kept_none", "kept_50", "kept_all", "kept_memmap"),
    roles=Roles(
        ours="kept_all",
        torch=(),
        spdl=(),
        roofline=(),
        plain="kept_none",
        half="kept_50",
        mapped="kept_memmap",
    ),
    crops=True,
    epochs=4,
)
