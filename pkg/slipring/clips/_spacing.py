"""Which frames a clip has: by their numbers or by time."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slipring._core.options.checks import integer, one_of, real
from slipring.errors import shown

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    from slipring.clips._index import VideoIndex
    from slipring.clips._rendering import Draws

    Policy: TypeAlias = Literal["repeat_last", "wrap", "error"]

_SHORTEST = 1e-4  # seconds of the range of starts in a video that is shorter than a clip
_MOST = 1 << 20  # frames of a clip
_ROUNDING = 1e-9  # seconds


@dataclasses.dataclass(frozen=True)
class Spacing(abc.ABC):
    """Distances between the frames of a clip, and the range in which clips start; see `RandomClips`."""

    num_frames: int
    range_start: Any
    range_end: Any
    policy: Policy

    def check(self, names: tuple[str, str, str]) -> None:
        """Raise TypeError or ValueError for wrong values; `names` are those of the first three arguments."""
        integer(names[0], self.num_frames, 1, _MOST)
        one_of("policy", self.policy, ("repeat_last", "wrap", "error"))
        for name, value in zip(names[1:], (self.range_start, self.range_end)):
            if value is not None:
                self._check_range(name, value)

    def _check_range(self, name, value):
        if not math.isfinite(real(name, value)):
            raise ValueError(f"{name} must be a finite number, not {shown(value)}")

    @abc.abstractmethod
    def bounds(self, video: VideoIndex) -> tuple[Any, Any]:
        """Return the first start of a clip, and the end of the range of starts."""

    @abc.abstractmethod
    def drawn(self, video: VideoIndex, draws: Draws) -> Any:
        """Return a random start."""

    @abc.abstractmethod
    def regular(self, video: VideoIndex, count: int) -> list[Any]:
        """Return `count` starts with equal distances."""

    @abc.abstractmethod
    def _numbers(self, video, start):
        """Return the numbers of the frames that exist, of a clip that starts there."""

    def numbers(self, video: VideoIndex, start: Any) -> NDArray[np.int64]:
        """Return the numbers of a clip's frames."""
        found = self._numbers(video, start)
        missing = self.num_frames - len(found)
        if not missing:
            return found
        if self.policy == "error":
            raise ValueError(
                f"{video.name}: a clip of {self.num_frames} frames that starts at {start:.6g} has only {len(found)}: "
                "give policy='repeat_last' or 'wrap', or shorter clips"
            )
        if self.policy == "wrap":
            return np.resize(found, self.num_frames)
        return np.concatenate([found, np.full(missing, found[-1])])

    def _checked(self, video, start, end):
        """Return (start, end); raise ValueError if no clip can start there."""
        if start >= end:
            raise ValueError(
                f"{video.name}: no clip can start in the range from sampling_range_start={self.range_start} to "
                f"sampling_range_end={self.range_end}, which are {start:.6g} and {end:.6g} in this video"
            )
        return start, end


@dataclasses.dataclass(frozen=True)
class ByNumber(Spacing):
    """Frames whose numbers are `stride` apart."""

    stride: int = 1

    def _check_range(self, name, value):
        integer(name, value, -(1 << 62), 1 << 62)

    def bounds(self, video: VideoIndex) -> tuple[int, int]:
        count, start, end = len(video), self.range_start or 0, self.range_end
        start += count if start < 0 else 0
        if end is None:
            end = max(count - self.stride * (self.num_frames - 1), start + 1)
        elif end < 0:
            end += count
        if start < 0:
            raise ValueError(
                f"{video.name} has {count} frames, sampling_range_start={self.range_start} is before the first one"
            )
        return self._checked(video, start, min(end, count))

    def drawn(self, video: VideoIndex, draws: Draws) -> int:
        start, end = self.bounds(video)
        return start + draws.below(end - start)

    def regular(self, video: VideoIndex, count: int) -> list[int]:
        start, end = self.bounds(video)
        return [start + (end - 1 - start) * n // max(1, count - 1) for n in range(count)]

    def _numbers(self, video, start):
        return np.arange(start, len(video), self.stride)[: self.num_frames]


@dataclasses.dataclass(frozen=True)
class ByTime(Spacing):
    """The frames that are shown at times that are `seconds` apart; None: the mean duration of a frame."""

    seconds: float | None = None

    def _step(self, video):
        if self.seconds is not None:
            return self.seconds
        return video.seconds(video.end - int(video.pts[0])) / len(video)

    def bounds(self, video: VideoIndex) -> tuple[float, float]:
        first, last = video.seconds(int(video.pts[0])), video.seconds(video.end)
        start = first if self.range_start is None else self.range_start
        if self.range_end is None:
            end = max(last - self._step(video) * (self.num_frames - 1), start + _SHORTEST)
        else:
            end = self.range_end
        if start < first:
            raise ValueError(f"{video.name} begins at {first:.6g} s, sampling_range_start={start:.6g} is before that")
        return self._checked(video, start, min(end, last))

    def drawn(self, video: VideoIndex, draws: Draws) -> float:
        return draws.uniform(*self.bounds(video))

    def regular(self, video: VideoIndex, count: int) -> list[float]:
        start, end = self.bounds(video)
        return [start + (end - start) * n / count for n in range(count)]

    def every(self, video: VideoIndex, seconds: float) -> list[float]:
        """Return the starts that are `seconds` apart."""
        start, end = self.bounds(video)
        starts = [start + n * seconds for n in range(math.ceil((end - start) / seconds))]
        return starts[:-1] if starts[-1] >= end else starts  # the division or the product may be rounded up

    def _numbers(self, video, start):
        times = start + self._step(video) * np.arange(self.num_frames)
        # A time that should be a frame's time stamp may be rounded to less, which would be the frame before.
        return video.played_at(times[times < video.seconds(video.end)] + _ROUNDING)


def spacing_of(
    num_frames: int,
    stride: int | None,
    seconds: float | None,
    range_start: Any,
    range_end: Any,
    policy: Policy,
    names: tuple[str, str, str, str],
) -> Spacing:
    """Return the checked spacing: by number if there is a `stride`; `names` are those of the arguments, for errors."""
    made: Spacing
    if stride is not None:
        made = ByNumber(num_frames, range_start, range_end, policy, integer(names[1], stride, 1, _MOST))
    else:
        if seconds is not None and not 0 < real(names[1], seconds) < math.inf:
            raise ValueError(f"{names[1]} must be a number of seconds above 0, not {shown(seconds)}")
        made = ByTime(num_frames, range_start, range_end, policy, seconds)
    made.check((names[0], *names[2:]))
    return made
