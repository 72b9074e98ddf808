"""The index of a video file: the time stamp of each frame, and the frames at which decoding can begin."""

from __future__ import annotations

import dataclasses
import functools
import os
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._files.sidecar import folder_of, kept_or_made
from slipring.clips._pyav import frames_of, opened, orientation_of, reading
from slipring.errors import VideoError
from slipring.redaction import redacted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slipring._files.storage import Storage

_VERSION = 3  # of index files; a file of another version is made again
_ARRAYS = "pts", "keys", "dts"
# Containers that store the time stamp of each frame. In others FFmpeg derives them from the order of decoding.
_WITH_TIME_STAMPS = frozenset(("flv", "matroska", "mov", "mp4", "mpegts", "webm"))
# Codecs whose packets have one frame each, with its time stamp. Others may have packets without a frame.
_ONE_FRAME_PER_PACKET = frozenset(("av1", "h264", "hevc", "mjpeg", "mpeg2video", "mpeg4", "vp9"))
_LEAST = 32  # bytes of an MPEG-4 packet that certainly has a frame: a shorter one may repeat the frame before it
_CONVERT = "convert the file, for example with ffmpeg -i {} new.mp4"


@dataclasses.dataclass(frozen=True, eq=False)
class VideoIndex:
    """The index of one file.

    Attributes
    ----------
    path : str
    stamp : (int, int or str)
        The file's size in bytes, and its modification time in nanoseconds or the tag that a server reports.
    pts : numpy.ndarray of int64
        Time stamps of the frames in presentation order, in units of `time_base`.
    keys : numpy.ndarray of int64
        Numbers of the frames at which decoding can begin, in order; the first is 0: the beginning of the file.
    dts : numpy.ndarray of int64
        Time stamps of decoding of `keys`, by which some containers are searched.
    end : int
        Time stamp at which the last frame ends.
    time_base : Fraction
        Seconds per unit.
    height, width : int
        Size of the first frame as it is stored, in pixels.
    orientation : int
        EXIF's, of the first frame: how it must be turned or mirrored.
    has_audio : bool
    storage : Storage or None
        How the file is read, if `path` is a URL.
    """

    path: str
    stamp: tuple[int, int | str]
    pts: NDArray[np.int64]
    keys: NDArray[np.int64]
    dts: NDArray[np.int64]
    end: int
    time_base: Fraction
    height: int
    width: int
    orientation: int
    has_audio: bool
    storage: Storage | None

    @property
    def name(self) -> str:
        """str: the path for messages, without the secrets of a URL."""
        return redacted(self.path)

    @property
    def size(self) -> tuple[int, int]:
        """(int, int): height and width of the first frame, upright."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)

    def __len__(self) -> int:
        return len(self.pts)

    def file(self) -> Any:
        """Return the contents of a remote file for `open_video`; None: the file is on this machine."""
        return None if self.storage is None else self.storage._open(self.path, *self.stamp)

    def check_unchanged(self, is_opened: bool) -> None:
        """Raise VideoError if the file has changed since its index was made; a server is asked only at opening."""
        if (self.storage is None or is_opened) and _stamp_of(self.path, self.storage)[0] != self.stamp:
            raise VideoError(
                f"{self.path} has changed since its index was made; create the dataset again", path=self.path
            )

    def seconds(self, pts: Any) -> Any:
        """Return a time stamp, or an array of them, in seconds."""
        return pts * self.time_base.numerator / self.time_base.denominator

    def key_of(self, number: int) -> int:
        """Return which of `keys` is the last one at or before a frame."""
        return int(np.searchsorted(self.keys, number, "right")) - 1

    def played_at(self, seconds: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the numbers of the frames that are shown at times within the video."""
        # The first time after all frames that are shown before it: equal times belong to the later frame.
        return np.searchsorted(self.seconds(self.pts), seconds, "right") - 1

    def check_size(self, number: int, pixels: NDArray[np.uint8], orientation: int) -> None:
        """Raise VideoError if a decoded frame has another size than the first one, as it is stored."""
        if (*pixels.shape[:2], orientation) != (self.height, self.width, self.orientation):
            time = float(self.seconds(self.pts[number]))
            raise VideoError(
                f"{self.path}: frame {number} at {time:.6g} s has {pixels.shape[0]} x {pixels.shape[1]} pixels, the "
                f"first one has {self.height} x {self.width}: add a transform that gives one size",
                path=self.path,
                frame=number,
                time=time,
            )


def index_of(path: str, index: str | os.PathLike[str], storage: Storage | None = None) -> VideoIndex:
    """Return the index of a file: from its index file, or made now; see `Videos` for `index` and `storage`."""
    folder = folder_of(index, storage)
    stamp, status = _stamp_of(path, storage)
    make = functools.partial(_make, path, stamp, storage)
    if folder is None:
        return make()

    def read(kept):
        if kept["version"] != _VERSION or kept["stamp"].tolist() != list(map(str, stamp)):
            return None
        end, numerator, denominator, *frame, has_audio = kept["numbers"].tolist()
        arrays = (kept[name] for name in _ARRAYS)
        base = Fraction(numerator, denominator)
        return VideoIndex(path, stamp, *arrays, end, base, *frame, bool(has_audio), storage)

    def write():
        made = make()
        base, frame = made.time_base, (made.height, made.width, made.orientation)
        numbers = made.end, base.numerator, base.denominator, *frame, made.has_audio
        return made, {
            "version": _VERSION,
            "stamp": np.array(list(map(str, stamp))),
            "numbers": np.array(numbers, np.int64),
            **{name: getattr(made, name) for name in _ARRAYS},
        }

    return kept_or_made(folder, path, status, read, write)


def _stamp_of(path, storage):
    """Return (stamp, status or None) of a file."""
    if storage is not None:
        return storage._info(path), None
    status = os.stat(path)
    return (status.st_size, status.st_mtime_ns), status


def _make(path, stamp, storage):
    def file():
        return None if storage is None else storage._open(path, *stamp)

    with reading(path), opened(path, file()) as (container, stream):
        is_stamped = not _WITH_TIME_STAMPS.isdisjoint(container.format.name.split(","))
        has_audio = bool(container.streams.audio)
        packets, first, error = _packets(container, stream, path)
        codec = stream.codec_context.codec.canonical_name
        is_plain = is_stamped and codec in _ONE_FRAME_PER_PACKET
        if codec == "mpeg4" and any(packet.size < _LEAST for packet in packets):
            is_plain = False
        base, rate = Fraction(stream.time_base), stream.average_rate
    pts = _from_packets(packets) if is_plain else None
    if pts is None:
        pts = _from_frames(path, file())
    if not len(pts) or first is None:
        why = f": {error.strerror}" if error else ""
        raise VideoError(f"{path} has no frame of video that can be decoded{why}", path=path)
    keys, dts = _keys(packets if is_stamped else [], pts)
    last = max((packet.duration for packet in packets if packet.pts == pts[-1]), default=0)
    if last <= 0:  # the container has no durations
        last = round(1 / (rate * base)) if rate else int(np.diff(pts)[-1]) if len(pts) > 1 else 1
    end = int(pts[-1]) + max(1, last)
    frame = first.height, first.width, orientation_of(first)
    return VideoIndex(path, stamp, pts, keys, dts, end, base, *frame, has_audio, storage)


@dataclasses.dataclass(slots=True)
class _Packet:
    pts: int | None
    dts: int | None
    duration: int
    is_key: bool
    size: int


def _packets(container, stream, path):
    """Return (packets, the first decoded frame, the error before it).

    The packets are in the order of decoding, without those whose frames are not shown.
    """
    found, first, error = [], None, None
    for packet in container.demux(stream):
        if first is None:
            frames, failed = frames_of(packet, path)
            first, error = next(iter(frames), None), failed or error
        if packet.size and not packet.is_discard:  # the last packet of a demuxer is empty
            found.append(_Packet(packet.pts, packet.dts, packet.duration or 0, packet.is_keyframe, packet.size))
    return found, first, error


def _from_packets(packets):
    """Return the time stamps of all frames if each packet has one frame; None if that is not certain."""
    stamps = [packet.pts for packet in packets]
    if not packets or None in stamps:
        return None
    pts = np.sort(np.array(stamps, np.int64))
    # Frames that are shown before the first key frame may refer to frames that the file does not have.
    if (np.diff(pts) <= 0).any() or stamps[0] != pts[0] or not packets[0].is_key:
        return None
    return pts


def _from_frames(path, remote):
    """Return the time stamps of all frames by decoding the file."""
    with reading(path), opened(path, remote) as (container, stream):
        pts = [frame.pts for frame in container.decode(stream)]
    for number, stamp in enumerate(pts):
        if stamp is None or (number and stamp <= pts[number - 1]):
            wrong = "no time stamp" if stamp is None else f"the time stamp {stamp} after {pts[number - 1]}"
            raise VideoError(
                f"{path}: frame {number} has {wrong}, and frames are found by increasing time stamps: "
                f"{_CONVERT.format(path)}",
                path=path,
                frame=number,
            )
    return np.array(pts, np.int64)


def _keys(packets, pts):
    """Return (numbers, time stamps of decoding) of the key frames at which decoding can begin.

    They are shown after all frames that come before them in the file.
    """
    keys, dts, latest = [0], [0], None
    for packet in packets:
        if packet.pts is None:
            return np.array([0]), np.array([0])
        if packet.is_key and latest is not None and packet.pts > latest:
            number = int(np.searchsorted(pts, packet.pts))
            if 0 < number < len(pts) and pts[number] == packet.pts:
                keys.append(number)
                dts.append(packet.pts if packet.dts is None else packet.dts)
        latest = packet.pts if latest is None else max(latest, packet.pts)
    return np.array(keys, np.int64), np.array(dts, np.int64)
