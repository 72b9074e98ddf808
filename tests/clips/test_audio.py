"""The sound of clips: the samples that PyAV gives when it decodes and resamples all of a file's audio."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av")
import av

from slipring import Loader, clips, images
from slipring.errors import VideoError
from tests.support.kinds import KINDS, kinds, loaded
from tests.support.videos import write, write_with_sound

FILES = {
    "aac": ("a.mp4", "aac", 44_100, "stereo"),
    "aac in a transport stream": ("a.ts", "aac", 48_000, "stereo"),
    "opus": ("a.mkv", "libopus", 48_000, "mono"),  # whose time stamps are rounded to milliseconds
    "flac": ("a.mkv", "flac", 44_100, "stereo"),
    "mp3": ("a.mp4", "libmp3lame", 44_100, "stereo"),
    "pcm": ("a.mov", "pcm_s16le", 16_000, "mono"),
    "pcm that needs no conversion": ("a.mkv", "pcm_f32le", 16_000, "stereo"),
}
FORMS = [clips.AudioFormat(), clips.AudioFormat(16_000), clips.AudioFormat(22_050, num_channels=1)]


def all_sound(path, form):
    """Return ([(number of the first sample, samples)], rate) of all frames that PyAV decodes and resamples."""
    layout = {1: "mono", 2: "stereo", None: None}[form.num_channels]
    resampler = av.AudioResampler(format="flt", layout=layout, rate=form.sample_rate)
    with av.open(path) as container:
        stream = container.streams.audio[0]
        rate = form.sample_rate or stream.rate
        frames = [made for frame in container.decode(stream) for made in resampler.resample(frame)]
        channels = form.num_channels or stream.channels
    frames += resampler.resample(None)
    numbers = [round(frame.pts * frame.time_base * rate) for frame in frames]
    return list(zip(numbers, (frame.to_ndarray().reshape(-1, channels) for frame in frames))), rate


def end_of(video, last):
    """Return when a frame ends, in seconds."""
    return video.times[last + 1] if last + 1 < len(video) else video.end_seconds


@pytest.mark.parametrize("form", FORMS, ids=["own rate", "16 kHz", "22 kHz mono"])
@pytest.mark.parametrize("kind", FILES)
def test_samples_are_those_of_decoding_all_of_the_audio(tmp_path, kind, form):
    name, codec, rate, layout = FILES[kind]
    path = write_with_sound(tmp_path / name, codec, rate, layout)
    frames, rate = all_sound(path, form)
    whole = np.concatenate([samples for _, samples in frames])
    data = clips.Videos(path, clips.RegularClips(7, clips_per_video=5), audio=form)
    with clips.Video(path) as video:
        for clip in data:
            sound = clip.audio
            last = int(np.searchsorted(video.times, clip.times[-1]))
            seconds = end_of(video, last) - clip.times[0]
            assert sound.samples.dtype == np.float32 and sound.rates.tolist() == [rate]
            assert sound.offsets.tolist() == [0, len(sound.samples)]
            assert sound.begins[0] == pytest.approx(clip.times[0], abs=0.05)  # the tones may begin later
            assert len(sound.samples) == pytest.approx(rate * seconds, abs=0.05 * rate)
            # The frame in which the clip begins, by its rounded time stamp, and the place within it.
            begin = round(sound.begins[0] * rate)
            skipped = 0
            for at, samples in frames:
                if at <= begin < at + len(samples):
                    break
                skipped += len(samples)
            first = skipped + begin - at
            np.testing.assert_array_equal(sound.samples, whole[first : first + len(sound.samples)])


@pytest.mark.parametrize("kind", FILES)
def test_the_sounds_of_adjacent_clips_are_that_of_the_whole_video(tmp_path, kind):
    name, codec, rate, layout = FILES[kind]
    path = write_with_sound(tmp_path / name, codec, rate, layout)
    with clips.Video(path) as video:
        frames = len(video)
    data = clips.Videos(path, clips.RegularClips(frames // 4, clips_per_video=4), audio=True)
    (whole,) = clips.Videos(path, clips.RegularClips(frames // 4 * 4), audio=True)
    starts = [0]
    for clip in data:
        starts.append(starts[-1] + len(clip.audio.samples))
    np.testing.assert_array_equal(np.concatenate([clip.audio.samples for clip in data]), whole.audio.samples)
    for clip, start in zip(data, starts):
        assert clip.audio.begins[0] == pytest.approx(whole.audio.begins[0] + start / rate, abs=2e-3)


def test_a_clip_of_whole_frames_has_the_samples_of_that_time(tmp_path):
    """Lossless samples, so that their numbers can be computed."""
    path = write_with_sound(tmp_path / "a.mov", "pcm_s16le", 48_000)
    ((_, samples), *rest), _ = all_sound(path, clips.AudioFormat())
    whole = np.concatenate([samples, *(part for _, part in rest)])
    data = clips.Videos(path, clips.RegularClips(3, 4, clips_per_video=6), audio=True)
    for clip in data:
        first, last = (round(time * 30) for time in clip.times[[0, -1]])
        np.testing.assert_array_equal(clip.audio.samples, whole[first * 1600 : (last + 1) * 1600])
        assert clip.audio.begins[0] == first / 30


@kinds("inline", "fork", "thread", "spawn")
def test_a_batch_has_the_sounds_one_after_another(tmp_path, kind):
    names = (("a.mp4", "aac", 44_100), ("b.mkv", "flac", 48_000))
    paths = [write_with_sound(tmp_path / name, codec, rate) for name, codec, rate in names]
    sampler = clips.RandomClips(5, 3, clips_per_video=3)
    data = clips.Videos(paths, sampler, images.RandomResizedCrop(16), audio=True, cache="16MiB")
    options = {"batch_size": 3, "shuffle": True, "seed": 3}
    expected = loaded(data, **options, **KINDS["inline"])
    for batch, other in zip(loaded(data, **options, **kind), expected, strict=True):
        assert isinstance(batch, clips.ClipWithAudio) and batch.pixels.shape == (3, 5, 16, 16, 3)
        for part, wanted in zip((*batch[:3], *batch.audio), (*other[:3], *other.audio)):
            np.testing.assert_array_equal(part, wanted)
        for n, (times, video) in enumerate(zip(batch.times, batch.target)):
            path, rate = paths[video], names[video][2]
            assert batch.audio.rates[n] == rate
            start = int(np.flatnonzero(np.isclose(clips.Video(path).times, times[0]))[0])
            alone = clips.Videos(path, clips.RegularClips(5, 3, sampling_range_start=start), audio=True)[0].audio
            begin, end = batch.audio.offsets[n : n + 2]
            np.testing.assert_array_equal(batch.audio.samples[begin:end], alone.samples)
            assert batch.audio.begins[n] == alone.begins[0]


def test_torchs_loader_has_the_sounds_as_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    path = write_with_sound(tmp_path / "a.mp4")
    data = clips.Videos(path, clips.RegularClips(4, clips_per_video=2), audio=clips.AudioFormat(16_000))
    with DataLoader(data, batch_size=2, num_workers=1) as loader:
        (batch,) = loader
    assert torch.equal(batch.audio.samples, torch.from_numpy(np.concatenate([clip.audio.samples for clip in data])))
    assert batch.audio.offsets.shape == (3,)


def test_sound_that_begins_later_says_when(tmp_path):
    path = write_with_sound(tmp_path / "a.mov", "pcm_s16le", 16_000, late=0.5)
    first, last = clips.Videos(path, clips.RegularClips(30, clips_per_video=2), audio=True)
    assert first.audio.begins.tolist() == [0.5] and len(first.audio.samples) == 8000
    assert last.audio.begins.tolist() == [1.0] and len(last.audio.samples) == 16_000


def test_a_clip_after_the_end_of_the_sound_has_no_samples(tmp_path):
    path = write_with_sound(tmp_path / "a.mov", "pcm_s16le", 16_000, late=3.0)
    data = clips.Videos(path, clips.RegularClips(10), audio=True)
    assert data[0].audio.samples.shape == (0, 2) and data[0].audio.offsets.tolist() == [0, 0]


def test_a_wrapped_or_repeated_clip_has_the_sound_of_its_own_frames(tmp_path):
    path = write_with_sound(tmp_path / "a.mov", "pcm_s16le", 16_000)
    for policy in ("wrap", "repeat_last"):
        data = clips.Videos(path, clips.RegularClips(20, sampling_range_start=45, policy=policy), audio=True)
        assert len(data[0].audio.samples) == 15 * 16_000 // 30


def test_a_video_without_sound_is_an_error_with_its_path_or_is_skipped(tmp_path):
    silent, path = write(tmp_path / "silent.mp4"), write_with_sound(tmp_path / "a.mp4")
    text = f"^{silent} has no audio: leave out audio=, or the file$"
    for index in ("memory", "sidecar", "sidecar"):
        with pytest.raises(VideoError, match=text) as raised:
            clips.Videos([path, silent], clips.RegularClips(), audio=True, index=index)
        assert raised.value.path == silent
    data = clips.Videos([silent, path], clips.RegularClips(2), audio=True, on_error="skip")
    with Loader(data, batch_size=2) as loader:
        (batch,) = loader
        assert batch.target.tolist() == [1, 1] and loader.stats().skipped_samples == 1
    assert np.diff(batch.audio.offsets).tolist() == [3200, 3200]


@pytest.mark.parametrize("form", FORMS, ids=["own rate", "16 kHz", "22 kHz mono"])
def test_an_audio_stream_of_unknown_form_without_packets_counts_as_no_audio(tmp_path, form):
    path = str(tmp_path / "silent.ts")
    with av.open(write_with_sound(tmp_path / "a.ts")) as source, av.open(path, "w") as container:
        streams = {one.index: container.add_stream_from_template(one) for one in source.streams}
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = streams[packet.stream.index]
                container.mux(packet)
    with pytest.raises(VideoError, match=rf"^{path} has no audio: leave out audio=, or the file \(index 0\)$"):
        clips.Videos(path, clips.RegularClips(3), audio=form)[0]


def test_sounds_of_different_channels_need_a_number_of_them(tmp_path):
    paths = [write_with_sound(tmp_path / f"{name}.mp4", layout=name) for name in ("mono", "stereo")]
    data = clips.Videos(paths, clips.RegularClips(2), audio=True)
    with pytest.raises(ValueError, match=rf"{paths[0]} has 1 channels of audio and {paths[1]} has 2, .*num_channels=1"):
        loaded(data, batch_size=2)
    data = clips.Videos(paths, clips.RegularClips(2), audio=clips.AudioFormat(num_channels=2))
    (batch,) = loaded(data, batch_size=2)
    assert batch.audio.samples.shape == (6400, 2)


def test_damaged_sound_is_an_error_only_for_the_clips_that_need_it(tmp_path):
    whole, path = write_with_sound(tmp_path / "whole.mkv", "flac", 44_100), str(tmp_path / "damaged.mkv")
    with av.open(whole) as source, av.open(path, "w") as container:
        streams = {one.index: container.add_stream_from_template(one) for one in source.streams}
        for packet in source.demux():
            if packet.size:
                if packet.stream.type == "audio" and 1.4 < packet.pts * packet.time_base < 1.55:
                    spoilt = av.Packet(b"\xff" * packet.size)
                    spoilt.pts, spoilt.dts, spoilt.time_base = packet.pts, packet.dts, packet.time_base
                    spoilt.stream = streams[packet.stream.index]
                    packet = spoilt
                else:
                    packet.stream = streams[packet.stream.index]
                container.mux(packet)
    starts = [clips.RegularClips(6, sampling_range_start=start) for start in (0, 42)]
    good, bad = (clips.Videos(path, one, audio=True) for one in starts)
    np.testing.assert_array_equal(good[0].audio.samples, clips.Videos(whole, starts[0], audio=True)[0].audio.samples)
    with pytest.raises(VideoError, match=r"damaged\.mkv: the audio at 1\.4\d* s cannot be decoded: .* \(index 0\)$"):
        bad[0]
    both = clips.Videos(path, clips.RegularClips(6, clips_per_video=2, sampling_range_end=43), audio=True)
    for size in (1, 2):
        with pytest.raises(VideoError, match=r"\(index 1\)$"):
            loaded(both, batch_size=size)


def test_sound_that_changes_its_form_is_an_error_for_the_clips_after_it(tmp_path):
    first, second = (Path(write_with_sound(tmp_path / f"{rate}.ts", rate=rate)) for rate in (48_000, 44_100))
    whole = clips.Videos(first, clips.RegularClips(6), audio=True)[0].audio
    with open(first, "ab") as file, av.open(str(second)) as source:
        later = tmp_path / "later.ts"
        with av.open(str(later), "w", options={"output_ts_offset": "3"}) as container:
            streams = {one.index: container.add_stream_from_template(one) for one in source.streams}
            for packet in source.demux():
                if packet.size:
                    packet.stream = streams[packet.stream.index]
                    container.mux(packet)
        file.write(later.read_bytes())
    for form in (clips.AudioFormat(), clips.AudioFormat(48_000, num_channels=2)):
        data = clips.Videos(first, clips.RegularClips(6), audio=form)
        np.testing.assert_array_equal(data[0].audio.samples, whole.samples)
        data = clips.Videos(first, clips.RegularClips(6, sampling_range_start=-8), audio=form)
        with pytest.raises(
            VideoError, match=r"48000\.ts: the audio changes its rate, format or channels at .* s: conv"
        ):
            data[0]


def test_audio_of_a_codec_without_a_decoder_is_an_error(tmp_path):
    path = tmp_path / "a.mkv"
    write_with_sound(path, "flac", 44_100)
    path.write_bytes(path.read_bytes().replace(b"A_FLAC", b"A_XYZW"))
    data = clips.Videos(path, clips.RegularClips(3), audio=True)
    with pytest.raises(VideoError, match=rf"{path}: this build of FFmpeg has no decoder for the audio.*\(index 0\)"):
        data[0]


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: clips.AudioFormat(0), ValueError, "sample_rate must be from 1 to"),
        (lambda: clips.AudioFormat(1.5), TypeError, "sample_rate must be an int or None, not 1.5"),
        (lambda: clips.AudioFormat(num_channels=3), ValueError, "num_channels must be from 1 to 2, not 3"),
        (
            lambda: clips.Videos("a.mp4", clips.RegularClips(), audio=16_000),
            TypeError,
            "audio must be True, False or a",
        ),
    ],
)
def test_wrong_arguments_are_named(make, kind, text):
    with pytest.raises(kind, match=text):
        make()
