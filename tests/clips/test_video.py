"""One video: frames by number and by time, its index in a file, and files that are no videos."""

import contextlib
import gc
import os
import pickle
import shutil
import signal

import numpy as np
import pytest

pytest.importorskip("av")
import av

from slipring import clips
from slipring.errors import VideoError
from tests.support.processes import in_child
from tests.support.videos import Kind, decoded, write


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "video.mp4", "h264 of a variable rate")


def test_a_time_gives_the_frame_that_is_shown_then(path):
    pixels, times = decoded(path)
    with clips.Video(path) as video:
        ends = np.append(times[1:], video.end_seconds)
        for asked in (times, (times + ends) / 2, np.nextafter(ends, 0)):
            np.testing.assert_array_equal(video.frames_played_at(asked).times, times)
        np.testing.assert_array_equal(video.frames_played_at(ends[:-1]).times, times[1:])
        found = video.frames_played_at([times[30], times[3], times[30]])
    np.testing.assert_array_equal(found.pixels, pixels[[30, 3, 30]])


@pytest.mark.parametrize("kind", [kind for kind in ("h264", "vp9", "h264 in a transport stream", "gif")])
def test_a_video_ends_when_its_last_frame_does(tmp_path, kind):
    ending = {"h264": "mp4", "vp9": "webm", "gif": "gif"}.get(kind, "ts")
    with clips.Video(write(tmp_path / f"video.{ending}", kind)) as video:
        assert video.end_seconds - video.times[-1] == pytest.approx(1 / 30, abs=0.004)  # webm has milliseconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (float("nan"), "nan s is not a time"),
        (-0.25, "-0.25 s is outside of the video: the video lasts from 0 s to before 1.33333 s"),
        ([0.5, 1e9], "1e\\+09 s is outside"),
        (4 / 3, "1.33333 s is outside"),
        (float("inf"), "inf s is outside"),
    ],
)
def test_times_outside_of_the_video_are_errors_with_the_path_and_the_time(tmp_path, seconds, text):
    path = write(tmp_path / "video.mp4")
    with clips.Video(path) as video, pytest.raises(ValueError, match=f"^{path}: {text}"):
        video.frames_played_at(seconds)


def test_numbers_outside_of_the_video_are_errors_with_the_path_and_the_number(path):
    with clips.Video(path) as video:
        assert (video.frames_at([-1]).times == video.times[-1:]).all()
        for wrong in (40, -41):
            with pytest.raises(IndexError, match=f"{path} has no frame {wrong}: it has 40 frames"):
                video.frames_at([0, wrong])
        for wrong in (["0"], [0.5], "ab", 3, [[1]]):
            with pytest.raises(TypeError, match="numbers must be"):
                video.frames_at(wrong)
        with pytest.raises(TypeError, match="seconds must be numbers"):
            video.frames_played_at("soon")


def test_a_fork_and_its_parent_read_the_same_file_at_once(tmp_path):
    path = write(tmp_path / "video.mkv", "h264 in matroska", frames=300, group=300)
    pixels, _ = decoded(path)
    with clips.Video(path) as video:
        for number in (0, 60, 120, 180, 240):  # both go on from here: no search sets the position in the file
            np.testing.assert_array_equal(video.frames_at([number]).pixels[0], pixels[number])
            found = in_child(lambda n=number: video.frames_at(range(n + 1, 300)).pixels.sum().item())
            assert found == pixels[number + 1 :].sum()


class Interrupted(Exception):
    pass


def test_a_signal_handler_may_raise_at_any_instant(tmp_path):
    path = write(tmp_path / "video.mp4", "h264 with B-frames and open groups")
    pixels, _ = decoded(path)

    def interrupt(number, frame):
        raise Interrupted

    before, interrupted = signal.signal(signal.SIGALRM, interrupt), 0
    gc.disable()  # Python ignores exceptions in gc callbacks, and hypothesis registers one
    try:
        with clips.Video(path) as video:
            for number in range(60):
                with contextlib.suppress(Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, (1 + number % 20) * 5e-4)
                    interrupted += 1
                    video.frames_at(range(0, 40, 1 + number % 3))
                    interrupted -= 1
                    signal.setitimer(signal.ITIMER_REAL, 0)
                wanted = [number % 40, 39 - number % 40]
                np.testing.assert_array_equal(video.frames_at(wanted).pixels, pixels[wanted])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    assert interrupted > 0


@pytest.mark.parametrize("function", ["load", "savez"])
def test_a_signal_handler_may_raise_while_an_index_file_is_read_or_written(tmp_path, path, monkeypatch, function):
    def interrupted(*args, **options):
        signal.raise_signal(signal.SIGALRM)

    def interrupt(number, frame):
        raise TimeoutError("too late")  # an OSError

    clips.Video(path, index=tmp_path / "kept").close()
    if function == "savez":
        shutil.rmtree(tmp_path / "kept")
    monkeypatch.setattr(np, function, interrupted)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(TimeoutError, match="too late"):
            clips.Video(path, index=tmp_path / "kept")
    finally:
        signal.signal(signal.SIGALRM, before)


def test_times_of_any_shape_give_frames_of_that_shape(path):
    with clips.Video(path) as video:
        numbers = np.array([[3, 0, 3], [7, 1, 0]])
        found = video.frames_played_at(video.times[numbers])
        np.testing.assert_array_equal(found.times, video.times[numbers])
        np.testing.assert_array_equal(found.pixels, decoded(path)[0][numbers])
        alone = video.frames_played_at(video.times[7])
        assert alone.pixels.shape == (48, 64, 3) and alone.times == video.times[7]


def test_no_frames_are_an_empty_array(path):
    with clips.Video(path) as video:
        assert video.frames_at([]).pixels.shape == (0, 48, 64, 3)
        assert video.frames_played_at(np.empty((2, 0))).pixels.shape == (2, 0, 48, 64, 3)


def test_no_frames_of_a_rotated_video_have_the_upright_size(tmp_path):
    with clips.Video(write(tmp_path / "upright.mp4", "h264 rotated by 90", frames=2)) as video:
        assert video.frames_at([]).pixels.shape == (0, *video.frames_at([0]).pixels.shape[1:]) == (0, 64, 48, 3)


def test_a_pickle_of_a_video_needs_no_second_index(path):
    with clips.Video(path) as video:
        wanted = video.frames_at([7])
        with pickle.loads(pickle.dumps(video)) as other:
            np.testing.assert_array_equal(other.frames_at([7]).pixels, wanted.pixels)
        os.utime(path, ns=(1, 1))  # a new index would not mind
        with pickle.loads(pickle.dumps(video)) as other, pytest.raises(VideoError, match="changed since its index"):
            other.frames_at([7])


# ---- the index in a file


@pytest.mark.parametrize("where", ["next to the file", "in a folder"])
def test_an_index_is_kept_in_a_file_and_has_the_same_frames(tmp_path, path, where, monkeypatch):
    index = "sidecar" if where == "next to the file" else tmp_path / "indices"
    pixels, times = decoded(path)
    with clips.Video(path, index=index):
        pass
    demuxed = []
    monkeypatch.setattr(av, "open", lambda *args, opened=av.open, **kw: demuxed.append(1) or opened(*args, **kw))
    with clips.Video(path, index=index) as video:
        assert not demuxed  # the kept index answers
        np.testing.assert_array_equal(video.times, times)
        np.testing.assert_array_equal(video.frames_at([39, 2]).pixels, pixels[[39, 2]])
    kept = list(tmp_path.rglob("*.index.npz"))
    assert len(kept) == 1 and (kept[0].parent == tmp_path) == (index == "sidecar")


@pytest.mark.parametrize("damage", ["another version", "cut", "no index", "another file's"])
def test_an_index_that_does_not_fit_is_made_again(tmp_path, path, damage):
    with clips.Video(path, index="sidecar"):
        pass
    kept = tmp_path / "video.mp4.index.npz"
    if damage == "another version":
        with np.load(kept) as arrays:
            np.savez(kept, **{**arrays, "version": 0, "pts": arrays["pts"] + 1})
    elif damage == "another file's":
        write(path, "h264")
    else:
        kept.write_bytes(kept.read_bytes()[:200] if damage == "cut" else b"no index")
    before = kept.read_bytes()
    with clips.Video(path, index="sidecar") as video:
        np.testing.assert_array_equal(video.times, decoded(path)[1])
    assert kept.read_bytes() != before


def test_a_file_that_changes_after_its_index_was_made_is_an_error(tmp_path, path):
    with clips.Video(path) as video:
        write(path, "h264")
        with pytest.raises(
            VideoError, match=r"video\.mp4 has changed since its index was made; create the dataset again"
        ):
            video.frames_at([0])


# ---- files that are no videos


def test_files_that_are_no_videos_are_errors_with_the_path(tmp_path):
    text = tmp_path / "text.mp4"
    text.write_text("no video")
    empty = tmp_path / "empty.mp4"
    empty.touch()
    for path in (text, empty):
        with pytest.raises(VideoError, match=f"^{path} cannot be read as a video: Invalid data") as raised:
            clips.Video(path)
        assert raised.value.path == str(path)
    with pytest.raises(FileNotFoundError, match=r"none\.mp4"):
        clips.Video(tmp_path / "none.mp4")
    with pytest.raises(IsADirectoryError):
        clips.Video(tmp_path)


def test_a_small_file_that_claims_huge_frames_is_refused(tmp_path):
    path = tmp_path / "bomb.gif"
    write(path, "gif", frames=2)
    data = bytearray(path.read_bytes())
    data[6:10] = (13_400).to_bytes(2, "little") * 2  # width and height of the screen
    path.write_bytes(data)
    claims = f"{path} claims frames of 13400 x 13400 pixels, the limit is 178,956,970"
    with pytest.raises(VideoError, match=claims):
        clips.Video(path)


def test_a_file_with_sound_alone_has_no_video_stream(tmp_path):
    path = tmp_path / "sound.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=48_000)
        for at in range(4):
            frame = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), format="fltp", layout="stereo")
            frame.sample_rate, frame.pts = 48_000, 1024 * at
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(VideoError, match=f"{path} has no video stream, only audio"):
        clips.Video(path)


def test_a_codec_without_a_decoder_is_an_error(tmp_path):
    path = tmp_path / "video.mkv"
    write(path, "h264 in matroska")
    path.write_bytes(path.read_bytes().replace(b"V_MPEG4/ISO/AVC", b"V_MPEG4/ISO/XYZ"))
    with pytest.raises(VideoError, match=f"{path}: this build of FFmpeg has no decoder for the video"):
        clips.Video(path)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Kind("h264", "libx264"), "frame 0 has no time stamp"),  # a raw stream
        (Kind("avi", "libx264"), "frame [0-9]+ has the time stamp [0-9]+ after [0-9]+"),
    ],
)
def test_frames_without_increasing_time_stamps_are_an_error(tmp_path, kind, wrong):
    path = write(tmp_path / f"video.{kind.ending}", kind)
    with pytest.raises(VideoError, match=f"{path}: {wrong}, .*: convert the file, for example with ffmpeg -i {path}"):
        clips.Video(path)


def test_a_playlist_is_not_followed(tmp_path):
    """FFmpeg's scripts and playlists name other files, which a dataset of strangers' files must not read."""
    write(tmp_path / "video.ts", "h264 in a transport stream")
    for name, text in (
        ("list.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nvideo.ts\n#EXT-X-ENDLIST\n"),
        ("list.txt", "ffconcat version 1.0\nfile video.ts\n"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(VideoError, match=f"{name} cannot be read as a video"):
            clips.Video(tmp_path / name)


def test_a_path_is_never_taken_for_a_url_or_a_pattern(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("http:video.mp4", "%03d.mp4", "concat:a|b.mp4"):
        write(tmp_path / "made.mp4")
        os.rename("made.mp4", name)
        with clips.Video(name) as video:
            assert len(video) == 40
