"""Robot datasets of LeRobot's format v3: rows of Parquet files with the frames of cameras."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from itertools import groupby, product
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from slipring._core.options.checks import did_you_mean, file_path, iterable, names, one_of, real
from slipring._core.ring import sample_marks
from slipring._core.ring._ring import mix
from slipring.clips._lerobot_files import read_recording
from slipring.clips._pyav import concerns_the_file, pyav
from slipring.clips._rendering import FrameRenderer, checked_index, raise_of_sample
from slipring.clips._samplers import seed_of
from slipring.clips._source import FrameSource
from slipring.clips._table import IndexTable
from slipring.errors import VideoError, shown
from slipring.images import MAX_PIXELS
from slipring.strings import StringList

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from slipring.cache import Cache
    from slipring.images._steps.base import Step
    from slipring.typing import Empty

    _Transform = Step | Sequence[Step] | None

_log = logging.getLogger("slipring")
_FAR = 1 << 40  # frames: beyond any episode
_NO_FRAME = -1  # the number of the frame of a row whose video has none, or cannot be read


class LeRobot:
    """A map dataset of the frames of a robot dataset in LeRobot's format v3: each sample is a dict.

    Samples have the keys, dtypes and shapes of ``lerobot.datasets.LeRobotDataset``, as numpy arrays, and text as str.
    The columns of numbers are kept in memory. Images in Parquet files and depth maps are not read.

    Parameters
    ----------
    root : path
        The folder of the dataset, which has the folders ``meta``, ``data`` and ``videos``.
    delta_timestamps : mapping of str to sequence of float, optional
        Times of the values that a sample has of a feature, in seconds relative to its own: multiples of 1 / `fps`. The
        values become one array, [times, ...]; a camera with one time has no such axis. Times before and after the
        episode get the values of its first and last frame, and are True in the array ``<key>_is_pad``.
    transform : Transform or list of Transform, or mapping of str to them, optional
        Transforms of slipring.images that make one array of each frame, for all cameras or by camera. All frames of a
        camera in a sample are transformed alike.
    episodes : iterable of int, optional
        Only samples of these episodes, in the order of the files. None: all.
    features : sequence of str, optional
        Only these features. None: all.
    tolerance_s : float
        How far the time of a row may be from that of the nearest frame of a video, and a `delta_timestamps` from a
        multiple of 1 / `fps`, in seconds.
    index : {'memory', 'sidecar'} or path
        Where the index of each video is kept; see `Videos`.
    layout : {'NCHW', 'NHWC'}
    dtype : {'float32', 'float16', 'bfloat16', 'uint8'}
        Of frames. Floats are from 0 to 1, normalized if there are `mean` and `std`.
    mean, std : array-like of 3 floats, optional
    on_error : {'raise', 'skip'}
        How to handle a video or a frame that cannot be read: raise a `~slipring.errors.VideoError`, or use a sample of
        the next readable episode in its place, as far from the beginning. A warning of the logger "slipring" names each
        skipped file, and ``stats().skipped_samples`` counts the samples.
    cache : int, str or slipring.Cache, optional
        Keep decoded frames, once per machine; see `Videos`.

    Attributes
    ----------
    root : str
    fps : float
        Frames per second.
    features : dict of str to dict
        The description of each feature of a sample, from ``meta/info.json``.
    stats : dict of str to dict of str to numpy.ndarray
        The statistics of features from ``meta/stats.json``, such as ``stats["action"]["mean"]``.
    episodes : numpy.ndarray of int64
        The numbers of the episodes, in the order of their samples.

    Raises
    ------
    ValueError
        The dataset is of another version; a file is damaged or contradicts another one; an argument does not fit the
        dataset.
    VideoError
        A video cannot be read, or has no frame at the time of a row. With ``on_error="skip"``, no episode can be read.
    OSError
        A file does not exist or cannot be opened.
    ImportError
        PyAV or pyarrow is not installed.

    Examples
    --------
    >>> from slipring import Loader, clips
    >>> data = clips.LeRobot("robot", {"observation.images.top": [-0.1, 0.0], "action": [0.0, 0.1, 0.2]})
    >>> len(data), data.fps, data.episodes.tolist()
    (35, 10, [0, 1, 2, 3])
    >>> sample = data[0]
    >>> sample["observation.images.top"].shape, sample["observation.images.top_is_pad"].tolist(), sample["task"]
    ((2, 3, 48, 64), [True, False], 'push')
    >>> with Loader(data, batch_size=35) as loader:
    ...     for batch in loader:
    ...         print(batch["observation.images.wrist"].shape, batch["action"].shape)
    (35, 3, 48, 32) (35, 3, 2)
    """

    root: str
    delta_timestamps: dict[str, list[float]]
    transform: Any
    fps: float
    features: dict[str, dict[str, Any]]
    stats: dict[str, dict[str, NDArray[Any]]]
    episodes: NDArray[np.int64]
    tolerance_s: float
    on_error: Literal["raise", "skip"]
    cache: Cache | None
    seeds_samples = True  # for each sample, `fetch_into` draws the same numbers as `__getitem__`
    on_death = "respawn"  # a crash in a codec costs a worker, and no batch

    def __init__(
        self,
        root: str | os.PathLike[str],
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        transform: _Transform | Mapping[str, _Transform] = None,
        *,
        episodes: Iterable[int] | None = None,
        features: Sequence[str] | None = None,
        tolerance_s: float = 1e-4,
        index: Literal["memory", "sidecar"] | str | os.PathLike[str] = "memory",
        layout: Literal["NHWC", "NCHW"] = "NCHW",
        dtype: DTypeLike | torch.dtype = "float32",
        mean: ArrayLike | None = None,
        std: ArrayLike | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        cache: int | str | Cache | None = None,
    ) -> None:
        pyav()
        self.root = os.path.abspath(file_path("root", root))
        self.tolerance_s = real("tolerance_s", tolerance_s, "a number of seconds")
        if not 0 <= self.tolerance_s < math.inf:
            raise ValueError(f"tolerance_s must be at least 0 seconds, not {shown(tolerance_s)}")
        one_of("on_error", on_error, ("raise", "skip"))
        self.on_error = on_error
        self._read = read = read_recording(self.root, episodes, names("features", features, "feature"))
        self.fps, self.features, self.stats, self.episodes = read.fps, read.features, read.stats, read.episodes
        self.transform, self.delta_timestamps = transform, {}
        self._deltas = self._checked_deltas(delta_timestamps)
        transforms = transform if isinstance(transform, Mapping) else dict.fromkeys(read.cameras, transform)
        self._check_known("transform", transforms, read.cameras, "cameras")
        paths = [path for camera in read.cameras.values() for path in camera.paths]
        self._source = FrameSource(IndexTable(paths, index, on_error == "skip", False, None), cache) if paths else None
        self.cache = self._source and self._source.cache
        self._cameras, first = {}, 0
        for key, camera in read.cameras.items():
            renderer = FrameRenderer(
                transforms.get(key), layout=layout, dtype=dtype, mean=mean, std=std, max_pixels=MAX_PIXELS
            )
            if not renderer.is_single:
                raise TypeError(f"transform must make one array of a frame, not {shown(transforms[key])}")
            self._cameras[key] = self._camera(renderer, range(first, first + len(camera.paths)), camera)
            first += len(camera.paths)
        self._begins = np.concatenate([[0], read.ends[:-1]])
        lacking = np.zeros(len(self), bool)
        for camera in self._cameras.values():
            lacking |= camera.frames == _NO_FRAME
        self._whole = np.flatnonzero(~np.logical_or.reduceat(lacking, self._begins))  # episodes with all frames
        if not len(self._whole):
            raise VideoError(f"none of the {len(self.episodes)} episodes of {self.root} has all its frames")

    # ---- what the constructor checks

    def _check_known(self, argument, given, known, what):
        for key in given:
            if key not in known:
                hint = did_you_mean(key, known) if isinstance(key, str) else ""
                raise ValueError(f"{argument} has {shown(key)}, and the {what} are {', '.join(known)}{hint}")

    def _checked_deltas(self, given):
        """Set `delta_timestamps`; return how many frames each of them is from the sample's own."""
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"delta_timestamps must be a dict of feature to times, or None, not {shown(given)}")
        self._check_known("delta_timestamps", given or {}, self.features, "features of samples")
        deltas = {}
        for key, times in (given or {}).items():
            name = f"delta_timestamps[{key!r}]"
            iterable(name, times, "a sequence of numbers of seconds")
            seconds = np.array([real(name, time, "numbers of seconds") for time in times])
            if not len(seconds):
                raise ValueError(f"{name} must have at least one time: [0.0] is that of the sample")
            if isinstance(self._read.columns.get(key), StringList):
                raise ValueError(f"delta_timestamps has {key!r}, whose values are text: leave it out")
            frames = np.rint(seconds * self.fps)
            with np.errstate(invalid="ignore"):
                wrong = seconds[~(np.abs(seconds - frames / self.fps) <= self.tolerance_s)]  # NaN, too
            if len(wrong):
                raise ValueError(
                    f"{name} has {wrong[0]:.6g}, which is not a multiple of 1 / fps = {1 / self.fps:.6g} s within "
                    f"tolerance_s={self.tolerance_s}: round the times"
                )
            deltas[key] = np.clip(frames, -_FAR, _FAR).astype(np.int64)
            self.delta_timestamps[key] = seconds.tolist()
        return deltas

    def _camera(self, renderer, numbers, camera):
        """Return the `_Camera` whose files have these numbers in the table."""
        table, shapes = self._source.table, renderer.shapes_of(None, 1)
        needs_one_size = shapes is None
        if needs_one_size:
            readable = [number for number in numbers if table.can_be_read(number)]
            sizes = {table[number].size: number for number in readable or numbers}
            if len(sizes) > 1:
                (a, first), (b, second) = list(sizes.items())[:2]
                raise VideoError(
                    f"{table.paths[first]} has frames of {a[0]} x {a[1]} pixels, and {table.paths[second]} of "
                    f"{b[0]} x {b[1]}: give a transform that makes one size",
                    path=table.paths[second],
                )
            shapes = renderer.shapes_of(next(iter(sizes)), 1)
        lengths = np.diff(self._read.ends, prepend=0)
        videos = np.repeat(camera.files + numbers.start, lengths)
        times = np.repeat(camera.starts, lengths) + self._read.columns["timestamp"]
        frames = np.full(len(times), _NO_FRAME)
        order = np.argsort(videos, kind="stable")
        for number, rows in zip(numbers, np.split(order, np.searchsorted(videos[order], numbers[1:]))):
            if not table.can_be_read(number):
                continue
            index = table[number]
            stamps = index.seconds(index.pts)
            frames[rows] = np.searchsorted((stamps[:-1] + stamps[1:]) / 2, times[rows])
            distances = np.abs(stamps[frames[rows]] - times[rows])
            far = rows[~(distances <= self.tolerance_s)]  # NaN, too
            if len(far):
                error = self._no_frame(index, far[0], times[far[0]], frames[far[0]])
                if self.on_error == "raise":
                    raise error
                _log.warning("skipped %s", str(error))
                frames[far] = _NO_FRAME
        return _Camera(renderer, shapes[0][1:], needs_one_size, videos, frames)

    def _no_frame(self, index, row, time, nearest):
        episode, frame = self._read.columns["episode_index"][row], self._read.columns["index"][row]
        stamp = float(index.seconds(index.pts[nearest]))
        return VideoError(
            f"{index.path} has no frame at {time:.6g} s, the time of the row with index {frame} of episode {episode}: "
            f"the nearest one is at {stamp:.6g} s, which is further away than tolerance_s={self.tolerance_s}. Leave "
            "the episode out, or give another tolerance_s",
            path=index.path,
            frame=int(nearest),
            time=float(time),
        )

    @property
    def is_random(self) -> bool:
        """Whether a sample differs in each epoch."""
        return any(camera.renderer.is_random for camera in self._cameras.values())

    def __len__(self) -> int:
        return int(self._read.ends[-1])

    def __repr__(self) -> str:
        cameras = f"{len(self._cameras)} cameras, {self.fps:g} frames per second"
        return f"LeRobot({shown(self.root)}): {len(self)} frames of {len(self.episodes)} episodes, {cameras}"

    def close(self) -> None:
        """Close the files that the calling thread has open. Reading a sample opens them again."""
        if self._source is not None:
            self._source.close()

    # ---- samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a sample. Outside of a slipring worker its random numbers come from Python's ``random``."""
        return self._shown({key: values[0] for key, values in self._made([index], np.empty).items()})

    def fetch_into(self, indices: Sequence[int], empty: Empty) -> dict[str, Any]:
        """Return a batch of samples, written into arrays that `empty` makes in the slot."""
        return self._shown(self._made(indices, empty))

    def _shown(self, sample):
        for key, camera in self._cameras.items():
            sample[key] = camera.renderer.sample_of([sample[key]])
        return sample

    def _made(self, indices, empty):
        """Return the arrays of a batch, and lists of texts; frames have the dtype of their memory."""
        rows = np.array([checked_index(index, len(self), "frames") for index in indices], np.int64)
        seeds, made = [seed_of(None) for _ in indices], {}
        for key, camera in self._cameras.items():
            times = len(self._deltas.get(key, (0,)))
            shape = (times, *camera.shape) if times > 1 else camera.shape
            made[key] = empty((len(rows), *shape), camera.renderer.storages[0])
        self._read_frames(rows, seeds, indices, made)
        wanted, inside = self._around(rows)
        for key in self.features:
            if key not in self._cameras:
                made[key] = self._values(self._read.columns[key], inside.get(key, rows), empty)
        for key, at in wanted.items():
            made[f"{key}_is_pad"] = np.not_equal(at, inside[key], out=empty(at.shape, "bool"))
        for name, texts in self._read.texts.items():
            made[name] = [texts[number] for number in self._read.columns[f"{name}_index"][rows].tolist()]
        return made

    def _around(self, rows):
        """Return the rows at the `delta_timestamps` of rows, by key, and the same ones within their episodes."""
        episodes = np.searchsorted(self._read.ends, rows, "right")
        begins, lasts = self._begins[episodes][:, None], self._read.ends[episodes][:, None] - 1
        wanted = {key: rows[:, None] + deltas for key, deltas in self._deltas.items()}
        return wanted, {key: np.clip(at, begins, lasts) for key, at in wanted.items()}

    def _read_frames(self, rows, seeds, indices, made):
        """Decode the frames of a batch; put others into `rows` for those that cannot be read and may be skipped."""
        given = rows, seeds, indices, made
        error = self._tried(range(len(rows)), *given)
        for row in range(len(rows)) if error is not None else ():
            if len(rows) > 1:  # another row of the batch may be the one that cannot be read
                error = self._tried([row], *given)
            others = self._others(rows[row])
            if error is not None:
                sample_marks.skipped()
            while error is not None:
                _log.warning("skipped %s", str(error))  # a handler may keep its records
                if (other := next(others, None)) is None:
                    raise VideoError(f"none of the {len(self.episodes)} episodes can be read: {error}") from error
                rows[row] = other
                error = self._tried([row], *given)

    def _others(self, row):
        """Yield the rows that may replace a row: of each later episode, and then of the first ones."""
        episode = np.searchsorted(self._read.ends, row, "right")
        begins, ends = self._begins, self._read.ends
        for other in np.roll(self._whole, -np.searchsorted(self._whole, episode, "right")):
            yield begins[other] + (row - begins[episode]) % (ends[other] - begins[other])

    def _tried(self, members, rows, seeds, indices, made):
        """Decode the frames of some rows of a batch; return the error if they cannot be read and may be skipped."""
        try:
            self._fill(self._targets(members, rows, seeds, made), indices)
        except (VideoError, OSError) as error:
            if self.on_error == "raise" or not concerns_the_file(error):
                raise
            return error
        return None

    def _targets(self, members, rows, seeds, made):
        """Return a `_FrameTarget` for each frame of some rows of a batch."""
        targets, (_, inside) = [], self._around(rows)
        for number, (key, camera) in enumerate(self._cameras.items()):
            at = inside.get(key, rows[:, None])
            frames = made[key].reshape(*at.shape, *camera.shape)
            videos, numbers = camera.videos[at].tolist(), camera.frames[at].tolist()
            for row, time in product(members, range(at.shape[1])):
                out, seed = frames[row, time], mix(seeds[row], number)
                targets.append(_FrameTarget(videos[row][time], numbers[row][time], camera, out, row, seed))
        return targets

    def _values(self, column, rows, empty):
        if isinstance(column, StringList):
            return [column[row] for row in rows.tolist()]
        out = empty((*rows.shape, *column.shape[1:]), column.dtype)
        return np.take(column, rows, axis=0, out=out, mode="clip")  # "raise", the default, makes a copy first

    def _fill(self, targets, indices):
        """Decode each video forwards, each frame once, and write each frame to all its positions in the batch."""
        targets.sort(key=itemgetter(0, 1))
        for video, of_video in groupby(targets, itemgetter(0)):
            groups = [list(group) for _, group in groupby(of_video, itemgetter(1))]
            target, path = groups[0][0], self._source.table.paths[video]
            try:
                index = self._source.table[video]
                if target.frame == _NO_FRAME:
                    raise VideoError(f"{path} has no frame at the time of a row", path=path)
                decoded = self._source.frames(video, [group[0].frame for group in groups])
                for group in groups:
                    target = group[0]
                    number, pixels, orientation = next(decoded)
                    for target in group:
                        if target.camera.needs_one_size:
                            index.check_size(number, pixels, orientation)
                        target.camera.renderer.render(pixels, orientation, target.seed, [target.out])
            except Exception as error:
                raise_of_sample(error, path, target.row, indices[target.row])


class _Camera(NamedTuple):
    """The videos of a camera, and how its frames become arrays.

    `videos` and `frames` have, for each row of the dataset, the number of the video in the table and of the frame.
    """

    renderer: FrameRenderer
    shape: tuple[int, ...]
    needs_one_size: bool
    videos: NDArray[np.int64]
    frames: NDArray[np.int64]


class _FrameTarget(NamedTuple):
    """Memory for a frame of a video, its row in the batch, and its random bits."""

    video: int
    frame: int
    camera: _Camera
    out: NDArray[Any]
    row: int
    seed: int
