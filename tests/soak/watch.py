"""The soak's measurements when nothing is in flight: of its own process and of the long-lived workers."""

import ctypes
import gc
import os
import re
import sys

from tests.soak.judge import Quantity
from tests.support.leaks import link, open_fds, read, started_by_us

MIB = 2.0**20
SEGMENT = ("/dev/shm/", "/memfd:")

QUANTITIES = (
    Quantity("descriptors"),
    Quantity("threads"),
    Quantity("processes"),
    Quantity("segments mapped"),
    Quantity("slots out"),
    Quantity("segments' memory", "MiB", 4.0),
    Quantity("mappings", "", 16.0),
    Quantity("python blocks", "", 1500.0),
    Quantity("heap in use", "MiB", 0.5),
    Quantity("anonymous memory", "MiB", 4.0),
    Quantity("shared memory mapped in", "MiB", 8.0),
    Quantity("workers: descriptors"),
    Quantity("workers: threads"),
    Quantity("workers: mappings", "", 16.0),
    Quantity("workers: anonymous memory", "MiB", 6.0),
)


class _Heap(ctypes.Structure):
    """glibc's struct mallinfo2."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def heap_in_use():
    """Return the bytes that malloc has allocated in all arenas; 0 if libc cannot tell."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0
    mallinfo.restype = _Heap
    heap = mallinfo()
    return heap.uordblks + heap.hblkhd


def fields(pid):
    """Return the numbers of /proc/pid/status and smaps_rollup, the latter in KiB."""
    text = read(f"/proc/{pid}/status") + read(f"/proc/{pid}/smaps_rollup")
    return {name.decode(): int(n) for name, n in re.findall(rb"^(\w+):\s+(\d+)", text, re.M)}


def maps(pid):
    """Return (mappings, inodes of the segments among them)."""
    lines = read(f"/proc/{pid}/maps").splitlines()
    parts = [line.split(None, 5) for line in lines]
    return len(lines), {p[4] for p in parts if len(p) == 6 and p[5].decode().startswith(SEGMENT)}


def segments_memory():
    """Return the bytes of memory of all segments that this process has open."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        if link(f"/proc/self/fd/{entry}").startswith(SEGMENT):
            status = os.stat(f"/proc/self/fd/{entry}")
            found[status.st_dev, status.st_ino] = 512 * status.st_blocks
    return sum(found.values())


def quantities(residents):
    """Return {name: value} of the quantities at one time."""
    gc.collect()
    own = fields("self")
    mappings, segments = maps("self")
    found = {
        "descriptors": len(open_fds()),
        "threads": own["Threads"],
        "processes": len(started_by_us()),
        "segments mapped": len(segments),
        "slots out": sum(resident.slots_out() for resident in residents),
        "segments' memory": segments_memory() / MIB,
        "mappings": mappings,
        "python blocks": sys.getallocatedblocks(),
        "heap in use": heap_in_use() / MIB,
        "anonymous memory": own["Anonymous"] / 1024,
        "shared memory mapped in": own["RssShmem"] / 1024,
    }
    workers = [pid for resident in residents for pid in resident.pids()]
    told = [fields(pid) for pid in workers]
    found["workers: descriptors"] = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in workers)
    found["workers: threads"] = sum(one["Threads"] for one in told)
    found["workers: mappings"] = sum(maps(pid)[0] for pid in workers)
    found["workers: anonymous memory"] = sum(one["Anonymous"] for one in told) / 1024
    return found
