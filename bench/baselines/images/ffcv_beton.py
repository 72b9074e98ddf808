"""FFCV, from its own file with the JPEGs, written when the workload starts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.baselines._torch import endless
from bench.decoders import SIDE, with_simplejpeg
from bench.workload import Workload

decoder = partial(with_simplejpeg, fast=True)  # the same calls of the same libraries


class _Decoded:
    """The input of FFCV's writer: Pillow's images, and numbers."""

    def __init__(self, files: list[tuple[str, int]]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        path, label = self.files[index]
        return Image.open(path).convert("RGB"), label


def batches(workload: Workload, dataset: Any, workers: int, *, write_mode: str = "jpg") -> Iterator[Any]:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor
    from ffcv.writer import DatasetWriter

    with TemporaryDirectory() as folder:
        file = str(Path(folder) / "pictures.beton")
        fields = {"image": RGBImageField(write_mode=write_mode, jpeg_quality=90), "label": IntField()}
        DatasetWriter(file, fields, num_workers=workers).from_indexed_dataset(_Decoded(dataset.files))
        crop = RandomResizedCropRGBImageDecoder((SIDE, SIDE))
        pipelines = {
            "image": [crop, RandomHorizontalFlip(), ToTensor()],
            "label": [IntDecoder(), ToTensor()],
        }
        yield from endless(
            Loader(
                file,
                workload.batch_size,
                workers,
                order=OrderOption.RANDOM,
                pipelines=pipelines,
                drop_last=True,
            )
        )
