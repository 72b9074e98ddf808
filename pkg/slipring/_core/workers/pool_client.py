"""How a loader finds the pool of its machine, or starts it, and what they tell each other."""

import collections
import contextlib
import functools
import hashlib
import json
import math
import os
import platform
import socket
import subprocess
import sys
import types
from multiprocessing import spawn

import numpy as np

from slipring._core.ring import process
from slipring._core.ring._fd import Descriptor, Poll
from slipring._core.workers.channel import Channel, Gone
from slipring._core.workers.pickling import SharedPickle
from slipring._core.workers.process_pool import pickling_error
from slipring._core.workers.stateful import attempt
from slipring._core.workers.worker_main import PARTS, parts_of
from slipring._version import __version__
from slipring.errors import SlipringError, WorkerDied, shown

ATTEMPTS = 20  # to reach the pool; each one fails only if the pool of that moment has just ended, or just begins
JOB = (  # variables that tell a job's processes on one machine from those of other jobs and of the job's last start
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "PMIX_NAMESPACE"),
)
UNKNOWN = object()  # a value that is not compared
SAMPLED = 1000  # about as many items of a list, an array or a text are compared
ROWS = 30  # and in so many rows of an array
ITEMS = 10  # of each list in a list, at least so many
WRAPPED = 30  # at most so many datasets are compared of one that wraps others
LISTS = (
    *(("builtins", "list"), ("builtins", "tuple")),
    *(("numpy", "ndarray"), ("torch", "Tensor"), ("pyarrow", "Array"), ("slipring.strings", "StringList")),
)
STARTER = (
    "import json, sys\n"
    "given = json.load(sys.stdin)\n"
    "sys.path[:] = given['path']\n"
    "from slipring._core.workers.pool_server import start\n"
    "start(bytes.fromhex(given['address']))\n"
)


serves = False  # this process is a pool's, or one of its workers


def address_of(name):
    """Return the abstract address of a pool's socket; only processes of this user and machine find it."""
    if name == "node":
        job = [f"{variable}={os.environ[variable]}" for variable in JOB if variable in os.environ]
        # Without a launcher, the processes that one program has started.
        job = job or [f"parent={os.getppid()}"]
    else:
        job = [f"name={name}"]
    digest = hashlib.blake2b("\n".join(job).encode(), digest_size=16).hexdigest()
    return f"\0slipring-{os.geteuid()}-{digest}".encode()


def described(job):
    """Return what the loaders of a number must agree on: a dict of names and plain values."""
    said = {}
    for name, part in zip(PARTS, parts_of(job), strict=True):
        said.update(_described(name, part))
    with contextlib.suppress(Exception):  # users' code; not every dataset has a length
        said["len(dataset)"] = len(job.dataset)
    said["num_workers"], said["memory"] = job.num_workers, job.options.workers.memory
    said["the version of slipring"], said["the version of Python"] = __version__, platform.python_version()
    return said


def _described(name, part):
    """Return the properties that ranks compare, {name: value}, of a function or of a dataset and those inside it.

    Private attributes are left out: their values may differ from process to process, as a random token does.
    """
    said, seen, waiting = {}, set(), collections.deque([(name, part)])
    while waiting and len(seen) < WRAPPED:
        name, part = waiting.popleft()
        if id(part) in seen:  # a wrapper of itself, or a dataset that is there twice
            continue
        seen.add(id(part))
        content, given = _plain(part), attempt(_attributes, part)[0] or {}
        said[name] = _kind(part) if part is None or content is UNKNOWN else f"{_kind(part)} of {content}"
        for attribute in sorted(given):
            if not attribute.startswith("_") and (value := _plain(given[attribute])) is not UNKNOWN:
                said[f"{name}.{attribute}"] = value
        waiting.extend((f"{name}.{inner}", each) for inner, each in _wrapped(given))
    return said


def _wrapped(given):
    """Return [(name, dataset)] for the datasets inside a wrapper, such as torch's Subset or ConcatDataset."""
    several = given.get("datasets")
    several = several[:WRAPPED] if type(several) in (list, tuple) else ()
    inner = [("dataset", given.get("dataset")), *((f"datasets[{n}]", each) for n, each in enumerate(several))]
    return [(name, each) for name, each in inner if not isinstance(each, (type(None), str, int))]


def _attributes(part):
    """Return {name: value} of what a dataset or a function works with: its attributes, or the arguments of a partial.

    Those of a method are its object's.
    """
    if isinstance(part, functools.partial):
        return {"func": _kind(part.func), **{f"args[{n}]": each for n, each in enumerate(part.args)}, **part.keywords}
    return getattr(part.__self__ if isinstance(part, types.MethodType) else part, "__dict__", {})


def _plain(value, depth=3, size=SAMPLED):
    """Return a value as one that any process can unpickle; of a long one its length and a digest. Or `UNKNOWN`.

    The digest is of about `size` items. Lists inside a list share this number, but each has at least `ITEMS`.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return None
    for kind in (bool, int, float, str, bytes):
        if not isinstance(value, kind):
            continue
        if kind in (str, bytes) and len(value) > SAMPLED:
            return _digest(f"{len(value)} {'characters' if kind is str else 'bytes'}", kind.__repr__(_sample(value)))
        # It is not always of that very class, such as a member of an Enum; and NaN is not itself.
        return value if type(value) is kind and value == value else kind.__repr__(value)
    found, error = (None, None) if depth == 1 else attempt(_items, value, size)
    if found is None or error is not None:  # a sparse tensor, for example, has no sequence of items
        return UNKNOWN
    n, sample = found
    items, size = [], max(ITEMS, size // max(1, len(sample)))
    for item in sample:
        if (plain := _plain(item, depth - 1, size)) is UNKNOWN:
            return UNKNOWN
        items.append(plain)
    return _digest(f"{n} items", repr(items))


def _items(value, size):
    """Return (length, sample) of a list or an array; None for other values."""
    kinds = (getattr(sys.modules.get(module), name, ()) for module, name in LISTS)
    if not any(isinstance(value, kind) for kind in kinds):  # a class that the program has not imported is ()
        return None
    for kind in (list, tuple):
        if isinstance(value, kind) and type(value) is not kind:  # its own methods may be a dataset's
            value = [*kind.__iter__(value)]
    n = len(value) if getattr(value, "ndim", 1) == 1 else math.prod(value.shape)
    if n != 0 and getattr(value, "ndim", 1) != 1:  # reshape may copy, so not all rows
        value = (value[:: len(value) // ROWS + 1] if value.ndim else value).reshape(-1)
    sample = _sample(value, size)
    return n, sample.tolist() if hasattr(sample, "tolist") else list(sample)


def _sample(values, size=SAMPLED):
    """Return about `size` evenly spread items of a sequence, as one of the same class."""
    return values[:: len(values) // size + 1]


def _digest(length, text):
    return f"{length} (digest {hashlib.blake2b(text.encode(errors='surrogatepass'), digest_size=4).hexdigest()})"


def _kind(thing):
    """Return the name of a function, or of an object's class."""
    is_named, _ = attempt(hasattr, thing, "__qualname__")  # a dataset's __getattr__ may raise
    named = thing if is_named else type(thing)
    return None if thing is None else f"{named.__module__}.{named.__qualname__}"


class Link:
    """A loader's connection to its pool. `name` is the option's value, for errors."""

    def __init__(self, name, address, number, job):
        if serves:
            raise RuntimeError(
                f"pool={name!r}: a loader with a pool began in the pool's own process, or in one of its workers. Begin "
                "loaders under `if __name__ == '__main__':`, because the pool imports the main module; a dataset that "
                "iterates a loader needs one without pool="
            )
        self.name, self.description = name, described(job)
        self.poll = self.pidfd = self.pid = None
        for _ in range(ATTEMPTS):
            self.channel = self._connected(address)
            try:
                self._greet(number, job)
                return
            except Gone:
                self.close()
                if self.pid is not None:  # it was loading this process's dataset: the next pool may die of it, too
                    raise self.died() from None
                # Its last loader has just gone, or it died while it was loading another process's dataset.
            except BaseException:
                self.close()
                raise
        raise SlipringError(
            f"pool={name!r}: no pool answers, although one was started {ATTEMPTS} times; its errors are on stderr"
        )

    def _connected(self, address):
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.connect(address)
                break
            except ConnectionRefusedError:
                sock.close()
                _start(self.name, address)
            except BaseException:
                sock.close()
                raise
        channel = Channel(sock)
        pid, user, _ = channel.peer()
        if user != os.geteuid():
            channel.close()
            raise PermissionError(
                f"pool={self.name!r}: process {pid} of user {user} listens at the address of this user's pool; give "
                "the pool another name"
            )
        return channel

    def _greet(self, number, job):
        # The readers of share= have the segment of their lead, and do not come to the pool.
        expected = -(-process.ranks() // (1 + job.options.readers))
        self.channel.send("hello", number, self.description, os.sched_getaffinity(0), expected)
        what, *said = self.channel.receive()
        if what == "bring":
            (self.pid,) = said
            self._bring(job)
            what, *said = self.channel.receive()
        if what == "differs":
            raise self._differs(*said)
        if what == "refused":
            raise SlipringError(f"pool={self.name!r} could not load the dataset or serve this process:\n{said[0]}")
        self.pid, wake = said
        self.wake = Descriptor(wake, "the wake file of a pool")
        self.pidfd = Descriptor(os.pidfd_open(self.pid), "the pidfd of a pool")
        self.poll = Poll("the epoll of a pool")
        self.poll.add(self.pidfd.fd)
        self.poll.add(self.channel.fileno())

    def _bring(self, job):
        self.channel.send("prepare", spawn.get_preparation_data("slipring-pool"))
        try:
            parts = SharedPickle(parts_of(job))
        except Exception as error:
            explained = pickling_error(job, error, f"Workers(pool={self.name!r})", "workers of the loader's own")
            if explained is None:
                raise
            raise explained from error
        try:
            self.channel.send("parts", parts)
        finally:
            parts.close()

    def _differs(self, pid, theirs):
        mine = self.description
        names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        text = "; ".join(
            f"{name} is {shown(mine.get(name))} here and {shown(theirs.get(name))} there" for name in names
        )
        return ValueError(
            f"pool={self.name!r}: this loader differs from the one of process {pid} that came first: {text}. Loaders "
            "of several processes that share workers need equal datasets and functions, in the same order; give "
            "other loaders a pool with another name"
        )

    def died(self):
        """Return the exception for a pool whose process has died."""
        return WorkerDied(
            f"the process of pool={self.name!r} (pid {self.pid}) has died, and its workers with it. Likely cause: the "
            "kernel's OOM killer (see dmesg), a kill -9, or a failure whose traceback is on stderr. The next iteration "
            "starts another pool.",
            worker=-1,
            pid=self.pid,
            exitcode=None,
            indices=[],
        )

    def message(self, seconds=0.0):
        """Return the next message that arrives within that time; None: there is none. EOFError: the pool has died."""
        if not self.channel.has_message(seconds):
            return None
        return self.channel.receive()

    def close(self):
        """Leave the pool: the workers leave the loader's segment. A second call does nothing."""
        self.channel.close()
        for each in (self.poll, self.pidfd):
            if each is not None:
                each.close()


def _start(name, address):
    """Start the pool, or find that another process has just done so."""
    # As for imports, entries that are no text (such as Path objects) do not count.
    given = {"path": [entry for entry in sys.path if isinstance(entry, str)], "address": address.hex()}
    command = [spawn.get_executable(), *subprocess._args_from_interpreter_flags(), "-c", STARTER]
    # A session of its own: neither Ctrl-C nor the end of a rank's process group reaches the pool.
    made = subprocess.run(command, input=json.dumps(given).encode(), start_new_session=True, check=False)
    if made.returncode:
        raise SlipringError(
            f"pool={name!r} could not be started: {command[0]} ended with exit code {made.returncode}; its errors are "
            "on stderr"
        )
