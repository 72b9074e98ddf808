"""One video file: its frames by number or by time."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from slipring._core.options.checks import file_path, iterable
from slipring._files.storage import locate
from slipring.clips._index import VideoIndex, index_of
from slipring.clips._reader import OpenFiles
from slipring.clips._rendering import FrameRenderer
from slipring.errors import VideoError, shown
from slipring.images import MAX_PIXELS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from numpy.typing import ArrayLike, NDArray

    from slipring._files.storage import Storage


class Frames(NamedTuple):
    """Decoded frames.

    Attributes
    ----------
    pixels : numpy.ndarray of uint8, [..., height, width, 3]
        Red, green and blue.
    times : numpy.ndarray of float64, [...]
        The time stamp of each frame, in seconds.

    Examples
    --------
    >>> from slipring import clips
    >>> with clips.Video("videos/a.mp4") as video:
    ...     frames = video.frames_at([0, 9])
    >>> frames.pixels.shape, frames.times.tolist()
    ((2, 48, 64, 3), [0.0, 0.3])
    """

    pixels: NDArray[np.uint8]
    times: NDArray[np.float64]


class Video:
    """A video file: exact frames by number or by time.

    A frame has the pixels that FFmpeg gives when it decodes the whole file in order, as PyAV's
    ``to_ndarray(format="rgb24")`` returns them, and upright if the file says how it must be turned or mirrored.

    Parameters
    ----------
    path : path or URL
    index : {'memory', 'sidecar'} or path
        Where the index is kept; see `Videos`.
    storage : slipring.Storage, optional
        How a URL is read.

    Attributes
    ----------
    path : str
    times : numpy.ndarray of float64
        The time stamp of each frame, in seconds.
    begin_seconds, end_seconds : float
        When the first frame appears, and when the last one ends.

    Raises
    ------
    VideoError
        The file cannot be read as a video, or a frame cannot be decoded.
    OSError
        The file cannot be opened.
    ImportError
        PyAV is not installed.

    Examples
    --------
    >>> from slipring import clips
    >>> video = clips.Video("videos/a.mp4")
    >>> len(video), video.end_seconds
    (60, 2.0)
    >>> video.frames_played_at([0.52, 1.92]).times.tolist()
    [0.5, 1.9]
    >>> video.close()
    """

    path: str
    times: NDArray[np.float64]
    begin_seconds: float
    end_seconds: float

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        index: Literal["memory", "sidecar"] | str | os.PathLike[str] = "memory",
        storage: Storage | None = None,
    ) -> None:
        (self.path,), remote = locate("path", file_path("path", path), storage)
        self._index: VideoIndex = index_of(self.path, index, remote)
        self._files = OpenFiles(1)
        self._renderer = FrameRenderer(None, layout="NHWC", dtype="uint8", mean=None, std=None, max_pixels=MAX_PIXELS)
        self.times = self._index.seconds(self._index.pts)
        self.begin_seconds, self.end_seconds = float(self.times[0]), float(self._index.seconds(self._index.end))

    def __len__(self) -> int:
        return len(self._index)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Reading a frame opens it again."""
        self._files.close()

    def __repr__(self) -> str:
        return f"Video({shown(self._index.name)}): {len(self)} frames, {self.end_seconds - self.begin_seconds:.6g} s"

    def frames_at(self, numbers: Iterable[int]) -> Frames:
        """Return frames by number, in the given order.

        Parameters
        ----------
        numbers : iterable of int
            From 0 in presentation order; negative numbers count from the end.

        Raises
        ------
        IndexError
            The video has no frame of a number.
        VideoError
            A frame cannot be decoded.
        """
        iterable("numbers", numbers, "an iterable of frame numbers")
        given = np.asarray(list(numbers))
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise TypeError(f"numbers must be whole numbers, not {shown(numbers)}")
        wanted, count = given.astype(np.int64), len(self)
        for number in wanted[(wanted < -count) | (wanted >= count)]:
            raise IndexError(f"{self._index.name} has no frame {number}: it has {count} frames")
        return self._decoded(np.where(wanted < 0, wanted + count, wanted))

    def frames_played_at(self, seconds: ArrayLike) -> Frames:
        """Return the frames that are shown at given times, in arrays of the same shape.

        Parameters
        ----------
        seconds : array-like of float, of any shape
            From `begin_seconds` up to, but not including, `end_seconds`.

        Raises
        ------
        ValueError
            No frame is shown at a time.
        VideoError
            A frame cannot be decoded.
        """
        try:
            times = np.asarray(seconds, np.float64)
        except (TypeError, ValueError):
            raise TypeError(f"seconds must be numbers, not {shown(seconds)}") from None
        for time in times[~((times >= self.begin_seconds) & (times < self.end_seconds))].tolist():
            rule = "is not a time" if math.isnan(time) else "is outside of the video"
            raise ValueError(
                f"{self._index.name}: {time:.6g} s {rule}: the video lasts from {self.begin_seconds:.6g} s to before "
                f"{self.end_seconds:.6g} s"
            )
        return self._decoded(self._index.played_at(times))

    def _decoded(self, numbers: NDArray[np.int64]) -> Frames:
        """Return the frames of valid numbers, of any shape."""
        flat, inverse = np.unique(numbers, return_inverse=True)
        frames = self._files.frames(self._index, flat.tolist())
        found = [self._renderer.render(pixels, orientation, seed=0) for _, pixels, orientation in frames]
        if not found:
            empty = np.empty((*numbers.shape, *self._index.size, 3), np.uint8)
            return Frames(empty, np.empty(numbers.shape))
        sizes = sorted({frame.shape for frame in found})
        if len(sizes) > 1:
            wrong = f"{self.path} has frames of the sizes {sizes}: add a transform that gives one size"
            raise VideoError(wrong, path=self.path)
        return Frames(np.stack(found)[inverse.reshape(numbers.shape)], self.times[numbers])
