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
import sys
import threading
from multiprocessing import context
from multiprocessing.reduction import DupFd, ForkingPickler

import numpy as np

from slipring._core.ring._fd import Descriptor, identity
from slipring._core.ring._segment import memory_available
from slipring._core.ring.text import FILE_SIZE, dataset_refused

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


def _load(file, span, table, given):
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
        return pickle.loads(memory[slice(*span)], buffers=buffers)
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
        """Write a memoryview of bytes; return its span, (first, end)."""
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
        self.spans = {}
        self.held = []  # keeps these buffers alive, so that no other buffer gets the same address

    def _keep_out(self, buffer):
        """Write a buffer to the file; return True to leave it in the pickle. Called by pickle for each buffer."""
        data = buffer.raw()
        if data.nbytes < SMALL:
            return True
        key = np.frombuffer(data, np.uint8).__array_interface__["data"][0], data.nbytes
        if key not in self.spans:
            self.spans[key] = self.file.put(data)
            self.held.append(data)
        self.buffers.extend(self.spans[key])
        return False

    def reducer_override(self, value):
        """Reduce a value. Called by pickle for every object that is not of a built-in type."""
        return reduce(self, value)

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


SMALL = 1024  # bytes; smaller memory is pickled with the rest of its object


def reduce(pickler, value):
    """Return a value's reduction, as `object.__reduce__` does; NotImplemented selects pickle's usual way."""
    kind = type(value)
    if issubclass(kind, np.ndarray):
        return NotImplemented if kind in pickler.dispatch_table else reduce_array(value)
    torch = sys.modules.get("torch")
    if hasattr(torch, "UntypedStorage") and issubclass(kind, (torch.Tensor, torch.UntypedStorage)):
        return _reduce_of_torch(torch, pickler, value)
    return NotImplemented


# ---- numpy


def reduce_array(array):
    """Return the reduction of an array or of an instance of a subclass that is pickled as arrays are.

    numpy's own reduction copies instances of subclasses, arrays with gaps, and dtypes that export no buffer.
    """
    if array.nbytes < SMALL or array.dtype.hasobject or not _as_arrays_are(type(array)):
        return NotImplemented
    kind = type(array)
    array = np.asarray(array)
    first, n = _range(array)
    in_file = file_of(array, first, n)
    if in_file is None and n > array.nbytes:
        writeable = array.flags.writeable
        array = np.ascontiguousarray(array)
        array.flags.writeable = writeable
        first, n = _range(array)
    seen_as = kind, array.shape, array.dtype, _address(array) - first, array.strides
    if in_file is not None:
        return map_array, (*in_file, n, array.flags.writeable, *seen_as)
    return array_over, (pickle.PickleBuffer(_bytes_of(array, n)), *seen_as)


def _as_arrays_are(kind):
    names = "__reduce__", "__reduce_ex__", "__setstate__"
    return all(getattr(kind, name) is getattr(np.ndarray, name) for name in names)


def _address(array):
    return array.__array_interface__["data"][0]


def _range(array):
    """Return the address of an array's first byte in memory, and the number of bytes up to its last one."""
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    before = sum(step for step in steps if step < 0)
    return _address(array) + before, sum(abs(step) for step in steps) + array.itemsize


def _bytes_of(array, n):
    """Return a view, as bytes, of the `n` bytes that an array occupies."""
    ends = tuple(slice(-1, None) if stride < 0 else slice(0, 1) for stride in array.strides)
    lowest = array[(*ends, ...)].reshape(-1).view(np.uint8)
    return np.lib.stride_tricks.as_strided(lowest, (n,), (1,))


def array_over(buffer, kind, shape, dtype, offset, strides):
    """Return the array, in a worker; it is writable if the buffer is."""
    return np.ndarray.__new__(kind, shape, dtype, buffer, offset, strides)


def map_array(path, known, first, n, writeable, kind, shape, dtype, offset, strides):
    """Return an array over the bytes of a file, in a worker; the worker's writes do not reach the file."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) != known or status.st_size < first + n:
            raise OSError(
                f"the dataset maps {path!r}, which was replaced, or cut off, before this worker could map it: leave "
                "the file as it is while loaders use it"
            )
        raw = np.memmap(file, np.uint8, "c" if writeable else "r", first, (n,))
    made = array_over(raw, kind, shape, dtype, offset, strides)
    if isinstance(made, np.memmap):
        made.__array_finalize__(raw)  # it gets the file's name and memmap's other attributes
    return made


def file_of(array, first, n):
    """Return (path, (device, inode), offset) of the `n` bytes at `first`; None if they are not a named file's."""
    base = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, mmap.mmap):
        return None
    try:
        start, end, mode, offset, known, path = _mapping(first)
        status = os.stat(path)
    except OSError:  # it has been deleted, or it never had a name; or there is no /proc
        return None
    # "s": shared with the file. The writes to a private mapping are nowhere else.
    if mode[3] != "s" or first + n > end or (status.st_dev, status.st_ino) != known:
        return None
    return path, known, offset + first - start


def _mapping(address):
    """Return (start, end, mode, offset in the file, (device, inode), path) of this process's mapping there."""
    with open("/proc/self/maps", errors="surrogateescape") as file:
        for line in file:
            start, end = (int(number, 16) for number in line[: line.index(" ")].split("-"))
            if start <= address < end:
                _, mode, offset, device, inode, *path = line.rstrip("\n").split(maxsplit=5)
                major, minor = (int(number, 16) for number in device.split(":"))
                known = os.makedev(major, minor), int(inode)
                return start, end, mode, int(offset, 16), known, path[0] if path else ""
    raise OSError(f"nothing is mapped at {address:#x}")


# ---- torch


def _reduce_of_torch(torch, pickler, value):
    table = pickler.dispatch_table
    if isinstance(value, torch.Tensor):
        if type(value) not in table:
            return NotImplemented
        if value.device.type not in ("cpu", "meta"):
            return pickler.give(value)  # for each process separately: torch counts the users of a device's memory
        # As torch sends them to processes, they lose their quantizer.
        return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if value.is_quantized else NotImplemented
    torchs_own = torch.multiprocessing.reductions.reduce_storage
    if table.get(type(value)) is not torchs_own or value.device.type != "cpu" or value.nbytes() == 0:
        return NotImplemented
    if value.is_shared():
        return pickler.give(value)
    array = torch.empty(0, dtype=torch.uint8).set_(value).numpy()
    return storage_over, (pickle.PickleBuffer(array),)


def storage_over(buffer):
    """Return a tensor's storage over a buffer, in a worker."""
    import torch

    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
