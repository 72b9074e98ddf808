"""The dataset of clips: it chooses frames, decodes them file by file, and writes them into the batch."""

from __future__ import annotations

import logging
import os
import random
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from slipring._core.codec._collate import default_collate
from slipring._core.options.checks import one_of
from slipring._core.ring import sample_marks
from slipring._core.ring._ring import mix
from slipring._files.storage import locate
from slipring.clips._audio import Audio, AudioFormat, joined, needs, sounds_of, span_of
from slipring.clips._pyav import concerns_the_file, pyav
from slipring.clips._rendering import Draws, FrameRenderer, as_batch_transform, checked_index, raise_of_sample
from slipring.clips._samplers import ClipSampler, seed_of
from slipring.clips._source import FrameSource
from slipring.clips._table import IndexTable
from slipring.errors import VideoError, shown
from slipring.images import MAX_PIXELS
from slipring.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from slipring._files.storage import Storage
    from slipring.cache import Cache
    from slipring.clips._audio import Sound
    from slipring.clips._samplers import RandomClips, RegularClips
    from slipring.images._steps.base import BatchTransform
    from slipring.images._steps.combine import RandomChoice
    from slipring.images._steps.multicrop import Transforms
    from slipring.typing import Empty

_log = logging.getLogger("slipring")
_START, _GEOMETRY = 0x5354415254, 0x47454F4D  # keep the numbers of a clip's start apart from those of its frames


class Clip(NamedTuple):
    """A sample of `Videos`, or a batch of them.

    Attributes
    ----------
    pixels : array, [batch,] frames × height × width × 3 (or frames × 3 × height × width)
        With ``MultiCrop``, a tuple of such arrays with an axis of crops before the frames. With ``Patches``, a dict of
        arrays that have the frames as their first axis.
    times : numpy.ndarray of float64, [batch,] frames
        The time stamp of each frame, in seconds.
    target : object
        The target of the video, or its number.

    Examples
    --------
    >>> from slipring import clips
    >>> clip = clips.Videos("videos/a.mp4", clips.RegularClips(num_frames=3, stride=10))[0]
    >>> clip.times.tolist(), clip.target
    ([0.0, 0.3333333333333333, 0.6666666666666666], 0)
    """

    pixels: Any
    times: NDArray[np.float64]
    target: Any


class ClipWithAudio(NamedTuple):
    """A sample of `Videos` with ``audio=``, or a batch of them.

    Attributes
    ----------
    pixels, times, target
        As in `Clip`.
    audio : Audio
        From the beginning of the clip's first frame to the end of its last one.

    Examples
    --------
    >>> from slipring import clips
    >>> clip = clips.Videos("videos/sound.mp4", clips.RegularClips(num_frames=3), audio=True)[0]
    >>> clip.pixels.shape, clip.audio.samples.shape
    ((3, 48, 64, 3), (1600, 2))
    """

    pixels: Any
    times: NDArray[np.float64]
    target: Any
    audio: Audio


class _Row(NamedTuple):
    """A clip to make: its row in the batch, its index in the dataset, and its random bits."""

    row: int
    index: int
    seed: int


class _Batch(NamedTuple):
    """The arrays of a batch. The video of a row may replace one that cannot be read."""

    arrays: list[NDArray[Any]] | None  # None: frames of any size become elements of `frames`
    frames: list[Any]
    times: NDArray[np.float64]
    videos: list[int]
    sounds: list[Sound | None]


class Videos:
    """A map dataset of clips from video files: each sample is a `Clip`.

    Parameters
    ----------
    paths : path, URL or sequence of them
    clips : RandomClips or RegularClips
        Which frames are taken from each video.
    transform : Transform, list of Transform, MultiCrop or Patches, optional
        Transforms of slipring.images, for each frame. None: the frames, unchanged.
    targets : sequence, optional
        The target of each video. None: the number of the video.
    geometry : {'clip', 'frame'}
        Whether the transforms draw random numbers once for all frames of a clip, or for each frame.
    index : {'memory', 'sidecar'} or path
        Where the index of each file is kept: in memory, in a file next to it, or in files in the given folder. Making
        it reads the whole file once. It is made again if the file's size or modification time has changed. URLs cannot
        have sidecar files.
    storage : slipring.Storage, optional
        How URLs are read.
    audio : bool or AudioFormat
        Return the sound of each clip, too: samples are of the type `ClipWithAudio`. True: as the file has it. A file
        without audio is then one that cannot be read.
    layout, dtype, mean, std
        As in `slipring.images.ImageDataset`.
    on_error : {'raise', 'skip'}
        How to handle a video or a frame that cannot be read: raise a `~slipring.errors.VideoError` with the path, the
        number of the frame and its time, or use the next readable video in its place. A warning of the logger
        "slipring" names each skipped video, and ``stats().skipped_samples`` counts the clips.
    cache : int, str or slipring.Cache, optional
        Keep decoded frames, once per machine: a budget such as "8GiB", or a cache that other loaders and ranks share.
    batch_transform : MixUp, CutMix or RandomChoice of them, optional
        Mixes the clips of a batch, as in `slipring.images.ImageDataset`.

    Attributes
    ----------
    paths : sequence of str

    Raises
    ------
    VideoError
        A file cannot be read as a video. With ``on_error="skip"``, none of them can.
    OSError
        A file cannot be opened; for a URL a `~slipring.errors.RemoteError`.
    ImportError
        PyAV is not installed.

    Examples
    --------
    >>> from slipring import Loader, clips, images
    >>> data = clips.Videos(
    ...     ["videos/a.mp4", "videos/b.mp4"],
    ...     clips.RandomClips(num_frames=8, stride=2, clips_per_video=2),
    ...     [images.RandomResizedCrop(32), images.RandomHorizontalFlip()],
    ...     cache="64MiB",
    ... )
    >>> with Loader(data, batch_size=4, shuffle=True, num_workers=1, seed=0) as loader:
    ...     for pixels, times, videos in loader:
    ...         print(pixels.shape, times.shape, sorted(videos.tolist()))
    (4, 8, 32, 32, 3) (4, 8) [0, 0, 1, 1]
    """

    clips: RandomClips | RegularClips
    transform: Any
    targets: Any
    geometry: Literal["clip", "frame"]
    layout: Literal["NHWC", "NCHW"]
    dtype: str
    on_error: Literal["raise", "skip"]
    cache: Cache | None
    batch_transform: BatchTransform | RandomChoice | None
    seeds_samples = True  # for each sample, `fetch_into` draws the same numbers as `__getitem__`
    on_death = "respawn"  # a crash in a codec costs a worker, and no batch

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        clips: RandomClips | RegularClips,
        transform: Transforms = None,
        *,
        targets: Sequence[Any] | None = None,
        geometry: Literal["clip", "frame"] = "clip",
        index: Literal["memory", "sidecar"] | str | os.PathLike[str] = "memory",
        storage: Storage | None = None,
        audio: bool | AudioFormat = False,
        layout: Literal["NHWC", "NCHW"] = "NHWC",
        dtype: DTypeLike | torch.dtype = "uint8",
        mean: ArrayLike | None = None,
        std: ArrayLike | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        cache: int | str | Cache | None = None,
        batch_transform: BatchTransform | RandomChoice | None = None,
    ) -> None:
        pyav()
        if not isinstance(clips, ClipSampler):
            raise TypeError(f"clips must be RandomClips or RegularClips of slipring.clips, not {shown(clips)}")
        one_of("geometry", geometry, ("clip", "frame"))
        one_of("on_error", on_error, ("raise", "skip"))
        if not isinstance(audio, (bool, AudioFormat)):
            raise TypeError(f"audio must be True, False or a clips.AudioFormat, not {shown(audio)}")
        listed, remote = locate("paths", paths, storage)
        if not listed:
            raise ValueError(f"paths must name at least one video, not {shown(paths)}")
        if targets is not None and not hasattr(targets, "__len__"):
            raise TypeError(f"targets must be a sequence with one for each video, not {shown(targets)}")
        if targets is not None and len(targets) != len(listed):
            raise ValueError(f"targets must have one for each of the {len(listed)} videos, not {len(targets)}")
        self._renderer = FrameRenderer(transform, layout=layout, dtype=dtype, mean=mean, std=std, max_pixels=MAX_PIXELS)
        self.clips, self.transform, self.targets = clips, transform, targets
        self.geometry, self.on_error = geometry, on_error
        self.layout, self.dtype = layout, self._renderer.dtype
        self._audio = AudioFormat() if audio is True else audio or None
        self.batch_transform = as_batch_transform(batch_transform)
        if self.batch_transform is None:
            self.finish_batch = None
        elif not self._renderer.is_single:
            raise ValueError(f"batch_transform mixes one array per clip, which transform={transform} does not make")
        table = IndexTable(listed, index, on_error == "skip", self._audio is not None, remote)
        self._source = FrameSource(table, cache)
        self.cache = self._source.cache
        shapes = self._renderer.shapes_of(None, clips.num_frames)
        self._needs_one_size = shapes is None
        self._shapes = shapes or self._renderer.shapes_of(table.size, clips.num_frames)
        if self._shapes is None:
            self.fetch_into = None  # frames of different sizes are not one array

    @property
    def paths(self) -> Sequence[str]:
        return self._source.table.paths

    @property
    def is_random(self) -> bool:
        """Whether a clip differs in each epoch."""
        return self.clips.is_random or self._renderer.is_random

    def __len__(self) -> int:
        return len(self._source.table) * self.clips.clips_per_video

    def __repr__(self) -> str:
        return f"Videos({len(self._source.table)} files, {self.clips}, {self.transform}): {len(self)} clips"

    def close(self) -> None:
        """Close the files that the calling thread has open. Reading a clip opens them again."""
        self._source.close()

    # ---- samples

    def __getitem__(self, index: int) -> Clip | ClipWithAudio:
        """Return a clip. Outside of a slipring worker its random numbers come from Python's ``random``."""
        batch = self._filled([index], np.empty)
        if batch.arrays is None:
            arrays = [self._stacked(batch.frames, batch.videos[0])]
        else:
            arrays = [array[0] for array in batch.arrays]
        audio = self._audio and self._sound(batch, np.empty)
        return _made(self._renderer.sample_of(arrays), batch.times[0], self._target(batch.videos[0]), audio)

    def fetch_into(self, indices: Sequence[int], empty: Empty) -> Clip | ClipWithAudio:
        """Return a batch of clips, written into arrays that `empty` makes in the slot."""
        batch = self._filled(indices, empty)
        targets = default_collate([self._target(video) for video in batch.videos])
        audio = self._audio and self._sound(batch, empty)
        return _made(self._renderer.sample_of(batch.arrays), batch.times, targets, audio)

    def finish_batch(self, batch: Clip | ClipWithAudio, seed: int | None) -> Clip | ClipWithAudio:
        """Return a batch after `batch_transform`, whose numbers are drawn from `seed`."""
        if not isinstance(batch, (Clip, ClipWithAudio)):
            raise ValueError(f"batch_transform needs a batch of clips, a Clip, and collate_fn returned {shown(batch)}")
        seed = random.getrandbits(64) if seed is None else seed
        return batch._replace(target=self._renderer.mix(self.batch_transform, batch.pixels, batch.target, seed))

    def _sound(self, batch, empty):
        return joined(batch.sounds, [redacted(self.paths[video]) for video in batch.videos], empty)

    def _stacked(self, frames, video):
        """Return the frames of one clip as one array; raise ValueError if the transforms gave them several sizes."""
        shapes = sorted({frame.shape for frame in frames})
        if len(shapes) > 1:
            raise ValueError(
                f"{redacted(self.paths[video])}: the transforms give the frames of one clip the shapes {shapes}: add a "
                "transform that gives one size, or give geometry='clip'"
            )
        return np.stack(frames)

    def _target(self, video):
        return video if self.targets is None else self.targets[video]

    def _filled(self, indices, empty):
        """Return a batch of the clips at `indices`, in arrays that `empty` makes."""
        rows = [_Row(row, checked_index(index, len(self), "clips"), seed_of(None)) for row, index in enumerate(indices)]
        count, frames = len(rows), self.clips.num_frames
        arrays = None
        if self._shapes is not None:
            arrays = [empty((count, *shape), dtype) for shape, dtype in zip(self._shapes, self._renderer.storages)]
        videos = [self._video_of(row) for row in rows]
        batch = _Batch(arrays, [None] * frames, empty((count, frames), "float64"), videos, [None] * count)
        for video, group in groupby(sorted(rows, key=self._video_of), self._video_of):
            self._fill_from(video, list(group), batch)
        return batch

    def _video_of(self, row):
        return row.index // self.clips.clips_per_video

    def _fill_from(self, video, rows, batch):
        """Make the clips of one video, or, if it cannot be read and may be skipped, those of others in their place."""
        error = self._tried(video, rows, batch)
        for row in rows if error is not None else ():
            if len(rows) > 1:  # another clip of the video may be the one that cannot be read
                error = self._tried(video, [row], batch)
            others = iter(range(video + 1, video + len(self._source.table)))
            if error is not None:
                sample_marks.skipped()
            while error is not None:
                _log.warning("skipped %s", redacted(str(error)))
                if (other := next(others, None)) is None:
                    raise VideoError(f"none of the {len(self._source.table)} videos can be read: {error}") from error
                error = self._tried(other % len(self._source.table), [row], batch)

    def _tried(self, video, rows, batch):
        """Make clips of one video; return the error if it cannot be read and may be skipped."""
        try:
            self._make(video, rows, batch)
        except (VideoError, OSError) as error:
            if self.on_error == "raise" or not concerns_the_file(error):
                raise
            return error
        return None

    def _make(self, video, rows, batch):
        """Decode a video forwards, each frame once, and write each frame to all its positions in the batch."""
        done, wanted, targets, spans = 0, [], {}, []
        try:
            index = self._source.table[video]
            for row in rows:
                numbers = self._numbers(index, row)
                spans.append(span_of(index, numbers))
                batch.videos[row.row], batch.times[row.row] = video, index.seconds(index.pts[numbers])
                for at, number in enumerate(numbers.tolist()):
                    targets.setdefault(number, []).append((row, at))
            if self._audio is not None:
                for row, sound in zip(rows, sounds_of(index, spans, self._audio)):
                    batch.sounds[row.row] = sound
            wanted = sorted(targets)
            for number, pixels, orientation in self._source.frames(video, wanted):
                if self._needs_one_size:
                    index.check_size(number, pixels, orientation)
                for row, at in targets[number]:
                    self._render(pixels, orientation, row, at, batch)
                done += 1
        except Exception as error:
            row, time = rows[0], getattr(error, "time", None)
            if done < len(wanted):
                row = targets[wanted[done]][0][0]
            elif time is not None:  # of the audio
                row = next((one for one, span in zip(rows, spans) if needs(span, time)), row)
            raise_of_sample(error, redacted(self.paths[video]), row.row, row.index)

    def _numbers(self, index, row):
        clip = row.index % self.clips.clips_per_video
        return self.clips.numbers(index, clip, Draws(mix(row.seed, _START)))

    def _render(self, pixels, orientation, row, at, batch):
        seed = mix(row.seed, _GEOMETRY) if self.geometry == "clip" else mix(row.seed, _GEOMETRY, at)
        if batch.arrays is None:
            batch.frames[at] = self._renderer.render(pixels, orientation, seed)
        else:
            self._renderer.render(pixels, orientation, seed, self._renderer.parts(batch.arrays, row.row, at))


def _made(pixels, times, target, audio):
    return Clip(pixels, times, target) if audio is None else ClipWithAudio(pixels, times, target, audio)
