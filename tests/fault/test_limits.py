"""Limits of the system and of containers: an error with numbers, or a smaller reservation, and never a kill."""

import errno
import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.fault.cgroups import cgroup_v1, cgroup_v2, oom_kills
from tests.support.parts import slow
from tests.support.processes import ROOT, Program

SLOW_S = 240.0  # a program at its memory limit reads its own code from the disk again and again

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
METHODS = ["fork", "spawn", slow("forkserver")]
ROWS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def fill_up(size, run=None, **options):
    """Return the output of tests.fault.programs.fill_up; `run` is a prefix of the command."""
    arguments = ["fill_up", json.dumps({"size": size, **options})]
    if run is None:
        with Program(*arguments) as program:
            code, out, err = program.end()
    else:
        command = [*run, sys.executable, "-m", "tests.fault.programs", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SLOW_S)
        code, out, err = done.returncode, done.stdout, done.stderr
    assert (code, err) == (0, ""), (code, out, err)
    return json.loads(out)


def workers(method):
    return {"num_workers": 0} if method == "none" else {"num_workers": 2, "start_method": method}


# ---- limits of the process


@pytest.mark.parametrize("method", ["none", "fork", "spawn"])
def test_a_limit_on_file_size_lowers_the_reserve_and_says_so(method):
    limit = {"RLIMIT_FSIZE": (64 * MB, -1)}
    told = fill_up(100 * KB, limits=limit, slots=8, **workers(method))
    assert "RLIMIT_FSIZE" in told["stats"]["slot_bytes_limited_by"]
    assert 1 * MB <= told["stats"]["slot_bytes"] <= 8 * MB
    assert told["came"][:6] == ["batch"] * 6
    told = fill_up(20 * MB, limits=limit, slots=8, **workers(method))
    error = told["came"][0]
    assert error["type"] == "BatchTooLarge" and error["needed"] >= 20 * MB
    assert error["limit"] == told["stats"]["slot_bytes"]
    assert "use fewer slots" in error["text"] and "RLIMIT_FSIZE" in error["text"]


QUEUE = """
import resource, sys
import numpy as np, slipring
from slipring.errors import BatchTooLarge, SegmentFull
resource.setrlimit(getattr(resource, sys.argv[1]), (int(sys.argv[2]), -1))
queue = slipring.Queue(4)
for size in [10, 1 << 20, 1 << 33, 0] * 3:
    try:
        queue.put(np.broadcast_to(np.uint8(7), size), timeout=60)
    except (BatchTooLarge, SegmentFull):
        print("refused")
    else:
        print(queue.get(timeout=60).size)
"""


@pytest.mark.parametrize(("limit", "value"), [("RLIMIT_FSIZE", 100 * MB), ("RLIMIT_AS", 5 * GB)])
def test_a_queue_within_a_limit_takes_messages_that_fit_and_continues_after_others(limit, value):
    command = [sys.executable, "-c", QUEUE, limit, str(value)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SLOW_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10", str(1 << 20), "refused", "0"] * 3


def test_a_limit_on_file_size_that_leaves_nothing_refuses_the_segment():
    told = fill_up(KB, limits={"RLIMIT_FSIZE": (64 * KB, -1)}, num_workers=2, slots=8)
    assert (told["at"], told["type"]) == ("refused", "SegmentFull")
    assert "RLIMIT_FSIZE" in told["text"] and told["needed"] > 64 * KB


@pytest.mark.parametrize("method", ["none", *METHODS, "thread"])
@pytest.mark.parametrize("limit", [3 * GB, slow(5 * GB), slow(8 * GB)])
def test_a_limit_on_address_space_lowers_the_reserve_and_leaves_room_for_the_rest(method, limit):
    told = fill_up(MB, limits={"RLIMIT_AS": (limit, -1)}, batch_size=4, **workers(method))
    assert told["at"] == "end", told
    assert "RLIMIT_AS" in told["stats"]["slot_bytes_limited_by"]
    slots = told["stats"]["slots"]
    assert 4 * MB < told["stats"]["slot_bytes"] * slots < limit
    # 15 batches of 4 MB fit into any of these limits.
    assert told["came"][:15] == ["batch"] * 15


def test_a_limit_on_address_space_that_leaves_nothing_refuses_the_segment():
    told = fill_up(MB, limits={"RLIMIT_AS": (GB, -1)}, slots=16384, num_workers=0)
    assert told["at"] == "refused", told
    assert told["type"] == "SegmentFull" and "RLIMIT_AS" in told["text"]


@pytest.mark.parametrize("method", METHODS)
def test_without_descriptors_iter_says_so_and_leaves_nothing(method):
    with Program("few_descriptors", method) as program:
        code, out, err = program.end()
    # Workers have the same limit, and may fail to start without descriptors: they report the reason.
    assert code == 0, err
    works, closed = map(json.loads, out.splitlines())
    assert works["rows"] == ROWS
    assert len(works["refused"]) > 2
    assert closed == {"at": "closed", "processes": 0}


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_cannot_be_started_stops_those_that_were(method, after):
    with Program("no_forks", method, after) as program:
        code, out, err = program.end()
    told = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert told[:2] == [{"at": "refused", "errno": errno.EAGAIN, "processes": 0}] * 2
    assert told[2]["rows"] == ROWS


@pytest.mark.alone  # the kernel counts the processes of a user
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user without other processes")
def test_without_processes_iter_says_so_and_leaves_nothing():
    with Program("few_processes", 54321) as program:
        works, closed = json.loads(program.line()), json.loads(program.line())
        assert works["spare"] >= 2 and set(works["refused"]) <= {"BlockingIOError", "WorkerDied"}
        # No worker starts. (With one spare process, the first may lack a thread and die before the second is forked.)
        assert works["refused"][0] == "BlockingIOError"
        assert works["rows"] == [list(range(i, i + 4)) for i in range(0, 16, 4)]
        assert closed["processes"] == 0
        assert program.end()[0] == 0


def test_a_thread_that_cannot_be_started_stops_those_that_were():
    with Program("no_threads") as program:
        code, out, err = program.end()
    told = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert told[0] == {"at": "refused", "text": "can't start new thread", "threads": 1}
    assert told[1]["rows"] == ROWS


def test_if_exit_codes_are_lost_deaths_are_noticed_nevertheless():
    with Program("sigchld_ignored") as program:
        code, out, err = program.end()
    told = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert told[0]["exitcode"] is None and "SIGCHLD" in told[0]["text"]
    assert told[1]["rows"] == ROWS


# ---- memory cgroups


@pytest.mark.parametrize("cgroup", [cgroup_v1, cgroup_v2])
@pytest.mark.parametrize("nested", [False, True], ids=["its own limit", "an ancestor's limit"])
@pytest.mark.parametrize("method", ["none", "fork", slow("spawn"), slow("thread")])
@pytest.mark.parametrize("size", [4 * MB, slow(30 * MB)])
def test_a_full_memory_cgroup_is_an_error_and_no_process_is_killed(cgroup, nested, method, size):
    limit = 300 * MB
    with cgroup(limit, nested) as (procs, limited):
        enter = ["sh", "-c", f'echo $$ > "{procs}"; exec "$@"', "sh"]
        told = fill_up(size, run=enter, slots=100, **workers(method))
        assert oom_kills(limited) == 0
    assert told["at"] == "end", told
    errors = [e for e in told["came"] if e != "batch"]
    assert errors and {e["type"] for e in errors} == {"SegmentFull"}
    assert "cgroup" in errors[0]["text"] and errors[0]["needed"] > errors[0]["free"]
    # The loader may use most of the limit.
    assert told["came"].index(errors[0]) * size > limit // 4
    # After batches were released, it continued.
    assert "batch" in told["came"][told["came"].index(errors[0]) :]


@pytest.mark.parametrize("cgroup", [cgroup_v1, cgroup_v2])
@pytest.mark.parametrize("method", ["none", "fork"])
def test_a_memory_cgroup_full_of_the_files_that_were_read_has_room_for_batches(tmp_path, cgroup, method):
    with cgroup(300 * MB, False) as (procs, limited):
        enter = ["sh", "-c", f'echo $$ > "{procs}"; exec "$@"', "sh"]
        read_often = [str(tmp_path / "data"), 260 * MB]
        told = fill_up(4 * MB, run=enter, slots=100, read_often=read_often, **workers(method))
        assert oom_kills(limited) == 0
    if told["cached"] < 100 * MB:
        pytest.skip("the files here leave no pages in the cgroup")
    assert told["at"] == "end", told
    errors = [i for i, e in enumerate(told["came"]) if e != "batch"]
    assert errors and errors[0] * 4 * MB > 150 * MB, errors


@pytest.mark.parametrize("cgroup", [cgroup_v1, cgroup_v2])
@pytest.mark.parametrize("nested", [False, True], ids=["its own limit", "an ancestor's limit"])
def test_workers_that_copy_their_dataset_cause_a_warning_before_the_kernel_kills(cgroup, nested):
    with cgroup(400 * MB, nested) as (procs, limited):
        enter = ["sh", "-c", f'echo $$ > "{procs}"; exec "$@"', "sh"]
        told = read_names("list", enter)
        assert told[0]["at"] == "warned", told
        assert told[0]["type"] == "WorkerMemoryWarning"
        for part in (f"{limited}/memory.", "419.4 MB in all", "worker 0: ", "worker 1: ", "slipring.StringList"):
            assert part in told[0]["text"]
        assert len([line for line in told if line["at"] == "warned"]) == 1
        assert oom_kills(limited) > 0  # the warning was no false alarm


@pytest.mark.parametrize("cgroup", [cgroup_v1, cgroup_v2])
def test_workers_that_copy_nothing_are_not_warned_of(cgroup):
    with cgroup(400 * MB, False) as (procs, limited):
        (told,) = read_names("StringList", ["sh", "-c", f'echo $$ > "{procs}"; exec "$@"', "sh"])
        assert (told["at"], told["batches"]) == ("end", 200)
        assert max(told["own"]) < 60 * MB
        assert oom_kills(limited) == 0


def read_names(kind, run):
    """Return the output of tests.fault.programs.read_names, however it ends."""
    command = [*run, sys.executable, "-m", "tests.fault.programs", "read_names", kind, "/data/train/n0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SLOW_S)
    return [json.loads(line) for line in done.stdout.splitlines()]


# ---- /dev/shm


def in_own_mounts(script):
    """Run the program `backing` after `script` has changed the mounts for it alone."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is missing")
    mine = f"set -e; mount --make-rprivate /; {script}; exec {sys.executable} -m tests.fault.programs backing"
    command = ["unshare", "-m", "sh", "-c", mine]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SLOW_S)
    if done.returncode and ("not permitted" in done.stderr or "denied" in done.stderr):
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("mount -t tmpfs -o size=64m none /dev/shm", "less free than a quarter of the memory"),
        ("mount -t tmpfs -o ro none /dev/shm", "does not take nameless files"),
        ("mount -t ramfs none /dev/shm", "not a tmpfs"),
    ],
    ids=["small", "read-only", "another file system"],
)
def test_if_dev_shm_does_not_suffice_a_memfd_is_used_and_reported(script, reason):
    told = in_own_mounts(script)
    assert told["backing"] == "memfd" and reason in told["reason"]
    assert told["rows"] == ROWS
