"""A disk cache of remote reads: one file per entry, within a budget for all processes that share the folder."""

import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import re
import time
from pathlib import Path

from slipring._core.ring import process
from slipring._core.ring._check import from_handler

VERSION = b"slipring cache 1"  # each entry begins with it, and with a digest; entries of other versions are not used
DIGEST = 16  # bytes
BEGINNING = len(VERSION) + DIGEST
LOW_WATER = 0.9  # the share of the budget that a sweep leaves, so that few calls of put() need a sweep
LOCK_S = 0.5  # to wait for the lock, which is held for microseconds, except during a sweep
TOTAL = "slipring.total"  # the file that is locked; it contains the size of all entries and temporary files
_TEMPORARY = re.compile(r"slipring-[0-9a-f]{32}\.part")
_SUBFOLDER, _ENTRY = re.compile(r"[0-9a-f]{2}"), re.compile(r"[0-9a-f]{32}\.entry")


class DiskCache:
    """Bytes by name, in a folder that any number of processes share; `budget` limits the size of all entries.

    A failure of the cache makes reads slower, but no read fails. The logger "slipring" reports it once per process.
    """

    def __init__(self, folder, budget):
        self.folder, self.budget = folder, budget
        with self._failures_logged():
            os.makedirs(folder, exist_ok=True)
            with self._locked() as total:
                if total is not None:
                    self._remove_abandoned()

    def get(self, name):
        """Return the bytes, or None."""
        with (
            self._failures_logged(),
            contextlib.suppress(FileNotFoundError),
            open(self._path_of(name), "rb", buffering=0) as file,
        ):
            beginning, data = file.read(BEGINNING), file.read()
            if beginning == VERSION + _digest(name, data):
                with contextlib.suppress(OSError):  # the folder may be read-only
                    os.utime(file.fileno())
                return data
        return None

    def put(self, name, data):
        """Store these bytes. If the budget would be exceeded, first remove the least recently used entries."""
        size = BEGINNING + len(data)
        if size <= self.budget:
            with self._failures_logged():
                self._store(name, data, size)

    def _store(self, name, data, size):
        path = self._path_of(name)
        temporary = Path(self.folder, f"slipring-{os.urandom(16).hex()}.part")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.ExitStack() as stack:
            with self._locked() as total:
                if total is None:
                    return
                text = os.pread(total, 21, 0)
                # If the total is damaged, a sweep counts again.
                used = int(text) if re.fullmatch(rb"\d{20}", text) else self.budget
                if used + size > self.budget:
                    used = self._sweep(int(LOW_WATER * self.budget) - size)
                if used + size > self.budget:  # the files that others are writing need it
                    return
                # Before the file is created: after a kill the total may be too large, but never too small.
                os.pwrite(total, b"%020d" % (used + size), 0)
                file = stack.enter_context(open(temporary, "xb", buffering=0))
                stack.callback(temporary.unlink, missing_ok=True)
                # A sweep counts the length of a locked temporary file. It removes the others: their writers are dead.
                _try_lock(file)
                file.truncate(size)
            for part in (VERSION, _digest(name, data), data):
                left = memoryview(part)
                while left:
                    left = left[file.write(left) :]
            os.rename(temporary, path)

    def _sweep(self, limit):
        """Remove the least recently used entries until at most `limit` bytes are left; return how many are left."""
        # In this order, a temporary file that is renamed meanwhile may be counted twice, but is never missed.
        used = self._remove_abandoned()
        entries = sorted(self._entries())
        used += sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if used <= limit:
                break
            Path(path).unlink(missing_ok=True)
            used -= size
        return used

    def _remove_abandoned(self):
        """Remove the temporary files of dead writers; return the size of the other temporary files."""
        used = 0
        for found in os.scandir(self.folder):
            if _TEMPORARY.fullmatch(found.name):
                with contextlib.suppress(FileNotFoundError), open(found.path, "rb") as file:
                    if _try_lock(file):
                        os.unlink(found.path)
                    else:
                        used += os.fstat(file.fileno()).st_size
        return used

    def _entries(self):
        """Yield (time of the last use, size, path) of each entry. All other files belong to other programs."""
        for folder in os.scandir(self.folder):
            if _SUBFOLDER.fullmatch(folder.name) and folder.is_dir():
                for file in os.scandir(folder.path):
                    if _ENTRY.fullmatch(file.name) and file.name.startswith(folder.name):
                        stat = file.stat(follow_symlinks=False)
                        yield stat.st_mtime_ns, stat.st_size, file.path

    def _path_of(self, name):
        hashed = _hash(name).hex()
        return os.path.join(self.folder, hashed[:2], f"{hashed}.entry")

    @contextlib.contextmanager
    def _locked(self):
        """Lock `TOTAL` and give its descriptor, or None if another process keeps it locked."""
        fd = os.open(os.path.join(self.folder, TOTAL), os.O_RDWR | os.O_CREAT, 0o666)
        with os.fdopen(fd, "r+b", buffering=0):
            end = time.monotonic() + LOCK_S
            while not (locked := _try_lock(fd)) and time.monotonic() < end:
                time.sleep(0.001)  # flock has neither a timeout nor an event
            try:
                yield fd if locked else None
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)  # a process that was forked meanwhile keeps the file open

    @contextlib.contextmanager
    def _failures_logged(self):
        try:
            yield
        except OSError as error:
            if from_handler(error):
                raise
            # str(error) may contain the name of a temporary file, so each text would be a new one.
            _log(self.folder, type(error).__name__, error.strerror or str(error), process.pid())


def _hash(name):
    return hashlib.blake2b(name.encode(), digest_size=DIGEST).digest()


def _digest(name, data):
    """Return a digest of the name and the bytes: it shows an entry that was cut, changed or renamed."""
    return hashlib.blake2b(data, digest_size=DIGEST, key=_hash(name)).digest()


def _try_lock(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@functools.cache
def _log(folder, kind, reason, pid):
    text = "the disk cache in %s does not work (%s: %s); reads that it cannot serve go to the remote storage"
    logging.getLogger("slipring").warning(text, folder, kind, reason)
