"""Small videos for the tests, made by PyAV's encoders, and what PyAV itself decodes of them."""

import os
import signal
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np

UNITS = 30_000  # of time, per second
QUIET = {"x265-params": "log-level=none"}


class Kind(NamedTuple):
    """How a video is made."""

    ending: str
    codec: str
    options: dict = {}  # noqa: RUF012 - never changed
    pixel_format: str = "yuv420p"
    size: tuple = (64, 48)
    pts: tuple | None = None  # of the frames, in UNITS; None: 30 frames a second
    rotation: int = 0
    mirrored: bool = False  # after the rotation: left and right


def _x264(**params):
    return {"x264-params": ":".join(f"{name.replace('_', '-')}={value}" for name, value in params.items())}


def _x265(**params):
    (value,) = _x264(**params).values()
    return {"x265-params": f"{value}:log-level=none"}


def _uneven(count, seed=0):
    """Return the time stamps of a variable frame rate."""
    return tuple(np.cumsum(np.random.default_rng(seed).integers(200, 3000, count)).tolist())


KINDS = {
    "h264": Kind("mp4", "libx264"),
    "h264 with B-frames and open groups": Kind("mp4", "libx264", _x264(bframes=3, open_gop=1, b_adapt=0)),
    "h264 in matroska": Kind("mkv", "libx264", _x264(bframes=3, b_pyramid="strict")),
    "h264 in a transport stream": Kind("ts", "libx264"),
    "h264 in flash": Kind("flv", "libx264"),
    "h264 without key frames": Kind("mp4", "libx264", _x264(intra_refresh=1, keyint=10, scenecut=0)),
    "h264 of key frames that need earlier ones": Kind(
        "mkv", "libx264", _x264(intra_refresh=1, keyint=8, scenecut=0, bframes=0), pts=tuple(range(0, 75_000, 1000))
    ),
    "h264 interlaced": Kind("ts", "libx264", {"flags": "+ildct", **_x264(interlaced=1, keyint=10)}),
    "h264 from before zero": Kind("mp4", "libx264", pts=tuple(range(-3000, 37_000, 1000))),
    "h264 rotated by 90": Kind("mp4", "libx264", rotation=90),
    "h264 rotated by 180": Kind("mp4", "libx264", rotation=180),
    "h264 rotated by 270": Kind("mp4", "libx264", rotation=-90),
    "h264 of odd size": Kind("mkv", "libx264", pixel_format="yuv444p", size=(63, 47)),
    "h264 of a variable rate": Kind("mp4", "libx264", pts=_uneven(40)),
    "hevc": Kind("mp4", "libx265", QUIET),
    "hevc with many B-frames and open groups": Kind("mkv", "libx265", _x265(bframes=8, keyint=12, open_gop=1)),
    "hevc of 10 bits": Kind("mp4", "libx265", QUIET, "yuv420p10le"),
    "hevc of a variable rate": Kind("ts", "libx265", QUIET, pts=_uneven(40, 1)),
    "vp9": Kind("webm", "libvpx-vp9"),
    "vp9 with hidden frames": Kind("webm", "libvpx-vp9", {"auto-alt-ref": "1", "lag-in-frames": "16"}),
    "vp9 of odd size": Kind("webm", "libvpx-vp9", size=(63, 47)),
    "vp9 of a growing distance": Kind("webm", "libvpx-vp9", pts=tuple(300 * n * n for n in range(1, 41))),
    "vp8 with hidden frames": Kind("webm", "libvpx", {"auto-alt-ref": "1", "lag-in-frames": "16"}),
    "av1": Kind("mp4", "libsvtav1"),
    "av1 of 10 bits": Kind("webm", "libsvtav1", pixel_format="yuv420p10le"),
    "mpeg4 in avi": Kind("avi", "mpeg4"),
    "gif": Kind("gif", "gif", pixel_format="rgb8"),
}


def pictures(count, width, height, seed=0):
    """Return frames that all differ: noise that moves."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return [np.roll(noise, (n, 2 * n), (0, 1)) for n in range(count)]


def write(path, kind="h264", frames=40, group=10, seed=0):
    """Write a video, with a key frame at least every `group` frames; return its path as a string."""
    kind = KINDS[kind] if isinstance(kind, str) else kind
    with av.open(str(path), "w") as container:
        stream = container.add_stream(kind.codec, rate=30, options=dict(kind.options))
        stream.width, stream.height = kind.size
        stream.pix_fmt = kind.pixel_format
        context = stream.codec_context
        context.gop_size, context.thread_count, context.time_base = group, 1, Fraction(1, UNITS)
        if kind.codec.startswith(("libx26", "mpeg4")):
            context.max_b_frames = 2
        if kind.rotation or kind.mirrored:
            stream.set_display_rotation(kind.rotation, hflip=kind.mirrored)
        for number, picture in enumerate(pictures(len(kind.pts or range(frames)), *kind.size, seed)):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = kind.pts[number] if kind.pts else number * UNITS // 30
            frame.time_base = Fraction(1, UNITS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


def tones(count, rate, channels=2):
    """Return the samples of rising tones, one for each channel: channels × samples."""
    seconds = np.arange(count) / rate
    sweep = [np.sin(2 * np.pi * (300 + 100 * n) * seconds * (1 + seconds)) for n in range(channels)]
    return (0.5 * np.stack(sweep)).astype(np.float32)


def write_with_sound(path, codec="aac", rate=48_000, layout="stereo", frames=60, late=0.0):
    """Write a video of 30 frames per second with tones that begin `late` seconds later; return its path as a string."""
    samples = tones(frames * rate // 30, rate, 1 if layout == "mono" else 2)
    with av.open(str(path), "w") as container:
        picture = container.add_stream("libx264", rate=30)
        picture.width, picture.height, picture.pix_fmt = 64, 48, "yuv420p"
        picture.codec_context.gop_size, picture.codec_context.thread_count = 10, 1
        sound = container.add_stream(codec, rate=rate, layout=layout)
        for image in pictures(frames, 64, 48):
            container.mux(picture.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        for at in range(0, samples.shape[1], 1024):
            part = np.ascontiguousarray(samples[:, at : at + 1024])
            frame = av.AudioFrame.from_ndarray(part, format="fltp", layout=layout)
            frame.sample_rate, frame.pts = rate, at + round(late * rate)
            container.mux(sound.encode(frame))
        container.mux(picture.encode())
        container.mux(sound.encode())
    return str(path)


def decoded(path):
    """Return (pixels, seconds) of all frames as PyAV decodes them in order, upright."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    upright = [np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90) for frame in frames]
    return np.stack(upright), np.array([frame.time for frame in frames])


class Crash:
    """A step that ends its process with a signal, as a crash in a codec does: the first `times` calls in all."""

    def __init__(self, folder, number, times=1):
        self.folder, self.number, self.times = str(folder), number, times

    def __call__(self, image):
        if os.getpid() != int(Path(self.folder, "main").read_text()):
            for attempt in range(self.times):
                try:
                    os.close(os.open(Path(self.folder, f"crash {attempt}"), os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                signal.signal(self.number, signal.SIG_DFL)
                os.kill(os.getpid(), self.number)
