"""Limits of the system and of containers: an error with numbers, or a smaller reservation, and never a kill."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from slipring import Loader, WorkerDied, Workers
from tests.fault.cgroups import cgroup_v1, cgroup_v2, oom_kills
from tests.support.parts import slow
from tests.support.processes import ROOT, Program, in_child, worker_pids
from tests.support.scenes import Rows

pytestmark = pytest.mark.fault

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
ROWS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def fill_up(size, run=None, **options):
    """Return the output of tests.fault.programs.fill_up; `run` is a prefix of the command."""
    arguments = ["fill_up", json.dumps({"size": size, **options})]
    if run is None:
        with Program(*arguments) as program:
            code, out, err = program.end()
    else:
        command = [*run, sys.executable, "-m", "tests.fault.programs", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        code, out, err = done.returncode, done.stdout, done.stderr
    assert (code, err) == (0, ""), (code, out, err)
    return json.loads(out)


def workers(method):
    return {"num_workers": 2, "start_method": method}


# ---- limits of the process


def test_a_limit_on_file_size_lowers_the_reserve_and_says_so():
    method = "fork"
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


@pytest.mark.parametrize(
    ("limit", "value", "options"),
    [("RLIMIT_FSIZE", 64 * KB, {"num_workers": 2, "slots": 8}), ("RLIMIT_AS", GB, {"num_workers": 1, "slots": 16384})],
)
def test_a_limit_that_leaves_nothing_refuses_the_segment(limit, value, options):
    told = fill_up(KB, limits={limit: (value, -1)}, **options)
    assert (told["at"], told["type"]) == ("refused", "SegmentFull")
    assert limit in told["text"] and value < told["needed"] < 2 * GB  # of the smallest segment
    if limit == "RLIMIT_FSIZE":
        assert "memory for" not in told["text"] and "raise that limit" in told["text"]


@pytest.mark.parametrize("method", ["fork", slow("spawn"), "thread"])
def test_a_limit_on_address_space_lowers_the_reserve_and_leaves_room_for_the_rest(method):
    limit = 3 * GB
    told = fill_up(MB, limits={"RLIMIT_AS": (limit, -1)}, batch_size=4, **workers(method))
    assert told["at"] == "end", told
    assert "RLIMIT_AS" in told["stats"]["slot_bytes_limited_by"]
    slots = told["stats"]["slots"]
    assert 4 * MB < told["stats"]["slot_bytes"] * slots < limit
    assert told["came"][:15] == ["batch"] * 15


def test_if_exit_codes_are_lost_deaths_are_noticed_nevertheless():
    def lost():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with Loader(Rows(16), 4, num_workers=2, workers=Workers(start_method="fork")) as loader:
            list(loader)
            os.kill(worker_pids(loader)[0], signal.SIGKILL)
            with pytest.raises(WorkerDied, match="SIGCHLD") as caught:
                while True:
                    list(loader)
            assert caught.value.exitcode is None
            return [batch[1].tolist() for batch in loader]

    assert in_child(lost) == ROWS


# ---- memory cgroups


@pytest.mark.parametrize("cgroup", [cgroup_v1, cgroup_v2])
@pytest.mark.parametrize(("nested", "method"), [(False, "thread"), (True, "fork")])
def test_a_full_memory_cgroup_is_an_error_and_no_process_is_killed(cgroup, nested, method):
    limit, size = 300 * MB, 4 * MB
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


READS = """
import sys, warnings
import slipring
from tests.support.inside import memory

class Reads:
    def __len__(self):
        return 200

    def __getitem__(self, i):
        return sum(len(names[k]) for k in range(i, len(names), 200))

memory.LOOK_S = 0.0  # check at every batch
warnings.showwarning = lambda message, category, *where: print(category.__name__, message, flush=True)
names = [f"/data/train/n0{i:09d}" for i in range(2_000_000)]
if sys.argv[1] == "StringList":
    names = slipring.StringList(names)
with slipring.Loader(Reads(), 1, num_workers=2, workers=slipring.Workers(start_method="fork")) as loader:
    print(sum(1 for _ in loader), max(loader.stats().worker_private_bytes))
"""


@pytest.mark.parametrize("cgroup", [cgroup_v1, cgroup_v2])
@pytest.mark.parametrize("kind", ["list", slow("StringList")])
def test_workers_that_copy_their_dataset_cause_a_warning_before_the_kernel_kills(cgroup, kind):
    with cgroup(400 * MB, False) as (procs, limited):
        enter = ["sh", "-c", f'echo $$ > "{procs}"; exec "$@"', "sh", sys.executable, "-c", READS, kind]
        told = subprocess.run(enter, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
        killed = oom_kills(limited)
    if kind == "list":
        assert killed > 0 and told[0].startswith("WorkerMemoryWarning ") and "WorkerMemoryWarning" not in told[1:]
        for part in (f"{limited}/memory.", "419.4 MB in all", "worker 0: ", "worker 1: ", "slipring.StringList"):
            assert part in told[0]
    else:
        ((batches, private),) = map(str.split, told)
        assert killed == 0 and batches == "200" and int(private) < 60 * MB


KEEPS = """
import json, logging
import numpy as np, slipring

said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("slipring").addHandler(handler)
with slipring.Cache("10GiB") as cache:
    kept = [cache.put(key, np.full(1 << 18, key, np.int32)) for key in range(400)]
    assert all((cache.get_or_make(key, lambda: np.int32(key)) == key).all() for key in range(400))
    print(json.dumps([sum(kept), said, cache.stats().refused_memory]))
"""


@pytest.mark.parametrize("cgroup", [cgroup_v1, cgroup_v2])
def test_a_full_memory_cgroup_ends_the_keeping_of_a_cache_and_no_process_is_killed(cgroup):
    with cgroup(400 * MB, False) as (procs, limited):
        enter = ["sh", "-c", f'echo $$ > "{procs}"; exec "$@"', "sh", sys.executable, "-c", KEEPS]
        done = subprocess.run(enter, cwd=ROOT, capture_output=True, text=True)
        assert oom_kills(limited) == 0
    assert (done.returncode, done.stderr) == (0, "")
    kept, said, refused = json.loads(done.stdout)
    # The cache may use most of the free memory, but not a sixteenth of the limit and 64 MiB.
    assert 100 < kept < 320 and refused > 50
    assert "entries are kept as long as there is room" in said[0]
    assert [line for line in said if "keeps no more" in line and "cgroup" in line] == said[1:2]


# ---- /dev/shm


BACKING = """
from slipring import Loader, Workers

with Loader(range(16), 4, num_workers=2, workers=Workers(start_method="fork")) as loader:
    print(*(batch.sum() for batch in loader), loader.stats().backing, loader.stats().backing_reason)
"""


def in_own_mounts(script):
    """Return the output of the program `BACKING` after `script` has changed the mounts for it alone."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is missing")
    mine = f'set -e; mount --make-rprivate /; {script}; exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mine, "sh", sys.executable, "-c", BACKING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode and ("not permitted" in done.stderr or "denied" in done.stderr):
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


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
    assert told.startswith("6 22 38 54 memfd ") and reason in told
