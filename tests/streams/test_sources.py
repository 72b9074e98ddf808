"""Sources of blocks: functions in workers, files, servers; and invalid sources."""

import functools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import slipring
from slipring import Workers
from slipring.streams import Stream
from tests.support.datasets import patiently
from tests.support.options import grouped
from tests.support.processes import LONG_S


def parts(worker, num_workers):
    """Block i is the part of worker i % num_workers."""
    for i in range(worker, 40, num_workers):
        yield {"x": np.arange(i * 5, i * 5 + 5), "pid": np.full(5, os.getpid()), "worker": np.full(5, worker)}


def batches_of_worker(worker, num_workers, batch_size):
    rows = [x for i in range(worker, 40, num_workers) for x in range(i * 5, i * 5 + 5)]
    return [rows[at : at + batch_size] for at in range(0, len(rows), batch_size)]


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_each_worker_reads_its_part_and_they_take_turns(method):
    with slipring.stream(parts, 8, num_workers=3, timeout=LONG_S, workers=Workers(start_method=method)) as loader:
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


def test_an_iterator_is_read_in_this_process_by_a_thread_with_one_worker():
    def blocks():
        for _ in range(3):
            seen.append((os.getpid(), threading.current_thread() is threading.main_thread()))
            yield {"x": np.arange(4)}

    for num_workers, by_main in ((0, True), (1, False)):
        seen = []
        with slipring.stream(blocks(), 6, num_workers=num_workers) as loader:
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
    (dict(shuffle_buffer=7), ValueError, "shuffle_buffer=7 rows cannot fill a batch of batch_size=8"),
    (dict(columns="x"), TypeError, "not the one name 'x'"),
    (dict(columns=["x", "x"]), ValueError, "each column once"),
    (dict(num_workers=2), ValueError, "num_workers=2 for one list, which only one can read: give a function"),
    (dict(num_workers="auto"), TypeError, "num_workers must be an int"),
    (dict(num_workers=1, start_method="fork"), ValueError, "start_method='fork' for a list of this process"),
    (dict(timeout=3), ValueError, "timeout=3 with num_workers=0: nothing can end a read"),
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


def scan(folder, worker, num_workers):
    from pyarrow import dataset

    fragments = sorted(dataset.dataset(folder).get_fragments(), key=lambda fragment: fragment.path)
    for fragment in fragments[worker::num_workers]:
        yield from fragment.to_batches(columns=["x", "t"], filter=dataset.field("y") == 3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_scanner_of_files_is_a_source(tmp_path, num_workers):
    pa = pytest.importorskip("pyarrow")
    dataset = pytest.importorskip("pyarrow.dataset")
    table = pa.table({"x": np.arange(5000), "y": np.arange(5000) % 7, "t": [str(i) for i in range(5000)]})
    dataset.write_dataset(table, tmp_path, format="parquet", max_rows_per_file=700, max_rows_per_group=300)
    forkserver = Workers(start_method="forkserver")
    source = functools.partial(scan, str(tmp_path))
    with slipring.stream(source, 64, num_workers=num_workers, workers=forkserver) as loader:
        batches = list(loader)
    assert sorted(x for batch in batches for x in batch["x"].tolist()) == [i for i in range(5000) if i % 7 == 3]
    assert all(batch["t"].to_pylist() == [str(x) for x in batch["x"]] for batch in batches)


FLIGHT = """
import numpy as np
import pyarrow as pa
import slipring
from pyarrow import flight


class Numbers(flight.FlightServerBase):
    def do_get(self, context, ticket):
        def batches():
            for at in range(0, 500, 30):
                if ticket.ticket == b"breaks" and at >= 240:
                    raise flight.FlightUnavailableError("this node is going away")
                yield pa.record_batch({"x": np.arange(at, min(at + 30, 500))})

        return flight.GeneratorStream(pa.schema([("x", pa.int64())]), batches())


server, seen = Numbers("grpc://127.0.0.1:0"), []
with flight.connect(("127.0.0.1", server.port)) as client:
    def stream(ticket):
        return slipring.stream(client.do_get(flight.Ticket(ticket)).to_reader(), 64, num_workers=1, timeout=600)

    with stream(b"breaks") as loader:
        try:
            for batch in loader:
                seen += batch["x"].tolist()
        except OSError as error:
            print("this node is going away" in str(error))
        state = loader.state_dict()
    with stream(b"whole") as loader:
        loader.load_state_dict(state)
        for batch in loader:
            seen += batch["x"].tolist()
server.shutdown()
print(seen == list(range(500)))
"""


def test_a_flight_servers_stream_is_a_source_and_another_one_continues_it_after_an_error():
    pytest.importorskip("pyarrow.flight")
    # In a separate process: gRPC's threads and pollers stay, and a fork in such a process may hang.
    done = subprocess.run([sys.executable, "-c", FLIGHT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\nTrue\n"), done.stderr


def test_a_source_that_stalls_is_noticed_within_the_timeout():
    go_on = threading.Event()

    def stalling():
        yield {"x": np.arange(5)}
        go_on.wait()
        yield {"x": np.arange(5, 10)}

    with slipring.stream(stalling(), 5, num_workers=1, timeout=0.5) as loader:
        iterator = iter(loader)
        assert patiently(iterator)["x"].tolist() == list(range(5))
        with pytest.raises(slipring.LoaderTimeout):
            next(iterator)
        go_on.set()
        assert patiently(iterator)["x"].tolist() == list(range(5, 10))


class Drawn:
    """Blocks with the draws and the info of the worker; a function of (worker, num_workers)."""

    def __call__(self, worker, num_workers):
        for k in range(4):
            info = slipring.get_worker_info()
            assert (info.id, info.num_workers) == (worker, num_workers)
            yield {"x": slipring.rng().normal(size=5), "seed": np.full(5, info.seed), "k": np.full(5, k)}


def test_a_streams_function_draws_the_same_without_workers_and_in_one():
    found = []
    for workers in (0, 1):
        with slipring.stream(Drawn(), 4, num_workers=workers, seed=3, shuffle_buffer=8) as loader:
            found.append([{name: column.tolist() for name, column in batch.items()} for batch in loader])
    assert found[0] == found[1] and len(found[0]) == 5
