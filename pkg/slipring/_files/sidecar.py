"""Indices of data files, kept in files of their own: where they lie, and how they are replaced."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import tempfile
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from slipring._core.ring._check import from_handler
from slipring.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable


_SUFFIX = ".index.npz"


def folder_of(index: Any, remote: Any) -> str | None:
    """Return the folder for index files; "": next to each data file; None: they are not kept.

    `remote` reads the data files, if they are URLs.
    """
    if isinstance(index, str) and index in ("memory", "sidecar"):
        if index == "sidecar" and remote is not None:
            raise ValueError("index='sidecar' keeps an index next to each file, and these are URLs: give a folder")
        return None if index == "memory" else ""
    if not isinstance(index, (str, os.PathLike)) or (isinstance(index, str) and os.sep not in index):
        raise ValueError(
            f"index must be 'memory' or 'sidecar', or a folder's path with a {os.sep!r} in it, not {shown(index)}"
        )
    return os.path.abspath(index)


def kept_or_made(
    folder: str,
    path: str,
    status: os.stat_result | None,
    read: Callable[[Any], Any],
    make: Callable[[], tuple[Any, dict[str, Any]]],
) -> Any:
    """Return the index of the data file at `path` from its index file, or make the index and write the file.

    `folder` is that of `folder_of`. The index file gets the read and write permissions of `status`, the data file's.
    `read` gets the arrays of the index file by name, and returns the index, or None if it must be made again. `make`
    returns (index, arrays for the index file by name).
    """
    sidecar = _path_in(folder, path)
    try:
        with open(sidecar, "rb") as file, np.load(file) as arrays:
            if (found := read(arrays)) is not None:
                return found
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        if from_handler(error):
            raise
        # otherwise there is none, or it cannot be read
    made, arrays = make()
    try:
        with _replacing(sidecar, status) as file:
            np.savez(file, **arrays)
    except OSError as error:
        if from_handler(error):
            raise
        _say_not_kept(os.path.dirname(sidecar), error.strerror)
    return made


def _path_in(folder, path):
    if not folder:
        return path + _SUFFIX
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest() + _SUFFIX)


@contextlib.contextmanager
def _replacing(path, status):
    """Yield a file that replaces `path` in one step: other processes may be reading it, or making it too."""
    descriptor, unfinished = tempfile.mkstemp(prefix=os.path.basename(path), dir=os.path.dirname(path))
    try:
        with open(descriptor, "wb") as file:
            if status is not None:
                os.fchmod(descriptor, status.st_mode & 0o666)
            yield file
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


@functools.cache
def _say_not_kept(folder, reason):
    logging.getLogger("slipring").warning(
        "indices cannot be kept in %s: %s. They are made again each time, as with index='memory'", folder, reason
    )
