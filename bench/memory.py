"""The memory of a job's processes; shared memory counts once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_SHARED = ("/memfd:", "/dev/shm/")


def of_job(root: int) -> int:
    """Return the bytes of a process and its descendants.

    A page counts for each process by its share (PSS), also a page of a file. A file in memory that a process has
    open counts completely, once: it may have pages that no process maps at the moment.
    """
    total = 0
    files: dict[tuple[int, int], int] = {}
    for process in family(root):
        with suppress(OSError):  # it has ended
            for entry in os.scandir(process / "fd"):
                with suppress(OSError):
                    if os.readlink(entry.path).startswith(_SHARED):
                        found = os.stat(entry.path)
                        files[found.st_dev, found.st_ino] = found.st_blocks * 512
    for process in family(root):
        with suppress(OSError):
            total += sum(share for file, share in _mappings(process) if file not in files)
    return total + sum(files.values())


def of_files(descriptors: Iterable[int]) -> int:
    """Return the bytes of open files in memory, mapped or not."""
    return sum(512 * os.fstat(descriptor).st_blocks for descriptor in descriptors)


def family(root: int) -> list[Path]:
    """Return the folders in /proc of a process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                after_name = (Path(entry.path) / "stat").read_text().rpartition(")")[2]
                children.setdefault(int(after_name.split()[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return [Path(f"/proc/{pid}") for pid in found]


def _mappings(process: Path) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield for each mapping its file (device, inode) and its share in bytes."""
    file = (0, 0)
    for line in (process / "smaps").read_text(errors="replace").splitlines():
        words = line.split()
        if "-" in words[0]:  # 7f00-7f01 r--p 00000000 00:01 1234 /path
            major, minor = words[3].split(":")
            file = os.makedev(int(major, 16), int(minor, 16)), int(words[4])
        elif words[0] == "Pss:":
            yield file, 1024 * int(words[1])
