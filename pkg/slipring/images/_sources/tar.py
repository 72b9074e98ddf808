"""Tar shards in webdataset's layout: files with the same name up to its first dot are one sample."""

from __future__ import annotations

import copy
import json
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from slipring._core.ring import process
from slipring._files.sidecar import folder_of, kept_or_made
from slipring._files.storage import locate
from slipring.errors import ImageError, shown
from slipring.images._sources.dataset import ImageDataset, suggests_options
from slipring.images._sources.folder import read_at
from slipring.redaction import redacted
from slipring.strings import StringList

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from slipring._files.storage import Storage
    from slipring.images._sources.dataset import ImageOptions
    from slipring.images._steps.outputs import SizedTransforms

_WHERE = "image", "size", "target", "target_size"  # offsets in the shard, and sizes
_RECORD = np.dtype([("shard", "i4"), ("ending", "i4"), *((name, "i8") for name in _WHERE)])
_VERSION = 2  # of index files; a file of another version is made again
# In place of a size: why a sample's image or target has no bytes in the shard.
_ABSENT, _SPARSE, _DANGLING = -1, -2, -3
_REASONS = {
    _ABSENT: "has no {what}: none of its files ends in {endings}, as {what}= says",
    _SPARSE: "has a sparse {what} (tar --sparse), whose bytes are not in one piece: make the shard without --sparse",
    _DANGLING: "has a link as its {what}, to a file that the shard does not have: make the shard with --dereference",
}
_LINKS = 40  # that lead to a file, at most; as on Linux
SCANS = 16  # remote shards that are scanned concurrently


@suggests_options
class Tar(ImageDataset):
    """Samples of tar shards, by number: (image, target). An index of offsets, made once, gives random access.

    Parameters
    ----------
    shards : path, URL or sequence of them
        Uncompressed tar files. Samples are numbered through all of them, in the order of the files.
    transform : Transform or list of Transform, optional
    image : str
        Endings of the image file, in order of preference, separated by ";".
    target : str or None
        The same for the target file. ``cls`` and ``index`` are numbers, ``json`` is decoded, ``txt`` is text; other
        endings give bytes. None: the target is the sample's name.
    index : {'memory', 'sidecar'} or path
        Where the index is stored: in memory, in a file next to each shard, or in files in the given folder. It is made
        again if the shard's size or modification time has changed. Remote shards cannot have sidecar files.
    storage : slipring.Storage, optional
        How URLs are read.
    layout, dtype, mean, std, reducing_gap, exif, truncated, grey16, max_pixels, on_error, side, cache, what,
    target_transform
        As in `ImageDataset`.

    Attributes
    ----------
    keys : sequence of str
        The samples' names.

    Raises
    ------
    ValueError
        There is no shard, a file is not a tar file or is compressed, or a sample has no image or no target. With
        ``on_error="skip"``, such a sample is skipped like an image that cannot be read, if the shard has others.

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
    _on = None  # shard -> its open file, for a thread that reads in order

    def __init__(
        self,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        transform: SizedTransforms = None,
        *,
        image: str = "jpg;jpeg;png;webp",
        target: str | None = "cls",
        index: Literal["memory", "sidecar"] | str | os.PathLike[str] = "memory",
        storage: Storage | None = None,
        **options: Unpack[ImageOptions],
    ) -> None:
        super().__init__(transform, **options)
        check_endings(image, target)
        self.image, self.target = image, target
        self._endings = () if target is None else tuple(target.split(";"))
        paths, self._remote = paths_of(shards, storage)
        self._kept_in = folder_of(index, self._remote)
        self._open(paths)
        self._complete()

    def only(self, path: str) -> Tar:
        """Return a copy with this shard alone."""
        other = copy.copy(self)
        other.cache = None  # its samples have other numbers
        other._open([path])
        return other

    def in_order(self) -> Tar:
        """Return a copy for one thread that reads the samples in order, remote shards in large pieces."""
        other = copy.copy(self)
        other._on = {}
        return other

    # ---- the index

    def _open(self, paths):
        self.paths, self._stamps, records, keys = paths, [], [np.zeros(0, _RECORD)], []
        self._checked_by = {}  # shard -> the process that has checked whether it has changed
        for number, (stamp, part, names) in enumerate(self._indices(paths)):
            self._stamps.append(stamp)
            part["shard"] = number
            records.append(part)
            keys += names
        self._records = np.concatenate(records)
        self.keys = StringList(keys)

    def _indices(self, paths):
        """Yield (stamp, records, names) of each shard. Remote shards are scanned concurrently."""
        if self._remote is None:
            yield from map(self._index_of, paths)
        else:
            with ThreadPoolExecutor(min(SCANS, len(paths))) as scans:
                yield from scans.map(self._index_of, paths)

    def _index_of(self, path):
        status = os.stat(path) if self._remote is None else None
        stamp = (status.st_size, status.st_mtime_ns) if status is not None else self._remote._info(path)
        if self._kept_in is None:
            return stamp, *self._make_index(path, stamp)
        return stamp, *self._kept_index(path, stamp, status)

    def _make_index(self, path, stamp):
        """Return (records, names) of a shard, from its headers alone."""
        samples = {}
        try:
            file = None if self._remote is None else self._remote._open(path, *stamp)
            with tarfile.open(None if file is not None else path, "r:", file) as shard:
                for member in _members(shard):
                    folder, name = os.path.split(member.name)
                    key, _, ending = name.partition(".")
                    if not key or not ending or (key.startswith("__") and key.endswith("__")):
                        continue  # as in webdataset: the file belongs to no sample
                    files = samples.setdefault(os.path.join(folder, key), {})
                    if ending.lower() in files:
                        raise ValueError(f"{redacted(path)} has {member.name} twice: each sample needs its own name")
                    files[ending.lower()] = member
                members = _MemberIndex(shard.getmembers())
        except tarfile.ReadError as error:
            raise ValueError(
                f"{redacted(path)} is no tar file, or a compressed or damaged one, which has no offsets: {error}"
            ) from None
        records = np.zeros(len(samples), _RECORD)
        for record, files in zip(records, samples.values()):
            _, record["image"], record["size"] = members.first(self.image.split(";"), files)
            if self._endings:
                record["ending"], record["target"], record["target_size"] = members.first(self._endings, files)
        incomplete = np.flatnonzero(_is_incomplete(records))
        if len(incomplete) and (self.on_error == "raise" or len(incomplete) == len(records)):
            key, files = list(samples.items())[incomplete[0]]
            raise ValueError(
                f"sample {key} of {redacted(path)} {self._reason(records[incomplete[0]])}. It has "
                f"{', '.join(sorted(files))}. on_error='skip' skips such samples, if a shard has others"
            )
        return records, list(samples)

    def _reason(self, record):
        """Return why a sample is incomplete."""
        what, endings, size = "image", self.image, record["size"]
        if size >= 0:
            what, endings, size = "target", self.target, record["target_size"]
        return _REASONS[int(size)].format(what=what, endings=" or ".join(endings.split(";")))

    def _kept_index(self, path, stamp, status):
        """Return the same from the index file, which is made first if necessary."""
        made_of = f"{stamp[0]} {stamp[1]} {self.image} {self.target}"

        def read(kept):
            if kept["version"] == _VERSION and str(kept["made_of"]) == made_of:
                records = kept["records"].copy()
                if self.on_error == "skip" or not _is_incomplete(records).any():
                    return records, kept["keys"].tolist()
            return None

        def make():
            records, keys = self._make_index(path, stamp)
            names, of = np.array(keys, np.str_), np.array(made_of)
            return (records, keys), {"records": records, "keys": names, "made_of": of, "version": _VERSION}

        return kept_or_made(self._kept_in, path, status, read, make)

    # ---- samples

    def __len__(self) -> int:
        return len(self._records)

    def read(self, index: int) -> tuple[bytes, Any]:
        record = self._records[index]
        shard, ending, at, size, target_at, target_size = record.item()
        if _is_incomplete(record):
            raise ImageError(f"the sample {self._reason(record)}")
        if self._remote is not None:
            return self._read_remote(index)
        descriptor = os.open(self.paths[shard], os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if (status.st_size, status.st_mtime_ns) != self._stamps[shard]:
                raise ImageError(f"{self.paths[shard]} has changed since its index was made; create the dataset again")
            data = read_at(descriptor, at, size)
            if not self._endings:
                return data, self.keys[index]
            return data, self._target_of(ending, read_at(descriptor, target_at, target_size))
        finally:
            os.close(descriptor)

    def _read_remote(self, index):
        shard, ending, at, size, target_at, target_size = self._records[index].item()
        ranges = [(at, at + size)] + ([(target_at, target_at + target_size)] if self._endings else [])
        if self._on is None:
            file = self._opened(shard)
            file.ahead(ranges)  # one request if they are adjacent
        else:
            file = self._on[shard] = self._on.get(shard) or self._opened(shard)
        data, *raw = [file.range(*span) for span in ranges]
        return data, self._target_of(ending, raw[0]) if raw else self.keys[index]

    def _opened(self, shard):
        """Return the shard for this thread to read; a process's first reader checks whether the shard has changed."""
        path, stamp = self.paths[shard], self._stamps[shard]
        if self._checked_by.get(shard) != process.pid():
            if self._remote._info(path) != stamp:
                raise ImageError(f"{path} has changed since its index was made; create the dataset again")
            self._checked_by[shard] = process.pid()
        return self._remote._open(path, *stamp)

    def _target_of(self, ending, raw):
        try:
            return _decoded(self._endings[ending], raw)
        except ValueError as error:
            raise ImageError(f"the target .{self._endings[ending]} is broken: {error}") from error

    def fingerprint(self) -> str:
        return repr((list(zip(self.paths, self._stamps)), self.image, self.target))

    def name(self, index: int) -> str:
        return f"{self.keys[index]} in {self.paths[self._records[index]['shard']]}"

    def __repr__(self) -> str:
        return f"Tar({len(self.paths)} shards, {self.transform}): {len(self)} images"


def paths_of(
    shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], storage: Storage | None
) -> tuple[list[str], Storage | None]:
    """Return (absolute paths, None) of one shard or several, or (URLs, the storage that reads them)."""
    paths, storage = locate("shards", shards, storage)
    if not paths:
        raise ValueError(f"shards must name at least one shard, not {shown(shards)}")
    return paths, storage


def check_endings(image, target):
    """Raise TypeError if a file ending is not a string."""
    for name, value in (("image", image), ("target", target)):
        if not isinstance(value, str) and not (name == "target" and value is None):
            allowed = "a str or None" if name == "target" else "a str"
            raise TypeError(f"{name} must be {allowed}, as 'jpg;png', not {shown(value)}")


def _members(shard):
    """Yield the files and links of an open tar file; raise ReadError if it is damaged."""
    for member in shard:
        if member.size < 0:
            raise tarfile.ReadError(f"{member.name} has a size of {member.size} bytes")
        if member.isfile() or member.islnk() or member.issym():
            yield member
    # tarfile takes a header that it cannot read for the end, which is a block of zeros or the end of the file.
    shard.fileobj.seek(shard.offset)
    if shard.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"the header at byte {shard.offset} cannot be read")


class _MemberIndex:
    """The offsets of all members' bytes."""

    def __init__(self, members):
        self._by_path = {}
        if any(member.islnk() or member.issym() for member in members):
            self._by_path = {os.path.normpath(member.name): member for member in members}

    def first(self, endings, files):
        """Return (number of the first ending that a sample has, offset, size); a size below 0 says why it is bad."""
        for number, ending in enumerate(endings):
            if ending in files:
                return number, *self._of(files[ending])
        return 0, 0, _ABSENT

    def _of(self, member):
        for _ in range(_LINKS):
            if member is None or member.isfile():
                break
            # A hard link has a path in the archive, a symbolic one a path that begins in its own folder.
            target = member.linkname if member.islnk() else os.path.join(os.path.dirname(member.name), member.linkname)
            member = self._by_path.get(os.path.normpath(target))
        if member is None or not member.isfile():
            return 0, _DANGLING
        return member.offset_data, _SPARSE if member.issparse() else member.size


def _is_incomplete(records):
    return (records["size"] < 0) | (records["target_size"] < 0)


def _decoded(ending, raw):
    """Return a target's value, decoded as by webdataset."""
    kind = ending.rpartition(".")[2]
    if kind in ("cls", "cls2", "index", "inx", "id"):
        return int(raw)
    if kind in ("json", "jsn"):
        return json.loads(raw)
    if kind in ("txt", "text", "transcript"):
        return raw.decode()
    return raw
