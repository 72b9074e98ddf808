"""An emulation of FFCV: threads of one process decode whole images with the inexact DCT, scale the crop with
OpenCV's area filter, and write to reused batches. FFCV also packs the files into its own file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from bench.baselines.images.torch_pillow import pick
from bench.decoders import SIDE, Decoder, with_simplejpeg
from bench.workload import Workload

AHEAD = 2  # batches in progress while the consumer reads one

decoder = partial(with_simplejpeg, fast=True)


def batches(workload: Workload, dataset: Any, workers: int) -> Iterator[Any]:
    decode: Decoder = decoder()
    size = workload.batch_size
    sources = cycle(random.sample(dataset.sources, len(dataset.sources)))
    slots = [np.empty((size, SIDE, SIDE, 3), np.uint8) for _ in range(AHEAD + 1)]

    def fill(row: Any, path: str) -> None:
        row[:] = decode(Path(path).read_bytes(), pick)

    with ThreadPoolExecutor(workers) as pool:

        def begin(slot: Any) -> Any:
            paths, labels = zip(*islice(sources, size))
            return pool.map(fill, slot, paths), slot, np.array(labels)

        under_way = [begin(slot) for slot in slots[:AHEAD]]
        try:
            for slot in cycle(slots[AHEAD:] + slots[:AHEAD]):
                done, pictures, labels = under_way.pop(0)
                for _ in done:
                    pass
                under_way.append(begin(slot))
                yield pictures, labels
        finally:
            pool.shutdown(cancel_futures=True)
