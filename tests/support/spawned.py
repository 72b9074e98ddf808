"""Datasets that report, in a worker, how their parts have arrived: for the tests of spawned workers."""

import os

import numpy as np


def mapping_of(address):
    """Return (mode, inode, path) of the mapping that contains an address of this process."""
    with open("/proc/self/maps") as file:
        for line in file:
            addresses, mode, _, _, inode, *path = line.split(maxsplit=5)
            first, end = (int(number, 16) for number in addresses.split("-"))
            if first <= address < end:
                return mode, int(inode), path[0].strip() if path else ""
    raise AssertionError(f"{address:#x} is not mapped")


def address_of(value):
    """Return the address of an array, a tensor or a buffer."""
    if hasattr(value, "data_ptr"):
        return value.data_ptr()
    if hasattr(value, "address"):
        return value.address
    return np.asarray(value).__array_interface__["data"][0]


def is_shared(where):
    """Return whether a mapping is a private, writable one of the dataset's file."""
    return where[0] == "rw-p" and where[2].startswith("/memfd:slipring-dataset")


class Parts:
    """Calls `look(part)` in the worker, for each of its parts.

    Parameters
    ----------
    parts : dict
    look : callable
    """

    def __init__(self, parts, look):
        self.parts, self.look = parts, look

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, i):
        return {"pid": os.getpid(), "found": self.look(list(self.parts.values())[i])}


def as_it_is(samples):
    """A `collate_fn` of batches of one."""
    (sample,) = samples
    return sample


def write_seven(values):
    """Write to an array or a tensor; return the pid."""
    values[0] = 7
    return os.getpid()


class Counting:
    """A large array; each sample increments its first element, and reports the old value and the address."""

    def __init__(self, n=64, size=1 << 16):
        self.n, self.rows = n, np.zeros((n, size), np.uint8)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        before = int(self.rows[0, 0])
        self.rows[0, 0] += 1
        _, inode, path = mapping_of(address_of(self.rows))
        return os.getpid(), before, inode, int(path.startswith("/memfd:slipring-dataset"))

    def collated(self, samples):
        """Collate with a method of the dataset; add whether it belongs to the object that made the samples."""
        return samples, int(self.rows[0, 0]) == samples[-1][1] + 1
