"""After warm-up a batch costs memory writes and futexes: no pipe, no mapping, no fault, no descriptor."""

import collections
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time

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


@contextlib.contextmanager
def traced(path, pids):
    """Let strace write the system calls of processes to a file, if it is installed and may attach."""
    if shutil.which("strace") is None:
        yield
        return
    attach = [arg for pid in pids for arg in ("-p", str(pid))]
    command = ["strace", "-f", "-q", "-o", path, *attach]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        until(lambda: tracer.poll() is not None or all(map(is_traced, pids)), "strace has attached")
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait()


def is_traced(pid):
    return b"TracerPid:\t0\n" not in read(f"/proc/{pid}/status")


def test_batches_that_are_kept_cost_neither_descriptors_nor_mappings():
    with Loader(Images(64_000, (32,), "f4"), 64, num_workers=2, workers=Workers(start_method="fork")) as loader:
        it = iter(loader)
        kept = [next(it)]
        inode, descriptors = str(os.fstat(engine_of(loader).ring.fd).st_ino).encode(), len(open_fds())
        kept += it
        assert loader.stats().copied_batches >= len(kept) - loader.stats().slots
        assert len(open_fds()) == descriptors
        assert sum(line.split()[4] == inode for line in read("/proc/self/maps").splitlines()) == 1


@pytest.mark.parametrize(("what", "method", "batches"), CASES)
def test_a_batch_causes_no_traffic_no_mapping_and_next_to_no_faults(tmp_path, what, method, batches):
    log = tmp_path / "strace"
    with steady(tmp_path, what, method, batches) as (pids, run), traced(log, pids.values()):
        before = {who: counters(pid) for who, pid in pids.items()}
        begin = time.monotonic()
        run()
        seconds = time.monotonic() - begin
        after = {who: counters(pid) for who, pid in pids.items()}
        # A file that a look reads just then is open for a moment, and one that opened the gate may be closed meanwhile.
        until(
            lambda: all(counters(pid)["descriptors"] <= before[who]["descriptors"] for who, pid in pids.items()),
            "no descriptor is left",
        )
    looks = {who: reads_of_looks(seconds) if who == "consumer" else reads_of_tells(seconds) for who in pids}
    for who in pids:
        grown = {k: after[who][k] - before[who][k] for k in after[who]}
        # The gate itself reads once and writes once.
        assert grown["reads"] <= 4 + looks[who] and grown["writes"] <= 4, (who, grown)
        assert grown["major faults"] == 0, (who, grown)
        assert grown["minor faults"] < max(0.1 * batches, 40), (who, grown)
        assert abs(grown["mappings"]) <= 4, (who, grown)
    calls = collections.Counter(re.findall(r"^\d+ +(\w+)\(", log.read_text() if log.exists() else "", re.M))
    if not calls:
        pytest.skip("strace is missing, or may not attach here")
    assert calls["futex"] > 0
    for call in TRAFFIC | MEMORY:
        allowed = sum(looks.values()) if call in ("openat", "read", "close") else 0
        assert calls[call] <= 10 + allowed, (call, calls)
