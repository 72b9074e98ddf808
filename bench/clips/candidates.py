"""The loaders of the benchmark: each function returns a loader of batches for an `Order`."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import torch

from bench.clips.videos import FPS, Order, Workload

SIDE = 224


class Decoded(torch.utils.data.Dataset[Any]):
    """A map dataset that seeks and decodes for each sample, with the decoders of all files kept in each worker."""

    def __init__(self, folder: str, workload: Workload) -> None:
        self.paths, self.workload = workload.paths(folder), workload
        self.opened: dict[str, Any] = {}

    def __getitem__(self, index: tuple[int, int]) -> torch.Tensor:
        first, start = index
        work = self.workload
        numbers = [start + work.stride * n for n in range(work.clip)]
        parts = [self.frames(self.paths[first + n], numbers) for n in range(work.together)]
        return torch.stack(parts) if work.together > 1 else crop(parts[0])

    def frames(self, path: str, numbers: list[int]) -> torch.Tensor:
        """Return frames of a file: frames × height × width × 3."""
        raise NotImplementedError


class ByPyAV(Decoded):
    """PyAV: seek to the key frame, decode up to the last frame."""

    def frames(self, path: str, numbers: list[int]) -> torch.Tensor:
        if path not in self.opened:
            container = av.open(path)
            container.streams.video[0].codec_context.thread_count = 1
            self.opened[path] = container
        container = self.opened[path]
        stream = container.streams.video[0]
        container.seek(round(numbers[0] / FPS / stream.time_base), stream=stream)
        found: list[torch.Tensor] = []
        for frame in container.decode(stream):
            if round(frame.time * FPS) == numbers[len(found)]:
                found.append(torch.from_numpy(frame.to_ndarray(format="rgb24")))
                if len(found) == len(numbers):
                    break
        return torch.stack(found)


class ByTorchcodec(Decoded):
    """torchcodec's VideoDecoder."""

    def frames(self, path: str, numbers: list[int]) -> torch.Tensor:
        from torchcodec.decoders import VideoDecoder

        if path not in self.opened:
            self.opened[path] = VideoDecoder(
                path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="approximate"
            )
        return self.opened[path].get_frames_at(indices=numbers).data


def crop(frames: torch.Tensor) -> torch.Tensor:
    """Return a random crop of a clip, flipped at random: frames × 3 × SIDE × SIDE; as torchvision's transforms do."""
    _, height, width, _ = frames.shape
    side = int((height * width * random.uniform(0.08, 1)) ** 0.5)
    high, wide = min(side, height), min(side, width)
    top, left = random.randint(0, height - high), random.randint(0, width - wide)
    part = frames[:, top : top + high, left : left + wide].permute(0, 3, 1, 2)
    part = torch.nn.functional.interpolate(part, (SIDE, SIDE), mode="bilinear", antialias=True)
    return part.flip(-1) if random.random() < 0.5 else part


def _torchs(kind: type[Decoded]) -> Callable[..., Any]:
    def made(folder: str, order: Order, workers: int, in_flight: int) -> Any:
        return torch.utils.data.DataLoader(
            kind(folder, order.workload),
            batch_sampler=order,
            num_workers=workers,
            prefetch_factor=in_flight,
            persistent_workers=True,
        )

    return made


class _Clips:
    """An `Order` as indices of `clips.Videos`, whose clips of one video start at each frame."""

    def __init__(self, order: Order) -> None:
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Any:
        work = self.order.workload
        for samples in self.order:
            yield [(first + n) * work.starts + start for first, start in samples for n in range(work.together)]


def _slipring(cached: bool) -> Callable[..., Any]:
    def made(folder: str, order: Order, workers: int, in_flight: int) -> Any:
        from slipring import clips, images
        from slipring.torch import DataLoader

        work = order.workload
        windows = clips.RegularClips(work.clip, work.stride, work.starts)
        steps = [images.RandomResizedCrop(SIDE), images.RandomHorizontalFlip()] if work.together == 1 else None
        layout: Any = "NCHW" if steps else "NHWC"
        data = clips.Videos(work.paths(folder), windows, steps, layout=layout, cache="4GiB" if cached else None)
        return DataLoader(
            data,
            batch_sampler=_Clips(order),
            num_workers=workers,
            prefetch_factor=in_flight,
            persistent_workers=True,
        )

    return made


CACHED, DIRECT = "slipring.clips, cache", "slipring.clips"
OURS = CACHED, DIRECT
BASELINES = "torch, PyAV", "torch, torchcodec"
CANDIDATES: dict[str, Callable[..., Any]] = {
    CACHED: _slipring(True),
    DIRECT: _slipring(False),
    BASELINES[0]: _torchs(ByPyAV),
    BASELINES[1]: _torchs(ByTorchcodec),
}


def link_ffmpeg(folder: str) -> None:
    """Link the libraries of PyAV's wheel by the names under which torchcodec loads FFmpeg."""
    for path in (Path(av.__file__).parents[1] / "av.libs").glob("lib*-*.so.*"):
        name, _, version = path.name.partition(".so.")
        Path(folder, f"{name.rpartition('-')[0]}.so.{version.partition('.')[0]}").symlink_to(path)
