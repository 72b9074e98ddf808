"""After warm-up a batch costs memory writes and futexes: no pipe, no mapping, no fault, no descriptor.

With -s each test prints its counts.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from slipring import Loader, Workers
from tests.support.inside import engine_of, memory_available
from tests.support.inside import memory as growth
from tests.support.leaks import open_fds, read
from tests.support.parts import slow
from tests.support.processes import Program, until
from tests.support.scenes import Gate, Images

# Alone: the counts per batch include checks that run once a second, and on a loaded machine a batch takes long.
pytestmark = [pytest.mark.fault, pytest.mark.alone]

CASES = [("small", "fork", 2000), ("large", "fork", 60), slow("small", "spawn", 2000), slow("large", "spawn", 60)]
TELL_S = 0.32  # CPU_MOST_NS of csrc/record.c
# Limits for events that must not happen once per batch.
TRAFFIC = {"read", "write", "readv", "writev", "sendto", "recvfrom", "sendmsg", "recvmsg", "openat", "close"}
MEMORY = {"mmap", "munmap", "mremap", "brk", "mprotect", "madvise", "fallocate", "ftruncate"}


@contextlib.contextmanager
def steady(tmp_path, what, method, batches):
    """Start a program, warm it up, and yield (its processes, a function that runs the batches)."""
    with Gate(tmp_path / "gate") as gate, Program("steady", what, method, batches, tmp_path / "gate") as program:
        pids = json.loads(program.line())["pids"]
        gate.arrived()

        def run():
            gate.open()
            gate.arrived()

        yield pids, run
        gate.open()
        code, out, err = program.end()
        assert (code, err) == (0, ""), err
        assert json.loads(out)["copied"] == 0


def reads_of_looks(seconds):
    """Return how often the consumer reads files in that time to check the free memory."""
    before = counters(os.getpid())["reads"]
    memory_available()
    return (counters(os.getpid())["reads"] - before) * (seconds / growth.LOOK_S + 1)


def reads_of_tells(seconds):
    """Return how often a worker reads its scheduling times in that time: first at 20, 40, 80 and 160 ms."""
    return 4 + seconds / TELL_S + 1


def counters(pid):
    """Return the kernel's counts of a process: reads and writes, faults, descriptors, mappings."""
    io = dict(line.split(b": ") for line in read(f"/proc/{pid}/io").splitlines())
    stat = read(f"/proc/{pid}/stat")
    fields = stat[stat.rindex(b")") + 2 :].split()
    return {
        "reads": int(io[b"syscr"]),
        "writes": int(io[b"syscw"]),
        "minor faults": int(fields[7]),
        "major faults": int(fields[9]),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "mappings": read(f"/proc/{pid}/maps").count(b"\n"),
    }


@pytest.mark.parametrize(("what", "method", "batches"), CASES)
def test_the_kernel_counts_no_traffic_and_next_to_no_faults(tmp_path, what, method, batches):
    with steady(tmp_path, what, method, batches) as (pids, run):
        before = {who: counters(pid) for who, pid in pids.items()}
        begin = time.monotonic()
        run()
        seconds = time.monotonic() - begin
        after = {who: counters(pid) for who, pid in pids.items()}
    for who in pids:
        grown = {k: after[who][k] - before[who][k] for k in after[who]}
        looks = reads_of_looks(seconds) if who == "consumer" else reads_of_tells(seconds)
        print(f"{what} {method}, {batches} batches, {who}: {grown}")
        # The gate itself reads once and writes once.
        assert grown["reads"] <= 4 + looks and grown["writes"] <= 4, (who, grown)
        assert grown["descriptors"] == 0, (who, grown)
        assert grown["minor faults"] < max(0.1 * batches, 40), (who, grown)
        assert grown["major faults"] == 0, (who, grown)
        assert abs(grown["mappings"]) <= 4, (who, grown)


@pytest.mark.parametrize(("what", "method", "batches"), CASES)
def test_strace_sees_no_pipe_and_no_mapping_per_batch(tmp_path, what, method, batches):
    if shutil.which("strace") is None:
        pytest.skip("strace is missing")
    with steady(tmp_path, what, method, batches) as (pids, run):
        log = tmp_path / "strace"
        attach = [arg for pid in pids.values() for arg in ("-p", str(pid))]
        tracer = subprocess.Popen(
            ["strace", "-f", "-q", "-o", log, *attach], stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            until(lambda: tracer.poll() is not None or all(map(traced, pids.values())), "strace has attached")
            if tracer.poll() is not None:
                pytest.skip(f"strace may not attach here: {tracer.stderr.read().strip()}")
            begin = time.monotonic()
            run()
            seconds = time.monotonic() - begin
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.communicate()
    calls = {}
    for line in log.read_text().splitlines():
        if match := re.match(r"\d+ +(\w+)\(", line):
            calls[match[1]] = calls.get(match[1], 0) + 1
    print(f"{what} {method}, {batches} batches: {dict(sorted(calls.items(), key=lambda c: -c[1]))}")
    assert calls.get("futex", 0) > 0
    for call in TRAFFIC | MEMORY:
        looks = reads_of_looks(seconds) + (len(pids) - 1) * reads_of_tells(seconds)
        looks = looks if call in ("openat", "read", "close") else 0
        assert calls.get(call, 0) <= 10 + looks, (call, calls)


def traced(pid):
    return b"TracerPid:\t0\n" not in read(f"/proc/{pid}/status")


@pytest.mark.parametrize(("what", "n"), [("small", 1000), ("large", 40)])
def test_descriptors_and_mappings_do_not_grow_with_the_batches_that_are_kept(what, n):
    shape, dtype, size = {"small": ((32,), "f4", 64), "large": ((3, 224, 224), "u1", 64)}[what]
    with Loader(Images(n * size, shape, dtype), size, num_workers=2, workers=Workers(start_method="fork")) as loader:
        it = iter(loader)
        kept = [next(it)]
        fds = len(open_fds())
        segment = mappings_of_segment(loader)
        kept += list(it)
        assert len(kept) == n
        assert len(open_fds()) == fds
        assert mappings_of_segment(loader) == segment == 1
        assert loader.stats().copied_batches >= n - loader.stats().slots
        for i, (images, labels) in enumerate(kept):
            assert np.array_equal(labels, np.arange(i * size, (i + 1) * size))
            assert np.array_equal(images[-1], loader.dataset.data[(i * size + size - 1) % 64])
        del kept, images, labels, it


def mappings_of_segment(loader):
    inode = os.fstat(engine_of(loader).ring.fd).st_ino
    return sum(line.split()[4] == str(inode).encode() for line in read("/proc/self/maps").splitlines())
