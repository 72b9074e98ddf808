"""The sound of clips: the samples of time spans, as decoding and resampling all of a file's audio gives them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slipring._core.options.checks import integer
from slipring.clips._pyav import frames_of, no_audio, opened_audio, pyav, reading
from slipring.errors import VideoError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from slipring.clips._index import VideoIndex

_LAYOUTS = {1: "mono", 2: "stereo"}


@dataclasses.dataclass(frozen=True)
class AudioFormat:
    """The form in which `Videos` returns audio.

    Parameters
    ----------
    sample_rate : int, optional
        Samples per second, to which FFmpeg resamples. None: that of each file.
    num_channels : {1, 2}, optional
        Mono or stereo, which FFmpeg mixes from the channels of the file. None: those of each file.

    Raises
    ------
    TypeError, ValueError
        An argument is not such a number.

    Examples
    --------
    >>> from slipring import clips
    >>> data = clips.Videos("videos/sound.mp4", clips.RandomClips(16), audio=clips.AudioFormat(16_000, num_channels=1))
    >>> data[0].audio.samples.shape[1], data[0].audio.rates.tolist()
    (1, [16000])
    """

    sample_rate: int | None = None
    num_channels: int | None = None

    def __post_init__(self) -> None:
        integer("sample_rate", self.sample_rate, 1, 1 << 20, optional=True)
        integer("num_channels", self.num_channels, 1, 2, optional=True)


class Audio(NamedTuple):
    """The sound of one clip or of several, one after another.

    Attributes
    ----------
    samples : numpy.ndarray of float32, samples × channels
        From -1 to 1, as far as the file keeps to that. Clip n has the rows from ``offsets[n]`` to ``offsets[n + 1]``.
    offsets : numpy.ndarray of int64, clips + 1
    begins : numpy.ndarray of float64, clips
        The time of the first sample of each clip, in seconds. It is later than the clip's first frame if the audio
        begins later.
    rates : numpy.ndarray of int64, clips
        Samples per second.

    Examples
    --------
    >>> from slipring import clips
    >>> sound = clips.Videos("videos/sound.mp4", clips.RegularClips(15), audio=True)[0].audio
    >>> sound.samples.shape, sound.offsets.tolist(), sound.begins.tolist(), sound.rates.tolist()
    ((8000, 2), [0, 8000], [0.0], [16000])
    """

    samples: NDArray[np.float32]
    offsets: NDArray[np.int64]
    begins: NDArray[np.float64]
    rates: NDArray[np.int64]


class Sound(NamedTuple):
    """The sound of one clip: its samples, the time of the first one in seconds, samples per second."""

    samples: NDArray[np.float32]
    begins: float
    rate: int


def joined(sounds: Sequence[Sound], paths: Sequence[str], empty: Any) -> Audio:
    """Return the sounds of clips from files at `paths` as one array, which ``empty(shape, dtype)`` makes."""
    counts = [sound.samples.shape[1] for sound in sounds]
    for path, count in zip(paths, counts):
        if count != counts[0]:
            raise ValueError(
                f"{paths[0]} has {counts[0]} channels of audio and {path} has {count}, which are not one array: give "
                "audio=clips.AudioFormat(num_channels=1), or 2"
            )
    ends = np.cumsum([0, *(len(sound.samples) for sound in sounds)])
    samples = empty((int(ends[-1]), counts[0]), "float32")
    np.concatenate([sound.samples for sound in sounds], out=samples)
    begins, rates = (np.array([sound[n] for sound in sounds]) for n in (1, 2))
    return Audio(samples, ends, begins, rates)


def span_of(index: VideoIndex, numbers: NDArray[np.int64]) -> tuple[Fraction, Fraction]:
    """Return the seconds from the beginning of a clip's first frame to the end of its last one."""
    first, last = int(numbers.min()), int(numbers.max())
    end = index.end if last + 1 == len(index) else int(index.pts[last + 1])
    return int(index.pts[first]) * index.time_base, end * index.time_base


def needs(span: tuple[Fraction, Fraction], time: float | Fraction) -> bool:
    """Return whether a span may need the packet with a time stamp, whose duration is not known."""
    return span[0] - 1 < time < span[1]


def sounds_of(index: VideoIndex, spans: Sequence[tuple[Fraction, Fraction]], form: AudioFormat) -> list[Sound]:
    """Return the sounds of time spans of a file.

    The file's audio is decoded and resampled from its beginning: decoders and resamplers carry a state from each
    packet to the next, so that other samples would result from a later one.

    Raises
    ------
    VideoError
        The file has no audio, or a part that is needed cannot be decoded.
    """
    last = max(end for _, end in spans)
    with reading(index.path), opened_audio(index.path, index.file()) as (container, stream):
        index.check_unchanged(is_opened=True)
        frames = _resampled(_decoded(container, stream, index.path, spans), form, index.path)
        first = next(frames, None)
        # Decoders may find another rate and other channels than the container says, as those of HE-AAC do.
        found = first or stream.codec_context
        if not found.sample_rate:
            raise VideoError(no_audio(index.path), path=index.path)
        rate, channels = form.sample_rate or found.sample_rate, form.num_channels or found.layout.nb_channels
        cuts = [_Cut(math.ceil(begin * rate), math.ceil(end * rate)) for begin, end in spans]
        at = 0
        for frame in itertools.chain(() if first is None else (first,), frames):
            if frame.pts is not None:  # in the units of the file if the samples need no conversion
                at = round(frame.pts * frame.time_base * rate)
            samples = frame.to_ndarray().reshape(-1, channels)
            for cut in cuts:
                cut.add(at, samples)
            at += len(samples)
            if at > last * rate:
                break
    return [cut.sound(rate, channels) for cut in cuts]


class _Cut:
    """The samples of one time span; `begin` and `end` count samples from the time 0.

    Frames whose time stamps are rounded may overlap, or leave a gap. A span is cut within the first frame that ends
    after the time of the cut, and frames between are whole: adjacent spans have each sample once.
    """

    def __init__(self, begin, end):
        self._begin, self._end, self._parts, self._first = begin, end, [], None
        self._done = False

    def add(self, at, samples):
        """Add the part of a frame, whose first sample has the number `at`."""
        until = at + len(samples)
        if self._done or until <= self._begin:
            return
        low = 0
        if self._first is None:
            low = max(0, self._begin - at)
            self._first = at + low
        self._done = until > self._end
        high = max(0, self._end - at) if self._done else len(samples)
        self._parts.append(samples[low:high])

    def sound(self, rate, channels):
        samples = np.concatenate([np.empty((0, channels), np.float32), *self._parts])
        return Sound(samples, (self._begin if self._first is None else self._first) / rate, rate)


def _decoded(container, stream, path, spans) -> Iterator[Any]:
    """Yield all frames of the audio; raise VideoError if a packet within a span cannot be decoded."""
    for packet in container.demux(stream):
        frames, error = frames_of(packet, path)
        if error is not None:
            begin = 0 if packet.pts is None else packet.pts * packet.time_base
            if any(needs(span, begin) for span in spans):
                time = float(begin)
                why = f"{path}: the audio at {time:.6g} s cannot be decoded: {error.strerror}"
                raise VideoError(why, path=path, time=time) from error
        yield from frames


def _resampled(frames, form, path):
    """Yield frames of packed float32 at the rate and with the channels of `form`, and time stamps in samples."""
    make = pyav().AudioResampler(format="flt", layout=_LAYOUTS.get(form.num_channels), rate=form.sample_rate)
    for frame in frames:
        try:
            made = make.resample(frame)
        except ValueError as error:
            time = frame.time or 0.0
            raise VideoError(
                f"{path}: the audio changes its rate, format or channels at {time:.6g} s: convert the file, for "
                f"example with ffmpeg -i {path} new.mp4",
                path=path,
                time=time,
            ) from error
        yield from made
    yield from make.resample(None)
