"""Truncated and damaged files: each is an error or is skipped, and no process crashes or hangs."""

import os
import random

import numpy as np
import pytest

pytest.importorskip("av")
import av

from slipring import Loader, clips, images
from slipring.errors import VideoError
from tests.support.videos import KINDS, write

TOGETHER = 100  # files of one dataset


def decoded_so_far(path):
    """Return the frames that PyAV decodes of a file up to its first error."""
    found = []
    try:
        with av.open(path) as container:
            found += (frame.to_ndarray(format="rgb24") for frame in container.decode(video=0) if not frame.is_corrupt)
    except av.error.FFmpegError:
        pass
    return found


@pytest.mark.parametrize(
    "kind", ["h264 in matroska", "h264 in a transport stream", "vp9", "hevc of a variable rate", "av1 of 10 bits"]
)
def test_a_truncated_file_has_the_frames_that_it_has(tmp_path, kind):
    path = write(tmp_path / f"video.{KINDS[kind].ending}", kind)
    size, read = os.path.getsize(path), 0
    for share in (0.95, 0.8, 0.5, 0.3):
        os.truncate(path, int(size * share))
        expected = decoded_so_far(path)
        with clips.Video(path) as video:
            for number in range(len(video)):
                try:
                    found = video.frames_at([number]).pixels[0]
                except VideoError as error:
                    assert error.frame == number
                    continue
                np.testing.assert_array_equal(found, expected[number])
                read += 1
    assert read > 60


def damage(data, draw):
    """Return a file's bytes after a random cut, flipped bits, random bytes, or without a part."""
    data, at = bytearray(data), draw.randrange(len(data))
    match draw.randrange(5):
        case 0:
            del data[at:]
        case 1:
            for _ in range(draw.choice((1, 3, 30))):
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        case 2:
            data[at : at + 64] = draw.randbytes(draw.randrange(1, 64))
        case 3:  # the headers, which are at one of the ends
            at = draw.choice((0, len(data) - 600)) + draw.randrange(600)
            data[at : at + 8] = draw.randbytes(8)
        case _:
            del data[at : at + draw.randrange(1, 2000)]
    return bytes(data)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    names = {kind: folder / f"{number}.{made.ending}" for number, (kind, made) in enumerate(KINDS.items())}
    for kind, path in names.items():
        write(path, kind, frames=30)
    return [(path.suffix, path.read_bytes()) for path in names.values()]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 20))])
def test_damaged_files_crash_no_process_and_lose_no_batch(tmp_path, originals, seed):
    draw = random.Random(seed)
    paths = []
    for number in range(TOGETHER):
        ending, data = draw.choice(originals)
        paths.append(tmp_path / f"{number}{ending}")
        paths[-1].write_bytes(damage(data, draw))
    data = clips.Videos(paths, clips.RandomClips(4, stride=3), images.Resize((16, 16)), on_error="skip")
    with Loader(data, batch_size=5, num_workers=2, seed=seed) as loader:
        assert [batch.pixels.shape for batch in loader] == [(5, 4, 16, 16, 3)] * (TOGETHER // 5)
        stats = loader.stats()
    assert stats.respawns == 0
    assert stats.skipped_samples > 0


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 20))])
def test_each_error_of_a_damaged_file_names_it(tmp_path, originals, seed):
    draw, outcomes = random.Random(100 + seed), {"read": 0, "no index": 0, "no frame": 0}
    for _ in range(TOGETHER):
        ending, data = draw.choice(originals)
        path = tmp_path / f"video{ending}"
        path.write_bytes(damage(data, draw))
        try:
            video = clips.Video(path)
        except VideoError as error:
            assert error.path == str(path) and str(path) in str(error)
            outcomes["no index"] += 1
            continue
        with video:
            for number in draw.sample(range(len(video)), min(3, len(video))):
                try:
                    assert video.frames_at([number]).times == [video.times[number]]
                    outcomes["read"] += 1
                except VideoError as error:
                    assert (error.path, error.frame, error.time) == (str(path), number, video.times[number])
                    outcomes["no frame"] += 1
    assert min(outcomes.values()) > 0, outcomes
