"""A loop that hangs before a verdict is possible: its report names the worker and its activity.

The programs are real, and observed from outside as by `slipring top`. Only the clock of the report is set forward.
"""

import os

import pytest

import slipring
from tests.support.inside import Snapshot, Watch, activities, attach, engine_of, look, now, starting, verdict
from tests.support.processes import until
from tests.support.scenes import Gate
from tests.support.watched import watched


@pytest.fixture
def gate(tmp_path):
    with Gate(tmp_path / "gate") as gate:
        yield gate


def seen(job, seconds):
    """Return a snapshot of a job, `seconds` later than now."""
    return Snapshot(job.watch, at_ns=now() + int(seconds * 1e9))


def waiting(program):
    """Return the job of a program once its loop waits for a batch."""
    (job,) = attach(program.pid)
    until(lambda: job.watch.segment_info()["ready_waiters"], "the loop waits")
    return job


@pytest.mark.parametrize("start_method", ["fork", "thread"])
def test_workers_that_hang_in_worker_init_fn_are_named(gate, start_method):
    with watched("beginning", gate=gate.path, num_workers=2, start_method=start_method) as program:
        pids = {gate.arrived(), gate.arrived()}
        job = waiting(program)
        early, late = verdict(seen(job, 5)), verdict(seen(job, 60))
        gate.open(2)
        assert program.line()["done"]
    for found in (early, late):
        assert "Worker 0 (pid " in found.sentence and "and worker 1 (pid " in found.sentence
        assert "have not started after" in found.sentence and "worker_init_fn" in found.sentence
        assert all(f"(pid {pid})" in found.sentence for pid in pids)
    assert early.cause == "unknown" and early.sentence.startswith("Too early to tell: 0 batches so far. ")
    assert (late.cause, late.data_bound) == ("starting", True) and "Too early" not in late.sentence
    assert f"py-spy dump --pid {late.sentence.split('(pid ')[1].split(')')[0]}" in late.advice


def test_workers_that_hang_before_they_join_the_segment_are_not_taken_for_the_loop_itself(gate):
    with watched("unpickling", gate=gate.path) as program:
        gate.arrived()
        job = waiting(program)
        snapshot = seen(job, 60)
        found, does = verdict(snapshot), [each.what for each in activities(snapshot, job)]
        gate.open()
        assert program.line()["done"]
    assert found.cause == "starting" and "No worker has started after " in found.sentence
    assert "unpickle the dataset" in found.sentence
    assert does == ["waiting for workers"] and not snapshot.inline


def test_a_worker_that_hangs_within_the_first_batches_is_named(gate):
    options = {"num_workers": 2, "batch_size": 4, "n": 400}
    with watched("hung", gate=gate.path, index=9, **options) as program:
        pid = gate.arrived()
        job = waiting(program)
        until(lambda: len(Snapshot(job.watch).taken) == 2, "the loop has the batches before")
        early, late = verdict(seen(job, 5)), verdict(seen(job, 60))
        gate.open()
        assert program.line()["done"]
    assert early.cause == "unknown" and "2 batches so far" in early.sentence
    assert late.cause == "hung" and "Too early" not in late.sentence
    for found in (early, late):
        assert f"(pid {pid}) has been reading one sample for" in found.sentence
        assert "row 1 of its batch, which begins at index 8" in found.sentence


def test_a_first_step_that_takes_long_is_named():
    with watched("held", num_workers=1) as program:
        (job,) = attach(program.pid)
        found = verdict(seen(job, 40))
    assert found.cause == "unknown" and "The loop has been in its step for " in found.sentence


def test_a_worker_that_starts_slowly_is_no_cause_while_others_deliver():
    goes_on, told = os.pipe()

    def init(worker):
        if worker == 1:
            os.read(goes_on, 1)

    forked = slipring.Workers(start_method="fork")
    with slipring.Loader(range(200), 4, num_workers=2, worker_init_fn=init, workers=forked) as loader:
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        until(lambda: look(engine_of(loader).ring).there.sum() == 2, "the other one has joined")
        snapshot = Snapshot(Watch(engine_of(loader).ring.controls), at_ns=now() + 60_000_000_000)
        found, (_, named, _) = verdict(snapshot).cause, starting(snapshot)
        os.write(told, b"x")
    os.close(goes_on)
    os.close(told)
    assert found != "starting" and named.startswith("Worker 1 (pid ")
