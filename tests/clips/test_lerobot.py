"""`clips.LeRobot`: robot datasets of LeRobot's format v3."""

import copy
import itertools
import json
import os
import pickle
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av")
pytest.importorskip("pyarrow")

from slipring import BatchSampler, Loader, clips, images
from slipring.errors import VideoError
from tests.support.datasets import flat
from tests.support.kinds import KINDS, kinds, loaded
from tests.support.robots import (
    FEATURES,
    FPS,
    LENGTHS,
    SIZES,
    TASKS,
    TOP,
    WRIST,
    change_column,
    change_info,
    video_of,
    write_dataset,
)
from tests.support.videos import UNITS, Crash, Kind, decoded, write

DELTAS = {TOP: [-0.2, 0.0], WRIST: [0.1], "action": [0.0, 0.1, 0.5], "contacts": [-0.1], "next.done": [0.0, 1.0]}
CROP = [images.RandomResizedCrop(24), images.RandomHorizontalFlip()]
ROWS = sum(LENGTHS)
SHAPES = {TOP: (3, 48, 64), WRIST: (3, 48, 32)}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("robot") / "data")


@pytest.fixture(scope="module")
def root(written):
    return written[0]


@pytest.fixture
def own_root(root, tmp_path):
    """A copy of the dataset, to be changed."""
    return shutil.copytree(root, tmp_path / "own")


def expected(written, row, deltas):
    """Return the sample of a row, from the columns that were written and PyAV's frames of whole videos."""
    root, columns = written
    episode = int(columns["episode_index"][row])
    first, last = (np.flatnonzero(columns["episode_index"] == episode)[at] for at in (0, -1))
    in_file = 0 if episode < 2 else sum(LENGTHS[:2])  # the first row of the file
    sample = {}
    for key in SHAPES:
        pixels, _ = decoded(video_of(root, key, episode))
        rows = np.clip(row + np.rint(np.array(deltas.get(key, [0.0])) * FPS).astype(int), first, last)
        frames = (pixels[rows - in_file].astype(np.float32) / np.float32(255)).transpose(0, 3, 1, 2)
        sample[key] = frames if len(rows) > 1 else frames[0]
    for key, values in columns.items():
        if key in deltas:
            rows = np.clip(row + np.rint(np.array(deltas[key]) * FPS).astype(int), first, last)
            sample[key] = values[rows]
        else:
            sample[key] = values[row]
    for key, times in deltas.items():
        rows = row + np.rint(np.array(times) * FPS).astype(int)
        sample[f"{key}_is_pad"] = (rows < first) | (rows > last)
    return {**sample, "task": TASKS[episode % len(TASKS)]}


def same(sample, other):
    assert list(sample) == list(other)
    for key, value in other.items():
        np.testing.assert_array_equal(sample[key], value)


def batches_equal(batches, others):
    assert len(batches) == len(others) > 0
    for batch, other in zip(batches, others):
        same(batch, other)


# ---- samples


@pytest.mark.parametrize("deltas", [{}, DELTAS], ids=["alone", "windows"])
def test_a_sample_has_the_values_and_frames_of_its_times(written, deltas):
    data = clips.LeRobot(written[0], deltas)
    assert len(data) == ROWS
    for row in range(ROWS):
        wanted = expected(written, row, deltas)
        wanted["action"] = wanted["action"].astype(np.float32)  # as torch does with a float of Python
        same(data[row], wanted)


def test_values_have_the_dtypes_of_torch(root):
    sample = clips.LeRobot(root, DELTAS)[20]
    dtypes = {key: value.dtype.name for key, value in sample.items() if not isinstance(value, str)}
    floats, ints = (TOP, WRIST, "observation.state", "action", "contacts", "timestamp"), ("mode", "index", "task_index")
    assert {dtypes[key] for key in floats} == {"float32"}
    assert {dtypes[key] for key in (*ints, "frame_index", "episode_index")} == {"int64"}
    assert {dtypes[key] for key in dtypes if key.endswith("is_pad") or key == "next.done"} == {"bool"}
    assert sample["timestamp"].shape == () and sample["contacts"].shape == (1, 2, 3)


@pytest.mark.parametrize("cache", [None, "32MiB"])
@kinds("fork", "thread", "spawn", "forkserver", "ranges")
def test_any_workers_make_the_same_batches(root, kind, cache):
    options = {"batch_size": 4, "shuffle": True, "seed": 7}
    wanted = loaded(clips.LeRobot(root, DELTAS, CROP), **options, **KINDS["inline"])
    data = clips.LeRobot(root, DELTAS, CROP, cache=cache)
    first = data[5]  # this process has files open when it forks
    batches_equal(loaded(data, **options, **kind), wanted)
    assert first[TOP].shape == data[5][TOP].shape == (2, 3, 24, 24)


def test_a_batch_has_its_samples_and_is_written_in_the_slot(root):
    data = clips.LeRobot(root, DELTAS)
    with Loader(data, batch_size=8, num_workers=2) as loader:
        batches = [copy.deepcopy(batch) for batch in loader]
        assert loader.stats().copied_batches == 0
    for number, batch in enumerate(batches):
        for row in range(len(batch["task"])):
            same({key: values[row] for key, values in batch.items()}, data[8 * number + row])


def test_torch_loaders_make_tensors_of_the_same_batches(root):
    torch = pytest.importorskip("torch")
    from slipring.torch import DataLoader

    data, options = clips.LeRobot(root, DELTAS), {"batch_size": 8, "num_workers": 1}
    wanted = loaded(data, batch_size=8, **KINDS["inline"])
    for kind in (DataLoader, torch.utils.data.DataLoader):
        found = [copy.deepcopy(batch) for batch in kind(data, **options)]
        assert all(isinstance(value, torch.Tensor) for key, value in found[0].items() if key not in ("note", "task"))
        batches_equal(found, wanted)


def test_times_far_outside_of_an_episode_are_padding(root):
    data = clips.LeRobot(root, {"action": iter([-1e300, 1e300])})
    assert data.delta_timestamps == {"action": [-1e300, 1e300]}
    sample, plain = data[3], clips.LeRobot(root)
    assert sample["action_is_pad"].all()
    np.testing.assert_array_equal(sample["action"], [plain[row]["action"] for row in (0, LENGTHS[0] - 1)])


def test_only_chosen_episodes_are_samples(root):
    whole, data = clips.LeRobot(root, DELTAS), clips.LeRobot(root, DELTAS, episodes=[3, 1, 3])
    rows = [row for row in range(ROWS) if whole[row]["episode_index"] in (1, 3)]
    assert data.episodes.tolist() == [1, 3] and len(data) == len(rows)
    for at, row in enumerate(rows):
        same(data[at], whole[row])


def test_files_of_other_episodes_may_be_missing(own_root, root):
    for folder in ("data", f"videos/{TOP}", f"videos/{WRIST}"):
        for path in Path(own_root, folder).glob("*/file-001.*" if folder == "data" else "chunk-001/*"):
            path.unlink()
    for key in SHAPES:
        Path(video_of(own_root, key, 2)).unlink(missing_ok=True)
    data = clips.LeRobot(own_root, episodes=range(2))
    same(data[18], clips.LeRobot(root)[18])


def test_features_that_are_left_out_are_not_read(own_root, root):
    shutil.rmtree(Path(own_root, "videos", WRIST))
    change_column(own_root, "data", "note", None)
    kept = [TOP, "action"]
    data = clips.LeRobot(own_root, {"action": [0.1]}, features=kept)
    assert list(data.features) == kept and data.stats["action"]["mean"].shape == (2,)
    whole = clips.LeRobot(root, {"action": [0.1]})[30]
    same(data[30], {key: whole[key] for key in (*kept, "action_is_pad", "task")})
    data = clips.LeRobot(own_root, features=["action"], cache="1MiB")  # without a camera
    assert list(loaded(data, batch_size=ROWS)[0]) == ["action", "task"] and data.cache is None


def test_subtasks_are_texts_like_tasks(own_root):
    pa = pytest.importorskip("pyarrow")
    features = {**FEATURES, "subtask_index": FEATURES["task_index"]}
    change_info(own_root, features=features)
    for file in range(2):
        path = Path(own_root, f"data/chunk-000/file-00{file}.parquet")
        table = pa.parquet.read_table(path)
        pa.parquet.write_table(table.append_column("subtask_index", table["frame_index"]), path)
    texts = {"subtask": [f"move {n}" for n in range(15)], "subtask_index": range(15)}
    pa.parquet.write_table(pa.table(texts), Path(own_root, "meta", "subtasks.parquet"))
    assert [clips.LeRobot(own_root)[row]["subtask"] for row in (0, 11, 12)] == ["move 0", "move 11", "move 0"]


def test_arrays_that_datasets_wrote_are_read(written, own_root):
    datasets = pytest.importorskip("datasets")
    read, pq = datasets.features, pytest.importorskip("pyarrow.parquet")
    for file, rows in enumerate((slice(0, 19), slice(19, ROWS))):
        path = Path(own_root, f"data/chunk-000/file-00{file}.parquet")
        table, values = pq.read_table(path), written[1]["contacts"][rows]
        kinds = read.Features({"contacts": read.Array2D((2, 3), "float32")})
        column = datasets.Dataset.from_dict({"contacts": list(values)}, features=kinds).data.table
        pq.write_table(table.drop_columns("contacts").append_column("contacts", column["contacts"]), path)
        assert "extension" in str(pq.read_table(path)["contacts"].type)
    np.testing.assert_array_equal(clips.LeRobot(own_root)[20]["contacts"], written[1]["contacts"][20])


def test_transforms_are_for_all_cameras_or_for_one(root):
    values = {"dtype": "uint8", "layout": "NHWC"}
    plain = clips.LeRobot(root, **values)[4]
    assert plain[TOP].shape == (48, 64, 3) and plain[TOP].dtype == np.uint8
    both = clips.LeRobot(root, transform=images.CenterCrop(16), **values)[4]
    one = clips.LeRobot(root, transform={WRIST: images.CenterCrop(16)}, **values)[4]
    np.testing.assert_array_equal(both[TOP], plain[TOP][16:32, 24:40])
    np.testing.assert_array_equal(one[TOP], plain[TOP])
    for sample in (both, one):
        np.testing.assert_array_equal(sample[WRIST], plain[WRIST][16:32, 8:24])


def test_frames_of_one_camera_have_one_geometry_and_samples_differ(root):
    data = clips.LeRobot(root, {TOP: [0.0, 0.0], WRIST: [0.0, 0.0]}, images.RandomCrop(16), dtype="uint8")
    assert data.is_random and not clips.LeRobot(root).is_random
    batches = [batch for _ in range(2) for batch in loaded(data, batch_size=1, sampler=[4] * 6, seed=1)]
    for batch in batches:
        np.testing.assert_array_equal(batch[TOP][:, 0], batch[TOP][:, 1])
    assert len({batch[TOP].tobytes() for batch in batches}) > 4


def test_normalized_values_are_those_of_images(root):
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    plain, data = clips.LeRobot(root), clips.LeRobot(root, mean=mean, std=std)
    wanted = (plain[3][TOP] - np.float32(mean)[:, None, None]) / np.float32(std)[:, None, None]
    np.testing.assert_allclose(data[3][TOP], wanted, rtol=1e-6)


def test_a_pickled_dataset_has_the_same_samples(root):
    data = clips.LeRobot(root, DELTAS)
    same(pickle.loads(pickle.dumps(data))[20], data[20])
    assert repr(data).endswith("35 frames of 4 episodes, 2 cameras, 10 frames per second")


# ---- states, ranks, decoding


def test_a_state_resumes_within_an_epoch(root):
    options = {"batch_size": 4, "shuffle": True, "seed": 3, "num_workers": 2}
    data = clips.LeRobot(root, DELTAS, CROP)
    with Loader(data, **options) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = [copy.deepcopy(batch) for batch in batches]
    with Loader(data, **options) as loader:
        loader.load_state_dict(state)
        batches_equal(list(loader), rest)


def test_other_ranks_finish_an_epoch(root):
    data = clips.LeRobot(root, features=["index", TOP])

    def of_ranks(world_size, state=None, steps=None):
        seen = []
        for rank in range(world_size):
            sampler = BatchSampler(ROWS, 12 // world_size, rank=rank, world_size=world_size, shuffle=True, seed=2)
            with Loader(data, batch_sampler=sampler, num_workers=1) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                seen += [batch["index"].tolist() for batch in itertools.islice(loader, steps)]
                new = loader.state_dict()
        return flat(seen), new

    first, state = of_ranks(2, steps=1)
    rest, _ = of_ranks(3, state=state)
    assert len(first) == 12 and set(first) | set(rest) == set(range(ROWS)) and not set(first) & set(rest[:12])


def test_a_batch_decodes_each_video_forwards_and_each_frame_once(root, frames_decoded):
    data = clips.LeRobot(root, {TOP: [-0.2, -0.1, 0.0], WRIST: [-0.1, 0.0]})
    rows = np.random.default_rng(0).permutation(ROWS).tolist()
    before = frames_decoded()
    loaded(data, batch_size=ROWS, sampler=rows, **KINDS["inline"])
    assert frames_decoded() - before == 2 * ROWS  # of two cameras


def test_a_cached_frame_is_decoded_once_for_all_epochs(root, frames_decoded):
    data = clips.LeRobot(root, DELTAS, cache="32MiB")
    loaded(data, batch_size=4, shuffle=True, seed=0, **KINDS["fork"])
    before = frames_decoded()
    wanted = loaded(clips.LeRobot(root, DELTAS), batch_size=4, shuffle=True, seed=1, **KINDS["inline"])
    again = frames_decoded()
    assert again > before
    batches_equal(loaded(data, batch_size=4, shuffle=True, seed=1, **KINDS["fork"]), wanted)
    assert frames_decoded() == again


def test_an_index_is_kept_next_to_each_video(own_root):
    clips.LeRobot(own_root, index="sidecar")
    assert Path(video_of(own_root, TOP, 0) + ".index.npz").exists()


@pytest.mark.fault
def test_a_crash_in_a_codec_costs_a_worker_and_no_batch(tmp_path, root):
    (tmp_path / "main").write_text(str(os.getpid()))
    data = clips.LeRobot(root, DELTAS, [*CROP, Crash(tmp_path, signal.SIGSEGV)])
    with Loader(data, batch_size=8, num_workers=2, seed=5) as loader:
        batches = [copy.deepcopy(batch) for batch in loader]
        assert loader.stats().respawns == 1
    batches_equal(batches, loaded(data, batch_size=8, num_workers=2, seed=5))


# ---- bad input


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"codebase_version": "v2.1"}, r"codebase_version is 'v2\.1', and slipring reads v3: convert the dataset with"),
        ({"codebase_version": "v4.0"}, r"codebase_version is 'v4\.0', and slipring reads v3: use a newer slipring"),
        ({"codebase_version": None}, "there is no 'codebase_version'"),
        ({"fps": None}, "there is no 'fps'"),
        ({"fps": float("nan")}, "fps must be above 0, not nan"),
        ({"fps": "10"}, "fps is '10'"),
        ({"features": None}, "there is no 'features'"),
        ({"data_path": "data/{file}"}, "data_path='data/{file}' must have only the fields chunk_index, file_index"),
        ({"video_path": None}, "there is no 'video_path'"),
        ({"total_episodes": 0}, "meta/episodes lists 4 episodes, .* at least one, each listed once"),
        ({"total_episodes": 5}, "meta/episodes lists 4 episodes, .*total_episodes in .*info.json is 5"),
        ({"features": {**FEATURES, TOP: {**FEATURES[TOP], "dtype": "image"}}}, f"{TOP}' has images in Parquet files"),
        ({"features": {**FEATURES, TOP: {**FEATURES[TOP], "info": {"is_depth_map": True}}}}, f"{TOP}' has depth maps"),
        ({"features": {**FEATURES, "mode": {"dtype": "language", "shape": [1]}}}, "'mode' has dtype 'language'"),
        ({"features": {**FEATURES, "mode": "int32"}}, "feature 'mode' must be an object, not 'int32'"),
        ({"features": {**FEATURES, "speed": FEATURES["mode"]}}, r"file-000\.parquet has no column 'speed'"),
        (
            {"features": {**FEATURES, "action": {**FEATURES["action"], "shape": [3]}}},
            r"data/chunk-000/file-000\.parquet: column 'action' must have .* in row 0",
        ),
    ],
)
def test_wrong_contents_of_info_json_are_named(own_root, values, text):
    change_info(own_root, **values)
    with pytest.raises(ValueError, match=text):
        clips.LeRobot(own_root)


NAN = float("nan")


@pytest.mark.parametrize(
    ("folder", "name", "change", "kind", "text"),
    [
        ("meta/episodes", f"videos/{TOP}/file_index", lambda old: [old[0], 7], FileNotFoundError,
         r"chunk-000/file-007\.mp4 does not exist, and meta/episodes says that episode 1 is in it"),
        ("meta/episodes", "data/file_index", lambda old: [0, 9], FileNotFoundError,
         r"file-009\.parquet does not exist"),
        ("meta/episodes", f"videos/{TOP}/from_timestamp", lambda old: [0.0, NAN], VideoError, "no frame at nan s"),
        ("meta/episodes", f"videos/{TOP}/from_timestamp", lambda old: [0.0, 1.25], VideoError,
         r"file-000\.mp4 has no frame at 1\.25 s, the time of the row with index 12 of episode 1"),
        ("meta/episodes", f"videos/{TOP}/from_timestamp", lambda old: [0.0, 90.0], VideoError, r"no frame at 90 s"),
        ("meta/episodes", f"videos/{TOP}/from_timestamp", None, ValueError,
         f"file-000.parquet has no column 'videos/{TOP}/from_timestamp'"),
        ("meta/episodes", "dataset_to_index", lambda old: [12, 20], ValueError,
         r"file-000\.parquet has 7 rows of episode 1: .* those with index 12 to before 20"),
        ("meta/episodes", "dataset_to_index", lambda old: [12, 12], ValueError,
         r"file-000\.parquet has 7 rows of episode 1: .* index 12 to before 12, in order, and at least one"),
        ("meta/episodes", "episode_index", lambda old: [0, 0], ValueError, "at least one, each listed once"),
        ("meta/episodes", "episode_index", lambda old: [0, None], ValueError,
         "'episode_index' must have int64 .* in row 1"),
        ("data", "timestamp", lambda old: [*old[:3], NAN, *old[4:]], VideoError,
         "no frame at nan s, the time of the row with index 3 of episode 0"),
        ("data", "timestamp", lambda old: [*old[:3], 0.32, *old[4:]], VideoError,
         r"no frame at 0\.32 s, .* index 3 of episode 0: the nearest one is at 0\.3 s"),
        ("data", "action", lambda old: [*old[:5], [1.0], *old[6:]], ValueError, "'action' must have .* in row 5"),
        ("data", "action", lambda old: [*old[:5], [1.0, None], *old[6:]], ValueError,
         "'action' must have .* in row 5: 1 of"),
        ("data", "action", lambda old: [*old[:5], None, *old[6:]], ValueError, "'action' must have .* in row 5"),
        ("data", "action", lambda old: ["a"] * len(old), ValueError, "'action' must have .* in row 0"),
        ("data", "note", lambda old: [*old[:5], None, *old[6:]], ValueError,
         "'note' must be text in row 5, not None"),
        ("data", "index", lambda old: old[::-1], ValueError, "has 12 rows of episode 0"),
        ("data", "index", lambda old: [*old[:4], 9, *old[5:]], ValueError, "has 12 rows of episode 0"),
        ("data", "episode_index", lambda old: [*old[:12], 0, *old[13:]], ValueError, "has 13 rows of episode 0"),
        ("data", "task_index", lambda old: [5] * len(old), ValueError, r"tasks\.parquet has no task 5"),
        ("data", "task_index", None, ValueError, "has no column 'task_index'"),
    ],
)  # fmt: skip
def test_wrong_rows_of_parquet_files_are_named(own_root, folder, name, change, kind, text):
    change_column(own_root, folder, name, change)
    with pytest.raises(kind, match=text):
        clips.LeRobot(own_root)


def test_rows_of_an_episode_that_are_not_together_are_named(own_root):
    def swapped(old):
        return [*old[1:13], old[0], *old[13:]]

    for name in ("index", "episode_index", "timestamp"):
        change_column(own_root, "data", name, swapped)
    change_column(own_root, "data", "episode_index", lambda old: [*old[:11], 1, 0, *old[13:]])
    change_column(own_root, "data", "index", lambda old: [*range(11), 12, 11, *range(13, 19)])
    with pytest.raises(ValueError, match="the rows of episode 0 are not consecutive"):
        clips.LeRobot(own_root)


@pytest.mark.parametrize("kept", [0, 100, -30])
@pytest.mark.parametrize(
    "name", ["data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-001.parquet", "meta/tasks.parquet"]
)
def test_a_damaged_parquet_file_is_named(own_root, name, kept):
    path = Path(own_root, name)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=f"{name} cannot be read as a Parquet file"):
        clips.LeRobot(own_root)


def test_damaged_pages_of_a_parquet_file_are_named(own_root):
    path = Path(own_root, "data/chunk-000/file-000.parquet")
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"file-000\.parquet"):
        clips.LeRobot(own_root)


@pytest.mark.parametrize(
    ("name", "contents", "text"),
    [
        ("meta/info.json", "{", "info.json cannot be read as JSON"),
        ("meta/info.json", "[]", "info.json must be a JSON object"),
        ("meta/stats.json", "{,", "stats.json cannot be read as JSON"),
        ("meta/stats.json", '{"action": 3}', "stats.json must have an object of statistics for each feature"),
    ],
)
def test_a_damaged_json_file_is_named(own_root, name, contents, text):
    Path(own_root, name).write_text(contents)
    with pytest.raises(ValueError, match=text):
        clips.LeRobot(own_root)


@pytest.mark.parametrize("name", ["meta/info.json", "meta/tasks.parquet", "meta/episodes"])
def test_a_missing_file_is_named(own_root, name):
    path = Path(own_root, name)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(FileNotFoundError, match=name):
        clips.LeRobot(own_root)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        (
            {"delta_timestamps": {TOP: [0.05]}},
            ValueError,
            r"top'\] has 0\.05, which is not a multiple of 1 / fps = 0\.1",
        ),
        ({"delta_timestamps": {TOP: [0.0, NAN]}}, ValueError, r"has nan, which is not a multiple"),
        ({"delta_timestamps": {TOP: [float("inf")]}}, ValueError, r"has inf, which is not a multiple"),
        ({"delta_timestamps": {TOP: []}}, ValueError, "must have at least one time"),
        ({"delta_timestamps": {TOP: 0.1}}, TypeError, "must be a sequence of numbers of seconds"),
        ({"delta_timestamps": {TOP: ["now"]}}, TypeError, "must be numbers of seconds, not 'now'"),
        ({"delta_timestamps": {"acton": [0.0]}}, ValueError, "has 'acton', and the features .* mean 'action'"),
        ({"delta_timestamps": {"note": [0.0]}}, ValueError, "'note', whose values are text"),
        ({"delta_timestamps": [TOP]}, TypeError, "delta_timestamps must be a dict"),
        ({"episodes": [0, 4]}, ValueError, "episodes has 4: .* has the episodes 0 to 3"),
        ({"episodes": [-1]}, ValueError, "episodes has -1"),
        ({"episodes": []}, ValueError, "have at least one number"),
        ({"episodes": [0.5]}, TypeError, "episodes must be an int"),
        ({"episodes": 3}, TypeError, "episodes must be an iterable"),
        ({"features": ["actions"]}, ValueError, "features has 'actions', .* Did you mean 'action'"),
        ({"features": "action"}, TypeError, "features must be a sequence of names"),
        ({"tolerance_s": NAN}, ValueError, "tolerance_s must be at least 0 seconds, not nan"),
        ({"transform": {"top": None}}, ValueError, "transform has 'top', and the cameras are"),
        ({"transform": 3}, TypeError, "transform"),
        ({"layout": "CHW"}, ValueError, "layout must be one of"),
    ],
)
def test_wrong_arguments_are_named(root, options, kind, text):
    with pytest.raises(kind, match=text):
        clips.LeRobot(root, **options)


def test_a_larger_tolerance_accepts_times_between_frames(own_root):
    change_column(own_root, "data", "timestamp", lambda old: [time + 0.02 for time in old])
    with pytest.raises(VideoError, match=r"tolerance_s=0\.0001"):
        clips.LeRobot(own_root)
    assert len(clips.LeRobot(own_root, tolerance_s=0.03)) == ROWS


def test_an_index_beyond_the_end_is_named(root):
    data = clips.LeRobot(root)
    same(data[-1], data[ROWS - 1])
    for wrong in (ROWS, -ROWS - 1):
        with pytest.raises(IndexError, match=f"index {wrong} is out of range: the dataset has {ROWS} frames"):
            data[wrong]


@pytest.mark.parametrize("index", [1.5, "1", None, True, slice(2)])
def test_an_index_that_is_no_number_is_an_error_that_shows_it(root, index):
    with pytest.raises(TypeError, match=rf"^index must be an int, not {re.escape(repr(index))}$"):
        clips.LeRobot(root)[index]


@pytest.mark.parametrize("fps", [9, 12, 100])
def test_a_rate_that_contradicts_the_times_of_the_rows_is_an_error(own_root, fps):
    change_info(own_root, fps=fps)
    with pytest.raises(ValueError, match=rf"info\.json: fps is {fps}, and the rows of episodes are 0\.1 s apart"):
        clips.LeRobot(own_root)
    assert len(clips.LeRobot(own_root, episodes=[2])) == 1


def test_videos_of_two_sizes_need_a_transform(own_root):
    write(video_of(own_root, TOP, 2), "h264 rotated by 90", frames=40)
    change_info(own_root, fps=FPS)
    with pytest.raises(VideoError, match=r"has frames of 48 x 64 pixels, and .* of 64 x 48: give a transform"):
        clips.LeRobot(own_root)


def damage(path):
    """Overwrite a part of a video's frames."""
    data = bytearray(Path(path).read_bytes())
    begin = data.index(b"mdat") + 4
    middle = begin + (len(data) - begin) // 3
    data[middle : middle + 600] = b"\xff" * 600
    Path(path).write_bytes(data)


def fails(data, row):
    """Return whether a sample cannot be read."""
    try:
        data[row]
    except VideoError:
        return True
    return False


def test_a_damaged_frame_is_named_with_its_sample(own_root):
    path = video_of(own_root, TOP, 0)
    whole = clips.LeRobot(own_root, features=[TOP])
    damage(path)
    damaged = clips.LeRobot(own_root, features=[TOP])
    wrong = []
    for row in range(ROWS):
        try:
            damaged[row]
        except VideoError as error:
            assert (error.path, error.index) == (path, row) and f"(index {row})" in str(error)
            wrong.append(row)
    assert wrong and len(wrong) < sum(LENGTHS[:2])
    with pytest.raises(VideoError, match="has changed since its index was made"):
        whole[0]
    with pytest.raises(VideoError) as raised, Loader(damaged, batch_size=ROWS, num_workers=1) as loader:
        next(iter(loader))
    assert raised.value.index in wrong


# ---- on_error="skip"


def test_samples_of_a_truncated_video_are_replaced_and_counted(own_root, root, caplog):
    path = video_of(own_root, TOP, 2)
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(VideoError, match=re.escape(path)):
        clips.LeRobot(own_root)
    data, whole = clips.LeRobot(own_root, DELTAS, on_error="skip"), clips.LeRobot(root, DELTAS)
    lost = sum(LENGTHS[:2])
    read = [*range(lost), 0, *range(12), *range(3)]  # rows of the first episode replace those of the last two
    with Loader(data, batch_size=5, num_workers=1) as loader:
        batches = list(loader)
        assert loader.stats().skipped_samples == ROWS - lost
    with Loader(whole, batch_size=5, sampler=read) as loader:
        batches_equal(batches, list(loader))
    same(data[ROWS - 1], whole[2])
    assert f"skipped {path}" in caplog.text


def test_rows_beyond_the_end_of_a_video_are_skipped(own_root, caplog):
    path = video_of(own_root, TOP, 3)
    write(path, Kind("mp4", "libx264", size=SIZES[TOP], pts=tuple(n * UNITS // FPS for n in range(10))), seed=1)
    with pytest.raises(VideoError, match="has no frame at 1 s"):
        clips.LeRobot(own_root)
    data = clips.LeRobot(own_root, on_error="skip")
    assert "has no frame at 1 s, the time of the row with index 29" in caplog.text
    assert [int(data[row]["index"]) for row in range(18, ROWS)] == [*range(18, 29), 9, 10, 11, 0, 1, 2]
    data = clips.LeRobot(own_root, {TOP: [0.5]}, on_error="skip")
    assert [int(data[row]["index"]) for row in range(22, ROWS)] == [22, 23, *range(4, 12), *range(3)]


def test_a_damaged_frame_costs_only_the_samples_that_have_it(own_root, root):
    damage(video_of(own_root, TOP, 0))
    strict = clips.LeRobot(own_root, features=[TOP, "index"])
    wrong = [row for row in range(ROWS) if fails(strict, row)]
    data = clips.LeRobot(own_root, features=[TOP, "index"], on_error="skip")
    with Loader(data, batch_size=ROWS, num_workers=1) as loader:
        (batch,) = loader
        assert loader.stats().skipped_samples == len(wrong) > 0
    for row, index in enumerate(batch["index"].tolist()):
        assert index not in wrong and (index == row or row in wrong)
        np.testing.assert_array_equal(batch[TOP][row], strict[index][TOP])


def test_a_dataset_without_a_readable_episode_is_an_error(own_root):
    for episode in (0, 2):
        os.truncate(video_of(own_root, WRIST, episode), 50)
    with pytest.raises(VideoError, match=r"file-000\.mp4 cannot be read"):
        clips.LeRobot(own_root, on_error="skip")
    with pytest.raises(VideoError, match=r"none of the 4 episodes of .* has all its frames"):
        clips.LeRobot(own_root, transform=images.Resize((8, 8)), on_error="skip")
    assert len(clips.LeRobot(own_root, features=[TOP, "action"], on_error="skip")) == ROWS
