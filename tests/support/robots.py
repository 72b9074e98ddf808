"""Small datasets of LeRobot's format v3 for the tests: Parquet files with PyAV's videos."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.videos import UNITS, Kind, write

FPS = 10
TOP, WRIST = "observation.images.top", "observation.images.wrist"
SIZES = {TOP: (64, 48), WRIST: (32, 48)}  # width and height
LENGTHS = 12, 7, 1, 15  # frames of the episodes
FILES = 0, 0, 1, 1  # the data and video file of each episode
TASKS = "push", "pull the lever"
FILE = "chunk-{:03d}/file-{:03d}"


def _feature(dtype, *shape):
    return {"dtype": dtype, "shape": list(shape), "names": None}


FEATURES = {
    **{key: _feature("video", height, width, 3) for key, (width, height) in SIZES.items()},
    "observation.state": _feature("float32", 3),
    "action": _feature("float64", 2),
    "contacts": _feature("float32", 2, 3),
    "next.done": _feature("bool", 1),
    "mode": _feature("int32", 1),
    "note": _feature("string", 1),
    "timestamp": _feature("float32", 1),
    "frame_index": _feature("int64", 1),
    "episode_index": _feature("int64", 1),
    "index": _feature("int64", 1),
    "task_index": _feature("int64", 1),
}


def lists(values):
    """Return an Arrow array of lists of the rows of an array."""
    made = pa.array(values.reshape(-1))
    for size in reversed(values.shape[1:]):
        made = pa.ListArray.from_arrays(pa.array(np.arange(0, len(made) + 1, size), pa.int32()), made)
    return made


def columns_of(lengths, seed=0):
    """Return the columns of all frames, as numpy arrays and lists of text."""
    rng, rows = np.random.default_rng(seed), sum(lengths)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.concatenate([np.arange(length) for length in lengths])
    return {
        "observation.state": rng.normal(size=(rows, 3)).astype(np.float32),
        "action": rng.normal(size=(rows, 2)),
        "contacts": rng.normal(size=(rows, 2, 3)).astype(np.float32),
        "next.done": frame == np.array(lengths)[episode] - 1,
        "mode": rng.integers(0, 5, rows, np.int32),
        "note": [f"note {n}" for n in range(rows)],
        "timestamp": (frame / FPS).astype(np.float32),
        "frame_index": frame,
        "episode_index": episode,
        "index": np.arange(rows),
        "task_index": episode % len(TASKS),
    }


def write_dataset(root, lengths=LENGTHS, files=FILES, codec="libx264", group=4, sizes=SIZES):
    """Write a dataset; return (its root as a string, the columns of all frames)."""
    root, ends = Path(root), np.cumsum(lengths)
    begins = ends - lengths
    columns, files = columns_of(lengths), np.array(files)
    arrays = {name: lists(np.array(values)) if name != "note" else values for name, values in columns.items()}
    table = pa.table(arrays)
    episodes = {
        "episode_index": np.arange(len(lengths)),
        "length": np.array(lengths),
        "tasks": [[TASKS[n % len(TASKS)]] for n in range(len(lengths))],
        "dataset_from_index": begins,
        "dataset_to_index": ends,
        "data/chunk_index": np.zeros_like(files),
        "data/file_index": files,
    }
    for file in sorted(set(files.tolist())):
        members = np.flatnonzero(files == file)
        _save(table[int(begins[members[0]]) : int(ends[members[-1]])], root / "data" / FILE.format(0, file))
    for seed, (key, size) in enumerate(sizes.items()):
        episodes[f"videos/{key}/chunk_index"] = files // 2
        episodes[f"videos/{key}/file_index"] = files % 2
        starts = np.zeros(len(lengths))
        for file in sorted(set(files.tolist())):
            members = np.flatnonzero(files == file)
            starts[members] = (begins[members] - begins[members[0]]) / FPS
            count = int(ends[members[-1]] - begins[members[0]])
            path = root / "videos" / key / (FILE.format(file // 2, file % 2) + ".mp4")
            path.parent.mkdir(parents=True, exist_ok=True)
            pts = tuple(n * UNITS // FPS for n in range(count))
            write(path, Kind("mp4", codec, size=size, pts=pts), group=group, seed=10 * seed + file)
        episodes[f"videos/{key}/from_timestamp"] = starts
        episodes[f"videos/{key}/to_timestamp"] = starts + np.array(lengths) / FPS
    half = len(lengths) // 2
    for file, part in enumerate((pa.table(episodes)[:half], pa.table(episodes)[half:])):
        _save(part, root / "meta" / "episodes" / FILE.format(0, file))
    tasks = pa.table({"task_index": np.arange(len(TASKS)), "__index_level_0__": list(TASKS)})
    pq.write_table(_of_pandas(tasks), root / "meta" / "tasks.parquet")
    numbers = {name: np.asarray(values, np.float64) for name, values in columns.items() if name != "note"}
    stats = {
        name: {"mean": np.atleast_1d(values.mean(0)).tolist(), "std": np.atleast_1d(values.std(0)).tolist()}
        for name, values in numbers.items()
    }
    (root / "meta" / "stats.json").write_text(json.dumps(stats))
    features = {key: value for key, value in FEATURES.items() if key in sizes or value["dtype"] != "video"}
    info = {
        "codebase_version": "v3.0",
        "robot_type": "none",
        "total_episodes": len(lengths),
        "total_frames": int(ends[-1]),
        "total_tasks": len(TASKS),
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    (root / "meta" / "info.json").write_text(json.dumps(info))
    return str(root), columns


def _save(table, path):
    path = path.with_suffix(".parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def _of_pandas(tasks):
    """Return a table of tasks whose texts are the index for pandas, as LeRobot writes and reads it."""
    kinds = {"task_index": ("int64", "int64"), "__index_level_0__": ("unicode", "object")}
    columns = [
        {"name": name if pandas == "int64" else None, "field_name": name, "pandas_type": pandas, "numpy_type": numpy,
         "metadata": None}
        for name, (pandas, numpy) in kinds.items()
    ]  # fmt: skip
    about = {"index_columns": ["__index_level_0__"], "column_indexes": [], "columns": columns, "pandas_version": "2"}
    return tasks.replace_schema_metadata({"pandas": json.dumps(about)})


def video_of(root, key, episode, files=FILES):
    """Return the path of an episode's video."""
    return str(Path(root, "videos", key, FILE.format(files[episode] // 2, files[episode] % 2) + ".mp4"))


def change_info(root, **values):
    """Replace values of meta/info.json; None removes one."""
    path = Path(root, "meta", "info.json")
    info = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in info.items() if value is not None}))


def change_column(root, folder, name, change, file=0):
    """Replace a column of a Parquet file by ``change(column as a list)``; None removes it."""
    path = Path(root, folder, FILE.format(0, file)).with_suffix(".parquet")
    table = pq.read_table(path)
    at, field = table.schema.get_field_index(name), table.schema.field(name)
    changed = table.remove_column(at)
    if change is not None:
        changed = table.set_column(at, field.name, pa.array(change(table.column(name).to_pylist())))
    pq.write_table(changed, path)
    return str(path)
