"""DALI without a GPU: its file reader, its decoder of random crops, its antialiased resize, in its own threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.decoders import SIDE, Decoder, Pick
from bench.workload import Workload


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    from nvidia.dali import fn, pipeline_def

    paths, labels = (list(column) for column in zip(*dataset.files))

    @pipeline_def
    def crops() -> Any:
        data, label = fn.readers.file(files=paths, labels=labels, random_shuffle=True)
        picture = fn.decoders.image_random_crop(
            data, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        return fn.flip(_scaled(picture), horizontal=fn.random.coin_flip()), label

    pipeline = crops(batch_size=workload.batch_size, num_threads=workers, device_id=None)
    pipeline.build()
    while True:
        pictures, label = pipeline.run()
        yield pictures.as_array(), label.as_array()


def decoder() -> Decoder:
    import numpy as np
    from nvidia.dali import fn, pipeline_def

    fed: list[Any] = []

    @pipeline_def
    def crop() -> Any:
        data = fn.external_source(lambda: [fed[0]], batch=True)
        at = fn.external_source(lambda: [fed[1]], batch=True)
        shape = fn.external_source(lambda: [fed[2]], batch=True)
        picture = fn.decoders.image_slice(data, at, shape, axes=(0, 1), normalized_anchor=False, normalized_shape=False)
        return _scaled(picture)

    def decode(data: bytes, pick: Pick) -> Any:
        (top, left, height, width), flip = pick(0, 0)
        fed[:] = np.frombuffer(data, np.uint8), np.array([top, left]), np.array([height, width])
        pipeline = crop(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
        pipeline.build()
        (pictures,) = pipeline.run()
        pixels = pictures.as_array()[0]
        return pixels[:, ::-1] if flip else pixels

    return decode


def _scaled(picture: Any) -> Any:
    from nvidia.dali import fn, types

    return fn.resize(picture, resize_x=SIDE, resize_y=SIDE, interp_type=types.INTERP_LINEAR, antialias=True)
