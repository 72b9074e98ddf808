"""Sources of blocks: functions in workers, files, servers; and invalid sources."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import slipring
from slipring import Workers
from slipring.streams import Stream
from tests.support.options import grouped

ROOT = Path(__file__).resolve().parents[2]


def parts(worker, num_workers):
    """Block i is the part of worker i % num_workers."""
    for i in range(worker, 40, num_workers):
        yield {"x": np.arange(i * 5, i * 5 + 5), "pid": np.full(5, os.getpid()), "worker": np.full(5, worker)}


def batches_of_worker(worker, num_workers, batch_size):
    rows = [x for i in range(worker, 40, num_workers) for x in range(i * 5, i * 5 + 5)]
    return [rows[at : at + batch_size] for at in range(0, len(rows), batch_size)]


@pytest.mark.parametrize("method", ["fork", "spawn", "thread"])
def test_each_worker_reads_its_part_and_they_take_turns(method):
    with slipring.stream(parts, 8, num_workers=3, timeout=60, workers=Workers(start_method=method)) as loader:
        for _ in range(2):
            batches = list(loader)
            got = [[], [], []]
            for batch in batches:
                assert len(set(batch["worker"].tolist())) == 1
                got[batch["worker"][0]].append(batch["x"].tolist())
            assert got == [batches_of_worker(worker, 3, 8) for worker in range(3)]
            assert [int(batch["worker"][0]) for batch in batches[:9]] == [0, 1, 2] * 3
            pids = {int(batch["pid"][0]) for batch in batches}
            assert (pids == {os.getpid()}) if method == "thread" else (len(pids - {os.getpid()}) == 3)


def test_a_function_without_workers_gets_all():
    with slipring.stream(parts, 50) as loader:
        assert [batch["x"].tolist() for batch in loader] == batches_of_worker(0, 1, 50)


def test_an_iterator_is_read_in_this_process_by_a_thread_with_one_worker():
    def blocks():
        for _ in range(3):
            seen.append((os.getpid(), threading.current_thread() is threading.main_thread()))
            yield {"x": np.arange(4)}

    for way, by_main in (({}, True), ({"num_workers": 1}, False)):
        seen = []
        with slipring.stream(blocks(), 6, **grouped(**way)) as loader:
            assert len(list(loader)) == 2
        assert set(seen) == {(os.getpid(), by_main)}


def test_reading_draws_from_the_programs_own_generators_without_workers():
    def blocks():
        for _ in range(5):
            yield {"x": np.random.random(4)}

    np.random.seed(3)
    expected = np.random.random(20)
    np.random.seed(3)
    with slipring.stream(blocks(), 4) as loader:
        assert np.array_equal(np.concatenate([batch["x"] for batch in loader]), expected)


@pytest.mark.parametrize(("given", "kind", "text"), [
    (dict(batches=3), TypeError, "batches must be an iterable of record batches, tables or dicts of arrays, or a func"),
    (dict(batches={"x": [1]}), TypeError, "for a stream of one block give [block]"),
    (dict(batches="part-0.parquet"), TypeError, "must be an iterable of blocks, not 'part-0.parquet'"),
    (dict(batch_size=0), ValueError, "batch_size must be from 1 to"),
    (dict(batch_size=None), TypeError, "batch_size must be an int, not None"),
    (dict(shuffle_buffer=7), ValueError, "shuffle_buffer=7 rows cannot fill a batch of batch_size=8"),
    (dict(shuffle_buffer=-1), ValueError, "shuffle_buffer must be from 0"),
    (dict(columns="x"), TypeError, "not the one name 'x'"),
    (dict(columns=["x", "x"]), ValueError, "each column once"),
    (dict(columns=[]), ValueError, "columns must be None"),
    (dict(num_workers=2), ValueError, "num_workers=2 for one list, which only one can read: give a function"),
    (dict(num_workers="auto"), TypeError, "num_workers must be an int"),
    (dict(num_workers=1, start_method="fork"), ValueError, "start_method='fork' for a list of this process"),
    (dict(timeout=3), ValueError, "timeout=3 with num_workers=0: nothing can end a read"),
    (dict(drop_last=3), TypeError, "drop_last must be True or False"),
    (dict(shuffle=True), TypeError, "unexpected keyword argument 'shuffle'"),
    (dict(collate_fn=list), TypeError, "unexpected keyword argument 'collate_fn'"),
])  # fmt: skip
def test_impossible_arguments_are_refused_at_once(given, kind, text):
    with pytest.raises(kind) as caught:
        slipring.stream(**grouped(**{"batches": [{"x": [1]}], "batch_size": 8, **given}))
    assert text in str(caught.value)


def test_the_required_result_of_a_function_is_named():
    text = r"worker, num_workers\) returns must be an iterable"
    with slipring.stream(lambda worker, workers: 3, 4) as loader, pytest.raises(TypeError, match=text):
        next(iter(loader))


def test_one_stream_for_several_workers_of_another_loader_is_refused():
    text = "one stream for 2 workers, each of which would read all of it"
    loader = slipring.Loader(Stream([{"x": [1]}], 1), batch_size=None, num_workers=2)
    with loader, pytest.raises(ValueError, match=text):
        next(iter(loader))


def test_a_scanner_of_files_is_a_source(tmp_path, forked):
    pa = pytest.importorskip("pyarrow")
    dataset = pytest.importorskip("pyarrow.dataset")
    table = pa.table({"x": np.arange(5000), "y": np.arange(5000) % 7, "t": [str(i) for i in range(5000)]})
    dataset.write_dataset(table, tmp_path, format="parquet", max_rows_per_file=700, max_rows_per_group=300)

    def scan(worker, num_workers):
        data = dataset.dataset(tmp_path)
        mine = sorted(data.get_fragments(), key=lambda fragment: fragment.path)[worker::num_workers]
        for fragment in mine:
            yield from fragment.to_batches(columns=["x", "t"], filter=dataset.field("y") == 3)

    expected = [i for i in range(5000) if i % 7 == 3]
    for workers in (0, 2):
        with slipring.stream(scan, 64, num_workers=workers) as loader:
            batches = list(loader)
        assert sorted(x for batch in batches for x in batch["x"].tolist()) == expected
        assert all(batch["t"].to_pylist() == [str(x) for x in batch["x"]] for batch in batches)


@pytest.mark.parametrize("what", ["reads", "resumes"])
def test_a_flight_servers_streams_are_sources(what):
    pytest.importorskip("pyarrow.flight")
    # In a separate process: gRPC's threads and pollers stay, and a fork in such a process may hang.
    command = [sys.executable, "-m", "tests.streams.flights", what]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "as it was sent\n"), done.stderr


class Drawn:
    """Blocks with the draws and the info of the worker; a function of (worker, num_workers)."""

    def __call__(self, worker, num_workers):
        for k in range(4):
            info = slipring.get_worker_info()
            assert (info.id, info.num_workers) == (worker, num_workers)
            yield {"x": slipring.rng().normal(size=5), "seed": np.full(5, info.seed), "k": np.full(5, k)}


@pytest.mark.parametrize("shuffle_buffer", [0, 8])
def test_a_streams_function_draws_the_same_without_workers_and_in_one(shuffle_buffer):
    found = []
    for workers in (0, 1):
        options = {"num_workers": workers, "seed": 3, "shuffle_buffer": shuffle_buffer}
        with slipring.stream(Drawn(), 4, **grouped(**options)) as loader:
            found.append([{name: column.tolist() for name, column in batch.items()} for batch in loader])
    assert found[0] == found[1] and len(found[0]) == 5


def test_between_two_batches_without_workers_the_caller_is_no_worker():
    with slipring.stream(Drawn(), 4, num_workers=0) as loader:
        for _ in loader:
            assert slipring.get_worker_info() is None
            with pytest.raises(RuntimeError, match="the batch being made"):
                slipring.rng()


def test_a_collate_fn_draws_from_the_batchs_generators_with_any_number_of_workers():
    data = Stream([{"x": np.arange(30)}], 10)
    np.random.seed(3)
    expected = np.random.random()
    np.random.seed(3)
    drawn = []
    for num_workers in (0, 1):
        loader = slipring.Loader(
            data, None, collate_fn=lambda batch: np.random.random(), seed=1, num_workers=num_workers
        )
        with loader:
            drawn.append([float(x) for x in loader])
    assert drawn[0] == drawn[1] and np.random.random() == expected


def test_the_text_of_a_loader_names_its_source():
    with slipring.stream([{"x": np.arange(3)}], 2) as loader:
        assert "Stream(a list, batch_size=2)" in repr(loader)
