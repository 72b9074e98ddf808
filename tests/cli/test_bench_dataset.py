"""`slipring bench-dataset` measures a user's dataset, and names its bottleneck."""

import dataclasses
import json
import os
import sys
import time

import numpy as np
import pytest

from slipring import images
from tests.support import warm
from tests.support.inside import Case, Row, bench_dataset, limits, sweep

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


def test_each_number_of_workers_is_measured_with_and_without_transport(bench):
    told = bench("sets:Small", "--workers", "0,1,2", "--start-method", "fork", "--batch-size", "4")
    seen = [(row["workers"], row["transport"]) for row in told["rows"]]
    assert seen == [(0, True), (0, False), (1, True), (1, False), (2, True), (2, False)]
    for row in told["rows"]:
        assert row["error"] is None and row["batches"] == 5 and row["samples_per_s"] > 0
        assert row["fetch_s"] > 0 and row["first_batch_s"] > 0
    by_transport = {row["transport"]: row["mb_per_s"] / row["samples_per_s"] for row in told["rows"]}
    assert by_transport[True] > by_transport[False]
    assert set(told["verdict"]) == {f.name for f in dataclasses.fields(limits.Finding)}
    assert told["verdict"]["workers"] in (0, 1, 2)


def test_other_start_methods_and_batch_sizes_are_measured_at_the_best_number(bench):
    told = bench("sets:Small", "--workers", "0,1", "--start-method", "fork", "thread", "--batch-size", "4", "8")
    cases = [(r["workers"], r["start_method"], r["batch_size"]) for r in told["rows"] if r["transport"]]
    assert cases[:3] == [(0, "fork", 4), (1, "fork", 4), (1, "thread", 4)]
    assert cases[3][2] == 8 and len(cases) == 4
    assert all(row["error"] is None for row in told["rows"])


def test_torchs_loader_is_measured_and_full_measures_each_with_each(bench):
    pytest.importorskip("torch")
    options = "--workers", "0,1", "--start-method", "fork", "--batch-size", "4", "8", "--full"
    rows = bench("sets:Small", "--torch", *options)["rows"]
    cases = {(row["workers"], row["batch_size"], row["transport"]) for row in rows}
    assert len(cases) == len(rows) == 2 * 2 * 2 and not any(row["error"] for row in rows)


@pytest.mark.parametrize("dataset", ["sets.py:dataset", "sets:Whole", "sets:Stream"])
def test_datasets_of_all_kinds_can_be_named(bench, dataset):
    told = bench(dataset, "--workers", "1,", "--start-method", "fork")
    assert [row["error"] for row in told["rows"]] == [None, None]


def test_the_share_of_each_step_of_a_list_of_transforms_is_printed(bench):
    options = "--workers", "1,", "--start-method", "fork"
    said = "Steps, by CPU time per image: decode + crop 75%, RandAugment 25%."
    assert said in bench("sets:Stepwise", *options, json_too=False)
    out = bench("sets:Small", *options, json_too=False)
    assert "samples/s" in out and "What limits is" in out and "Steps" not in out
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
    assert len(told["rows"]) == 2
    for row in told["rows"]:
        assert row["error"] is None and row["batches"] == 5 and row[name] >= 5 * each_s


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this kernel counts no delays")
def test_the_time_on_a_processor_is_distinguished_from_the_time_that_is_slept(tmp_path):
    sweep.Announce(str(tmp_path))(0)  # this thread acts as the worker

    def spent():
        time.sleep(0.001)  # the kernel adds up a thread's processor time when it stops
        return sweep._cpu_time(str(tmp_path), Case(1, "thread", 8))[0]

    before, used = spent(), time.thread_time()
    while time.thread_time() < used + 0.02:
        pass
    computed, begun = spent(), time.perf_counter()
    time.sleep(0.02)
    assert computed - before >= 0.02
    assert spent() - computed <= time.perf_counter() - begun - 0.02


def test_the_time_on_a_processor_is_that_of_the_batches_that_are_measured(monkeypatch):
    told = iter([(1.0, 2.0), (4.0, 7.0)])
    monkeypatch.setattr(sweep, "_cpu_time", lambda folder, case: next(told))
    found = sweep.measure(sweep.Maker(list(range(100))), Case(0, "fork", 4), 20.0, 5)
    assert (found.batches, found.cpu_s, found.queued_s, found.error) == (5, 3.0, 5.0, None)
    assert found.samples_per_s == 5 * 4 / found.seconds


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


def row(workers=1, rate=100.0, method="fork", transport=True, size=10, error=None, **figures):
    """Return a row for one second of a case; its workers are busy with reading by default."""
    times = {"fetch_s": float(max(1, workers)), "cpu_s": float(max(1, workers)), "queued_s": 0.0}
    case = Case(workers, method, size, transport)
    return Row(case, 10, rate, 1.0, 1.0, error=error, **{**times, **figures})


PARTS = {"read": 0.01, "decode": 0.2, "augment": 0.3, "your_code": 0.4}
SCENES = {
    "reading computes": ([row(0), row(1), row(2, 200)], "dataset CPU", 2, True),
    "one worker is enough": ([row(0), row(1), row(2, 105)], "dataset CPU", 0, False),
    "reading waits": ([row(1, cpu_s=0.1), row(2, 200, cpu_s=0.1)], "dataset waiting", 2, True),
    "the kernel does not tell": ([row(1, cpu_s=None, queued_s=None)], "dataset CPU", 1, False),
    "too few processors": ([row(1), row(2, 101, cpu_s=1.0, queued_s=1.0)], "dataset CPU", 1, False),
    "collation": ([row(1, fetch_s=0.1, collate_s=0.9)], "collation", 1, False),
    "the consumer": ([row(1, fetch_s=0.1, slot_wait_s=0.9, consumer_wait_s=0.1)], "consumer", 1, False),
    "transport": ([row(1), row(1, 300, transport=False)], "transport", 1, False),
    "reading, slower by chance where it has transport": (
        [row(1, fetch_s=0.9), row(1, 300, fetch_s=0.3, transport=False)], "dataset CPU", 1, False,
    ),
    "transport, of collated batches": (
        [row(1, fetch_s=0.2, collate_s=0.8), row(1, 300, fetch_s=0.2, transport=False)], "transport", 1, False,
    ),
    "waking": ([row(1, fetch_s=0.1, slot_wait_s=0.9, consumer_wait_s=0.9)], "hand-over", 1, False),
    "waking, and no faster without transport": (
        [row(1, 793_049, fetch_s=0.1, consumer_wait_s=0.9), row(1, 757_193, transport=False)], "hand-over", 1, False,
    ),
    "the GIL": (
        [row(1, method="thread"), row(2, 150, method="thread", cpu_s=1.0), row(4, 151, method="thread", cpu_s=1.0)],
        "GIL", 2, False,
    ),
    "memory": ([row(1), row(2, 200), row(4, error="SegmentFull: no memory")], "memory", 2, True),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_the_verdict_names_the_bottleneck(name):
    rows, limit, workers, more = SCENES[name]
    verdict = limits.judge(rows, processors=16)
    assert (verdict.limit, verdict.workers, verdict.more_may_help) == (limit, workers, more), verdict
    assert "What limits is" in verdict.sentence


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [row(1), row(2, 200), row(2, 100, method="thread", cpu_s=1.0)],
            "Threads give 100 samples/s: they wait for the GIL",
        ),
        ([row(1), row(2, 200), row(2, 300, method="thread")], "Threads are faster"),
        ([row(1), row(1, 300, size=100)], "Batches of 100 give 300 samples/s"),
        ([row(1, parts=PARTS)], "(20% decode, 30% augment, 40% your code)."),
        ([row(1, parts=PARTS, cpu_s=0.1)], "(20% decode, 30% augment, 40% your code)."),
        ([row(0), row(2, 105)], "No workers are needed (100 samples/s)."),
        (
            [row(1), row(2, 200), row(4, error="SegmentFull: x")],
            "memory: 4 workers by fork, batches of 10 failed with SegmentFull: x",
        ),
    ],
)
def test_what_else_the_rows_show_is_in_the_sentence(rows, said):
    assert said in limits.judge(rows, 16).sentence
    assert said not in limits.judge([row(1)], 16).sentence


def test_a_dataset_that_collates_images_of_different_sizes_is_measured_without_transport():
    data = images.Annotated([{"image": np.zeros((20 + n, 30, 3), np.uint8)} for n in range(8)])
    for torch in (False, True):
        with sweep.Maker(data, torch=torch).open(Case(0, "fork", 4, transport=False), None) as loader:
            assert len(next(iter(loader))) == 1
