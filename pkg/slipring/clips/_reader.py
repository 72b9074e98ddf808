"""Decode chosen frames of a file, with the pixels that decoding all of it from the beginning gives."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._core.ring.process import Owner
from slipring.clips._pyav import frames_of, not_of_the_file, open_video, orientation_of, pyav, reading
from slipring.errors import VideoError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from slipring.clips._index import VideoIndex

    Decoded = tuple[int, NDArray[np.uint8], int]  # number, pixels, EXIF's orientation

# How many key frames earlier decoding begins if a frame is missing or damaged otherwise: some files mark frames as key
# frames that still refer to earlier ones.
_BACK = 0, 1, 2, 4, 8


class VideoReader:
    """An open file with its decoder. It continues where it is if the next frame is ahead in the same group."""

    def __init__(self, index: VideoIndex) -> None:
        self.index = index
        self._container: Any = None
        self._run: Iterator[tuple[int, Any]] = iter(())
        self._next = -1  # the number of the frame after the last decoded one
        self._failed: Any = None  # the decoder's last error
        self._is_exact = False  # decoding has begun at the beginning, or at a key frame that was shown itself
        self._needs_all = False  # no key frame was: decoding always begins at the beginning
        self._converter = pyav().video.reformatter.VideoReformatter()

    def close(self) -> None:
        """Close the file."""
        self._run, self._next = iter(()), -1
        container, self._container = self._container, None  # first: a signal handler may raise after it is closed
        if container is not None:
            container.close()

    def frames(self, numbers: Iterable[int]) -> Iterator[Decoded]:
        """Yield (number, pixels, EXIF's orientation) of frames, whose numbers increase.

        The pixels are those that the file stores, height × width × 3: red, green and blue.
        """
        self._check_unchanged()
        for number in numbers:
            with reading(self.index.path):
                frame = self._frame(number)
                pixels = self._pixels(frame)
            yield number, pixels, orientation_of(frame)

    def _pixels(self, frame):
        # One converter for all frames: making one takes longer than using it. Threads would not survive a fork.
        return np.ascontiguousarray(self._converter.reformat(frame, format="rgb24", threads=1).to_ndarray())

    def _frame(self, number):
        group = 0 if self._needs_all else self.index.key_of(number)
        if self.index.keys[group] <= self._next <= number and (frame := self._found(number)) is not None:
            return frame
        for back in _BACK:
            begin = max(0, group - back)
            self._begin(begin)
            if (frame := self._found(number)) is not None:
                return frame
            if begin == 0:
                break
        if not self._is_exact:
            self._needs_all = True
            return self._frame(number)
        time = float(self.index.seconds(self.index.pts[number]))
        raise VideoError(
            f"{self.index.path}: frame {number} at {time:.6g} s cannot be decoded: "
            f"{self._failed.strerror if self._failed else 'the data of the frame are missing or damaged'}",
            path=self.index.path,
            frame=int(number),
            time=time,
        ) from self._failed

    def _found(self, number):
        """Return a frame that is decoded next or later; None if it is not there, or is damaged."""
        for at, frame in self._run:
            self._next = at + 1
            if at == number and not frame.is_corrupt:
                return frame
            if at >= number:
                break
        self._next = -1
        return None

    # ---- decoding

    def _begin(self, group):
        """Begin to decode at one of the index's keys."""
        self._run, self._failed, self._is_exact = iter(()), None, group == 0
        self._run = self._decoded(self._packets_from(group), self.index.keys[group])

    def _decoded(self, packets, key):
        """Yield (number, frame) of all frames that the decoder makes of `packets`, which begin with the frame `key`.

        If the decoder does not show that frame, as in videos with periodic intra refresh, it needs earlier frames. The
        decoder then shows frames too early, without marking them as damaged.
        """
        pts = self.index.pts
        for packet in packets:
            frames, error = frames_of(packet, self.index.path)
            self._failed = error or self._failed
            for frame in frames:
                if frame.pts is None:
                    continue
                number = int(np.searchsorted(pts, frame.pts))
                if number < len(pts) and pts[number] == frame.pts:
                    self._is_exact = self._is_exact or number == key
                    if number > key and not self._is_exact:
                        return
                    yield number, frame

    def _packets_from(self, group):
        """Return an iterator of the packets from one of the index's keys on."""
        pts = int(self.index.pts[self.index.keys[group]])
        if group > 0:
            for target in (pts, int(self.index.dts[group])):  # containers are searched by the one or the other
                if (found := self._sought(target, pts)) is not None:
                    return found
        self.close()
        self._open()
        packets = self._container.demux(self._stream)
        return packets if group == 0 else self._from_key(packets, pts) or iter(())

    def _sought(self, target, pts):
        """Return the packets from a key frame on, by FFmpeg's own search; None if that does not find it."""
        av = pyav()
        if self._container is None:
            self._open()
        try:
            self._container.seek(target, stream=self._stream)
            return self._from_key(self._container.demux(self._stream), pts)
        except av.error.FFmpegError as error:
            if not_of_the_file(error, self.index.path):
                raise
            return None

    def _from_key(self, packets, pts):
        """Skip packets up to the key frame with a time stamp; return it and all others, or None if it has passed."""
        for packet in packets:
            if packet.pts == pts and packet.is_keyframe:
                return _with_first(packet, packets)
            if packet.dts is not None and packet.dts > pts:
                break
        return None

    def _open(self):
        self._container, self._stream = open_video(self.index.path, self.index.file())
        self._check_unchanged(is_opened=True)

    def _check_unchanged(self, is_opened=False):
        try:
            self.index.check_unchanged(is_opened)
        except VideoError:
            self.close()
            raise


def _with_first(first, others):
    yield first
    yield from others


class OpenFiles:
    """The few files that each thread of this process keeps open; a forked or spawned process opens its own."""

    def __init__(self, most: int) -> None:
        self._most, self._owner, self._thread = most, Owner(), threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenFiles, (self._most,)

    def frames(self, index: VideoIndex, numbers: Iterable[int]) -> Iterator[Decoded]:
        """Yield frames as `VideoReader.frames` does."""
        # A reader in use is not in the table: a signal handler that reads the same file opens it again.
        table = self._table()
        reader = table.pop(index.path, None)
        if reader is None or reader.index.stamp != index.stamp:
            reader = VideoReader(index)
        try:
            yield from reader.frames(numbers)
        finally:
            table[index.path] = reader
            while len(table) > self._most:
                table.popitem(last=False)[1].close()

    def close(self) -> None:
        """Close the files of the calling thread."""
        for reader in self._table().values():
            reader.close()
        self._table().clear()

    def _table(self):
        if not self._owner.is_here:  # parent and child would move one position in the file
            self._owner, self._thread = Owner(), threading.local()
        return self._thread.__dict__.setdefault("readers", OrderedDict())
