"""Which clips are taken from a video: for datasets, and with torchcodec's functions."""

from __future__ import annotations

import abc
import dataclasses
import math
import random
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._core.options.checks import instance, integer, real
from slipring._core.workers import seeding
from slipring.clips._rendering import Draws
from slipring.clips._spacing import ByTime, Spacing, spacing_of
from slipring.clips._video import Frames, Video
from slipring.errors import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slipring.clips._index import VideoIndex
    from slipring.clips._spacing import Policy

_MOST_CLIPS = 1 << 20
_BY_NUMBER = "num_frames_per_clip", "num_indices_between_frames", "sampling_range_start", "sampling_range_end"
_BY_TIME = _BY_NUMBER[0], "seconds_between_frames", *_BY_NUMBER[2:]


@dataclasses.dataclass(frozen=True, repr=False)
class ClipSampler(abc.ABC):
    """The base class of `RandomClips` and `RegularClips`."""

    num_frames: int = 1
    stride: int | None = None
    clips_per_video: int = 1
    _: dataclasses.KW_ONLY
    seconds_between_frames: float | None = None
    sampling_range_start: float | None = None
    sampling_range_end: float | None = None
    policy: Policy = "repeat_last"
    is_random = False

    def __post_init__(self) -> None:
        integer("clips_per_video", self.clips_per_video, 1, _MOST_CLIPS)
        if self.stride is not None and self.seconds_between_frames is not None:
            raise ValueError(
                f"stride={self.stride} and seconds_between_frames={self.seconds_between_frames} are two distances "
                "between frames: give one of them"
            )
        by_time = self.seconds_between_frames is not None
        spacing = spacing_of(
            self.num_frames,
            None if by_time else 1 if self.stride is None else self.stride,
            self.seconds_between_frames,
            self.sampling_range_start,
            self.sampling_range_end,
            self.policy,
            ("num_frames", "seconds_between_frames" if by_time else "stride", *_BY_NUMBER[2:]),
        )
        object.__setattr__(self, "_spacing", spacing)

    def __repr__(self) -> str:
        given = [(field.name, getattr(self, field.name), field.default) for field in dataclasses.fields(self)]
        listed = ", ".join(f"{name}={value!r}" for name, value, default in given if value != default)
        return f"{type(self).__name__}({listed})"

    @abc.abstractmethod
    def numbers(self, video: VideoIndex, clip: int, draws: Draws) -> NDArray[np.int64]:
        """Return the numbers of the frames of a video's clip."""


@dataclasses.dataclass(frozen=True, repr=False)
class RandomClips(ClipSampler):
    """Clips that start at random frames or times, for `Videos`.

    Parameters
    ----------
    num_frames : int
        Frames of a clip.
    stride : int, optional
        Distance of the frames of a clip, in frames; 1 by default.
    clips_per_video : int
        Clips of each video in an epoch; each is a sample.
    seconds_between_frames : float, optional
        In place of `stride`: take the frames that are shown at times with this distance.
    sampling_range_start, sampling_range_end : number, optional
        Clips start in this range, without its end: frame numbers with `stride`, of which negative ones count from the
        end, otherwise seconds. By default, no clip reaches beyond the video, if it is long enough.
    policy : {'repeat_last', 'wrap', 'error'}
        What a clip has in place of frames beyond the end: the last frame, its own frames again from the first on, or
        a ValueError.

    Examples
    --------
    >>> from slipring import clips
    >>> data = clips.Videos(["videos/a.mp4", "videos/b.mp4"], clips.RandomClips(num_frames=8, stride=2))
    >>> data[1].pixels.shape
    (8, 48, 64, 3)
    """

    is_random = True

    def numbers(self, video: VideoIndex, clip: int, draws: Draws) -> NDArray[np.int64]:
        spacing = self._spacing
        return spacing.numbers(video, spacing.drawn(video, draws))


@dataclasses.dataclass(frozen=True, repr=False)
class RegularClips(ClipSampler):
    """Clips that start at equal distances in each video, for evaluation; the parameters are those of `RandomClips`.

    Examples
    --------
    >>> from slipring import clips
    >>> data = clips.Videos("videos/a.mp4", clips.RegularClips(num_frames=10, clips_per_video=2))
    >>> [clip.times[0].item() for clip in data]
    [0.0, 1.6666666666666667]
    """

    def numbers(self, video: VideoIndex, clip: int, draws: Draws) -> NDArray[np.int64]:
        spacing = self._spacing
        return spacing.numbers(video, spacing.regular(video, self.clips_per_video)[clip])


# ---- torchcodec's functions


def clips_at_random_indices(
    video: Video,
    *,
    num_clips: int = 1,
    num_frames_per_clip: int = 1,
    num_indices_between_frames: int = 1,
    sampling_range_start: int = 0,
    sampling_range_end: int | None = None,
    policy: Policy = "repeat_last",
    seed: int | None = None,
) -> Frames:
    """Return clips that start at random frames.

    Parameters
    ----------
    video : Video
    num_clips : int
    num_frames_per_clip : int
    num_indices_between_frames : int
        Distance of the frames of a clip; 1: consecutive frames.
    sampling_range_start, sampling_range_end : int
        The numbers of the frames at which clips may start, without the last one; negative numbers count from the end.
        None: no clip reaches beyond the video, if it is long enough.
    policy : {'repeat_last', 'wrap', 'error'}
        What a clip has in place of frames beyond the end; see `RandomClips`.
    seed : int, optional
        From 0 to 2^64 - 1. None: the seed of the sample in a worker, otherwise from Python's ``random``.

    Returns
    -------
    Frames
        Clips × frames × height × width × 3, and clips × frames.

    Examples
    --------
    >>> from slipring import clips
    >>> with clips.Video("videos/a.mp4") as video:
    ...     found = clips.clips_at_random_indices(video, num_clips=3, num_frames_per_clip=4, seed=0)
    >>> found.pixels.shape
    (3, 4, 48, 64, 3)
    """
    bounds = sampling_range_start, sampling_range_end
    spacing = spacing_of(num_frames_per_clip, num_indices_between_frames, None, *bounds, policy, _BY_NUMBER)
    return _random(video, spacing, num_clips, seed)


def clips_at_regular_indices(
    video: Video,
    *,
    num_clips: int = 1,
    num_frames_per_clip: int = 1,
    num_indices_between_frames: int = 1,
    sampling_range_start: int = 0,
    sampling_range_end: int | None = None,
    policy: Policy = "repeat_last",
) -> Frames:
    """Return clips that start at equal distances, counted in frames.

    The parameters and the result are those of `clips_at_random_indices`.

    Examples
    --------
    >>> from slipring import clips
    >>> with clips.Video("videos/a.mp4") as video:
    ...     found = clips.clips_at_regular_indices(video, num_clips=3, sampling_range_end=31)
    >>> found.times.tolist()
    [[0.0], [0.5], [1.0]]
    """
    bounds = sampling_range_start, sampling_range_end
    spacing = spacing_of(num_frames_per_clip, num_indices_between_frames, None, *bounds, policy, _BY_NUMBER)
    index = _index(video)
    return _decoded(video, spacing, spacing.regular(index, integer("num_clips", num_clips, 1, _MOST_CLIPS)))


def clips_at_random_timestamps(
    video: Video,
    *,
    num_clips: int = 1,
    num_frames_per_clip: int = 1,
    seconds_between_frames: float | None = None,
    sampling_range_start: float | None = None,
    sampling_range_end: float | None = None,
    policy: Policy = "repeat_last",
    seed: int | None = None,
) -> Frames:
    """Return clips that start at random times.

    Parameters
    ----------
    video : Video
    num_clips, num_frames_per_clip : int
    seconds_between_frames : float, optional
        Distance of the times whose frames a clip has. None: the mean duration of a frame.
    sampling_range_start, sampling_range_end : float, optional
        The time range in which clips may start, in seconds, without its end. None: the beginning of the video; and no
        clip reaches beyond the video, if it is long enough.
    policy, seed
        As in `clips_at_random_indices`, as is the result.

    Examples
    --------
    >>> from slipring import clips
    >>> with clips.Video("videos/a.mp4") as video:
    ...     found = clips.clips_at_random_timestamps(video, num_frames_per_clip=5, seconds_between_frames=0.2, seed=0)
    >>> found.pixels.shape
    (1, 5, 48, 64, 3)
    """
    bounds = sampling_range_start, sampling_range_end
    spacing = spacing_of(num_frames_per_clip, None, seconds_between_frames, *bounds, policy, _BY_TIME)
    return _random(video, spacing, num_clips, seed)


def clips_at_regular_timestamps(
    video: Video,
    *,
    seconds_between_clip_starts: float,
    num_frames_per_clip: int = 1,
    seconds_between_frames: float | None = None,
    sampling_range_start: float | None = None,
    sampling_range_end: float | None = None,
    policy: Policy = "repeat_last",
) -> Frames:
    """Return clips that start at equal distances in time.

    Parameters
    ----------
    video : Video
    seconds_between_clip_starts : float
    num_frames_per_clip, seconds_between_frames, sampling_range_start, sampling_range_end, policy
        As in `clips_at_random_timestamps`, as is the result.

    Examples
    --------
    >>> from slipring import clips
    >>> with clips.Video("videos/a.mp4") as video:
    ...     found = clips.clips_at_regular_timestamps(video, seconds_between_clip_starts=0.5)
    >>> found.times.tolist()
    [[0.0], [0.5], [1.0], [1.5]]
    """
    bounds = sampling_range_start, sampling_range_end
    spacing = spacing_of(num_frames_per_clip, None, seconds_between_frames, *bounds, policy, _BY_TIME)
    assert isinstance(spacing, ByTime)
    distance = real("seconds_between_clip_starts", seconds_between_clip_starts)
    if not 0 < distance < math.inf:
        raise ValueError(f"seconds_between_clip_starts must be above 0, not {shown(seconds_between_clip_starts)}")
    return _decoded(video, spacing, spacing.every(_index(video), distance))


def _random(video: Video, spacing: Spacing, num_clips: int, seed: int | None) -> Frames:
    index = _index(video)
    draws = Draws(seed_of(seed))
    starts = [spacing.drawn(index, draws) for _ in range(integer("num_clips", num_clips, 1, _MOST_CLIPS))]
    return _decoded(video, spacing, starts)


def seed_of(seed: int | None) -> int:
    """Return a seed; for None that of the worker's sample, or outside of workers one from Python's ``random``."""
    if seed is not None:
        return int(integer("seed", seed, 0, (1 << 64) - 1))
    sample = seeding.sample_seed()
    return random.getrandbits(64) if sample is None else sample


def _index(video: Any) -> VideoIndex:
    instance("video", video, Video)
    return video._index


def _decoded(video: Video, spacing: Spacing, starts: list[Any]) -> Frames:
    index = _index(video)
    return video._decoded(np.stack([spacing.numbers(index, start) for start in starts]))
