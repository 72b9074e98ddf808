"""Tar shards in webdataset's layout: files with the same name up to its first dot are one sample."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import logging
import os
import tarfile
import tempfile
import zipfile
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slipring.errors import ImageError, shown
from slipring.images.dataset import ImageDataset
from slipring.strings import StringList

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from slipring.images.dataset import ImageOptions
    from slipring.images.transforms import Transform

_RECORD = np.dtype(
    [
        ("shard", "i4"),
        ("ending", "i4"),
        ("image", "i8"),
        ("size", "i8"),
        ("target", "i8"),
        ("target_size", "i8"),
    ]
)
_SUFFIX = ".index.npz"


class Tar(ImageDataset):
    """Samples of tar shards, by number: (image, target). An index of offsets, made once, gives random access.

    Parameters
    ----------
    shards : path or sequence of paths
        Uncompressed tar files. Samples are numbered through all of them, as they lie.
    transform : Transform or list of Transform, optional
    image : str
        Endings of the image's file, best first, with ";" between them.
    target : str or None
        Likewise of the target's: ``cls`` and ``index`` are numbers, ``json`` is what it holds, ``txt`` text; any other
        comes as bytes. None: the sample's name.
    index : {'memory', 'beside'}
        Where the index is kept: in memory, or in a file beside each shard, which is made anew when the shard's size or
        time of modification has changed.
    layout, dtype, mean, std, reducing_gap, exif, truncated, max_pixels, on_error, side, cache, what
        As `ImageDataset` has them.

    Attributes
    ----------
    keys : sequence of str
        The samples' names.

    Raises
    ------
    ValueError
        There is no shard, one is no tar file or compressed, or a sample has no image or no target.

    Examples
    --------
    >>> from slipring import images
    >>> data = images.Tar("train.tar", images.CenterCrop(24))
    >>> len(data), data.keys[0]
    (4, 'cat/0')
    >>> pixels, label = data[3]
    >>> pixels.shape, label
    ((24, 24, 3), 1)
    """

    paths: list[str]
    image: str
    target: str | None
    keys: StringList

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        transform: Transform | Sequence[Transform] | None = None,
        *,
        image: str = "jpg;jpeg;png;webp",
        target: str | None = "cls",
        index: Literal["memory", "beside"] = "memory",
        **options: Unpack[ImageOptions],
    ) -> None:
        super().__init__(transform, **options)
        if index not in ("memory", "beside"):
            raise ValueError(f"index must be 'memory' or 'beside', not {shown(index)}")
        self.image, self.target, self._keeps = image, target, index == "beside"
        self._endings = () if target is None else tuple(target.split(";"))
        self._open(paths_of(shards))
        self._complete()

    def only(self, path: str) -> Tar:
        """Return the same of this shard alone."""
        other = copy.copy(self)
        other.cache = None  # its numbers are others
        other._open([path])
        return other

    # ---- the index

    def _open(self, paths):
        self.paths, self._stamps, records, keys = paths, [], [np.zeros(0, _RECORD)], []
        for number, path in enumerate(paths):
            status = os.stat(path)
            self._stamps.append((status.st_size, status.st_mtime_ns))
            part, names = self._kept_index(path, status) if self._keeps else self._make_index(path)
            part["shard"] = number
            records.append(part)
            keys += names
        self._records = np.concatenate(records)
        self.keys = StringList(keys)

    def _make_index(self, path):
        """Return (records, names) of a shard, from its headers alone."""
        samples = {}
        try:
            with tarfile.open(path, "r:") as shard:
                for member in shard:
                    if member.isfile():
                        folder, name = os.path.split(member.name)
                        key, _, ending = name.partition(".")
                        if not key or not ending or (key.startswith("__") and key.endswith("__")):
                            continue  # as webdataset: no sample's
                        files = samples.setdefault(os.path.join(folder, key), {})
                        files[ending.lower()] = member.offset_data, member.size
        except tarfile.ReadError as error:
            raise ValueError(
                f"{path} is no tar file, or a compressed one, which has no offsets: {error}"
            ) from None
        records = np.zeros(len(samples), _RECORD)
        for record, (key, files) in zip(records, samples.items()):
            record["image"], record["size"] = files[_first(self.image.split(";"), files, "image", key, path)]
            if self._endings:
                ending = _first(self._endings, files, "target", key, path)
                record["ending"] = self._endings.index(ending)
                record["target"], record["target_size"] = files[ending]
        return records, list(samples)

    def _kept_index(self, path, status):
        """Return the same from the file beside the shard, which is made first if need be."""
        beside = path + _SUFFIX
        made_of = f"{status.st_size} {status.st_mtime_ns} {self.image} {self.target}"
        try:
            with open(beside, "rb") as file, np.load(file) as kept:
                if str(kept["made_of"]) == made_of:
                    return kept["records"].copy(), kept["keys"].tolist()
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            pass  # there is none, or none that can be read
        records, keys = self._make_index(path)
        try:
            with _replacing(beside, status) as file:
                np.savez(file, records=records, keys=np.array(keys, np.str_), made_of=np.array(made_of))
        except OSError as error:
            _say_not_kept(os.path.dirname(beside), error.strerror)
        return records, keys

    # ---- samples

    def __len__(self) -> int:
        return len(self._records)

    def read(self, index: int) -> tuple[bytes, Any]:
        shard, ending, at, size, target_at, target_size = self._records[index].item()
        descriptor = os.open(self.paths[shard], os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if (status.st_size, status.st_mtime_ns) != self._stamps[shard]:
                raise ImageError(
                    f"{self.paths[shard]} has changed since its index was made; make the dataset anew"
                )
            data = _read(descriptor, at, size)
            if not self._endings:
                return data, self.keys[index]
            raw = _read(descriptor, target_at, target_size)
            try:
                return data, _decoded(self._endings[ending], raw)
            except ValueError as error:
                raise ImageError(f"the target .{self._endings[ending]} is broken: {error}") from error
        finally:
            os.close(descriptor)

    def fingerprint(self) -> str:
        return repr((list(zip(self.paths, self._stamps)), self.image, self.target))

    def name(self, index: int) -> str:
        return f"{self.keys[index]} in {self.paths[self._records[index]['shard']]}"

    def __repr__(self) -> str:
        return f"Tar({len(self.paths)} shards, {self.transform}): {len(self)} images"


def paths_of(shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the absolute paths of one shard or several."""
    shards = [shards] if isinstance(shards, (str, bytes, os.PathLike)) else list(shards)
    if not shards:
        raise ValueError("there must be at least one shard; shards is empty")
    return [os.path.abspath(os.fsdecode(shard)) for shard in shards]


@contextlib.contextmanager
def _replacing(path, status):
    """A file to write, that is then at `path` in one step: others may be reading it, or making it too.

    Who may read, or write, the shard of that status may do so here.
    """
    descriptor, unfinished = tempfile.mkstemp(prefix=os.path.basename(path), dir=os.path.dirname(path))
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, status.st_mode & 0o666)
            yield file
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


@functools.cache
def _say_not_kept(folder, reason):
    logging.getLogger("slipring").warning(
        "the indices of shards cannot be kept in %s: %s. They are made anew each time, as with index='memory'",
        folder,
        reason,
    )


def _first(endings, files, what, key, path):
    for ending in endings:
        if ending in files:
            return ending
    raise ValueError(
        f"sample {key} of {path} has no {what}: it has {', '.join(sorted(files))}, wanted is {' or '.join(endings)}; "
        f"say {what}= which"
    )


def _read(descriptor, at, size):
    data = os.pread(descriptor, size, at)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), at + len(data))):
        data += more
    return data


def _decoded(ending, raw):
    """Return a target's value, as webdataset decodes it."""
    kind = ending.rpartition(".")[2]
    if kind in ("cls", "cls2", "index", "inx", "id"):
        return int(raw)
    if kind in ("json", "jsn"):
        return json.loads(raw)
    if kind in ("txt", "text", "transcript"):
        return raw.decode()
    return raw
