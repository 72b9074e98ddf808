"""Real workers that hang or are stopped, before and after the first batches: the verdict names them.

Only the clock of the report is set forward.
"""

import os
import signal

import numpy as np
import pytest

import slipring
from tests.support.inside import Snapshot, Watch, activities, at_work, attach, engine_of, look, now, starting, verdict
from tests.support.processes import state, until, worker_pids
from tests.support.scenes import Gate, Rows
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


def test_workers_that_hang_in_worker_init_fn_are_named(gate):
    with watched("beginning", gate=gate.path, num_workers=2, start_method="fork") as program:
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
    assert does == ["waiting for workers"]


def forked(data, **options):
    """Return a loader with forked workers, because its datasets use objects of the test."""
    return slipring.Loader(data, 4, workers=slipring.Workers(start_method="fork"), **options)


def seen_later(loader):
    return Snapshot(Watch(engine_of(loader).ring.controls), at_ns=now() + 60_000_000_000)


def test_a_worker_that_starts_slowly_is_no_cause_while_others_deliver(gate):
    def init(worker):
        if worker == 1:
            gate()

    with forked(range(200), num_workers=2, worker_init_fn=init) as loader:
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        gate.arrived()
        snapshot = seen_later(loader)
        found, (_, named, _) = verdict(snapshot).cause, starting(snapshot)
        gate.open()
    assert found != "starting" and named.startswith("Worker 1 (pid ")


# ---- after the first batches


class Whole(Rows):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


@pytest.mark.parametrize(
    ("how", "does"),
    [
        ("sample", "row 1 of its batch, which begins at index 44"),
        ("getitems", "making one batch"),
        ("collate", "putting one batch"),
    ],
)
def test_a_worker_that_hangs_is_named_with_its_batch(gate, how, does):
    def collate(samples):
        if samples[1][1] == 45:
            gate()
        return np.stack([row for row, _ in samples])

    made = {
        "sample": lambda: forked(Rows(80, on={45: gate}), num_workers=1),
        "getitems": lambda: forked(Whole(80, on={45: gate}), num_workers=1),
        "collate": lambda: forked(Rows(80), num_workers=1, collate_fn=collate),
    }
    with made[how]() as hanging:
        batches = iter(hanging)
        for _ in range(11):  # the next one never comes
            next(batches)
        gate.arrived()
        until(lambda: at_work(look(engine_of(hanging).ring)), "the worker is at it")
        found = verdict(seen_later(hanging))
        gate.open()
    assert found.cause == "hung" and does in found.sentence and (how == "sample" or "batch 11" in found.sentence)


def test_a_worker_that_is_stopped_does_not_hang():
    with forked(Rows(80), num_workers=2) as halted:
        next(iter(halted))
        until(lambda: look(engine_of(halted).ring).there.sum() == 2, "both have begun")
        pid = worker_pids(halted)[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: state(pid) == "T", "it is stopped")
            found = halted.report().verdict
        finally:
            os.kill(pid, signal.SIGCONT)
    assert (found.cause, found.data_bound) == ("stopped", False)
    assert f"worker 1 (pid {pid})" in found.sentence and f"kill -CONT {pid}" in found.advice


def test_a_queue_without_a_reader_is_full():
    queue = slipring.Queue(4)
    for i in range(4):
        queue.put(i)
    found = queue.report().verdict
    queue.close()
    assert found.cause == "ok" and "Nobody has got any" in found.sentence
