"""(f) Images end to end: how fast are training crops from a folder of JPEGs?

Data
    The user's class folders (``--data``), or a folder of JPEGs of ImageNet's sizes (that of (a)) and one of
    1600 x 1200, both cut from real photographs. RandomResizedCrop and a random flip to 224 x 224 uint8, batches of
    256 (64 for the large ones, which take as long), in random order, each with its class number.
Machine, command, result
    In the file that ``python -m bench f`` writes to ``bench/results/``.
Bias
    Unlike in (a) to (e), each baseline decodes and loads in the way that its own documentation recommends. So the
    work is the same, but the pixels are not: the column "error" is the difference of its decoder from Pillow's crop
    and resize, for the same files and boxes. The files stay in the page cache. Baselines that read tar files get one.
"""

from __future__ import annotations

from pathlib import Path

from bench.baselines.images import IMAGES
from bench.photos import DATA, LARGE, ensure, image_files, shard
from bench.workload import Dataset, Roles, Target, Workload

EPOCH = 1 << 16


class Pictures(Dataset):
    """Class folders of JPEGs: an epoch repeats them many times.

    Attributes
    ----------
    files
        (path, label) of each file, once.
    shard
        The same files as a tar file.
    """

    def __init__(self, files: list[tuple[str, int]]) -> None:
        self.files = files
        self.distinct = len(files)
        self.sources = files * max(1, EPOCH // len(files))

    @property
    def shard(self) -> Path:
        return shard(self.files)


def _folder(key: str, title: str, own: Path, batch_size: int, quick: int) -> Workload:
    def root(data: str | None) -> str:
        return data if data and own == DATA else str(own)

    def prepare(data: str | None) -> None:
        if root(data) == str(own):
            ensure(own)
        shard(image_files(root(data)))

    return Workload(
        key=key,
        title=title,
        purpose="How fast do training crops come out of a folder?",
        batch_size=batch_size,
        quick_batch_size=quick,
        dataset=lambda data: Pictures(image_files(root(data))),
        prepare=prepare,
        targets=(
            Target("torch", 2.2),
            Target("exact", 1.4),
            Target("roofline", 0.95),
            Target("threads", 0.9),
        ),
        window_scale=4.0,
        baselines=tuple(IMAGES),
        roles=Roles(
            ours="images",
            torch=("images_torch",),
            spdl=("images_spdl",),
            roofline=("images_alone",),
            threads="images_threads",
        ),
        crops=True,
    )


WORKLOADS = (
    _folder("f", "images end to end: random crops of JPEG photographs", DATA, 256, 64),
    _folder("f-large", "images end to end: random crops of 1600 × 1200", LARGE, 64, 16),
)
