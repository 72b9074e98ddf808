"""The segment's memory: its size, its owner, and the places where it must not appear."""

import fcntl
import os
import pathlib
import re
import resource
import signal
import stat

import numpy as np
import pytest

from slipring import Loader, Memory, Workers, default_collate
from slipring.errors import WorkerDied
from tests.support.inside import engine_of
from tests.support.leaks import read
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.processes import LONG_S, worker_pids
from tests.support.scenes import Death, Sized

pytestmark = pytest.mark.fault

KB, MB = 1 << 10, 1 << 20
METHODS = ["fork", "spawn", slow("forkserver")]


def segment_of(loader):
    """Return (st_dev, st_ino) of the segment's file, as /proc shows them in every process."""
    return os.fstat(engine_of(loader).ring.fd)


def mappings(pid, inode):
    """Return permissions and VmFlags of each mapping of a file in a process."""
    found, perms = [], None
    for line in read(f"/proc/{pid}/smaps").decode().splitlines():
        fields = line.split()
        if "-" in fields[0] and ":" not in fields[0]:
            perms = fields[1] if fields[4] == str(inode) else None
        elif fields[0] == "VmFlags:" and perms is not None:
            found.append((perms, fields[1:]))
    return found


def descriptors(pid, inode):
    """Return the descriptors of a process that refer to a file: {number: flags}."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        if os.path.exists(path) and os.stat(path).st_ino == inode:  # the listing itself has a descriptor
            info = dict(line.split(":\t") for line in read(f"/proc/{pid}/fdinfo/{name}").decode().splitlines()[:3])
            found[int(name)] = int(info["flags"], 8)
    return found


@pytest.mark.parametrize("backing", ["shm", "memfd"])
@pytest.mark.parametrize("method", METHODS)
def test_the_segment_is_private_to_its_processes_and_not_dumped(method, backing):
    with Loader(
        Sized([KB] * 64), 4, num_workers=2, workers=Workers(start_method=method), memory=Memory(backing=backing)
    ) as loader:
        assert len(list(loader)) == 16
        assert all(engine_of(loader).ring.wait_serving(number + 1, LONG_S) for number in range(2))
        segment = segment_of(loader)
        assert stat.S_IMODE(segment.st_mode) == 0o600
        assert segment.st_nlink == 0 or backing == "memfd"  # the file has no name
        for pid in [os.getpid(), *worker_pids(loader).values()]:
            ((perms, flags),) = mappings(pid, segment.st_ino)
            assert perms == "rw-s"  # shared, and not executable
            assert "dd" in flags  # MADV_DONTDUMP
            fds = descriptors(pid, segment.st_ino)
            assert len(fds) == 1
            assert all(flags & os.O_CLOEXEC for flags in fds.values())
        assert fcntl.fcntl(engine_of(loader).ring.fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def collate(samples):
    return default_collate(samples)


# With chunks and a collate_fn, the slot holds the samples before the batch.
BATCHING = [{}, {"chunk_size": 1}, {"collate_fn": collate}, {"chunk_size": 1, "collate_fn": collate}]


@pytest.mark.parametrize("backing", ["shm", slow("memfd")])
@pytest.mark.parametrize("changed", BATCHING, ids=["samples", "chunks", "collated", "collated-chunks"])
@pytest.mark.parametrize("size", [KB, 300 * KB, 5 * MB])
def test_no_slot_has_more_memory_than_its_largest_batch_and_two_megabytes(size, changed, backing):
    rng = np.random.default_rng(size)
    sizes = np.repeat(rng.integers(1, size, 80), 4).tolist()  # batches of 4 equal samples
    options = {"num_workers": 2, "start_method": "fork", "slots": 10, "copy": "never", **changed}
    with Loader(Sized(sizes), 4, **grouped(backing=backing, **options)) as loader:
        it = iter(loader)
        kept, largest = [], 0
        for batch in it:
            largest = max(largest, batch[0].nbytes + batch[1].nbytes)
            kept.append(batch)
            if len(kept) == 8:
                kept.clear()  # all slots were used
        del batch, it
        told = loader.stats().slot_bytes_committed
        assert told <= 10 * (largest + 2 * MB)
        real = segment_of(loader).st_blocks * 512
        assert told == real
        print(f"{told / 1e6:.1f} MB committed for 10 slots of {largest / 1e6:.1f} MB")


def test_a_crash_does_not_write_the_segment_to_disk(tmp_path):
    pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith("|") or "/" in pattern:
        pytest.skip(f"core dumps do not go to the working directory: {pattern}")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY:
        pytest.skip("core dumps are forbidden here")
    options = {"num_workers": 1, "start_method": "fork", "worker_init_fn": Dumps(tmp_path)}
    with Loader(CrashesAt(9, 100 * MB), 1, prefetch_factor=1, **grouped(copy="never", **options)) as loader:
        it = iter(loader)
        kept = []
        with pytest.raises(WorkerDied) as caught:
            for batch in it:
                kept.append(batch)
        assert caught.value.exitcode == -signal.SIGSEGV
        assert len(kept) == 9
        segment = segment_of_batches(kept)
        (core,) = tmp_path.iterdir()
        written = core.stat().st_blocks * 512
        core.unlink()
        print(f"core of {written / 1e6:.0f} MB beside a segment of {segment / 1e6:.0f} MB")
        # The worker is a fork of this process, whose own memory may be large, and is dumped.
        assert 0 < written < segment / 3 + own_memory()
        del batch, kept, it


def own_memory():
    """Return the bytes of this process without its shared memory."""
    fields = dict(re.findall(r"(\w+):\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text()))
    return (int(fields["RssAnon"]) + int(fields["RssFile"])) * KB


def segment_of_batches(batches):
    return sum(b[0].nbytes for b in batches)


class Dumps:
    """Let workers dump core in a directory of the test."""

    def __init__(self, path):
        self.path = path

    def __call__(self, number):
        os.chdir(self.path)
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class CrashesAt(Sized):
    """Dies of SIGSEGV at sample `n`, with a core dump if the limits allow it."""

    def __init__(self, n, size):
        super().__init__([size] * (n + 1))
        self.crash = n

    def __getitem__(self, i):
        if i == self.crash:
            Death("SIGSEGV", dump=True)()
        return super().__getitem__(i)
