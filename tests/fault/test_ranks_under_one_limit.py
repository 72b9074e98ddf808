"""Processes with their own segments in one memory cgroup: one is refused, and none is killed."""

import contextlib
import fcntl
import os
import subprocess
import sys

import pytest

from tests.fault.cgroups import cgroup_v1, cgroup_v2, oom_kills
from tests.support.leaks import read
from tests.support.parts import slow
from tests.support.processes import ROOT, until

pytestmark = pytest.mark.fault

MB = 1 << 20
CLOCK_NANOSLEEP = (b"230", b"115")  # the number of the system call on x86-64 and arm64
LIMIT, SIZE = 600 * MB, 320 * MB  # one fits, and two do not

# Takes so many bytes after a line on stdin, prints "took" or the error, and keeps them until stdin ends. Nothing else
# grows: the array of a queue's message has one byte, the loader's lies in its slot, and the cache's is small.
RANK = """
import os, sys
import numpy as np, slipring

kind, size = sys.argv[1], int(sys.argv[2])
large = np.broadcast_to(np.uint8(7), size)
go, gone = os.pipe()

class Large:
    def __len__(self):
        return 1

    def __getitem__(self, i):
        os.read(go, 1)
        return slipring.empty(size, np.uint8)

if kind == "queue":
    user = slipring.Queue(4)
elif kind == "cache":
    user = slipring.Cache("64MiB")
else:
    user = iter(slipring.Loader(Large(), None, num_workers=1, workers=slipring.Workers(start_method="fork"),
                                memory=slipring.Memory(copy="never")))
print("ready", flush=True)
sys.stdin.readline()
try:
    if kind == "queue":
        user.put(large)
    elif kind == "cache":
        assert user.put(0, large)
    else:
        os.write(gone, b"g")
        kept = next(user)
except slipring.SegmentFull as error:
    print(error, flush=True)
else:
    print("took", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def ranks(procs, kinds, size=SIZE):
    """Run processes with RANK in a cgroup; kill them at the end."""
    with contextlib.ExitStack() as stack:
        started, pipes = [], dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        for kind in kinds:
            enter = ["sh", "-c", f'echo $$ > "{procs}"; exec "$@"', "sh", sys.executable, "-c", RANK, kind, str(size)]
            rank = stack.enter_context(subprocess.Popen(enter, cwd=ROOT, text=True, **pipes))
            stack.callback(rank.kill)  # its workers end with it
            started.append(rank)
        for rank in started:
            assert rank.stdout.readline() == "ready\n", rank.communicate()
        yield started


def say_go(started):
    """Let all processes grow at the same time."""
    for rank in started:
        rank.stdin.write("\n")
        rank.stdin.flush()


def results(started):
    """Return each one's output, standard error and exit code; none ends before all have printed a line."""
    said = [rank.stdout.readline() for rank in started]
    return said, [(rank.communicate()[1], rank.returncode) for rank in started]


@pytest.mark.parametrize("cgroup", [cgroup_v1, cgroup_v2])
@pytest.mark.parametrize(("nested", "kinds"), [(False, ("fork", "queue")), slow(True, ("queue", "queue"))], ids=str)
def test_of_two_processes_that_grow_at_once_one_is_refused_and_none_is_killed(cgroup, nested, kinds):
    with cgroup(LIMIT, nested) as (procs, limited):
        for _ in range(3):
            with ranks(procs, kinds) as started:
                say_go(started)
                said, ends = results(started)
            assert oom_kills(limited) == 0, (said, ends)
            assert ends == [("", 0)] * 2
            said.remove("took\n")
            assert "memory cgroup" in said[0]


def pauses(pid):
    """Return whether a process's main thread is in clock_nanosleep."""
    return read(f"/proc/{pid}/syscall").split(b" ")[0] in CLOCK_NANOSLEEP


@pytest.mark.parametrize("cgroup", [cgroup_v1, cgroup_v2])
@pytest.mark.parametrize(
    ("kind", "size", "continues"), [("queue", SIZE, True), ("cache", MB, True), ("fork", SIZE, False)]
)
def test_a_growth_waits_for_another_process_that_grows_but_not_forever(cgroup, kind, size, continues):
    """The test holds the cgroup's lock, as a process does that was stopped before it committed memory."""
    with cgroup(LIMIT, False) as (procs, limited), ranks(procs, [kind], size) as started:
        directory = os.open(limited, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            say_go(started)
            if continues:
                until(lambda: pauses(started[0].pid), "the process waits for the lock")
                fcntl.flock(directory, fcntl.LOCK_UN)
            assert results(started) == (["took\n"], [("", 0)])
        finally:
            os.close(directory)
