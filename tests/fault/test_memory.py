"""The segment's memory: its size and owner; what happens if memory is short or missing. Never SIGBUS."""

import contextlib
import fcntl
import logging
import os
import stat
import subprocess
import sys

import numpy as np
import pytest

import slipring
from slipring import Loader, Memory, SegmentFull, WorkerError, Workers, default_collate
from tests.support.inside import engine_of
from tests.support.leaks import read
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.processes import LONG_S, circulating, kill_worker, until, worker_pids
from tests.support.scenes import Named, Sized

pytestmark = pytest.mark.fault

KB, MB = 1 << 10, 1 << 20


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


@pytest.mark.parametrize(("method", "backing"), [("fork", "shm"), ("spawn", "memfd"), slow("forkserver", "shm")])
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


# With chunks and a collate_fn, the slot holds the samples before the batch.
@pytest.mark.parametrize(
    ("size", "changed"),
    [
        (KB, {"collate_fn": default_collate}),
        (5 * MB, {}),
        (5 * MB, {"chunk_size": 1}),
        (300 * KB, {"chunk_size": 1, "collate_fn": default_collate}),
    ],
    ids=["collated", "samples", "chunks", "collated-chunks"],
)
def test_no_slot_has_more_memory_than_its_largest_batch_and_two_megabytes(size, changed):
    rng = np.random.default_rng(size)
    sizes = np.repeat(rng.integers(1, size, 80), 4).tolist()  # batches of 4 equal samples
    options = {"num_workers": 2, "start_method": "fork", "slots": 10, "copy": "never", **changed}
    with Loader(Sized(sizes), 4, **grouped(**options)) as loader:
        it = iter(loader)
        kept, largest = [], 0
        for batch in it:
            largest = max(largest, batch[0].nbytes + batch[1].nbytes)
            kept.append(batch)
            if len(kept) == 8:
                kept.clear()  # all slots were used
        del batch, it
        told = loader.stats().slot_bytes_committed
        assert told == segment_of(loader).st_blocks * 512 <= 10 * (largest + 2 * MB)


WORKERS = [
    {"num_workers": 2, "start_method": "fork"},
    {"num_workers": 2, "start_method": "thread"},
    slow({"num_workers": 2, "start_method": "spawn"}),
]


def fill(directory):
    """Fill a directory's file system; return the file."""
    path = os.path.join(directory, "filler")
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * (64 * KB))
    return path


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_a_batch_beyond_the_file_system_is_an_error_at_its_turn(small, workers):
    sizes = [100 * KB] * 4 + [50 * MB] * 2 + [100 * KB] * 4
    with Loader(Sized(sizes), 2, **grouped(backing=small(16 * MB), slots=8, **workers)) as loader:
        it = iter(loader)
        assert [next(it)[1].tolist(), next(it)[1].tolist()] == [[0, 1], [2, 3]]
        with pytest.raises(SegmentFull) as caught:
            next(it)
        error = caught.value
        assert error.needed > 99 * MB and 0 < error.free < 16 * MB
        assert str(error.needed) in str(error) and str(error.free) in str(error)
        assert "file system" in str(error) and "slots=8" in str(error)
        if workers["num_workers"]:
            assert error.__cause__.indices == [4, 5]
        assert [b[1].tolist() for b in it] == [[6, 7], [8, 9]]
        assert circulating(engine_of(loader).ring)[0] == 8


@pytest.mark.parametrize(
    ("size", "changed"),
    [(16 * KB, {}), (200 * KB, {"chunk_size": 8}), (16 * KB, {"chunk_size": 100})],
    ids=str,
)
def test_a_large_batch_of_many_rows_says_so_too(small, changed, size):
    """The slot has little room for the error: its indices alone would need more."""
    with Loader(
        Sized([size] * 800),
        400,
        num_workers=2,
        **grouped(backing=small(5 * MB), slots=4, start_method="fork", **changed),
    ) as loader:
        it = iter(loader)
        for _ in range(2):
            with pytest.raises(SegmentFull) as caught:
                next(it)
            assert caught.value.needed > 0 and "file system" in caught.value.limit
        assert list(it) == []
        assert loader.stats().respawns == 0
        assert circulating(engine_of(loader).ring)[0] == 4


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_an_error_that_needs_more_room_than_there_is_arrives_shortened(small, chunk_size):
    names = [[f"{i} " + "é" * 4000 for i in range(32 * batch, 32 * batch + 32)] for batch in range(3)]
    directory = small(4 * MB)
    options = {"num_workers": 1, "start_method": "fork", "chunk_size": chunk_size, "slots": 2}
    data = Named([64 * KB] * 32 + [1 * MB] * 64)
    with Loader(data, batch_sampler=names, **grouped(backing=directory, **options)) as loader:
        it = iter(loader)
        next(it)
        fill(directory)
        for _ in range(2):
            with pytest.raises((SegmentFull, WorkerError)) as caught:
                for _ in it:
                    pass
            assert "no memory" in str(caught.value)


class Wordy(Sized):
    """Raises an exception whose text does not fit."""

    def __getitem__(self, i):
        raise ArithmeticError(("¿" * 100_000) + " the end")


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_an_exception_with_a_long_text_arrives_where_there_is_no_room(small, chunk_size):
    directory = small(2 * MB)
    options = {"num_workers": 2, "start_method": "fork", "chunk_size": chunk_size, "slots": 4}
    with Loader(Wordy([1] * 64), 32, **grouped(backing=directory, **options)) as loader:
        it = iter(loader)
        fill(directory)
        for _ in range(2):
            with pytest.raises((ArithmeticError, WorkerError)):
                next(it)
        assert list(it) == []


@pytest.mark.parametrize("workers", WORKERS[:2], ids=str)
def test_a_full_file_system_refuses_the_segment_and_can_be_used_later(small, workers):
    directory = small(2 * MB)
    filler = fill(directory)
    with Loader(Sized([KB] * 4), 2, **grouped(backing=directory, **workers)) as loader:
        for _ in range(2):
            with pytest.raises(SegmentFull) as caught:
                iter(loader)
            assert caught.value.needed > caught.value.free
            assert "file system" in str(caught.value)
        os.unlink(filler)
        assert [b[1].tolist() for b in loader] == [[0, 1], [2, 3]]


def test_committed_memory_stays_usable_when_the_file_system_fills_up(small):
    """Reads and writes of committed pages need no free memory: no SIGBUS, whatever other processes write."""
    directory = small(32 * MB)
    with Loader(
        Sized([MB] * 12),
        2,
        num_workers=2,
        workers=Workers(start_method="fork"),
        memory=Memory(backing=directory, slots=4),
    ) as loader:
        for _ in range(3):
            assert len([b[1][0] for b in loader]) == 6
        filler = fill(directory)
        for _ in range(3):
            assert [b[1].tolist() for b in loader] == [[i, i + 1] for i in range(0, 12, 2)]
        os.unlink(filler)


# ---- caches


def array(key):
    return np.full(MB // 4, key, np.int32)


def test_a_full_file_system_ends_the_keeping_of_a_cache_and_nothing_else(small, caplog):
    with slipring.Cache("64MiB", backing=small(16 * MB)) as cache, caplog.at_level(logging.WARNING, "slipring"):
        kept = [cache.put(key, array(key)) for key in range(100)]
        for key in range(100):
            assert (cache.get_or_make(key, lambda key=key: array(key)) == key).all()
        stats = cache.stats()
    assert 8 < sum(kept) < 17 and stats.refused_memory > 50 and stats.refused_budget == 0
    said = [record.getMessage() for record in caplog.records if "keeps no more" in record.getMessage()]
    assert len(said) == 1 and "file system" in said[0]


def test_if_there_is_no_room_at_all_for_a_cache_it_is_an_error_with_numbers(small):
    directory = small(1 * MB)
    fill(directory)
    with pytest.raises(SegmentFull, match="no room for a cache's first pages") as refused:
        slipring.Cache("1MiB", backing=directory)
    assert refused.value.needed > refused.value.free and "file system" in refused.value.limit


def seldom_large(n, usual, seed=0):
    """Return sizes of n batches; one in ten is twenty times larger."""
    large = np.random.default_rng(seed).random(n) < 0.1
    return np.where(large, 20 * usual, usual).tolist()


@pytest.mark.parametrize(
    ("method", "options"), [("fork", {}), ("fork", {"in_order": False}), ("thread", {"chunk_size": 2})], ids=str
)
def test_batches_of_very_different_sizes_share_the_available_memory(small, method, options):
    sizes = [size for size in seldom_large(400, 128 * KB) for _ in range(4)]
    workers = {"num_workers": 6, "start_method": method}
    with Loader(Sized(sizes), 4, drop_last=False, **grouped(backing=small(100 * MB), **workers, **options)) as loader:
        came = [index for batch in loader for index in batch[1].tolist()]
        assert sorted(came) == list(range(1600))
        assert loader.stats().slot_bytes_committed <= 100 * MB


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_workers_killed_while_memory_is_short_lose_and_repeat_nothing(small, chunk_size):
    sizes = [size for size in seldom_large(200, 64 * KB) for _ in range(4)]
    # On a loaded machine some workers are killed before they serve.
    options = {"num_workers": 4, "on_death": "respawn", "max_restarts": 1000, "chunk_size": chunk_size}
    rng = np.random.default_rng(0)
    with Loader(Sized(sizes), 4, **grouped(backing=small(64 * MB), start_method="fork", **options)) as loader:
        came = []
        for number, batch in enumerate(loader):
            assert (batch[0][:, -1] == batch[1] % 251).all()
            came += batch[1].tolist()
            if number % 8 == 0:
                kill_worker(loader, int(rng.integers(4)))
            del batch
        assert came == list(range(800))
        assert loader.stats().respawns > 0


def test_a_batch_waits_until_others_are_let_go(small):
    sizes = [10 * MB] * 5 + [20 * MB]
    options = {"num_workers": 1, "copy": "never", "prefetch_factor": 6}
    with Loader(Sized(sizes), 1, **grouped(backing=small(56 * MB), **options)) as loader:
        it = iter(loader)
        kept = [next(it) for _ in range(5)]
        until(lambda: engine_of(loader).ring.is_short(1), "the worker waits for memory")
        kept.clear()
        assert next(it)[0].nbytes == 20 * MB


def test_memory_for_a_batch_is_refused_while_others_are_kept_and_the_rest_continues(small):
    batches, memory = 30, Memory(backing=small(32 * MB), copy="never")
    with Loader(Sized([5 * MB] * batches), 1, num_workers=2, memory=memory) as loader:
        kept, refused = [], 0
        it = iter(loader)
        for _ in range(batches):
            try:
                kept.append(next(it))
            except SegmentFull:
                refused += 1
                kept.clear()
        assert 0 < refused <= 11
        assert circulating(engine_of(loader).ring)[0] >= loader.stats().slots - len(kept)


SHRINKS = """
import sys, threading
from slipring import Loader, Memory, SegmentFull, Workers

made, over = [], threading.Event()

def collate(samples):
    batch = [1 << 20] * 500_000
    made.append(batch)
    return batch

def shrink():
    while not over.wait(0.002):
        while made:
            del made.pop()[5:]

thread = threading.Thread(target=shrink, daemon=True)
thread.start()
memory = Memory(slots=12, copy="never", backing=sys.argv[1])
workers = Workers(start_method="thread")
with Loader(range(50), 1, num_workers=3, collate_fn=collate, workers=workers, memory=memory) as loader:
    iterator = iter(loader)
    for _ in range(50):
        try:
            assert set(next(iterator)) == {1 << 20}
        except SegmentFull:
            pass
"""


def test_a_list_that_becomes_shorter_while_its_batch_waits_for_memory_is_read_as_it_was(small):
    command = [sys.executable, "-X", "faulthandler", "-c", SHRINKS, small(16 * MB)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
