"""`slipring bench-dataset` measures a user's dataset, and names its bottleneck."""

import dataclasses
import json
import os
import sys
import time

import numpy as np
import pytest

from slipring import images
from slipring._cli import bench_dataset, limits, sweep
from slipring._cli.sweep import Case, Row
from tests.support import warm

DATASETS = """
import threading, time
import numpy as np


class Base:
    def __len__(self):
        return 100

class Small(Base):
    def __getitem__(self, i):
        return np.arange(8), i

class Computing(Base):
    def __getitem__(self, i):
        begun = time.thread_time()
        while time.thread_time() < begun + 0.002:
            pass
        return i

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

class Exiting(Base):
    def __getitem__(self, i):
        raise SystemExit(5)

def exits():
    raise SystemExit(5)

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
    methods = ["fork", "thread", "forkserver", "spawn"]
    told = bench("sets:Small", "--workers", "0,1", "--start-method", *methods, "--batch-size", "4", "8")
    cases = [(r["workers"], r["start_method"], r["batch_size"]) for r in told["rows"] if r["transport"]]
    assert cases[:2] == [(0, "fork", 4), (1, "fork", 4)]
    assert cases[2:5] == [(1, "thread", 4), (1, "forkserver", 4), (1, "spawn", 4)]
    assert cases[5][2] == 8 and len(cases) == 6
    assert all(row["error"] is None for row in told["rows"])


def test_full_measures_each_with_each(bench):
    told = bench(
        "sets:Small", "--workers", "0,1", "--start-method", "fork", "thread", "--batch-size", "4", "8", "--full"
    )  # fmt: skip
    cases = {(r["workers"], r["start_method"], r["batch_size"], r["transport"]) for r in told["rows"]}
    assert len(cases) == len(told["rows"]) == 2 * 3 * 2


@pytest.mark.parametrize("dataset", ["sets:dataset", "sets.py:Small", "sets:Whole", "sets:Stream"])
def test_datasets_of_all_kinds_can_be_named(bench, dataset):
    told = bench(dataset, "--workers", "1,", "--start-method", "fork")
    assert [row["error"] for row in told["rows"]] == [None, None]


def test_the_table_and_the_sentence_are_printed(bench):
    out = bench("sets:Small", "--workers", "1,", "--start-method", "fork", json_too=False)
    assert "samples/s" in out and "What limits is" in out and "enough" in out


def test_the_share_of_each_step_of_a_list_of_transforms_is_printed(bench):
    options = "--workers", "1,", "--start-method", "fork"
    said = "Steps, by CPU time per image: decode + crop 75%, RandAugment 25%."
    assert said in bench("sets:Stepwise", *options, json_too=False)
    assert "Steps" not in bench("sets:Small", *options, json_too=False)
    assert bench("sets:Stepwise", *options)["step_s"] == {"decode + crop": 0.003, "RandAugment": 0.001}


def test_without_rich_the_command_says_what_to_install_before_it_measures(bench, tmp_path):
    plain = tmp_path / "rich"
    plain.mkdir()
    (plain / "__init__.py").write_text("raise ImportError('as if it were not there')")
    said = bench("sets:Exiting", "--workers", "1,", json_too=False, code=1)
    assert said.endswith("(as if it were not there): pip install slipring[monitor]\n")
    assert bench("sets:Small", "--workers", "1,", "--start-method", "fork")["rows"]


@pytest.mark.parametrize(
    ("dataset", "options", "name", "each_s"),
    [
        ("Computing", (), "fetch_s", 8 * 0.002),
        ("Waiting", (), "fetch_s", 8 * 0.01),
        ("Small", ("--collate", "sets:slow_collate"), "collate_s", 0.02),
    ],
)
def test_the_memory_of_a_dataset_is_in_its_row(bench, dataset, options, name, each_s):
    told = bench(f"sets:{dataset}", *options, "--workers", "1,", "--start-method", "fork", "--batch-size", "8")
    assert len(told["rows"]) == 2
    for row in told["rows"]:
        assert row["error"] is None and row["batches"] == 5 and row[name] >= 5 * each_s


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this kernel counts no delays")
def test_the_time_on_a_processor_is_distinguished_from_the_time_that_is_slept(tmp_path):
    case = Case(1, "thread", 8)
    sweep.Announce(str(tmp_path))(0)  # this thread acts as the worker

    def spent(spend):
        begun, used = time.perf_counter(), time.thread_time()
        time.sleep(0.001)  # the kernel adds up a thread's processor time when it stops
        before, queued = sweep._processor_time(str(tmp_path), case)
        spend()
        time.sleep(0.001)
        after, queued_now = sweep._processor_time(str(tmp_path), case)
        assert queued_now >= queued
        # Other threads may get the processor for any time; this thread's own time does not grow then.
        assert after - before <= time.thread_time() - used
        return after - before, time.perf_counter() - begun

    def compute():
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    assert spent(compute)[0] >= 0.02
    on_cpu, took = spent(lambda: time.sleep(0.02))
    assert on_cpu <= took - 0.02


def test_the_time_on_a_processor_is_that_of_the_batches_that_are_measured(monkeypatch):
    told = iter([(1.0, 2.0), (4.0, 7.0)])
    monkeypatch.setattr(sweep, "_processor_time", lambda folder, case: next(told))
    found = sweep.measure(sweep.Maker(list(range(100))), Case(0, "fork", 4), 20.0, 5)
    assert (found.batches, found.cpu_s, found.queued_s, found.error) == (5, 3.0, 5.0, None)
    assert found.samples_per_s == 5 * 4 / found.seconds


class LettingIn:
    """A dataset whose worker waits at a FIFO at index 40."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 10_000

    def __getitem__(self, i):
        if i == 40:
            self.path.open("w").close()
        return i


def test_a_worker_that_starts_late_is_waited_for(tmp_path, monkeypatch):
    fifo, announce = tmp_path / "fifo", sweep.Announce.__call__
    os.mkfifo(fifo)

    def late(self, worker):
        if worker == 1:
            fifo.open().close()
        announce(self, worker)

    monkeypatch.setattr(sweep.Announce, "__call__", late)
    found = sweep.measure(sweep.Maker(LettingIn(fifo)), Case(2, "fork", 4), 20.0, 5)
    assert (found.batches, found.error) == (5, None)


def test_torchs_loader_is_measured(bench):
    pytest.importorskip("torch")
    told = bench("sets:Small", "--torch", "--workers", "0,1", "--start-method", "fork")
    assert [row["error"] for row in told["rows"]] == [None] * 4
    assert "thread workers" in bench("sets:Small", "--torch", "--start-method", "thread", code=2)


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
        (["sets:exits"], 1, "sets:exits() raised SystemExit: 5"),
        (["sets:number"], 2, "is of type int: give a dataset, or a function that returns one"),
        (["sets:broken"], 1, "sets:broken() raised ValueError: no data here"),
        (["sets:Empty"], 1, "is empty"),
        (["sets:Small", "--collate", "sets:number"], 2, "cannot be called"),
        (["sets:Small", "--workers", "many"], 2, "must be numbers from 0"),
        (["sets:Small", "--batch-size", "0"], 2, "above 0"),
        (["sets:Small", "--start-method", "magic"], 2, "invalid choice"),
        (["sets:Failing", "--workers", "1,"], 1, "sets:Failing: in worker 0 at index 37: KeyError: 'no such file"),
        (["sets:Failing", "--workers", "0,", "--batch-size", "50"], 1, "KeyError: 'no such file"),
    ],
)
def test_errors_are_one_line_that_names_what_is_wrong(bench, arguments, code, said):
    assert said in bench(*arguments, code=code)


def test_a_module_that_fails_to_be_imported_is_named(bench, tmp_path):
    (tmp_path / "bad.py").write_text("import nosuchlibrary")
    assert "importing bad raised ModuleNotFoundError: No module named 'nosuchlibrary'" in bench("bad:x", code=1)


def test_a_file_with_the_name_of_another_module_is_refused(bench, tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "json.py").write_text("class A: pass")
    assert "has the name of another module" in bench("inner/json.py:A", code=2)


def test_the_numbers_of_workers_up_to_a_most():
    assert bench_dataset.up_to(0) == [0]
    assert bench_dataset.up_to(1) == [0, 1]
    assert bench_dataset.up_to(6) == [0, 1, 2, 4, 6]
    assert bench_dataset.up_to(8) == [0, 1, 2, 4, 8]


# ---- the verdict on the figures


def row(workers=1, rate=100.0, method="fork", transport=True, size=10, error=None, **figures):
    """Return a row for one second of a case; its workers are busy with reading by default."""
    times = {"fetch_s": float(max(1, workers)), "cpu_s": float(max(1, workers)), "queued_s": 0.0}
    case = Case(workers, method, size, transport)
    return Row(case, 10, rate, 1.0, 1.0, error=error, **{**times, **figures})


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
    "the same, with no workers": (
        [row(0, fetch_s=0.9), dataclasses.replace(row(0, 300, fetch_s=0.9, transport=False), batches=30)],
        "dataset CPU", 0, False,
    ),
    "transport, of collated batches": (
        [row(1, fetch_s=0.2, collate_s=0.8), row(1, 300, fetch_s=0.2, transport=False)], "transport", 1, False,
    ),
    "waking": ([row(1, fetch_s=0.1, slot_wait_s=0.9, consumer_wait_s=0.9)], "hand-over", 1, False),
    "waking, and no faster without transport": (
        [row(1, 793_049, fetch_s=0.1, consumer_wait_s=0.9), row(1, 757_193, transport=False)], "hand-over", 1, False,
    ),
    "waking, for copied batches": (
        [row(1, fetch_s=0.1, consumer_wait_s=0.9), row(1, 300, transport=False)], "transport", 1, False,
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


def test_threads_that_wait_for_the_gil_are_named_beside_processes():
    rows = [row(1), row(2, 200), row(2, 100, method="thread", cpu_s=1.0)]
    assert "Threads give 100 samples/s: they wait for the GIL" in limits.judge(rows, 2).sentence
    rows = [row(1), row(2, 200), row(2, 300, method="thread")]
    assert "Threads are faster" in limits.judge(rows, 2).sentence


def test_a_faster_batch_size_is_named():
    rows = [row(1), row(1, 300, size=100)]
    assert "Batches of 100 give 300 samples/s" in limits.judge(rows, 2).sentence


def test_page_faults_that_take_a_fifth_of_the_workers_time_are_named():
    assert "takes 9,000 page faults, about 22%" in limits.judge([row(1, faults=9000.0)], 2).sentence
    assert "page faults" not in limits.judge([row(1, faults=5000.0)], 2).sentence


@pytest.mark.parametrize("figures", [{}, {"cpu_s": 0.1}], ids=["computes", "waits"])
def test_the_parts_of_fetching_that_a_dataset_reports_are_in_the_sentence(figures):
    parts = {"read": 0.01, "decode": 0.2, "augment": 0.3, "your_code": 0.4}
    assert "(20% decode, 30% augment, 40% your code)." in limits.judge([row(1, parts=parts, **figures)], 16).sentence
    assert "(" not in limits.judge([row(1, **figures)], 16).sentence.split(". ")[0].replace("(storage,", "")


def test_if_none_are_needed_it_says_so():
    assert "No workers are needed (100 samples/s)." in limits.judge([row(0), row(2, 105)], 2).sentence


def test_no_figures_give_no_verdict():
    assert limits.judge([row(1, error="SegmentFull: no memory")], 2) is None


def test_a_case_describes_itself():
    assert str(sweep.Case(2, "fork", 8)) == "2 workers by fork, batches of 8"
    assert str(sweep.Case(0, "fork", 8, False)) == "0 workers, batches of 8, dropped in the worker"


def test_a_dataset_that_collates_images_of_different_sizes_is_measured_without_transport():
    data = images.Annotated([{"image": np.zeros((20 + n, 30, 3), np.uint8)} for n in range(8)])
    for torch in (False, True):
        with sweep.Maker(data, torch=torch).open(Case(0, "fork", 4, transport=False), None) as loader:
            assert len(next(iter(loader))) == 1
