"""Samplers: which frames clips have. A video has 40 frames, 30 a second, so frame n is shown from n / 30 s on.

The tables have what torchcodec 0.11.1 returns for the same arguments; it was compared for 4,374 other arguments, too.
"""

import numpy as np
import pytest

pytest.importorskip("av")

from slipring import clips
from tests.support.videos import UNITS, Kind, decoded, write


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("videos") / "video.mp4")


@pytest.fixture
def video(path):
    with clips.Video(path) as video:
        yield video


def numbers(frames):
    return np.round(frames.times * 30).astype(int).tolist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[0]]),
        ({"num_clips": 3}, [[0], [19], [39]]),
        ({"num_clips": 2, "num_frames_per_clip": 3, "num_indices_between_frames": 5}, [[0, 5, 10], [29, 34, 39]]),
        ({"num_clips": 2, "num_frames_per_clip": 2, "sampling_range_end": 40}, [[0, 1], [39, 39]]),
        ({"num_clips": 3, "sampling_range_start": 10, "sampling_range_end": 12}, [[10], [10], [11]]),
        ({"num_clips": 2, "sampling_range_start": -5}, [[35], [39]]),
        ({"num_clips": 2, "sampling_range_start": 30, "sampling_range_end": -3}, [[30], [36]]),
        ({"sampling_range_start": 39, "sampling_range_end": 99, "num_frames_per_clip": 3}, [[39, 39, 39]]),
        ({"num_frames_per_clip": 5, "num_indices_between_frames": 13}, [[0, 13, 26, 39, 39]]),
        ({"num_frames_per_clip": 5, "num_indices_between_frames": 15}, [[0, 15, 30, 30, 30]]),
        ({"num_frames_per_clip": 5, "num_indices_between_frames": 15, "policy": "wrap"}, [[0, 15, 30, 0, 15]]),
    ],
)
def test_regular_indices_are_those_of_torchcodec(video, options, expected):
    assert numbers(clips.clips_at_regular_indices(video, **options)) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"seconds_between_clip_starts": 0.5}, [[0], [15], [30]]),
        ({"seconds_between_clip_starts": 0.5, "num_frames_per_clip": 3}, [[0, 1, 2], [15, 16, 17], [30, 31, 32]]),
        (
            {"seconds_between_clip_starts": 0.5, "num_frames_per_clip": 2, "seconds_between_frames": 0.7},
            [[0, 21], [15, 36]],
        ),
        ({"seconds_between_clip_starts": 0.25, "sampling_range_start": 0.55, "sampling_range_end": 1}, [[16], [24]]),
        (  # the quotient of the range and the distance is rounded up, and so is the last start
            {"seconds_between_clip_starts": 0.15, "sampling_range_start": 0.01, "sampling_range_end": 1.06},
            [[0], [4], [9], [13], [18], [22], [27]],
        ),
        (
            {
                "seconds_between_clip_starts": 9,
                "sampling_range_start": 1.21,
                "sampling_range_end": 5,
                "num_frames_per_clip": 4,
                "seconds_between_frames": 0.05,
            },
            [[36, 37, 39, 39]],
        ),
        (
            {
                "seconds_between_clip_starts": 9,
                "sampling_range_start": 1.21,
                "sampling_range_end": 5,
                "num_frames_per_clip": 4,
                "seconds_between_frames": 0.05,
                "policy": "wrap",
            },
            [[36, 37, 39, 36]],
        ),
    ],
)
def test_regular_timestamps_are_those_of_torchcodec(video, options, expected):
    assert numbers(clips.clips_at_regular_timestamps(video, **options)) == expected


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({}, range(40)),
        ({"num_frames_per_clip": 4, "num_indices_between_frames": 10}, range(10)),
        ({"num_frames_per_clip": 14, "num_indices_between_frames": 3}, range(1)),
        ({"sampling_range_start": 7, "sampling_range_end": 12}, range(7, 12)),
        ({"sampling_range_start": -3}, range(37, 40)),
    ],
)
def test_random_indices_are_all_starts_of_the_range_equally_often(video, options, starts):
    found = np.array(numbers(clips.clips_at_random_indices(video, num_clips=800, seed=1, **options)))[:, 0]
    counts = np.bincount(found, minlength=40)[starts.start : starts.stop]
    assert counts.sum() == 800
    assert (np.abs(counts - 800 / len(starts)) < 5 * np.sqrt(800 / len(starts))).all()


def test_random_timestamps_begin_within_the_range(video):
    found = clips.clips_at_random_timestamps(
        video, num_clips=500, sampling_range_start=0.5, sampling_range_end=1, seed=2, num_frames_per_clip=2
    )
    first, second = np.array(numbers(found)).T
    assert set(first.tolist()) == set(range(15, 30))
    assert (second == first + 1).all()


def test_clips_that_are_longer_than_the_video_need_a_policy(video):
    long = {"num_frames_per_clip": 5, "seconds_between_frames": 0.6, "seconds_between_clip_starts": 1}
    assert numbers(clips.clips_at_regular_timestamps(video, **long)) == [[0, 18, 36, 36, 36]]
    assert numbers(clips.clips_at_regular_timestamps(video, policy="wrap", **long)) == [[0, 18, 36, 0, 18]]
    with pytest.raises(ValueError, match=f"{video.path}: a clip of 5 frames that starts at 0 has only 3: give policy="):
        clips.clips_at_regular_timestamps(video, policy="error", **long)
    with pytest.raises(ValueError, match="a clip of 41 frames that starts at 0 has only 40"):
        clips.clips_at_random_indices(video, num_frames_per_clip=41, policy="error")


def test_clips_have_the_pixels_of_their_frames(video):
    pixels, times = decoded(video.path)
    found = clips.clips_at_random_indices(
        video, num_clips=6, num_frames_per_clip=3, num_indices_between_frames=4, seed=3
    )
    at = np.array(numbers(found))
    assert found.pixels.shape == (6, 3, 48, 64, 3)
    np.testing.assert_array_equal(found.pixels, pixels[at])
    np.testing.assert_array_equal(found.times, times[at])


def test_the_same_seed_gives_the_same_clips(video):
    for sampler in (clips.clips_at_random_indices, clips.clips_at_random_timestamps):
        first, again, other = (numbers(sampler(video, num_clips=20, seed=seed)) for seed in (5, 5, 6))
        assert first == again != other


@pytest.mark.parametrize(
    ("sampler", "options", "text"),
    [
        ("random_indices", {"num_clips": 0}, "num_clips must be from 1 to"),
        ("random_indices", {"num_frames_per_clip": 0}, "num_frames_per_clip must be from 1"),
        ("regular_indices", {"num_indices_between_frames": 0}, "num_indices_between_frames must be from 1"),
        ("regular_indices", {"sampling_range_start": 40}, "no clip can start in the range from .*=40 to .*=None"),
        ("regular_indices", {"sampling_range_start": -41}, "40 frames, sampling_range_start=-41 is before the first"),
        ("regular_indices", {"sampling_range_start": 3, "sampling_range_end": 3}, "no clip can start in the range"),
        ("regular_indices", {"policy": "first"}, "policy must be one of 'repeat_last', 'wrap', 'error', not 'first'"),
        ("random_timestamps", {"seconds_between_frames": 0.0}, "seconds_between_frames must be a number of seconds ab"),
        ("random_timestamps", {"seconds_between_frames": float("nan")}, "seconds_between_frames must be a number"),
        ("random_timestamps", {"sampling_range_start": float("nan")}, "sampling_range_start must be a finite number"),
        ("random_timestamps", {"sampling_range_start": -0.1}, "begins at 0 s, sampling_range_start=-0.1 is before"),
        ("random_timestamps", {"sampling_range_start": 1.5}, "no clip can start in the range"),
        ("regular_timestamps", {"seconds_between_clip_starts": 0}, "seconds_between_clip_starts must be above 0"),
        ("random_indices", {"seed": -1}, "seed must be from 0"),
    ],
)
def test_wrong_arguments_are_named(video, sampler, options, text):
    with pytest.raises(ValueError, match=text):
        getattr(clips, f"clips_at_{sampler}")(video, **options)


def test_arguments_of_wrong_types_are_named(video):
    with pytest.raises(TypeError, match=r"video must be a slipring\.clips\.Video, not 'a\.mp4'"):
        clips.clips_at_random_indices("a.mp4")
    for options in ({"num_clips": 1.5}, {"sampling_range_start": "0"}, {"num_frames_per_clip": None}):
        with pytest.raises(TypeError, match=f"{next(iter(options))} must be"):
            clips.clips_at_random_indices(video, **options)
    with pytest.raises(TypeError, match="video must be"):
        clips.clips_at_random_indices(video.path)


# ---- the samplers of datasets


def starts(sampler, video):
    """Return the frame numbers of each clip of a dataset of one video."""
    data = clips.Videos(video.path, sampler)
    return [np.round(clip.times * 30).astype(int).tolist() for clip in data]


def test_regular_clips_are_the_regular_ones_of_the_functions(video):
    by_index = clips.RegularClips(3, 5, clips_per_video=2)
    assert starts(by_index, video) == [[0, 5, 10], [29, 34, 39]]
    by_time = clips.RegularClips(2, seconds_between_frames=0.7, clips_per_video=2)
    assert starts(by_time, video) == [[0, 21], [9, 30]]


@pytest.mark.parametrize("rate", [24, 30, 60])
def test_times_at_the_rate_of_the_video_give_each_frame_once(tmp_path, rate):
    """Multiples of 1 / rate may be rounded to less than the time stamps of the frames."""
    kind = Kind("mp4", "libx264", pts=tuple(range(0, 80 * UNITS // rate, UNITS // rate)))
    with clips.Video(write(tmp_path / "video.mp4", kind)) as video:
        found = clips.clips_at_regular_timestamps(
            video, seconds_between_clip_starts=9, num_frames_per_clip=80, seconds_between_frames=1 / rate
        )
        np.testing.assert_array_equal(found.times[0], video.times)
    (clip,) = clips.Videos(video.path, clips.RegularClips(40, seconds_between_frames=2 / rate))
    np.testing.assert_array_equal(clip.times, video.times[::2])


def test_random_clips_lie_within_the_video(video):
    found = np.array(starts(clips.RandomClips(num_frames=4, stride=5, clips_per_video=200), video))
    assert set(found[:, 0].tolist()) == set(range(25))
    assert (np.diff(found, axis=1) == 5).all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_frames": 0}, "num_frames must be from 1"),
        ({"stride": 0}, "stride must be from 1"),
        ({"clips_per_video": 0}, "clips_per_video must be from 1"),
        ({"stride": 2, "seconds_between_frames": 1.0}, "are two distances between frames: give one of them"),
        ({"seconds_between_frames": -1}, "seconds_between_frames must be a number of seconds above 0, not -1"),
        ({"policy": None}, "policy must be one of"),
    ],
)
def test_wrong_arguments_of_clips_are_named(options, text):
    for kind in (clips.RandomClips, clips.RegularClips):
        with pytest.raises(ValueError, match=text):
            kind(**options)
