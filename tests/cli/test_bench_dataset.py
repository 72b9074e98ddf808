"""`slipring bench-dataset` measures a user's dataset, and names its bottleneck."""

import dataclasses
import json
import sys

import pytest

from tests.support import warm
from tests.support.inside import Case, Row, bench_dataset, limits

DATASETS = """
import threading, time
import numpy as np


class Base:
    def __len__(self):
        return 100

class Small(Base):
    def __getitem__(self, i):
        return np.arange(8), i

class Stepwise(Small):
    def step_times(self):
        return {"decode + crop": 0.003, "RandAugment": 0.001}

class Waiting(Base):
    def __getitem__(self, i):
        time.sleep(0.01)
        return i

class Failing(Base):
    def __getitem__(self, i):
        if i == 37:
            raise KeyError("no such file")
        return i

class Exiting(Base):
    def __getitem__(self, i):
        raise SystemExit(5)

class Whole(Base):
    def fetch_into(self, indices, empty):
        rows = empty((len(indices), 8), np.int64)
        rows[:] = np.asarray(indices)[:, None]
        return rows

class Stream:
    def __iter__(self):
        return iter(range(20))

class Empty(Small):
    def __len__(self):
        return 0

class Unpicklable(Small):
    def __init__(self):
        self.lock = threading.Lock()

dataset = Small()
number = 7

def broken():
    raise ValueError("no data here")

def slow_collate(samples):
    begun = time.thread_time()
    while time.thread_time() < begun + 0.02:
        pass
    return len(samples)
"""


@pytest.fixture
def bench(tmp_path):
    """A function that runs the command in the datasets' folder; it returns the output, parsed by default."""
    (tmp_path / "sets.py").write_text(DATASETS)

    def run(*arguments, json_too=True, code=0):
        short = ["--batches", "5", "--seconds", "20", *(["--json"] if json_too else [])]
        done = warm.run(
            [sys.executable, "-m", "slipring", "bench-dataset", *arguments, *short],
            capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        if code:
            assert done.stderr.count("\n") == 1, done.stderr
            assert "Traceback" not in done.stderr and not done.stdout
            return done.stderr
        return json.loads(done.stdout) if json_too else done.stdout

    return run


def test_each_number_of_workers_is_measured(bench):
    told = bench("sets:Small", "--workers", "0,1,2", "--start-method", "fork", "--batch-size", "4")
    assert [row["workers"] for row in told["rows"]] == [0, 1, 2]
    for row in told["rows"]:
        assert row["error"] is None and row["batches"] == 5 and row["samples_per_s"] > 0
        assert row["fetch_s"] > 0 and row["first_batch_s"] > 0 and row["mb_per_s"] > 0
        assert bool(row["cause"]) == bool(row["text"]) == (row["workers"] > 0)
    assert set(told["verdict"]) == {f.name for f in dataclasses.fields(limits.Finding)}
    assert told["verdict"]["workers"] in (0, 1, 2)


def test_other_start_methods_and_batch_sizes_are_measured_at_the_best_number(bench):
    told = bench("sets:Small", "--workers", "0,1", "--start-method", "fork", "thread", "--batch-size", "4", "8")
    cases = [(r["workers"], r["start_method"], r["batch_size"]) for r in told["rows"]]
    assert cases[:3] == [(0, "fork", 4), (1, "fork", 4), (1, "thread", 4)]
    assert cases[3][2] == 8 and len(cases) == 4
    assert all(row["error"] is None for row in told["rows"])


def test_torchs_loader_is_measured_and_full_measures_each_with_each(bench):
    pytest.importorskip("torch")
    options = "--workers", "0,1", "--start-method", "fork", "--batch-size", "4", "8", "--full"
    rows = bench("sets:Small", "--torch", *options)["rows"]
    cases = {(row["workers"], row["batch_size"]) for row in rows}
    assert len(cases) == len(rows) == 2 * 2 and not any(row["error"] for row in rows)


@pytest.mark.parametrize("dataset", ["sets.py:dataset", "sets:Whole", "sets:Stream"])
def test_datasets_of_all_kinds_can_be_named(bench, dataset):
    told = bench(dataset, "--workers", "1,", "--start-method", "fork")
    assert [row["error"] for row in told["rows"]] == [None]


def test_the_share_of_each_step_of_a_list_of_transforms_is_printed(bench):
    options = "--workers", "1,", "--start-method", "fork"
    said = "Steps, by CPU time per image: decode + crop 75%, RandAugment 25%."
    assert said in bench("sets:Stepwise", *options, json_too=False)
    out = bench("sets:Small", *options, json_too=False)
    assert "samples/s" in out and "1 worker is enough" in out and "Steps" not in out
    assert bench("sets:Stepwise", *options)["step_s"] == {"decode + crop": 0.003, "RandAugment": 0.001}


@pytest.mark.parametrize(
    ("dataset", "options", "name", "each_s"),
    [
        ("Waiting", (), "fetch_s", 8 * 0.01),
        ("Small", ("--collate", "sets:slow_collate"), "collate_s", 0.02),
    ],
)
def test_the_times_of_a_dataset_are_in_its_row(bench, dataset, options, name, each_s):
    told = bench(f"sets:{dataset}", *options, "--workers", "1,", "--start-method", "fork", "--batch-size", "8")
    (row,) = told["rows"]
    assert row["error"] is None and row["batches"] == 5 and row[name] >= 5 * each_s
    assert told["verdict"]["limit"] == row["cause"] and row["text"] in told["verdict"]["sentence"]
    if name == "collate_s":
        assert "collate_fn" in row["text"]
    else:
        assert row["on_cpu"] < 0.5


def test_a_dataset_that_cannot_be_pickled_is_a_row_with_the_reason(bench):
    told = bench("sets:Unpicklable", "--workers", "1,", "--start-method", "fork", "spawn")
    errors = {row["start_method"]: row["error"] for row in told["rows"]}
    assert errors["fork"] is None and "pickle" in errors["spawn"]
    assert "pickle" in bench("sets:Unpicklable", "--workers", "1,", "--start-method", "spawn", code=1)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nosuch:thing"], 2, "there is no module nosuch"),
        (["nosuch.py:thing"], 2, "there is no file nosuch.py"),
        (["sets:nothing"], 2, "sets has no 'nothing'"),
        (["sets"], 2, "must be module:name"),
        (["sets:Exiting", "--workers", "0,1"], 1, "sets:Exiting: SystemExit: 5"),
        (["sets:number"], 2, "is of type int: give a dataset, or a function that returns one"),
        (["sets:broken"], 1, "sets:broken() raised ValueError: no data here"),
        (["sets:Empty"], 1, "is empty"),
        (["sets:Small", "--collate", "sets:number"], 2, "cannot be called"),
        (["sets:Small", "--workers", "many"], 2, "must be numbers from 0"),
        (["sets:Small", "--batch-size", "0"], 2, "above 0"),
        (["sets:Small", "--torch", "--start-method", "thread"], 2, "thread workers"),
        (["sets:Failing", "--workers", "1,"], 1, "sets:Failing: in worker 0 at index 37: KeyError: 'no such file"),
    ],
)
def test_errors_are_one_line_that_names_what_is_wrong(bench, arguments, code, said):
    if "--torch" in arguments:
        pytest.importorskip("torch")
    assert said in bench(*arguments, code=code)


def test_a_module_that_cannot_be_imported_is_named(bench, tmp_path):
    (tmp_path / "bad.py").write_text("import nosuchlibrary")
    assert "importing bad raised ModuleNotFoundError: No module named 'nosuchlibrary'" in bench("bad:x", code=1)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "json.py").write_text("class A: pass")
    assert "has the name of another module" in bench("inner/json.py:A", code=2)


def test_the_numbers_of_workers_up_to_a_most():
    assert [bench_dataset.up_to(most) for most in (0, 1, 6)] == [[0], [0, 1], [0, 1, 2, 4, 6]]


# ---- the verdict on the figures


def row(workers=1, rate=100.0, method="fork", size=10, cause="compute", error=None):
    """Return a row for one second of a case."""
    cause = cause if workers else ""
    return Row(Case(workers, method, size), 10, rate, 1.0, 1.0, cause=cause, text=cause and f"{cause}!", error=error)


SCENES = {
    "it computes": ([row(0), row(1), row(2, 200)], "compute", 2, True),
    "no worker is needed": ([row(0), row(1, cause="tiny"), row(2, 105)], "tiny", 0, False),
    "only the loop": ([row(0)], "no_workers", 0, False),
    "it waits": ([row(1), row(2, 200, cause="storage")], "storage", 2, True),
    "too few processors": ([row(16), row(32, 200)], "compute", 32, False),
    "more processors than it takes to wait": ([row(16), row(32, 200, cause="storage")], "storage", 32, True),
    "one is enough": ([row(1, cause="pickled"), row(2, 101)], "pickled", 1, False),
    "memory": ([row(1), row(2, 200), row(4, error="SegmentFull: no memory")], "memory", 2, True),
}


@pytest.mark.parametrize("name", SCENES)
def test_the_verdict_names_the_bottleneck(name):
    rows, limit, workers, more = SCENES[name]
    verdict = limits.judge(rows, processors=16)
    assert (verdict.limit, verdict.workers, verdict.more_may_help) == (limit, workers, more), verdict
    assert limit in ("memory", "no_workers") or verdict.sentence.startswith(f"{limit}! ")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(1), row(2, 200), row(2, 300, method="thread")], "Threads are faster: 300 samples/s with 2."),
        ([row(1), row(1, 300, size=100)], "Batches of 100 give 300 samples/s"),
        ([row(0), row(2, 105)], "No workers are needed (100 samples/s)."),
        (
            [row(1), row(2, 200)],
            "still faster than with fewer (200 samples/s): more may help; there are 16 processors.",
        ),
        ([row(16), row(32, 200)], "16 processors serve no more."),
        (
            [row(1), row(2, 200), row(4, error="SegmentFull: x")],
            "memory: 4 workers by fork, batches of 10 failed with SegmentFull: x. 2 workers are enough (200",
        ),
    ],
)
def test_what_else_the_rows_show_is_in_the_sentence(rows, said):
    assert said in limits.judge(rows, 16).sentence
    assert said not in limits.judge([row(1)], 16).sentence


def test_slower_threads_are_not_mentioned():
    assert "Threads" not in limits.judge([row(1), row(2, 200), row(2, 100, method="thread")], 16).sentence
