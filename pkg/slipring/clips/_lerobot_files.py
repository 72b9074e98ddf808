"""The files of a robot dataset in LeRobot's format v3, checked and read into a few arrays."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slipring._core.options.checks import did_you_mean, integer, iterable
from slipring.errors import shown
from slipring.strings import StringList

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

_CONVERT = "python -m lerobot.datasets.v30.convert_dataset_v21_to_v30"
_KEYS = "episode_index", "index"  # columns by which the rows of an episode are found
_EPISODE = "episode_index", "dataset_from_index", "dataset_to_index"
_FILE = "chunk_index", "file_index"  # columns of meta/episodes that name a file
_RATE_ERROR = 0.05  # 29.97 frames per second may be called 30
_DTYPES = {"b": "bool", "i": "int64", "u": "int64", "f": "float32"}  # the dtypes of torch for Python's values


class Camera(NamedTuple):
    """The videos of one camera.

    Attributes
    ----------
    paths : list of str
    files : numpy.ndarray of int64, [episodes]
        Which of `paths` has the frames of each episode.
    starts : numpy.ndarray of float64, [episodes]
        The time in the video at which each episode starts, in seconds.
    """

    paths: list[str]
    files: NDArray[np.int64]
    starts: NDArray[np.float64]


class RobotRecording(NamedTuple):
    """The chosen episodes and features of a dataset.

    Attributes
    ----------
    fps : float
        Frames per second.
    features : dict
        The description of each feature in meta/info.json.
    stats : dict of dict of numpy.ndarray
        The statistics of each feature in meta/stats.json.
    episodes, ends : numpy.ndarray of int64, [episodes]
        The numbers of the episodes, in the order of their rows, and the row after the last one of each episode.
    columns : dict of numpy.ndarray or StringList
        The values of each feature that is not a video, one for each row, and those of `_KEYS`.
    texts : dict of dict of str
        The tasks, and the subtasks if there are any, by number.
    cameras : dict of Camera
    """

    fps: float
    features: dict[str, dict[str, Any]]
    stats: dict[str, dict[str, NDArray[Any]]]
    episodes: NDArray[np.int64]
    ends: NDArray[np.int64]
    columns: dict[str, Any]
    texts: dict[str, dict[int, str]]
    cameras: dict[str, Camera]


def read_recording(root: str, episodes: Any, features: Sequence[str] | None) -> RobotRecording:
    """Return the chosen episodes and features (None: all) of the dataset in a folder.

    Raises
    ------
    ValueError
        A file is damaged, of another version, or contradicts another one, or the dataset lacks a feature or an episode.
    OSError
        A file does not exist, or cannot be opened.
    ImportError
        pyarrow is not installed.
    """
    info = _Info(root, features)
    listed = _episodes(info, episodes)
    columns, order = _columns(info, listed)
    listed = {name: values[order] for name, values in listed.items()}
    ends = np.cumsum(listed["length"])
    _check_rate(info, columns["timestamp"], ends)
    texts = {name: _texts(info, name, columns[f"{name}_index"]) for name in info.texts}
    return RobotRecording(
        info.fps,
        info.features,
        _statistics(os.path.join(root, "meta", "stats.json")),
        listed["episode_index"],
        ends,
        columns,
        texts,
        {key: _camera(info, listed, key) for key in info.cameras},
    )


def _check_rate(info, times, ends):
    """Raise ValueError if the rows have another rate than `fps`, by which `delta_timestamps` become rows."""
    steps = len(times) - len(ends)
    apart = np.delete(np.diff(times), ends[:-1] - 1).sum() / max(1, steps)
    if steps and abs(apart * info.fps - 1) > _RATE_ERROR:
        raise ValueError(
            f"{info.path}: fps is {info.fps:g}, and the rows of episodes are {apart:.6g} s apart on average by their "
            "column 'timestamp': correct fps, or save the dataset again with LeRobot"
        )


class _Info:
    """The contents of meta/info.json."""

    def __init__(self, root, names):
        self.root, self.path = root, os.path.join(root, "meta", "info.json")
        self._values = _json(self.path)
        version = self._get("codebase_version", str)
        major = version.removeprefix("v").partition(".")[0]
        if major != "3":
            is_newer = major.isdecimal() and int(major) > 3
            remedy = "use a newer slipring" if is_newer else f"convert the dataset with {_CONVERT}"
            raise ValueError(f"{self.path}: codebase_version is {version!r}, and slipring reads v3: {remedy}")
        self.fps = self._get("fps", (int, float))
        if not 0 < self.fps < math.inf:
            raise ValueError(f"{self.path}: fps must be above 0, not {self.fps}")
        self.total_episodes = self._get("total_episodes", int)
        declared = self._get("features", dict)
        unknown = next((name for name in names or () if name not in declared), None)
        if unknown is not None:
            hint = did_you_mean(unknown, declared)
            raise ValueError(f"features has {unknown!r}, and {self.path} has only {', '.join(declared)}{hint}")
        wrong = next((name for name, value in declared.items() if not isinstance(value, dict)), None)
        if wrong is not None:
            raise ValueError(f"{self.path}: feature {wrong!r} must be an object, not {shown(declared[wrong])}")
        self.features = {name: value for name, value in declared.items() if names is None or name in names}
        self.cameras = [name for name in self.features if self._is_video(name)]
        self.texts = ["task", *(["subtask"] if "subtask_index" in declared else [])]
        self.columns = {name: self._column(name) for name in self.features if name not in self.cameras}
        self.columns.update(dict.fromkeys((*_KEYS, *(f"{name}_index" for name in self.texts)), ("int64", ())))
        self.columns["timestamp"] = "float32", ()

    def _get(self, key, kind):
        value = self._values.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            wrong = f"{key} is {shown(value)}" if key in self._values else f"there is no {key!r}"
            raise ValueError(f"{self.path}: {wrong}: download the file again, or save the dataset again with LeRobot")
        return value

    def _is_video(self, name):
        feature = self.features[name]
        about = {**(feature.get("info") or {}), **(feature.get("video_info") or {})}
        depth = about.get("is_depth_map") or about.get("video.is_depth_map")
        if feature.get("dtype") == "image" or depth:
            what = "depth maps" if depth else "images in Parquet files"
            raise ValueError(
                f"{self.path}: feature {name!r} has {what}, which are not read: leave it out with features="
            )
        return feature.get("dtype") == "video"

    def _column(self, name):
        """Return (dtype of samples, shape of a row) of a feature."""
        feature = self.features[name]
        shape, dtype = feature.get("shape"), feature.get("dtype")
        if dtype == "string":
            return "string", ()
        try:
            kind = _DTYPES[np.dtype(dtype).kind]
            sizes = tuple(integer("shape", size, 1) for size in shape)
        except (TypeError, KeyError, ValueError):
            raise ValueError(
                f"{self.path}: feature {name!r} has dtype {shown(dtype)} and shape {shown(shape)}, which slipring does "
                "not read: leave it out with features="
            ) from None
        return kind, () if sizes == (1,) else sizes

    def file(self, key, **numbers):
        """Return the path of a file; `key` names the template in meta/info.json."""
        template = self._get(key, str)
        try:
            return os.path.join(self.root, template.format(**numbers))
        except (LookupError, ValueError):
            raise ValueError(
                f"{self.path}: {key}={template!r} must have only the fields {', '.join(numbers)}"
            ) from None


def _json(path):
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must be a JSON object, not {shown(found)}")
    return found


def _statistics(path):
    if not os.path.exists(path):
        return {}
    try:
        return {key: {name: np.asarray(value) for name, value in one.items()} for key, one in _json(path).items()}
    except AttributeError:
        raise ValueError(f"{path} must have an object of statistics for each feature: download it again") from None


# ---- Parquet files


def _table(path, names=()):
    """Return the columns of a Parquet file, at least those with the given names; without names, all of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open(path, "rb"):  # raises errors with the path itself
        pass
    try:
        with pq.ParquetFile(path) as file:
            missing = [name for name in names if name not in file.schema_arrow.names]
            table = None if missing else file.read(names or None)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path} cannot be read as a Parquet file: {error}") from error
    if table is None:
        raise ValueError(f"{path} has no column {missing[0]!r}, which a dataset of format v3 must have")
    return table


def _array(path, table, name, dtype="int64", shape=()):
    """Return a column of a table as a numpy array, rows × `shape`."""
    import pyarrow as pa

    from slipring.arrow.blocks import as_numpy

    kind, column = pa.from_numpy_dtype(np.dtype(dtype)), _stored(table.column(name))
    for size in reversed(shape):
        kind = pa.list_(kind, size)

    def error_of(part):
        try:
            as_numpy(part.cast(kind).combine_chunks())
        except (pa.ArrowException, ValueError) as error:
            return error

    try:
        return as_numpy(column.cast(kind).combine_chunks())
    except (pa.ArrowException, ValueError) as error:
        row = next((row for row in range(len(column)) if error_of(column.slice(row, 1))), 0)
        raise ValueError(f"{path}: column {name!r} must have {dtype} of shape {shape} in row {row}: {error}") from error


def _stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without its extension type: Hugging Face's datasets have one for arrays."""
    import pyarrow as pa

    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def _strings(path, table, name):
    """Return a column of texts as Arrow data."""
    import pyarrow as pa

    column = table.column(name)
    if column.null_count or not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        row = next((row for row, value in enumerate(column) if not value.is_valid), 0)
        raise ValueError(
            f"{path}: column {name!r} must be text in row {row}, not {column.slice(row, 1).to_pylist()[0]!r}"
        )
    return column.cast(pa.large_string())


def _texts(info, name, numbers):
    """Return the texts of tasks or subtasks, by number."""
    path, number = os.path.join(info.root, "meta", f"{name}s.parquet"), f"{name}_index"
    table = _table(path)
    column = next((other for other in table.column_names if other != number), number)  # LeRobot does not fix its name
    found = dict(zip(_array(path, table, number).tolist(), _strings(path, table, column).to_pylist()))
    for wanted in np.unique(numbers).tolist():
        if wanted not in found:
            raise ValueError(f"{path} has no {name} {wanted}, which data files have in the column {number!r}")
    return found


# ---- episodes


def _episodes(info, wanted):
    """Return the columns of meta/episodes for the chosen episodes."""
    folder = os.path.join(info.root, "meta", "episodes")
    parts = "data", *(f"videos/{key}" for key in info.cameras)
    names = *_EPISODE, *(f"{part}/{n}" for part in parts for n in _FILE)
    dtypes = {**dict.fromkeys(names, "int64"), **{f"{part}/from_timestamp": "float64" for part in parts[1:]}}
    paths = sorted(map(str, Path(folder).glob("*/*.parquet")))
    if not paths:
        raise FileNotFoundError(f"{folder} has no Parquet files, which list the episodes: download the dataset again")
    tables = [(path, _table(path, list(dtypes))) for path in paths]
    found = {
        name: np.concatenate([_array(path, table, name, dtype) for path, table in tables])
        for name, dtype in dtypes.items()
    }
    numbers = found["episode_index"]
    count = len(numbers)
    if not count or count != info.total_episodes or (np.sort(numbers) != np.arange(count)).any():
        raise ValueError(
            f"{folder} lists {count} episodes, and total_episodes in {info.path} is {info.total_episodes}: there must "
            "be at least one, each listed once. Download the dataset again"
        )
    found["length"] = found["dataset_to_index"] - found["dataset_from_index"]
    if wanted is None:
        return found
    iterable("episodes", wanted, "an iterable of numbers of episodes")
    chosen = [integer("episodes", number) for number in wanted]
    for number in chosen:
        if not 0 <= number < info.total_episodes:
            raise ValueError(f"episodes has {number}: {info.root} has the episodes 0 to {info.total_episodes - 1}")
    if not chosen:
        raise ValueError("episodes must be None (all of them) or have at least one number")
    keep = np.isin(numbers, chosen)
    return {name: values[keep] for name, values in found.items()}


def _files(info, listed, part, template, **names):
    """Return (the paths of the files, the number of each episode's file)."""
    chunks, files = (listed[f"{part}/{name}"] for name in _FILE)
    pairs, inverse = np.unique(np.stack([chunks, files], 1), axis=0, return_inverse=True)
    paths = [info.file(template, **names, chunk_index=chunk, file_index=file) for chunk, file in pairs.tolist()]
    inverse = inverse.reshape(-1)
    for number, path in enumerate(paths):
        if not os.path.exists(path):
            episode = listed["episode_index"][np.argmax(inverse == number)]
            raise FileNotFoundError(
                f"{path} does not exist, and meta/episodes says that episode {episode} is in it: download it, or leave "
                "the episode out with episodes="
            )
    return paths, inverse


def _camera(info, listed, key):
    paths, files = _files(info, listed, f"videos/{key}", "video_path", video_key=key)
    return Camera(paths, files, listed[f"videos/{key}/from_timestamp"])


def _columns(info, listed):
    """Return (the columns of the data files, the positions in `listed` of the episodes in the order of their rows)."""
    import pyarrow as pa

    paths, files = _files(info, listed, "data", "data_path")
    parts, order = {name: [] for name in info.columns}, []
    for file in sorted(range(len(paths)), key=paths.__getitem__):
        path, members = paths[file], np.flatnonzero(files == file)
        table = _table(path, list(info.columns))
        episodes, indices = (_array(path, table, name) for name in _KEYS)
        order.append(_checked_order(path, episodes, indices, listed, members))
        keep = np.isin(episodes, listed["episode_index"][members])
        for name, (kind, shape) in info.columns.items():
            if kind == "string":
                parts[name] += _strings(path, table, name).filter(pa.array(keep)).chunks
            else:
                parts[name].append(_array(path, table, name, kind, shape)[keep])
    made = {}
    for name, (kind, _) in info.columns.items():
        values = parts.pop(name)  # one column at a time is in memory twice
        is_text = kind == "string"
        made[name] = StringList(pa.chunked_array(values, pa.large_string())) if is_text else np.concatenate(values)
    return made, np.concatenate(order)


def _checked_order(path, episodes, indices, listed, members):
    """Return `members`, the positions in `listed` of a file's episodes, in the order of the file's rows."""
    rows = np.argsort(episodes, kind="stable")
    numbers = listed["episode_index"][members]
    begins, ends = (np.searchsorted(episodes[rows], numbers, side) for side in ("left", "right"))
    firsts = []
    for episode, begin, end in zip(members.tolist(), begins.tolist(), ends.tolist()):
        number, *span = (int(listed[name][episode]) for name in _EPISODE)
        here = rows[begin:end]
        if not len(here) or len(here) != span[1] - span[0] or (indices[here] != np.arange(*span)).any():
            raise ValueError(
                f"{path} has {len(here)} rows of episode {number}: by meta/episodes it must have those with index "
                f"{span[0]} to before {span[1]}, in order, and at least one. Download both again"
            )
        if here[-1] - here[0] != len(here) - 1:
            raise ValueError(f"{path}: the rows of episode {number} are not consecutive: save the dataset again")
        firsts.append(here[0])
    return members[np.argsort(firsts)]
