"""A disk cache for remote reads, within a budget; diskcache evicts the entries that have lain there longest."""

import contextlib
import functools
import hashlib
import logging
import os
import re
import sqlite3
import time
from pathlib import Path

try:
    import diskcache
except ModuleNotFoundError as error:
    if error.name != "diskcache":
        raise
    raise ModuleNotFoundError(
        "disk_cache= needs diskcache: pip install 'slipring[remote]'", name="diskcache"
    ) from None

SUM = 16  # bytes of a digest, before what it is of
OLD_S = 3600  # a file is written, and gets its row, in seconds
SWEPT = "swept"  # a file that is touched when files of killed writers are removed
EVERY_S = 86_400  # so seldom, since a million files take a minute
_TWO_DIGITS, _VALUE = re.compile(r"[0-9a-f]{2}"), re.compile(r"[0-9a-f]{28}\.val")  # diskcache's names
_FAILURES = (OSError, sqlite3.Error, diskcache.Timeout)


def digest(data):
    """Return a digest of `SUM` bytes."""
    return hashlib.blake2b(data, digest_size=SUM).digest()


class _OnlyBytes(diskcache.Disk):
    """A `diskcache.Disk` that reads no pickle: whoever may write to the folder cannot make a program run code."""

    def fetch(self, mode, filename, value, read):
        if mode not in (diskcache.core.MODE_RAW, diskcache.core.MODE_BINARY):
            raise OSError(f"an entry is no bytes (mode {mode}): another program has written here")
        return super().fetch(mode, filename, value, read)


class DiskCache:
    """Bytes by name, in a folder that any number of processes share; `budget` limits all bytes that lie there.

    If the disk is full or gone, reads become slower and no sample is lost: the logger "slipring" says it once.
    """

    def __init__(self, folder, budget):
        self.folder = folder
        # Keys are str and values bytes: diskcache keeps both as they are.
        try:
            self.kept = diskcache.Cache(
                folder, disk=_OnlyBytes, size_limit=budget, disk_min_file_size=1 << 12
            )
        except _FAILURES as error:
            self._say(error)
            self.kept = None
            return
        try:
            self._sweep()
        except _FAILURES as error:
            self._say(error, "works, but what killed processes have left there stays")

    def get(self, name):
        """Return the bytes, or None."""
        if self.kept is None:
            return None
        try:
            data = self.kept.get(name)
        except _FAILURES as error:
            self._say(error)
            return None
        if not isinstance(data, bytes):
            return None
        kept = memoryview(data)[SUM:]  # a file may have survived a loss of power in part
        return bytes(kept) if digest(kept) == data[:SUM] else None

    def put(self, name, data):
        """Store these bytes, and evict the oldest entries until the budget holds."""
        if self.kept is None:
            return
        try:
            self.kept.set(name, digest(data) + data)
            if self.kept.volume() > self.kept.size_limit:  # set() itself drops ten at most
                self.kept.cull()
        except _FAILURES as error:
            self._say(error)

    def _sweep(self):
        """Remove files of writers that were killed: no row names them, and no budget counts them.

        diskcache's own check locks the database while it looks at all files, and also removes files that are just
        being written.
        """
        root, now = self.kept.directory, time.time()  # where ~ and $VAR are expanded
        swept = os.path.join(root, SWEPT)
        if os.path.exists(swept) and now - os.path.getmtime(swept) < EVERY_S:
            return
        with open(swept, "a"):
            os.utime(swept)
        old = set()
        for name in _values(root):
            with contextlib.suppress(FileNotFoundError):  # it has been evicted meanwhile
                if now - os.path.getmtime(os.path.join(root, name)) > OLD_S:
                    old.add(name)
        database = Path(root, diskcache.core.DBNAME).as_uri()
        with contextlib.closing(sqlite3.connect(f"{database}?mode=ro", uri=True, timeout=60)) as rows:
            for (name,) in rows.execute("SELECT filename FROM Cache WHERE filename IS NOT NULL"):
                old.discard(name)
        for name in old:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(root, name))

    def _say(self, error, what="does not work, what it lacks is read from afar"):
        _say(self.folder, what, type(error).__name__, str(error), os.getpid())


def _values(root):
    """Return the names of files below `root` that are named as diskcache names the values of this very folder.

    All other files belong to somebody else: a cache in a folder below has its rows elsewhere.
    """
    names = []
    for folder, below, files in os.walk(root):
        at = os.path.relpath(folder, root)
        deep = 0 if at == os.curdir else at.count(os.sep) + 1
        below[:] = [name for name in below if deep < 2 and _TWO_DIGITS.fullmatch(name)]
        if deep == 2:
            names += [os.path.join(at, name) for name in files if _VALUE.fullmatch(name)]
    return names


@functools.cache
def _say(folder, what, kind, reason, pid):
    logging.getLogger("slipring").warning("the disk cache in %s %s: %s: %s", folder, what, kind, reason)
