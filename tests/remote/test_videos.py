"""Videos behind URLs: the clips of the same files on this machine, and errors of the server with the URL."""

import os
import shutil

import numpy as np
import pytest

pytest.importorskip("av")
pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

import slipring
from slipring import Loader, Storage, clips, images
from slipring.errors import RemoteError, VideoError
from tests.support.kinds import kinds, loaded
from tests.support.videos import decoded, write, write_with_sound

NAMES = "a.mp4", "b.mkv", "c.ts"
CLIPS = clips.RandomClips(6, 3, clips_per_video=3)
HASTY = {"attempts": 2, "timeout": 20.0, "attempt_timeout": 0.5}
SEED = int(os.environ.get("SLIPRING_TEST_SEED", "5"))


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    write_with_sound(folder / NAMES[0], frames=40)
    write_with_sound(folder / NAMES[1], "flac", frames=40)
    write_with_sound(folder / NAMES[2], frames=40)
    return folder


def urls(server):
    return [f"{server.url}/{name}" for name in NAMES]


@pytest.mark.parametrize("cache", [None, "16MiB"])
@kinds("inline", "fork", "thread", "spawn")
def test_clips_from_a_server_are_those_of_the_files_themselves(videos, serve, kind, cache):
    server, crop = serve(videos), images.RandomResizedCrop(20)
    options = {"batch_size": 3, "shuffle": True, "seed": 3}
    expected = loaded(clips.Videos([videos / name for name in NAMES], CLIPS, crop, audio=True), **options)
    batches = loaded(clips.Videos(urls(server), CLIPS, crop, audio=True, cache=cache), **options, **kind)
    for batch, other in zip(batches, expected, strict=True):
        for part, wanted in zip((*batch[:3], *batch.audio), (*other[:3], *other.audio)):
            np.testing.assert_array_equal(part, wanted)


def test_videos_of_a_file_system_are_those_of_the_files(videos):
    import fsspec
    from pyarrow.fs import LocalFileSystem

    memory, data = fsspec.filesystem("memory"), (videos / NAMES[0]).read_bytes()
    memory.pipe("/videos/a.mp4", data)
    memory.pipe("/videos/broken.mp4", data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    expected = decoded(videos / NAMES[0])[0][[5, 30]]
    for system, path in ((memory, "/videos/a.mp4"), (LocalFileSystem(), str(videos / NAMES[0]))):
        with clips.Video(path, storage=Storage(system)) as video:
            np.testing.assert_array_equal(video.frames_at([5, 30]).pixels, expected)
    with pytest.raises(VideoError, match=r"/videos/broken\.mp4 cannot be read as a video"):
        clips.Video("/videos/broken.mp4", storage=Storage(memory))
    memory.rm("/videos", recursive=True)


def test_a_server_that_fails_loses_no_frame(videos, serve):
    server = serve(videos, seed=SEED, fail=0.15, stall=0.03)
    storage = Storage(attempts=12, attempt_timeout=1.0)
    faults = 0
    while not faults:  # by chance, few requests may succeed
        for name in NAMES:
            with clips.Video(f"{server.url}/{name}", storage=storage) as video:
                order = [31, 2, 17, 39, 0]
                np.testing.assert_array_equal(video.frames_at(order).pixels, decoded(videos / name)[0][order])
        faults = sum(server.tells("faults").values())


def test_a_kept_index_saves_reading_the_whole_file(tmp_path, serve):
    path = tmp_path / "served" / "long.mp4"
    path.parent.mkdir()
    write(path, frames=1200)
    server = serve(path.parent)
    sent = []
    for _ in range(2):
        before = server.tells("requests")["bytes"]
        data = clips.Videos(f"{server.url}/long.mp4", clips.RegularClips(), index=tmp_path / "indices")
        sent.append(server.tells("requests")["bytes"] - before)
        assert data[0].times.tolist() == [0.0]
    assert sent[0] >= path.stat().st_size and sent[1] == 0


def test_a_file_that_is_replaced_is_an_error_also_with_a_kept_index(tmp_path, serve):
    folder = tmp_path / "served"
    folder.mkdir()
    path = folder / "a.mp4"
    write(path)
    server = serve(folder)
    url = f"{server.url}/a.mp4"
    data = clips.Videos(url, CLIPS, index=tmp_path / "indices")
    write(path, "hevc", frames=20)
    with pytest.raises((VideoError, RemoteError), match=r"a\.mp4.*has changed") as raised:
        data[1]
    assert raised.value.index == 1
    with clips.Video(url, index=tmp_path / "indices") as video:
        np.testing.assert_array_equal(video.frames_at([7]).pixels[0], decoded(path)[0][7])


def test_a_file_that_is_missing_is_skipped_and_a_server_that_fails_is_not(videos, serve, caplog):
    server = serve(videos)
    with pytest.raises(RemoteError, match=r"nowhere\.mp4 does not exist"):
        clips.Videos([*urls(server), f"{server.url}/nowhere.mp4"], CLIPS)
    data = clips.Videos([f"{server.url}/nowhere.mp4", *urls(server)], clips.RegularClips(2), on_error="skip")
    with Loader(data, batch_size=4) as loader:
        (batch,) = loader
        assert batch.target.tolist() == [1, 1, 2, 3] and loader.stats().skipped_samples == 1
    assert "nowhere.mp4 does not exist" in caplog.text
    failing = serve(videos, fail=1.0)
    with pytest.raises(RemoteError, match="after 2 attempts"):
        clips.Videos(urls(failing), CLIPS, on_error="skip", storage=Storage(**HASTY))


def test_a_server_that_ends_is_an_error_with_the_url_and_the_index(videos, serve):
    server = serve(videos)
    data = clips.Videos(urls(server), CLIPS, on_error="skip", storage=Storage(**HASTY))
    server.close()
    with pytest.raises(RemoteError, match=r"a\.mp4: .* after 2 attempts.* \(index 2\)") as raised:
        data[2]
    assert raised.value.url == urls(server)[0] and raised.value.index == 2


def test_a_url_that_is_no_video_names_it(tmp_path, serve):
    (tmp_path / "text.mp4").write_text("no video")
    (tmp_path / "list.m3u8").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nvideo.ts\n#EXT-X-ENDLIST\n")
    server = serve(tmp_path)
    for name in ("text.mp4", "list.m3u8"):
        with pytest.raises(VideoError, match=f"{name} cannot be read as a video") as raised:
            clips.Video(f"{server.url}/{name}")
        assert raised.value.path == f"{server.url}/{name}"


def test_a_disk_cache_needs_no_further_request(videos, tmp_path, serve):
    shutil.copytree(videos, tmp_path / "served")
    server = serve(tmp_path / "served")
    storage = Storage(disk_cache=tmp_path / "kept", disk_cache_bytes="1GiB")
    url = urls(server)[0]
    with clips.Video(url, storage=storage) as video:
        first = video.frames_at([3, 30]).pixels
    before = server.tells("requests")["bytes"]
    with clips.Video(url, storage=storage) as video:
        np.testing.assert_array_equal(video.frames_at([3, 30]).pixels, first)
    assert server.tells("requests")["bytes"] == before


def test_secrets_of_a_url_are_in_no_message(videos, serve):
    server = serve(videos)
    url = f"{server.url}/a.mp4?X-Amz-Signature=hidden"
    with clips.Video(url) as video:
        assert "hidden" not in repr(video)
        for wrong in (lambda: video.frames_at([99]), lambda: video.frames_played_at(99.0)):
            with pytest.raises((IndexError, ValueError), match=r"a\.mp4") as raised:
                wrong()
            assert "hidden" not in str(raised.value)
    data = clips.Videos(url, clips.RegularClips(99, policy="error"))
    with pytest.raises(ValueError, match="a clip of 99 frames") as raised:
        data[0]
    assert "hidden" not in str(raised.value)
    assert slipring.redaction.redacted(url) == f"{server.url}/a.mp4?X-Amz-Signature=***"
