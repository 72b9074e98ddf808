"""Datasets that do something drastic at a chosen sample, and gates where a worker waits for the test.

Every object here can be sent to workers of any start method, so a file marks an action that must happen once.
"""

import faulthandler
import os
import resource
import select
import signal
import sys

import numpy as np

import slipring

# ---- actions at a sample ----


def die(how):
    """End this process as `how` says: a signal's name, "os._exit" or "sys.exit"."""
    faulthandler.disable()  # pytest's handler would print tracebacks of deaths that are intended
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if how == "os._exit":
        os._exit(3)
    if how == "sys.exit":
        sys.exit(7)
    os.kill(os.getpid(), getattr(signal, how))
    signal.pause()  # the signal ends the process here


class Death:
    """Ends the process that calls it."""

    def __init__(self, how):
        self.how = how

    def __call__(self):
        die(self.how)


class Once:
    """Calls `action` in the first of all processes that share `path`."""

    def __init__(self, path, action):
        self.path = os.fspath(path)
        self.action = action

    def __call__(self):
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        self.action()


class Nth:
    """Calls `action` at the nth call in all processes that share `path`."""

    def __init__(self, n, path, action):
        self.n, self.path, self.action = n, os.fspath(path), action

    def __call__(self):
        with open(self.path, "a+") as file:
            file.write(".")
            file.flush()
            size = os.fstat(file.fileno()).st_size
        if size == self.n:
            self.action()


class Raise:
    """Raises a given exception."""

    def __init__(self, error):
        self.error = error

    def __call__(self):
        raise self.error


class Gate:
    """A point where a process waits until the test lets it continue.

    The test uses it as a context manager; a worker calls it.
    """

    def __init__(self, path):
        self.path = os.fspath(path)
        self._at = self._go = None

    def __enter__(self):
        for end in ("at", "go"):
            os.mkfifo(f"{self.path}.{end}")
        # Read and write: opening does not wait, and written bytes stay for processes that come later.
        self._at = os.open(f"{self.path}.at", os.O_RDWR | os.O_CLOEXEC)
        self._go = os.open(f"{self.path}.go", os.O_RDWR | os.O_CLOEXEC)
        return self

    def __exit__(self, *exc):
        os.close(self._at)
        os.close(self._go)

    def __reduce__(self):
        return Gate, (self.path,)

    def arrived(self, seconds=600):
        """Wait until a process arrives; return its pid."""
        if not select.select([self._at], [], [], seconds)[0]:
            raise TimeoutError(f"nobody came to {self.path} within {seconds} s")
        return int(os.read(self._at, 16))

    def open(self, times=1):
        """Let `times` processes continue."""
        os.write(self._go, b"." * times)

    def __call__(self):
        with open(f"{self.path}.at", "r+b", buffering=0) as at:
            at.write(b"%-16d" % os.getpid())
        with open(f"{self.path}.go", "r+b", buffering=0) as go:
            go.read(1)


class AtPickling:
    """A value whose pickling calls `action`: the worker is in the middle of writing its batch."""

    def __init__(self, action):
        self.action = action

    def __reduce__(self):
        self.action()
        return int, (0,)


# ---- datasets ----


class Rows:
    """Sample i is `width` random float32 and i; reading it calls `on[i]`."""

    def __init__(self, n, width=16, on=None):
        self.n = n
        self.width = width
        self.on = on or {}

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i in self.on:
            self.on[i]()
        return np.random.random(self.width).astype(np.float32), i


class Stream:
    """An iterable dataset: each worker yields `n` samples (worker, position, random float32s)."""

    def __init__(self, n, width=16, on=None):
        self.n = n
        self.width = width
        self.on = on or {}

    def __iter__(self):
        info = slipring.get_worker_info()
        worker = info.id if info else 0
        for i in range(self.n):
            if (worker, i) in self.on:
                self.on[worker, i]()
            yield worker, i, np.random.random(self.width).astype(np.float32)


class Sized:
    """Sample i is `sizes[i]` bytes of value i % 251, and i; it allocates no memory."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.data = np.arange(251, dtype=np.uint8)

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        return np.broadcast_to(self.data[i % 251], (self.sizes[i],)), i


class Named(Sized):
    """The same, with long texts as indices: ``f"{i} {rubbish}"``."""

    def __getitem__(self, name):
        return super().__getitem__(int(name.split()[0]))


def plain(batch):
    """Return a batch as nested bytes, for comparison."""
    if isinstance(batch, (tuple, list)):
        return tuple(plain(b) for b in batch)
    batch = np.asarray(batch)
    return batch.dtype.str, batch.shape, batch.tobytes()


class Images:
    """`n` samples: one of 64 arrays of `shape`, and a label; they allocate no memory."""

    def __init__(self, n, shape, dtype):
        self.n = n
        size = 64 * int(np.prod(shape))
        self.data = (np.arange(size) % 251).astype(dtype).reshape(64, *shape)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.data[i % 64], i


class Resumable(Stream):
    """A Stream with a state, which writes each sample that it reads to a log."""

    at = 0  # samples read in this pass
    passes = 0

    def __init__(self, n, log, on=None):
        super().__init__(n, on=on)
        self.log = os.fspath(log)

    def __iter__(self):
        while self.at < self.n:
            yield self.read()
        self.at, self.passes = 0, self.passes + 1

    def read(self):
        info = slipring.get_worker_info()
        worker = info.id if info else 0
        if (worker, self.at) in self.on:
            self.on[worker, self.at]()
        with open(self.log, "a") as log:
            log.write(f"{worker} {self.passes} {self.at}\n")
        self.at += 1
        return worker, self.passes, self.at - 1, np.random.random(self.width), slipring.rng().random()

    def state_dict(self):
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state):
        self.__dict__.update(state)


class ResumableByIterator:
    """The same, but its iterator has the state."""

    def __init__(self, *args, **options):
        self.made = args, options

    def __iter__(self):
        return Pass(*self.made[0], **self.made[1])


class Pass(Resumable):
    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.n:
            raise StopIteration
        return self.read()


def respawning(**changed):
    """Return arguments of a loader that replaces dead workers."""
    return {"batch_size": 8, "num_workers": 2, "seed": 11, "start_method": "fork", "on_death": "respawn", **changed}


# ---- descriptors that are closed by code that did not open them ----

MARK = b"not slipring's" * 600
FILES = 40


def close_and_open(directory):
    """Close descriptors of other code, as a process that becomes a daemon does, and open files with these numbers."""
    os.closerange(3, 256)
    files = [open(os.path.join(directory, str(k)), "wb+") for k in range(FILES)]  # noqa: SIM115 - stay open
    for file in files:
        file.write(MARK)
        file.flush()
    return files


def contents(directory):
    return {path.read_bytes() for path in directory.iterdir()}


class Closing:
    """Closes all descriptors at the first sample; samples from `small` on need more memory."""

    def __init__(self, directory, small, n):
        self.directory, self.small, self.n, self.files = directory, small, n, None

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if self.files is None:
            self.files = close_and_open(self.directory)
        return np.full(10 if i < self.small else 3_000_000, os.getpid(), np.int32)
