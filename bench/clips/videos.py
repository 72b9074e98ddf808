"""The videos of the benchmark, made by PyAV's encoders, and the samples that each workload takes from them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import av
import numpy as np

FPS = 30


@dataclasses.dataclass(frozen=True)
class Workload:
    """Videos, and the frames of each sample.

    Parameters
    ----------
    codec, options
        The encoder and its options.
    size
        Width and height of the frames.
    frames
        Of each video.
    videos
        Number of videos. Those of one sample have consecutive numbers.
    together
        Videos that a sample has frames of.
    clip, stride
        Frames that a sample has of each of its videos, and their distance.
    batch
        Samples in a batch.
    """

    codec: str
    options: dict[str, str]
    size: tuple[int, int]
    frames: int
    videos: int
    together: int
    clip: int
    stride: int
    batch: int

    def quick(self) -> Workload:
        """Return a smaller one of the same kind."""
        return dataclasses.replace(self, frames=self.frames // 2, videos=max(self.together, self.videos // 4))

    def paths(self, folder: str) -> list[str]:
        """Return the paths of the videos."""
        return [f"{folder}/{number}.mp4" for number in range(self.videos)]

    @property
    def starts(self) -> int:
        """The number of frames of a video at which a clip can start."""
        return self.frames - self.stride * (self.clip - 1)

    def write(self, folder: str) -> None:
        """Write the videos."""
        for number, path in enumerate(self.paths(folder)):
            with av.open(path, "w") as container:
                stream = container.add_stream(self.codec, rate=FPS, options=dict(self.options))
                stream.width, stream.height = self.size
                stream.pix_fmt = "yuv420p"
                stream.codec_context.time_base = Fraction(1, FPS)
                for at, picture in enumerate(scene(*self.size, self.frames, number)):
                    frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                    frame.pts = at
                    container.mux(stream.encode(frame))
                container.mux(stream.encode())


def scene(width: int, height: int, frames: int, seed: int) -> Iterator[Any]:
    """Yield the frames of a camera that pans over a smooth scene with grain, in which an object moves."""
    draw = np.random.default_rng(seed)
    coarse = av.VideoFrame.from_ndarray(draw.integers(0, 256, (24, 32, 3), np.uint8), format="rgb24")
    wide = coarse.reformat(width + 2 * frames, height + frames, interpolation="BICUBIC").to_ndarray()
    wide = np.clip(wide + draw.normal(0, 4, wide.shape), 0, 255).astype(np.uint8)
    for at in range(frames):
        picture = wide[at : at + height, 2 * at : 2 * at + width].copy()
        left = (at * 5) % (width - 40)
        picture[height // 3 : height // 3 + 40, left : left + 40] = (255, 64, 32)
        yield picture


WORKLOADS = {
    # As a recorder of robot data writes them: a key frame every second frame.
    "windows": Workload(
        "libsvtav1", {"crf": "30", "preset": "10", "svtav1-params": "keyint=2"}, (640, 480), 200, 8, 4, 2, 3, 8
    ),
    # As videos on the web are: groups of up to 250 frames with B-frames.
    "random clips": Workload("libx264", {"crf": "23"}, (340, 256), 300, 16, 1, 16, 4, 4),
}


class Order:
    """A sampler of batches: (first video, first frame) of each sample; each epoch has another order.

    Of "windows" each frame begins a sample; otherwise `per_video` samples of each video begin at random frames.
    """

    def __init__(self, workload: Workload, per_video: int | None = None) -> None:
        self.workload, self.per_video, self.epoch = workload, per_video, 0

    def __len__(self) -> int:
        groups = self.workload.videos // self.workload.together
        return groups * (self.per_video or self.workload.starts) // self.workload.batch

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        draw, work = random.Random(self.epoch), self.workload
        self.epoch += 1
        firsts = range(0, work.videos, work.together)
        if self.per_video is None:
            samples = [(first, start) for first in firsts for start in range(work.starts)]
        else:
            samples = [(first, draw.randrange(work.starts)) for first in firsts for _ in range(self.per_video)]
        draw.shuffle(samples)
        for number in range(len(self)):
            yield samples[number * work.batch : (number + 1) * work.batch]
