"""SLIPRING_RECORD: a file shows the activities of a killed job; no job fails without the file."""

import os
import signal
import warnings

import numpy as np
import pytest

import slipring
from tests.support.datasets import Squares, flat, numbers
from tests.support.inside import NoSegment, Watch, engine_of, observing
from tests.support.parts import slow
from tests.support.processes import LONG_S, Program, in_child, wait_dead
from tests.support.scenes import Gate

records = observing("snapshot")

pytestmark = pytest.mark.fault


def read(path):
    """Return a `Watch` of a copy of a file."""
    with open(path, "rb") as file:
        return Watch(file.fileno(), True)


def program(path, *args):
    return Program(*args, env={**os.environ, "SLIPRING_RECORD": os.fspath(path)})


@pytest.mark.parametrize("method", ["fork", slow("spawn")])
def test_a_killed_jobs_batches_are_in_its_record_file(tmp_path, method):
    path = tmp_path / "record"
    with Gate(tmp_path / "gate"), program(path, "hold", method, "idle", tmp_path / "gate") as job:
        assert "begun" in job.line() and "workers" in job.line()
        os.killpg(job.pid, signal.SIGKILL)
        job.end()
        watch = read(path)
        taken = records.taken(records.batches(watch))
        participants = watch.participants()
    assert taken["seq"].tolist() == [0, 1, 2, 3]
    assert (taken["rows"] == 4).all() and (taken["fetch_ns"] > 0).all()
    assert participants["pid"][0] == job.pid and (participants["pid"][1:3] > 0).any()
    assert participants["batches"][1:3].sum() >= 4


def test_where_workers_hung_when_the_job_was_killed_is_in_its_record_file(tmp_path):
    path = tmp_path / "record"
    with Gate(tmp_path / "gate") as gate, program(path, "hold", "fork", "fetching", tmp_path / "gate") as job:
        pids = {gate.arrived(), gate.arrived()}
        os.kill(job.pid, signal.SIGKILL)
        for pid in pids:
            wait_dead(pid)
        watch = read(path)
    workers = watch.participants()[1:3]
    assert set(workers["pid"].tolist()) == pids and (workers["at_row"] == 0).all()
    slots = watch.slots()
    at = slots[np.isin(slots["batch"]["slot"], workers["at_slot"])]
    assert sorted(at["batch"]["seq"].tolist()) == [0, 1]
    assert set(records.states(at)) == {"claimed"}
    assert len(records.taken(records.batches(watch))) == 0


def test_a_second_loader_has_a_file_of_its_own(tmp_path, monkeypatch):
    path = tmp_path / "record"
    monkeypatch.setenv("SLIPRING_RECORD", os.fspath(path))
    with (
        slipring.Loader(Squares(8), 4, num_workers=1, persistent_workers=True) as first,
        slipring.Loader(Squares(12), 4, num_workers=1, persistent_workers=True) as second,
    ):
        assert flat(numbers(first)) == list(range(8))
        assert flat(numbers(second)) == list(range(12))
        assert sorted(os.listdir(tmp_path)) == ["record", "record.2"]
        assert [engine_of(loader).ring.record_number for loader in (first, second)] == [1, 2]
        for name, n in (("record", 2), ("record.2", 3)):
            assert len(records.taken(records.batches(read(tmp_path / name)))) == n
        with pytest.raises(NoSegment, match="SLIPRING_RECORD"):
            Watch(engine_of(first).ring.fd)
    with slipring.Loader(Squares(4), 4, num_workers=1, persistent_workers=True) as third:
        assert flat(numbers(third)) == list(range(4))
        assert engine_of(third).ring.record_number == 1  # no loader uses number 1 any more
    assert len(records.taken(records.batches(read(path)))) == 1


def test_a_queue_is_recorded_across_a_fork(tmp_path, monkeypatch):
    path = tmp_path / "record"
    monkeypatch.setenv("SLIPRING_RECORD", os.fspath(path))
    queue = slipring.Queue(4)
    queue.put(np.arange(5))
    held = queue.get()
    in_child(lambda: queue.put(np.arange(7)))
    assert queue.get(timeout=LONG_S).tolist() == list(range(7))
    assert held.tolist() == list(range(5))
    assert read(path).segment_info()["push"]


@pytest.mark.parametrize("why", ["no such folder", "somebody else's"])
def test_a_job_continues_without_a_record_file_and_says_why(tmp_path, monkeypatch, why):
    path = tmp_path / "record"
    if why == "no such folder":
        path = tmp_path / "nowhere" / "record"
    else:
        path.write_text("what somebody wants to keep")
    monkeypatch.setenv("SLIPRING_RECORD", os.fspath(path))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with slipring.Loader(Squares(8), 4, num_workers=1) as loader:
            assert flat(numbers(loader)) == list(range(8))
    told = [w for w in told if "SLIPRING_RECORD" in str(w.message)]
    assert len(told) == 1 and told[0].category is RuntimeWarning and repr(os.fspath(path)) in str(told[0].message)
    if why == "somebody else's":
        assert "is not a record of slipring" in str(told[0].message)
        assert path.read_text() == "what somebody wants to keep"
