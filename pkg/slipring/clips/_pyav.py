"""Open video files with PyAV, FFmpeg's binding."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from typing import TYPE_CHECKING, Any

from slipring._core.ring._check import from_handler
from slipring.errors import RemoteError, VideoError
from slipring.images import MAX_PIXELS
from slipring.images._sources.indexed import OF_THE_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator

# Formats that hold their data themselves. FFmpeg also opens playlists and scripts, which name other files and URLs.
_FORMATS = "mov,matroska,webm,avi,mpegts,mpeg,mpegvideo,ogg,flv,asf,mxf,nut,ivf,obu,h264,hevc,m4v,gif,dv,rm"
# Counterclockwise rotation of FFmpeg in degrees -> EXIF's orientation, which the image recipe applies.
_TURNED = {0: 1, 90: 8, -270: 8, 180: 3, -180: 3, 270: 6, -90: 6}
_MIRRORED = {0: 4, 90: 7, -270: 7, 180: 2, -180: 2, 270: 5, -90: 5}


def pyav() -> Any:
    """Return the module av; raise ImportError if it is not installed; the error says how to install it."""
    try:
        import av
    except ImportError as error:
        raise ImportError("slipring.clips needs PyAV: pip install 'slipring[clips]'") from error
    return av


@contextlib.contextmanager
def opened(path: str, remote: Any = None) -> Iterator[tuple[Any, Any]]:
    """Yield (container, video stream) of a file, as `open_video` returns them, and close the container."""
    container, stream = open_video(path, remote)
    with container:
        yield container, stream


def open_video(path: str, remote: Any = None) -> tuple[Any, Any]:
    """Return (container, first video stream) of a file; the decoder has one thread.

    Parameters
    ----------
    path : str
    remote : file object, optional
        The contents of a file that is not on this machine.

    Raises
    ------
    VideoError
        The file has no video, or FFmpeg cannot read it.
    OSError
        The file cannot be opened or read.
    """
    container = _open(path, remote)
    try:
        return container, _video_of(container, path)
    except BaseException:
        container.close()
        raise


@contextlib.contextmanager
def opened_audio(path: str, remote: Any = None) -> Iterator[tuple[Any, Any]]:
    """Yield (container, first audio stream) of a file, whose decoder has one thread, and close the container."""
    with _open(path, remote) as container:
        if not container.streams.audio:
            raise VideoError(no_audio(path), path=path)
        stream = container.streams.audio[0]
        _check_decoder(stream, path)
        stream.codec_context.thread_count = 1
        yield container, stream


def no_audio(path: str) -> str:
    """Return the text of an error."""
    return f"{path} has no audio: leave out audio=, or the file"


def _open(path, remote):
    av = pyav()
    with reading(path):
        # "file:" keeps FFmpeg from taking the beginning of a path for a protocol.
        file = "file:" + path if remote is None else remote
        try:
            return av.open(file, options={"format_whitelist": _FORMATS}, metadata_errors="replace")
        except OSError:
            if remote is None:
                with open(path, "rb"):  # raises Python's own error, which names the path
                    pass
            raise


def _video_of(container, path):
    # A cover picture is a stream of video, too.
    streams = [one for one in container.streams.video if not one.disposition & one.disposition.attached_pic]
    if not streams:
        kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
        raise VideoError(f"{path} has no video stream, only {kinds}", path=path)
    _check_decoder(streams[0], path)
    context = streams[0].codec_context
    if context.width * context.height > MAX_PIXELS:
        raise VideoError(
            f"{path} claims frames of {context.width} x {context.height} pixels, the limit is {MAX_PIXELS:,}", path=path
        )
    context.thread_count = 1
    context.options = {"max_pixels": str(MAX_PIXELS)}  # the size may change, and a few kB claim all memory
    return streams[0]


def _check_decoder(stream, path):
    if stream.codec_context is None:
        raise VideoError(
            f"{path}: this build of FFmpeg has no decoder for the {stream.type}: install another build of PyAV, or "
            "convert the file",
            path=path,
        )


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Raise FFmpeg's errors as `VideoError`; those of the machine, such as too many open files, stay as they are."""
    av = pyav()
    try:
        yield
    except av.error.FFmpegError as error:
        if not_of_the_file(error, path):
            raise
        raise VideoError(f"{path} cannot be read as a video: {error.strerror}", path=path) from error


def not_of_the_file(error: Exception, path: str) -> bool:
    """Return whether an error of FFmpeg says nothing about the file: too many open files, or a signal handler's.

    Raises
    ------
    OSError
        The file's bytes cannot be read.
    """
    if from_handler(error):
        return True
    # Damaged files also cause errors of input and of memory: FFmpeg refuses to allocate the size that they claim.
    # Decoders that return -1 seem to lack a permission (EPERM).
    if isinstance(error, OSError) and error.errno in (errno.EIO, errno.EPERM):
        if not os.path.exists(path):  # a remote file, whose reader raises errors of its own
            return False
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
        return False
    return isinstance(error, OSError)


def frames_of(packet: Any, path: str) -> tuple[list[Any], Any]:
    """Return (the frames that the decoder has after a packet, None), or ([], its error) if it refuses the packet."""
    av = pyav()
    try:
        return packet.decode(), None
    except av.error.FFmpegError as error:
        if not_of_the_file(error, path):
            raise
        return [], error.with_traceback(None)  # which would keep the file open as long as the reader keeps the error


def orientation_of(frame: Any) -> int:
    """Return EXIF's orientation of an `av.VideoFrame`: how it must be turned or mirrored."""
    return (_MIRRORED if _is_mirrored(frame) else _TURNED).get(frame.rotation, 1)


def _is_mirrored(frame):
    try:
        matrix = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # the frame has side data of a kind that PyAV does not know, so it returns none of them
        return False
    if matrix is None:
        return False
    a, b, _, c, d = struct.unpack_from("=5i", matrix)
    return a * d < b * c


def concerns_the_file(error: Exception) -> bool:
    """Return whether an error concerns one video, not the machine, so that others may be readable."""
    if isinstance(error, RemoteError):
        return error.missing
    is_of_file = isinstance(error, VideoError) or (isinstance(error, OSError) and error.errno in OF_THE_FILE)
    return is_of_file and not from_handler(error)
