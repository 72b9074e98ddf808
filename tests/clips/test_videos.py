"""`clips.Videos`: clips of video files as samples and batches."""

import copy
import logging
import os
import pickle
import re
import signal
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av")
import av

from slipring import Cache, Loader, Workers, clips, images
from slipring.errors import VideoError, WorkerDied
from tests.support.kinds import KINDS, kinds, loaded
from tests.support.videos import Crash, Kind, decoded, write

FILES = "a.mp4", "b.mkv", "c.webm", "d.ts"
MADE = "h264 with B-frames and open groups", "hevc", "vp9", "h264 in a transport stream"
CLIPS = clips.RandomClips(num_frames=6, stride=3, clips_per_video=3)
PARTS = "pixels", "times", "target"
CROP = [images.RandomResizedCrop(24), images.RandomHorizontalFlip()]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    return [write(folder / name, kind, seed=n) for n, (name, kind) in enumerate(zip(FILES, MADE))]


def same(batches, others):
    assert len(batches) == len(others) > 0
    for batch, other in zip(batches, others):
        for name in PARTS:
            np.testing.assert_array_equal(getattr(batch, name), getattr(other, name))


# ---- which samples, and their pixels


def test_a_batch_has_the_frames_at_its_times(paths):
    data = clips.Videos(paths, CLIPS)
    assert len(data) == 12
    with Loader(data, batch_size=5, shuffle=True, num_workers=0, seed=1) as loader:
        for batch in loader:
            assert batch.pixels.shape == (*batch.times.shape, 48, 64, 3) and batch.times.shape[1] == 6
            for pixels, times, video in zip(*batch):
                all_pixels, all_times = decoded(paths[video])
                at = np.searchsorted(all_times, times)
                np.testing.assert_array_equal(all_times[at], times)
                np.testing.assert_array_equal(np.diff(at), 3)
                np.testing.assert_array_equal(all_pixels[at], pixels)


@pytest.mark.parametrize("cache", [None, "32MiB"])
@kinds("fork", "thread", "spawn", "forkserver", "ranges")
def test_any_workers_make_the_same_batches(paths, kind, cache):
    options = {"batch_size": 4, "shuffle": True, "seed": 7}
    expected = loaded(clips.Videos(paths, CLIPS, CROP), **options, **KINDS["inline"])
    data = clips.Videos(paths, CLIPS, CROP, cache=cache)
    first = data[5]  # this process has files open when it forks
    same(loaded(data, **options, **kind), expected)
    assert first.pixels.shape == data[5].pixels.shape == (6, 24, 24, 3)


def test_samples_drawn_by_their_position_are_those_of_batches(paths):
    data = clips.Videos(paths, CLIPS, CROP)
    options = {"num_workers": 0, "seed": 3, "rng": "sample", "shuffle": True}
    whole = loaded(data, batch_size=12, **options)
    halves = loaded(data, batch_size=6, **options)
    for name in PARTS:
        np.testing.assert_array_equal(getattr(whole[0], name), np.concatenate([getattr(half, name) for half in halves]))


def test_targets_belong_to_the_videos(paths):
    data = clips.Videos(paths, clips.RegularClips(2, clips_per_video=2), targets=["a", "b", "c", "d"])
    assert [clip.target for clip in data] == list("aabbccdd")
    labels = np.arange(40, 44, dtype=np.int16)
    (batch,) = loaded(clips.Videos(paths, clips.RegularClips(), targets=labels), batch_size=4, num_workers=1)
    assert batch.target.tolist() == labels.tolist() and batch.target.dtype == np.int16


def test_a_pickle_and_a_copy_have_the_same_clips(paths):
    data = clips.Videos(paths, clips.RegularClips(3), CROP[1])
    for other in (pickle.loads(pickle.dumps(data)), copy.copy(data), copy.deepcopy(data)):
        assert list(other.paths) == list(paths) and repr(other) == repr(data)
        assert repr(data) == "Videos(4 files, RegularClips(num_frames=3), RandomHorizontalFlip(p=0.5)): 4 clips"
        np.testing.assert_array_equal(other[2].times, data[2].times)


def test_torchs_loader_has_the_same_clips_as_tensors(paths):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    data = clips.Videos(paths, clips.RegularClips(3, stride=2), images.CenterCrop(20), layout="NCHW")
    (expected,) = loaded(data, batch_size=4, num_workers=0)
    subset = torch.utils.data.Subset(data, [0, 1, 2, 3])
    for dataset in (data, subset):
        with DataLoader(dataset, batch_size=4, num_workers=1) as loader:
            (batch,) = loader
            assert isinstance(batch, clips.Clip) and batch.pixels.shape == (4, 3, 3, 20, 20)
            same([clips.Clip(*(part.numpy() for part in batch))], [expected])


# ---- transforms


@pytest.fixture
def still(tmp_path):
    """A lossless video of one picture."""
    lossless = {"x264-params": "qp=0:keyint=5"}
    path = write(tmp_path / "still.mp4", Kind("mp4", "libx264", lossless, "yuv444p", pts=(0,)))
    picture = decoded(path)[0][0]
    import av

    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=10, options=lossless)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv444p"
        for _ in range(12):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    found = decoded(path)[0]
    assert len(found) == 12 and (found == found[0]).all()
    return path, found[0]


STEPS = [
    [images.RandomResizedCrop(20), images.RandomHorizontalFlip(), images.RandomErasing(p=1, value="random")],
    [images.RandomAffine(30, translate=(0.2, 0.2)), images.ColorJitter(0.5, 0.5, 0.5, 0.2), images.RandomCrop(20)],
    [images.RandAugment(), images.Resize((20, 20))],
]


@pytest.mark.parametrize("steps", STEPS, ids=["crop", "affine", "policy"])
def test_all_frames_of_a_clip_have_one_geometry(still, steps):
    data = clips.Videos(still[0], clips.RandomClips(6, clips_per_video=8), steps, dtype="float32")
    made = [clip.pixels for clip in data]
    for pixels in made:
        assert (pixels == pixels[0]).all()
    assert any((pixels != made[0]).any() for pixels in made[1:])


@pytest.mark.parametrize("steps", STEPS, ids=["crop", "affine", "policy"])
def test_each_frame_has_a_geometry_of_its_own_if_asked_for(still, steps):
    data = clips.Videos(still[0], clips.RandomClips(6, clips_per_video=4), steps, geometry="frame", dtype="float32")
    for clip in data:
        assert any((frame != clip.pixels[0]).any() for frame in clip.pixels[1:])


def test_transforms_are_those_of_images(still):
    path, picture = still
    size, mean, std = (20, 30), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    expected = images.functional.resize(picture, size)
    data = clips.Videos(path, clips.RegularClips(2), images.Resize(size))
    np.testing.assert_array_equal(data[0].pixels, np.stack([expected] * 2))
    normalised = (expected / np.float32(255) - np.float32(mean)) / np.float32(std)
    data = clips.Videos(
        path, clips.RegularClips(2), images.Resize(size), layout="NCHW", dtype="float32", mean=mean, std=std
    )
    (batch,) = loaded(data, batch_size=1, num_workers=1)
    assert batch.pixels.dtype == np.float32 and batch.pixels.shape == (1, 2, 3, 20, 30)
    np.testing.assert_allclose(batch.pixels[0, 0].transpose(1, 2, 0), normalised, rtol=1e-5, atol=1e-6)


CROPS = images.MultiCrop([(2, images.RandomResizedCrop(24)), (3, [images.RandomCrop(12), images.ColorJitter(0.4)])])


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@kinds("inline", "one fork", "thread")
def test_each_crop_of_a_clip_is_a_clip(still, kind, layout):
    data = clips.Videos(still[0], clips.RandomClips(5, clips_per_video=4), CROPS, layout=layout)
    alone = data[0].pixels
    assert [part.shape[:2] for part in alone] == [(2, 5), (3, 5)]
    for batch in loaded(data, batch_size=2, seed=1, **kind):
        large, small = batch.pixels
        if layout == "NCHW":
            large, small = large.transpose(0, 1, 2, 4, 5, 3), small.transpose(0, 1, 2, 4, 5, 3)
        assert large.shape == (2, 2, 5, 24, 24, 3) and small.shape == (2, 3, 5, 12, 12, 3)
        for crops in (large, small):
            assert (crops == crops[:, :, :1]).all()  # each crop has one geometry for all frames
            assert (crops[:, 0] != crops[:, 1]).any()


def test_crops_of_frames_are_those_of_images(paths):
    steps = [(1, images.Resize((20, 30))), (1, images.CenterCrop(16))]
    (clip,) = clips.Videos(paths[0], clips.RegularClips(4), images.MultiCrop(steps))
    for part, (_, step) in zip(clip.pixels, steps):
        np.testing.assert_array_equal(part[0], clips.Videos(paths[0], clips.RegularClips(4), step)[0].pixels)


@kinds("inline", "one fork", "thread")
def test_patches_of_a_clip_are_those_of_its_frames(paths, kind):
    recipe = images.Patches(22, patch_size=8)
    data = clips.Videos(paths, clips.RegularClips(3, stride=4), recipe, dtype="float32")
    (batch,) = loaded(data, batch_size=4, **kind)
    pixels = clips.Videos(paths, clips.RegularClips(3, stride=4), images.Resize((32, 40)), dtype="float32")[2].pixels
    found = batch.pixels
    assert {name: part.shape for name, part in found.items()} == {
        "patches": (4, 3, 22, 192), "patch_coord": (4, 3, 22, 2), "patch_valid": (4, 3, 22),
    }  # fmt: skip
    assert (found["patch_valid"] == (np.arange(22) < 20)).all()
    for at, (row, column) in enumerate(found["patch_coord"][2, 1][:20]):
        patch = pixels[1, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
        np.testing.assert_array_equal(found["patches"][2, 1, at], patch.reshape(-1))


MIXES = {"mixup": images.MixUp(num_classes=4), "cutmix": images.CutMix(num_classes=4)}


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("mix", MIXES)
@kinds("inline", "one fork", "thread")
def test_clips_of_a_batch_are_mixed_like_images(paths, kind, mix, layout):
    options = {"dtype": "float32", "layout": layout}
    plain, mixed = (
        loaded(
            clips.Videos(paths, clips.RegularClips(3), images.CenterCrop(20), batch_transform=transform, **options),
            batch_size=4, seed=2, **kind,
        )[0]
        for transform in (None, MIXES[mix])
    )  # fmt: skip
    assert mixed.target.shape == (4, 4) and mixed.target.dtype == np.float32
    share = mixed.target[1, 1]
    np.testing.assert_allclose(mixed.target, share * np.eye(4) + (1 - share) * np.roll(np.eye(4), 1, 0), atol=1e-6)
    previous = np.roll(plain.pixels, 1, axis=0)
    if mix == "mixup":
        np.testing.assert_allclose(mixed.pixels, share * plain.pixels + (1 - share) * previous, atol=1e-5)
        return
    cut = mixed.pixels != plain.pixels
    np.testing.assert_array_equal(mixed.pixels[cut], previous[cut])
    axes = (2, 3) if layout == "NHWC" else (3, 4)
    other = tuple(axis for axis in range(5) if axis not in axes)
    box = cut.any(axis=other)
    rows, columns = np.flatnonzero(box.any(1)), np.flatnonzero(box.any(0))
    assert len(rows) * len(columns) / 400 == pytest.approx(1 - share, abs=1e-6)  # one box for all frames
    assert box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()


def test_mixing_needs_a_batch_that_is_a_clip(paths):
    data = clips.Videos(paths, CLIPS, CROP, batch_transform=images.MixUp(num_classes=4))
    with pytest.raises(ValueError, match="batch_transform needs a batch of clips, a Clip, and collate_fn returned"):
        loaded(data, batch_size=2, num_workers=0, collate_fn=lambda samples: [clip.pixels for clip in samples])
    assert data[0].target == 0  # a clip that is read by its index is not mixed


def test_mixed_clips_of_torch_are_tensors(paths):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    data = clips.Videos(paths, CLIPS, CROP, dtype="bfloat16", batch_transform=images.CutMix(num_classes=4))
    with DataLoader(data, batch_size=4, num_workers=1) as loader:
        for batch in loader:
            assert batch.pixels.dtype == torch.bfloat16 and batch.target.shape == (4, 4)
            assert torch.allclose(batch.target.sum(1), torch.ones(4))


def test_batches_of_bfloat16_are_tensors(still):
    torch = pytest.importorskip("torch")
    data = clips.Videos(still[0], clips.RegularClips(2), images.CenterCrop(8), dtype=torch.bfloat16)
    (batch,) = loaded(data, batch_size=1, num_workers=0)
    assert batch.pixels.dtype == data[0].pixels.dtype == torch.bfloat16
    whole = clips.Videos(still[0], clips.RegularClips(2), images.CenterCrop(8), dtype="float32")
    torch.testing.assert_close(batch.pixels[0].float(), torch.from_numpy(whole[0].pixels), atol=0.004, rtol=0)


def test_a_rotated_video_is_upright(tmp_path):
    path = write(tmp_path / "video.mp4", "h264 rotated by 90")
    (clip,) = clips.Videos(path, clips.RegularClips(3))
    np.testing.assert_array_equal(clip.pixels, decoded(path)[0][:3])
    assert clip.pixels.shape == (3, 64, 48, 3)


@pytest.mark.parametrize("degrees", [0, 90, 180, -90])
def test_a_mirrored_video_is_shown_as_its_file_says(tmp_path, degrees):
    path = write(tmp_path / "mirrored.mp4", Kind("mp4", "libx264", rotation=degrees, mirrored=True), frames=3)
    with av.open(path) as container:
        stored = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    (clip,) = clips.Videos(path, clips.RegularClips(3))
    np.testing.assert_array_equal(clip.pixels, np.rot90(stored, degrees // 90, (1, 2))[:, :, ::-1])


def test_videos_of_one_size_need_no_transform(tmp_path, still):
    rotated = write(tmp_path / "rotated.mp4", "h264 rotated by 180")
    data = clips.Videos([still[0], rotated], clips.RegularClips(2))
    (batch,) = loaded(data, batch_size=2, num_workers=1)
    assert batch.pixels.shape == (2, 2, 48, 64, 3)
    np.testing.assert_array_equal(batch.pixels[1], decoded(rotated)[0][:2])
    data = clips.Videos([still[0], rotated], clips.RegularClips(2), images.Pad(3), layout="NCHW")
    assert loaded(data, batch_size=2, num_workers=1)[0].pixels.shape == (2, 2, 3, 54, 70)


def test_videos_of_different_sizes_need_a_transform(tmp_path, paths):
    odd = write(tmp_path / "odd.webm", "vp9 of odd size")
    data = clips.Videos([paths[0], odd], clips.RegularClips(2))
    assert [clip.pixels.shape for clip in data] == [(2, 48, 64, 3), (2, 47, 63, 3)]
    data = clips.Videos([paths[0], odd], clips.RegularClips(2), images.Resize((24, 24)))
    (batch,) = loaded(data, batch_size=2, num_workers=1)
    assert batch.pixels.shape == (2, 2, 24, 24, 3)


def test_a_video_whose_size_changes_needs_a_transform(tmp_path):
    small = Kind("ts", "libx264", size=(32, 32), pts=tuple(range(50_000, 60_000, 1000)))
    path = Path(write(tmp_path / "both.ts", "h264 in a transport stream"))
    path.write_bytes(path.read_bytes() + Path(write(tmp_path / "small.ts", small)).read_bytes())
    ends = clips.RegularClips(2, seconds_between_frames=1.7)
    changed = r"both.ts: frame 43 at 1.76667 s has 32 x 32 pixels, the first one has 48 x 64: add a transform"
    for cache in (None, "8MiB"):
        data = clips.Videos(path, ends, cache=cache)
        with pytest.raises(VideoError, match=changed):
            data[0]
        with pytest.raises(VideoError, match=changed):
            loaded(data, batch_size=1, num_workers=1)
    assert clips.Videos(path, ends, images.Resize((16, 16)), cache="8MiB")[0].pixels.shape == (2, 16, 16, 3)


# ---- the cache


def test_each_group_of_pictures_is_decoded_once_for_all_workers_and_epochs(tmp_path, paths, frames_decoded):
    long = write(tmp_path / "long.webm", "vp9", frames=160, group=160)  # ten entries
    data = clips.Videos([*paths, long], clips.RandomClips(6, 3, clips_per_video=8), CROP, cache="64MiB")
    decoded = []
    for epoch in range(4):
        workers = Workers(start_method="fork")
        with Loader(data, batch_size=4, shuffle=True, num_workers=4, seed=epoch, workers=workers) as loader:
            assert sum(len(batch.pixels) for batch in loader) == 40
        decoded.append(frames_decoded())
    total = 4 * 40 + 160
    assert 160 < decoded[0] <= decoded[-1] <= 1.2 * total  # frames around a key frame may be decoded twice
    stats = data.cache.stats()
    assert stats.refused_budget == stats.refused_memory == 0 and stats.entries <= stats.samples


def test_a_group_of_large_frames_is_kept_in_pieces(tmp_path):
    path = write(
        tmp_path / "large.mp4", Kind("mp4", "libx264", {"preset": "ultrafast"}, size=(1280, 720)), frames=30, group=30
    )
    pixels, _ = decoded(path)
    last = clips.Videos(path, clips.RegularClips(sampling_range_start=29), cache="200MiB")
    np.testing.assert_array_equal(last[0].pixels, pixels[29:])
    assert last.cache.stats().entries == 4  # all frames of the group, and that it is complete
    data = clips.Videos(path, clips.RegularClips(3, stride=14), cache="200MiB")
    np.testing.assert_array_equal(data[0].pixels, pixels[[0, 14, 28]])
    stats = data.cache.stats()
    assert stats.entries == stats.samples == 4  # 12, 12 and 6 frames, of 32 MiB at most, and that it is complete
    np.testing.assert_array_equal(data[0].pixels, pixels[[0, 14, 28]])
    assert data.cache.stats().misses == 4


def test_a_cache_that_is_too_small_changes_nothing(paths):
    options = {"batch_size": 4, "shuffle": True, "seed": 2, "num_workers": 2}
    small = clips.Videos(paths, CLIPS, CROP, cache="200KiB")
    same(loaded(small, **options), loaded(clips.Videos(paths, CLIPS, CROP), **options))
    assert small.cache.stats().refused > 0


def test_a_cache_by_name_is_shared_and_refuses_other_videos(paths):
    from slipring.errors import CacheMismatch

    name = f"clips-{os.getpid()}"
    with Cache("8MiB", name=name) as cache, Cache("8MiB", name=name) as other:
        first = clips.Videos(paths, clips.RegularClips(5), cache=cache)
        assert first[0].pixels.shape == (5, 48, 64, 3)
        second = clips.Videos(paths, clips.RegularClips(2), cache=other)
        assert second[0].pixels.shape == (2, 48, 64, 3) and other.stats().hits > 0
        with pytest.raises(CacheMismatch, match="frames of 4 videos"):
            clips.Videos(paths[:2], CLIPS, cache=other)
        with pytest.raises(CacheMismatch, match="this is frames of 4 videos, but other ones or in another form"):
            clips.Videos(paths[::-1], CLIPS, cache=other)


# ---- errors


def write_damaged(path, damaged, **options):
    """Write a video; the decoder refuses the packets whose numbers are in `damaged`. Return its path."""
    whole, path = write(path.with_stem("whole"), "h264 in matroska", frames=60, **options), str(path)
    with av.open(whole) as source, av.open(path, "w") as container:
        stream = container.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.size:
                made = av.Packet(b"\xff" * packet.size if number in damaged else bytes(packet))
                made.pts, made.dts, made.time_base, made.stream = packet.pts, packet.dts, packet.time_base, stream
                made.is_keyframe = packet.is_keyframe
                container.mux(made)
    return path


@pytest.fixture
def broken(tmp_path, paths):
    """Three videos, of which the second has damaged frames."""
    return [paths[0], write_damaged(tmp_path / "broken.mkv", range(25, 40)), paths[2]]


def damaged(path):
    """Return the time stamp of a frame that cannot be decoded."""
    with clips.Video(path) as video:
        for number, time in enumerate(video.times.tolist()):
            try:
                video.frames_at([number])
            except VideoError as error:
                assert (error.path, error.frame, error.time) == (path, number, time)
                return time
    raise AssertionError("every frame can be decoded")


@kinds("inline", "one fork", "one spawn")
def test_a_frame_that_cannot_be_decoded_is_an_error_with_its_path_and_time(broken, kind):
    time = damaged(broken[1])
    sampler = clips.RegularClips(sampling_range_start=time, seconds_between_frames=1.0)
    data = clips.Videos([broken[1], broken[1]], sampler)
    with pytest.raises(VideoError, match=rf"broken.mkv: frame \d+ at {time:.6g} s cannot be decoded: .* \(index 0\)"):
        loaded(data, batch_size=2, **kind)
    with pytest.raises(VideoError) as raised:
        data[1]
    assert (raised.value.path, raised.value.time, raised.value.index) == (broken[1], time, 1)


def test_a_video_that_cannot_be_read_is_skipped(broken, caplog):
    sampler = clips.RegularClips(sampling_range_start=damaged(broken[1]), seconds_between_frames=1.0)
    data = clips.Videos(broken, sampler, on_error="skip")
    with Loader(data, batch_size=3, num_workers=1) as loader:
        (batch,) = loader
        assert loader.stats().skipped_samples == 1
    assert batch.target.tolist() == [0, 2, 2]
    np.testing.assert_array_equal(batch.pixels[1], batch.pixels[2])
    assert data[1].target == 2
    assert "skipped" in caplog.text and "broken.mkv: frame" in caplog.text


def test_other_clips_of_a_damaged_video_are_kept(broken):
    time = damaged(broken[1])
    sampler = clips.RegularClips(clips_per_video=2, seconds_between_frames=1.0, sampling_range_end=2 * time)
    data = clips.Videos(broken, sampler, on_error="skip")
    with Loader(data, batch_size=6, num_workers=0) as loader:
        (batch,) = loader
    assert batch.target.tolist() == [0, 0, 1, 2, 2, 2]


def test_a_damaged_frame_costs_only_the_clips_that_have_it_also_with_a_cache(tmp_path):
    path = write_damaged(tmp_path / "damaged.mkv", [50], group=60)
    lost = round(damaged(path) * 30)
    assert 48 < lost < 59  # the last cache entry of the only group of pictures has good frames, too
    with Cache("64MiB") as cache, clips.Video(path) as video:
        for start in (0, 20, lost - 3, lost + 1):
            data = clips.Videos(path, clips.RegularClips(3, sampling_range_start=start), cache=cache)
            np.testing.assert_array_equal(
                data[0].pixels, video.frames_at(np.arange(start, start + 3).clip(max=59)).pixels
            )
        with pytest.raises(VideoError, match=f"frame {lost} at"):
            clips.Videos(path, clips.RegularClips(3, sampling_range_start=lost), cache=cache)[0]
        assert cache.stats().hits > 0


def test_a_clip_counts_once_however_many_videos_are_skipped_for_it(tmp_path, paths):
    broken = [tmp_path / f"{n}.mp4" for n in range(2)]
    for path in broken:
        path.write_text("no video")
    data = clips.Videos([*broken, paths[0]], clips.RegularClips(2), on_error="skip")
    with Loader(data, batch_size=3, num_workers=1) as loader:
        (batch,) = loader
        assert batch.target.tolist() == [2, 2, 2] and loader.stats().skipped_samples == 2


def cut(image):
    return image[:3]


def test_wrong_sizes_from_transforms_name_the_video(paths):
    sizes = images.RandomChoice([images.CenterCrop(8), images.CenterCrop(9)])
    data = clips.Videos(paths[0], clips.RegularClips(30), sizes, geometry="frame")
    with pytest.raises(
        ValueError, match=r"a\.mp4: the transforms give the frames of one clip the shapes .*\(9, 9, 3\)"
    ):
        data[0]
    with pytest.raises(ValueError, match=r"a\.mp4 \(index 1\): the step .* returned an array"):
        clips.Videos(paths[0], clips.RegularClips(3, clips_per_video=2), cut)[1]


def test_files_that_are_no_videos_are_skipped_or_named(tmp_path, paths, caplog):
    (tmp_path / "text.mp4").write_text("no video")
    listed = [paths[0], tmp_path / "text.mp4", tmp_path / "none.mp4", paths[1]]
    with pytest.raises(VideoError, match=r"text\.mp4 cannot be read as a video"):
        clips.Videos(listed, CLIPS)
    with caplog.at_level(logging.WARNING, "slipring"):
        data = clips.Videos(listed, CLIPS, on_error="skip")
    assert "text.mp4 cannot be read" in caplog.text and "none.mp4" in caplog.text
    assert len(data) == 12
    batches = loaded(data, batch_size=12, num_workers=1)
    assert batches[0].target.tolist() == [0] * 3 + [3] * 9
    with pytest.raises(VideoError, match=r"none of the 2 videos can be read; the first error: .*text\.mp4"):
        clips.Videos(listed[1:3], CLIPS, on_error="skip")


@pytest.mark.parametrize("index", [slice(0, 2), "a", 1.0, None, [0]])
def test_an_index_that_is_no_number_is_an_error_that_shows_it(paths, index):
    data = clips.Videos(paths, CLIPS)
    with pytest.raises(TypeError, match=rf"^index must be an int, not {re.escape(repr(index))}$"):
        data[index]
    assert data[np.int64(-1)].target == data[11].target == 3


def test_a_clip_that_does_not_fit_is_an_error_even_if_broken_videos_are_skipped(paths):
    data = clips.Videos(paths, clips.RegularClips(41, policy="error"), on_error="skip")
    with pytest.raises(ValueError, match="a clip of 41 frames"):
        data[0]


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "text"),
    [
        (([], CLIPS), {}, ValueError, "paths must name at least one video"),
        ((["https://host/a.mp4", "a.mp4"], CLIPS), {}, ValueError, "'https://host/a.mp4' is a URL and 'a.mp4' is not"),
        (("https://host/a.mp4", CLIPS), {"index": "sidecar"}, ValueError, "index='sidecar' .* give a folder"),
        (("a.mp4", CLIPS), {"storage": "x"}, TypeError, "storage must be a slipring.Storage or None, not 'x'"),
        (("a.mp4", 16), {}, TypeError, "clips must be"),
        (("a.mp4", CLIPS), {"targets": [1, 2]}, ValueError, "targets must have one for each of the 1 videos, not 2"),
        (("a.mp4", CLIPS), {"targets": 1}, TypeError, "targets must be a sequence with one for each video, not 1"),
        (("a.mp4", CLIPS), {"geometry": "video"}, ValueError, "geometry must be one of 'clip', 'frame'"),
        (("a.mp4", CLIPS), {"on_error": "log"}, ValueError, "on_error must be one of"),
        (("a.mp4", CLIPS), {"index": "disk"}, ValueError, "index must be 'memory' or 'sidecar'"),
        (("a.mp4", CLIPS), {"layout": "CHW"}, ValueError, "layout must be one of"),
        (("a.mp4", CLIPS), {"mean": (0, 0, 0)}, ValueError, "mean and std are for dtype="),
        (("a.mp4", CLIPS, {8: images.CenterCrop(8)}), {}, TypeError, "for one size, and a dict of sizes is for images"),
        (("a.mp4", CLIPS, [images.MultiCrop([(2, images.CenterCrop(8))])]), {}, TypeError, "MultiCrop"),
        (("a.mp4", CLIPS, images.Patches(9)), {"layout": "NCHW"}, ValueError, "layout must be 'NHWC' with Patches"),
        (("a.mp4", CLIPS, images.Mosaic(64)), {}, TypeError, "Mosaic.* is for samples with boxes or masks"),
        (
            ("a.mp4", CLIPS),
            {"batch_transform": images.CenterCrop(8)},
            TypeError,
            "must be MixUp, CutMix or RandomChoice",
        ),
        (
            ("a.mp4", CLIPS, images.Patches(9)),
            {"batch_transform": images.MixUp(num_classes=2)},
            ValueError,
            "batch_transform mixes one array per clip, which transform=Patches",
        ),
        (("a.mp4", CLIPS, images.MixUp(num_classes=2)), {}, TypeError, "transform must not have"),
    ],
)
def test_wrong_arguments_are_named(arguments, options, kind, text):
    with pytest.raises(kind, match=text):
        clips.Videos(*arguments, **options)


def test_an_index_beyond_the_end_is_named(paths):
    data = clips.Videos(paths, CLIPS)
    assert data[-1].target == 3
    for wrong in (12, -13):
        with pytest.raises(IndexError, match=f"index {wrong} is out of range: the dataset has 12 clips"):
            data[wrong]


def test_a_video_that_changes_during_training_is_an_error(tmp_path):
    path = write(tmp_path / "video.mp4")
    data = clips.Videos(path, CLIPS)
    assert data[0].target == 0
    write(path, "hevc")
    with pytest.raises(VideoError, match=r"video\.mp4 has changed since its index was made"):
        data[0]


# ---- crashes


@pytest.mark.fault
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_crash_in_a_codec_costs_a_worker_and_no_batch(tmp_path, paths, method):
    (tmp_path / "main").write_text(str(os.getpid()))
    options = {"batch_size": 2, "num_workers": 2, "seed": 5}
    data = clips.Videos(paths, CLIPS, [*CROP, Crash(tmp_path, signal.SIGSEGV)])
    with Loader(data, workers=Workers(start_method=method), **options) as loader:
        batches = [copy.deepcopy(batch) for batch in loader]
        assert loader.stats().respawns == 1
    assert (tmp_path / "crash 0").exists()
    same(batches, loaded(clips.Videos(paths, CLIPS, [*CROP, Crash(tmp_path, signal.SIGSEGV)]), **options))


@pytest.mark.fault
def test_a_batch_whose_workers_always_die_is_an_error(tmp_path, paths):
    (tmp_path / "main").write_text(str(os.getpid()))
    data = clips.Videos(paths, CLIPS, [*CROP, Crash(tmp_path, signal.SIGABRT, times=99)])
    with pytest.raises(WorkerDied), Loader(data, batch_size=2, num_workers=1) as loader:
        list(loader)
    assert sum(1 for _ in tmp_path.glob("crash *")) == 4  # the first worker, and three others


@pytest.mark.fault
def test_a_death_is_an_error_if_the_loader_says_so(tmp_path, paths):
    (tmp_path / "main").write_text(str(os.getpid()))
    data = clips.Videos(paths, CLIPS, [*CROP, Crash(tmp_path, signal.SIGABRT)])
    with (
        pytest.raises(WorkerDied),
        Loader(data, batch_size=2, num_workers=1, workers=Workers(on_death="raise")) as loader,
    ):
        list(loader)


@pytest.mark.fault
def test_videos_in_a_concat_dataset_have_the_same_default(tmp_path, paths):
    data = pytest.importorskip("torch").utils.data
    (tmp_path / "main").write_text(str(os.getpid()))
    parts = [clips.Videos(path, CLIPS, [*CROP, Crash(tmp_path, signal.SIGSEGV)]) for path in paths[:2]]
    with Loader(data.ConcatDataset(parts), batch_size=2, num_workers=1) as loader:
        assert [batch.target.tolist() for batch in loader] == [[0, 0]] * 3
        assert loader.stats().respawns == 1
    (tmp_path / "crash 0").unlink()
    with pytest.raises(WorkerDied), Loader(data.ConcatDataset([*parts, range(2)]), batch_size=2, num_workers=1) as one:
        list(one)
