"""Reduce arrays, tensor storages and mapped files for pickling, so that a worker need not copy their memory."""

import mmap
import os
import pickle
import sys

import numpy as np

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
