"""What was read from afar, kept on a disk here, within a budget. By diskcache, which evicts what has lain longest."""

import functools
import hashlib
import logging
import os
import sqlite3

try:
    import diskcache
except ModuleNotFoundError as error:
    if error.name != "diskcache":
        raise
    raise ModuleNotFoundError(
        "disk_cache= needs diskcache: pip install 'slipring[remote]'", name="diskcache"
    ) from None

SUM = 16  # bytes of a digest, before what it is of
_FAILURES = (OSError, sqlite3.Error, diskcache.Timeout)


def digest(data):
    """Return `SUM` bytes."""
    return hashlib.blake2b(data, digest_size=SUM).digest()


class _OnlyBytes(diskcache.Disk):
    """Reads back no pickle: whoever may write in the folder cannot have a program run what he has put there."""

    def fetch(self, mode, filename, value, read):
        if mode not in (diskcache.core.MODE_RAW, diskcache.core.MODE_BINARY):
            raise OSError(f"an entry is no bytes (mode {mode}): another program has written here")
        return super().fetch(mode, filename, value, read)


class DiskCache:
    """Bytes by their names, in a folder that any number of processes share.

    A disk that is full or gone costs speed, not a sample: the logger "slipring" says it once.

    Parameters
    ----------
    folder : str
    budget : int
        Bytes of all that lies there.
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
        """Keep these bytes, and drop what has lain longest until the budget holds."""
        if self.kept is None:
            return
        try:
            self.kept.set(name, digest(data) + data)
            if self.kept.volume() > self.kept.size_limit:  # set() itself drops ten at most
                self.kept.cull()
        except _FAILURES as error:
            self._say(error)

    def _say(self, error):
        _say(self.folder, type(error).__name__, str(error), os.getpid())


@functools.cache
def _say(folder, kind, reason, pid):
    logging.getLogger("slipring").warning(
        "the disk cache in %s does not work, what it lacks is read from afar: %s: %s", folder, kind, reason
    )
