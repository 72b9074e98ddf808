"""Pickle the arguments of all workers once, into one sealed file that each worker maps.

This is for processes that start without their parent's memory (spawn, forkserver). The buffers are kept out of the
pickle, by pickle's protocol 5 (PEP 574). A worker maps the file privately, so it can write to its copy of each page.
"""

import array
import contextlib
import errno
import fcntl
import io
import mmap
import os
import pickle
import threading
from multiprocessing import context
from multiprocessing.reduction import DupFd, ForkingPickler

import numpy as np

from slipring._core import reducers
from slipring._core._ring import Descriptor, identity, memory_available
from slipring._core.text import FILE_SIZE, dataset_refused

ALIGNMENT = 64  # bytes: a cache line, and Arrow's alignment of buffers
CHECKED = 32 << 20  # bytes written between two checks of the available memory
NOEXEC_SEAL = 8  # MFD_NOEXEC_SEAL, which os lacks
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL

_arriving = threading.local()  # .given: the objects sent with the pickle that this thread is reading


class SharedPickle:
    """An object that is pickled once, for any number of processes that are started.

    It is sent as an argument of a process, and arrives there as the object itself. If there is no memory for the file,
    the constructor raises `SegmentFull`; otherwise it raises what pickling raises.
    """

    def __init__(self, value):
        self.value = value  # keeps the objects alive that `given` refers to
        self.file = _File()
        try:
            pickler = _Pickler(self.file)
            with _starting(pickler):
                pickler.dump(value)
            self.pickle = self.file.put(pickler.stream.getbuffer())
            self.table = self.file.put(memoryview(pickler.buffers.tobytes()))
            self.file.seal()
        except BaseException:
            self.close()
            raise
        self.given = pickler.given
        self.known = [identity(each.fd) if isinstance(each, _Fd) else None for each in self.given]

    def is_of(self, value):
        """Return whether it can be sent for these objects: the descriptors that they need are still the same files."""
        return all(mine is theirs for mine, theirs in zip(self.value, value, strict=True)) and all(
            identity(each.fd) == known
            for each, known in zip(self.given, self.known, strict=True)
            if isinstance(each, _Fd)
        )

    def close(self):
        """Release the file; processes that have mapped it keep it."""
        self.file.descriptor.close()

    def __reduce__(self):
        given = [DupFd(each.fd) if isinstance(each, _Fd) else each for each in self.given]
        return _load, (DupFd(self.file.descriptor.number()), self.pickle, self.table, given)


def _load(file, place, table, given):
    """Return the object, in the process that has been started."""
    fd = file.detach()
    try:
        memory = memoryview(mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE))
    finally:
        os.close(fd)
    parts = iter(array.array("Q", memory[slice(*table)].tobytes()))
    buffers = (memory[first:end] for first, end in zip(parts, parts, strict=True))
    _arriving.given = given
    try:
        return pickle.loads(memory[slice(*place)], buffers=buffers)
    finally:
        del _arriving.given


def received(number):
    """Return the object with that number among those sent with the pickle."""
    return _arriving.given[number]


class _File:
    """A file in memory that grows until it is sealed; /dev/shm's size does not limit it."""

    def __init__(self):
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            fd = os.memfd_create("slipring-dataset", flags | NOEXEC_SEAL)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fd = os.memfd_create("slipring-dataset", flags)  # a kernel before 6.3
        self.descriptor = Descriptor(fd, "the pickled dataset")
        os.fchmod(self.descriptor.fd, 0o600)  # at first, every user who finds it in /proc may open it
        self.end = 0
        self.unchecked = CHECKED

    def put(self, data):
        """Write a memoryview of bytes; return (first, end) of its place."""
        first = at = -(-self.end // ALIGNMENT) * ALIGNMENT
        while len(data):
            piece = data[:CHECKED]
            self._check(len(data), len(piece))
            try:
                n = os.pwrite(self.descriptor.fd, piece, at)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                    raise
                allowed = FILE_SIZE if error.errno == errno.EFBIG else f"what the system allows ({error.strerror})"
                raise dataset_refused(at + len(data), len(data), 0, allowed) from error
            at, data = at + n, data[n:]
        self.end = at
        return first, at

    def _check(self, needed, now):
        """Refuse a write for which the kernel would kill a process."""
        self.unchecked += now
        if self.unchecked > CHECKED:
            self.unchecked = now
            room = memory_available()
            if room is not None and room[0] < needed:
                raise dataset_refused(self.end + needed, needed, room[0], room[2])

    def seal(self):
        """Seal the file: no process can write to it or change its size from now on."""
        fcntl.fcntl(self.descriptor.fd, fcntl.F_ADD_SEALS, SEALS)


class _Pickler(ForkingPickler):
    """A pickler that writes buffers to a file, and records the objects that each process must be sent separately."""

    def __init__(self, file):
        self.stream = io.BytesIO()
        super().__init__(self.stream, 5, True, self._keep_out)
        self.file = file
        self.buffers = array.array("Q")  # first, end, first, end, ...: in the pickle's order
        self.given = []
        self.places = {}
        self.held = []  # keeps these buffers alive, so that no other buffer gets the same address

    def _keep_out(self, buffer):
        """Write a buffer to the file; return True to leave it in the pickle. Called by pickle for each buffer."""
        data = buffer.raw()
        if data.nbytes < reducers.SMALL:
            return True
        key = np.frombuffer(data, np.uint8).__array_interface__["data"][0], data.nbytes
        if key not in self.places:
            self.places[key] = self.file.put(data)
            self.held.append(data)
        self.buffers.extend(self.places[key])
        return False

    def reducer_override(self, value):
        """Reduce a value. Called by pickle for every object that is not of a built-in type."""
        return reducers.reduce(self, value)

    def give(self, value):
        """Return the reduction of a value that each process is sent separately from the pickle."""
        self.given.append(value)
        return received, (len(self.given) - 1,)


# ---- descriptors: multiprocessing sends them while it starts a process, and here no process is starting yet


class _Fd:
    """A descriptor that each process must be sent."""

    def __init__(self, fd):
        self.fd = fd


class _Starting:
    """A stand-in for the process that is being started: it records which descriptors the process must have."""

    def __init__(self, pickler):
        self.pickler = pickler

    def duplicate_for_child(self, fd):
        return self.pickler.give(_Fd(fd))

    class DupFd:
        """A stand-in for a descriptor in the pickle; the started process unpickles multiprocessing's own."""

        def __init__(self, reduced):
            self.reduced = reduced

        def __reduce__(self):
            return self.reduced


@contextlib.contextmanager
def _starting(pickler):
    before = context.get_spawning_popen()
    context.set_spawning_popen(_Starting(pickler))
    try:
        yield
    finally:
        context.set_spawning_popen(before)
