"""The targets of URLs and how they are read: the file system, attempts, a disk cache."""

from __future__ import annotations

import os
import pickle
import posixpath
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

from slipring._core.options.checks import file_path, integer, iterable, seconds, size_in_bytes
from slipring._core.ring._check import from_handler
from slipring._core.ring.process import Owner
from slipring._files.attempts import BLOCK, Short, is_refused, persist
from slipring._files.identity import name_of, token_of
from slipring.errors import RemoteError, message_of, shown
from slipring.redaction import redacted

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
# Bytes of one request: a larger range is requested in pieces, each of which has the time of an attempt.
PIECE = 1 << 23
_NOT_FORKED = ("s3", "gcs", "abfs", "hdfs")  # pyarrow's file systems with threads of their own


class Storage:
    """How URLs are read: the ``storage=`` of `slipring.images.Tar`, `slipring.arrow.TableDataset` and others.

    Without a storage, URLs are read by fsspec with these defaults. Each process makes its own connections, at its first
    read; a fork or a pickle passes on only the parameters.

    Parameters
    ----------
    filesystem : fsspec.AbstractFileSystem or pyarrow.fs.FileSystem, optional
        The file system of all paths, with or without the URL's scheme; pyarrow's is read through fsspec. None: fsspec's
        for each URL.
    storage_options : mapping, optional
        For fsspec's file system: credentials, ``endpoint_url``, and whatever else it takes.
    attempts : int
        How often a request is tried. Timeouts, broken connections and answers, and the statuses 408, 425, 429 and
        500 to 599 are tried again; files that do not exist or may not be read are not.
    timeout : float
        Seconds for all attempts of one request, which has at most 8 MiB, together.
    attempt_timeout : float
        Seconds for one attempt.
    disk_cache : path, optional
        A folder that keeps the ranges that were read, for all processes of this machine.
    disk_cache_bytes : int or str
        Budget of that folder. If it would be exceeded, the least recently used ranges are removed first.

    Raises
    ------
    ModuleNotFoundError
        fsspec, or its part for a URL, is not installed. The first read of such a URL raises it.

    Examples
    --------
    >>> import slipring
    >>> from slipring import images
    >>> storage = slipring.Storage(timeout=30, disk_cache="kept", disk_cache_bytes="1GiB")
    >>> data = images.Tar("train.tar", images.CenterCrop(24), storage=storage)  # or "https://.../train.tar"
    >>> len(data)
    4
    """

    attempts: int
    timeout: float
    attempt_timeout: float
    disk_cache: str | None
    disk_cache_bytes: int

    def __init__(
        self,
        filesystem: Any = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        attempts: int = 8,
        timeout: float = 60.0,
        attempt_timeout: float = 10.0,
        disk_cache: str | os.PathLike[str] | None = None,
        disk_cache_bytes: int | str = "10GiB",
    ) -> None:
        attempts = integer("attempts", attempts, 1)
        for name, value in (("timeout", timeout), ("attempt_timeout", attempt_timeout)):
            seconds(name, value)
            if not value:
                raise ValueError(f"{name} must be above 0: a server that never answers would be waited for")
        if filesystem is not None and storage_options is not None:
            raise ValueError("storage_options are for fsspec's own file systems: filesystem= has its options already")
        if not isinstance(storage_options, (Mapping, type(None))):
            raise TypeError(f"storage_options must be a mapping or None, not {shown(storage_options)}")
        self._options = dict(storage_options or {})
        self._is_pyarrow = _is_of_pyarrow(filesystem)
        self._recipe = None if filesystem is None else pickle.dumps(filesystem)
        self._threads_of = _threads_of(filesystem) if self._is_pyarrow else None
        self.attempts, self.timeout, self.attempt_timeout = attempts, float(timeout), float(attempt_timeout)
        self.disk_cache = None if disk_cache is None else os.path.abspath(file_path("disk_cache", disk_cache))
        self.disk_cache_bytes = size_in_bytes("disk_cache_bytes", disk_cache_bytes)
        self._token = None if disk_cache is None else token_of(self._options, filesystem)
        self._owner, self._made = Owner(), None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._owner = Owner()

    def __repr__(self) -> str:
        kept = "" if self.disk_cache is None else f", disk_cache={self.disk_cache!r}"
        return f"Storage(attempts={self.attempts}, timeout={self.timeout}{kept})"

    # ---- reads

    def _info(self, url):
        """Return (size, tag); the tag changes with the contents, as far as the server reports that."""
        wanted = "its size"
        size, tag = self._persist(lambda system, path, left: system.info(path, left), url, wanted)
        if size is None:
            raise RemoteError(f"{url}: the server does not tell its size, without which no range can be read", url=url)
        return size, tag

    def _read(self, url, start, stop, tag=""):
        """Return the bytes [start, stop) of `url`."""
        pieces = [self._piece(url, at, min(stop, at + PIECE), tag) for at in range(start, stop, PIECE)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_in_blocks(self, url, start, stop, tag, size):
        """Return the bytes from blocks of the disk cache, if all blocks are there, or are to be stored there.

        A sequential reader reads whole blocks, which are stored one by one, so that any reader within them finds
        them.
        """
        from slipring._files.ranged import joined

        kept, first = self._disk(), start - start % BLOCK
        sized = f"{tag} {size}"  # if a file has grown, its last block was shorter, and there may be no tag
        on_grid = start == first and (stop % BLOCK == 0 or stop == size)
        blocks = dict.fromkeys(range(first, stop, BLOCK))
        for at in blocks:
            blocks[at] = kept.get(name_of(self._token, url, sized, at, "block"))
            if blocks[at] is None and not on_grid:
                return self._read(url, start, stop, tag)
        for begin, end in joined([(at, at + BLOCK) for at, data in blocks.items() if data is None], gap=0):
            end = min(end, size)
            for piece in range(begin, end, PIECE):
                data = self._fetch(url, piece, min(end, piece + PIECE), tag)
                for at in range(piece, piece + len(data), BLOCK):
                    blocks[at] = data[at - piece : at - piece + BLOCK]
                    kept.put(name_of(self._token, url, sized, at, "block"), blocks[at])
        return b"".join(blocks.values())[start - first : stop - first]

    def _piece(self, url, start, stop, tag=""):
        kept = self._disk()
        if kept is None:
            return self._fetch(url, start, stop, tag)
        name = name_of(self._token, url, tag, start, stop)
        data = kept.get(name)
        if data is None:
            data = self._fetch(url, start, stop, tag)
            kept.put(name, data)
        return data

    def _fetch(self, url, start, stop, tag):
        def attempt(system, path, left):
            data = system.read(path, start, stop, left, tag)
            if start is not None and len(data) != stop - start:
                came = f"{len(data)} bytes came where {stop - start} were requested"
                if len(data) > stop - start:  # another attempt would return the same
                    raise ValueError(f"{came}: does the server answer requests of ranges?")
                raise Short(came)
            return data

        wanted = "all of it" if start is None else f"bytes {start} to {stop}"
        return self._persist(attempt, url, wanted, start, stop)

    def _read_all(self, url, tag=""):
        return self._piece(url, None, None, tag)

    def _find(self, root):
        """Return (path after ``root/``, tag) of all files below it, in order."""
        path, found = self._persist(
            lambda system, path, left: (path, system.find(path, left)), root, "what lies below it"
        )
        # A file system has names of its own: "memory://a" is "/a", "s3://a" is "a".
        above = path.strip("/") and f"{path.strip('/')}/"
        return [
            (at.removeprefix(above), tag)
            for name, tag in found
            if (at := name.lstrip("/")).startswith(above) and at != above
        ]

    def _open(self, url, size, tag):
        from slipring._files.ranged import RangedFile

        if self.disk_cache is None:
            return RangedFile(url, size, lambda start, stop: self._read(url, start, stop, tag))
        return RangedFile(url, size, lambda start, stop: self._read_in_blocks(url, start, stop, tag, size), grid=BLOCK)

    def _persist(self, attempt, url, wanted, start=None, stop=None):
        """Return the result of ``attempt(system, path, seconds)``; creating the file system is part of the attempt."""

        def made_and_tried(left):
            end = time.monotonic() + left

            def tried(system):
                result = attempt(system, system.path(url), max(0.001, end - time.monotonic()))
                system.has_answered = True
                return result

            system = self._made_by(make, protocol)
            try:
                return tried(system)
            except Exception as error:
                # Good credentials may have expired: a new file system requests them again.
                if not (is_refused(error) and system.has_answered) or from_handler(error):
                    raise
                self._forget(protocol, system)
            return tried(self._made_by(make, protocol))

        protocol = "" if self._recipe is not None else _URL.match(url)[1]
        make = self._maker(protocol)
        return persist(made_and_tried, url, wanted, self.attempts, self.timeout, self.attempt_timeout, start, stop)

    # ---- this process's own connections

    def _made_by(self, make, protocol):
        """Return this process's file system, which its first read creates."""
        systems = self._mine()["systems"]
        system = systems.get(protocol)
        if system is None:
            try:
                system = systems[protocol] = make()
            except FileNotFoundError as error:  # such as a key file: the requested file was not searched for
                if from_handler(error):
                    raise
                why = f"its file system cannot be made: {type(error).__name__}: {message_of(error)}"
                raise ValueError(why) from error
        return system

    def _forget(self, protocol, system):
        """Make the next read create a new file system, unless another thread has replaced this one."""
        systems = self._mine()["systems"]
        if systems.get(protocol) is system:
            systems.pop(protocol, None)

    def _mine(self):
        made = self._made
        if made is None or not made["owner"].is_here:
            self._made = made = {"owner": Owner(), "systems": {}}
        return made

    def _maker(self, protocol):
        """Return a function that creates the file system; raise at once the errors that no other attempt could fix."""
        if self._threads_of is not None and not self._owner.is_here:
            raise RuntimeError(
                f"pyarrow's file system {self._threads_of!r} has threads, which a forked worker does not have: "
                "start the loader's workers with 'forkserver' or 'spawn', or have fsspec read these URLs"
            )
        try:
            import fsspec
        except ModuleNotFoundError as error:
            if error.name != "fsspec":
                raise
            text = "URLs are read by fsspec: pip install 'slipring[remote]'"
            raise ModuleNotFoundError(text, name="fsspec") from None
        from slipring._files.systems import Pyarrow, Remote

        if self._recipe is not None:
            of = Pyarrow if self._is_pyarrow else lambda system: system
            return lambda: Remote(of(pickle.loads(self._recipe)))
        fsspec.get_filesystem_class(protocol)  # raises for an unknown kind of URL, or a missing library
        options = self._options
        if protocol in ("http", "https"):  # compressed answers have other ranges
            options = {**options, "headers": {"Accept-Encoding": "identity", **options.get("headers", {})}}
        if protocol in ("s3", "s3a"):  # botocore would try again within an attempt, and the timeout hide why
            options = {**options, "config_kwargs": {"retries": {"max_attempts": 0}, **options.get("config_kwargs", {})}}
        # Not the instance that fsspec shares: this one ends with this object.
        return lambda: Remote(fsspec.filesystem(protocol, skip_instance_cache=True, **options))

    def _disk(self):
        if self.disk_cache is None:
            return None
        mine = self._mine()
        if "disk" not in mine:
            from slipring._files.disk import DiskCache

            mine["disk"] = DiskCache(self.disk_cache, self.disk_cache_bytes)
        return mine["disk"]


Storage.__module__ = "slipring"  # its pickle and its repr have its public name


def _is_of_pyarrow(filesystem):
    """Return whether a file system is pyarrow's; the others are fsspec's."""
    modules = {kind.__module__ for kind in type(filesystem).__mro__}
    if filesystem is not None and not modules & {"pyarrow._fs", "fsspec.spec"}:
        raise TypeError(f"filesystem must be one of fsspec's or of pyarrow.fs, not {shown(filesystem)}")
    return "pyarrow._fs" in modules


def _threads_of(filesystem):
    """Return the type of pyarrow's file system if it has threads of its own, which do not survive a fork; else None."""
    while hasattr(filesystem, "base_fs"):
        filesystem = filesystem.base_fs
    if hasattr(filesystem, "handler"):  # a file system in Python, which may have no name for it
        return None
    return filesystem.type_name if filesystem.type_name in _NOT_FORKED else None


def locate(name: str, value: Any, storage: Storage | None) -> tuple[list[str], Storage | None]:
    """Return (URLs, the storage that reads them) or (absolute local paths, None), for one path or several."""
    if storage is not None and not isinstance(storage, Storage):
        raise TypeError(f"storage must be a slipring.Storage or None, not {shown(storage)}")
    if isinstance(value, (str, bytes, os.PathLike)):
        value = [value]
    iterable(name, value, "a path or a sequence of paths")
    paths = [file_path(name, one) for one in value]
    if storage is not None and storage._recipe is not None:
        return paths, storage
    paths = [url2pathname(urlsplit(path).path) if path.startswith("file://") else path for path in paths]
    urls = [path for path in paths if _URL.match(path)]
    if not urls:
        return [os.path.abspath(path) for path in paths], None
    if len(urls) < len(paths):
        here = next(path for path in paths if not _URL.match(path))
        raise ValueError(f"{shown(urls[0])} is a URL and {shown(here)} is not: give all of one kind")
    return paths, Storage() if storage is None else storage


def linked(path: str, by: str, remote: Storage | None) -> str:
    """Return the path or URL of a file that the file `by`, which `remote` reads, names by `path`.

    A relative path begins in the folder of `by`. Raise ValueError if `by` is a URL and names a file of this machine.
    """
    url = _URL.match(path)
    if remote is None or remote._recipe is not None:
        return path if url else os.path.join(os.path.dirname(by), path)
    if os.path.isabs(path) or (url and url[1].lower() in ("file", "local")):
        raise ValueError(f"a file at a URL cannot name a file of this machine ({redacted(by)})")
    if url:
        return path
    host, _, name = by.partition("://")[2].partition("/")
    if by.startswith(("http://", "https://")):
        name, path = re.split("[?#]", name)[0], quote(path)
    return f"{_URL.match(by)[0]}{host}{posixpath.normpath('/' + posixpath.join(posixpath.dirname(name), path))}"
