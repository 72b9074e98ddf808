"""Reports on workers that have ended or died, and reports right after a change of their number."""

import gc
import json
import os

import pytest

from slipring import Loader, Workers
from tests.monitor.simulated import Job
from tests.support.datasets import Squares
from tests.support.inside import NO_SLOT, Figures, Snapshot, Watch, engine_of, look, now, verdict
from tests.support.options import grouped
from tests.support.processes import alive, kill_worker, state, until, wait_dead, worker_pids
from tests.support.scenes import Gate, Rows, respawning
from tests.support.watched import run

LATER = 60_000_000_000  # ns: after that a worker that still reads the same sample counts as hanging


def seen_later(loader):
    return verdict(Snapshot(Watch(engine_of(loader).ring.controls), at_ns=now() + LATER))


# ---- workers that have left


def test_workers_that_have_left_are_in_no_figures_and_not_listed_by_commands(capsys):
    gc.collect()  # segments of earlier tests that an exception has kept
    with Loader(Squares(4000), 2, num_workers=4, workers=Workers(start_method="fork")) as loader:
        batches = iter(loader)
        for _ in range(40):
            next(batches)
        until(lambda: engine_of(loader).pool.at_target, "all four have begun")
        assert [row.worker for row in loader.report().workers] == [0, 1, 2, 3]
        asked = now()
        loader.resize(2)
        # This holds before the workers are reaped, too.
        until(lambda: int(look(engine_of(loader).ring).there.sum()) == 2, "two have left")
        rows = json.loads(run(capsys, "ps", "--json")[1])["jobs"]
        assert [row["workers"] for row in rows if row["pid"] == os.getpid()] == [2]
        top = json.loads(run(capsys, "top", os.getpid(), "--json")[1])["participants"]
        assert [each["name"] for each in top] == ["consumer", "worker 0", "worker 1"]
        dump = run(capsys, "dump", os.getpid())[1]
        assert "worker 1, pid" in dump and "worker 2, pid" not in dump
        assert (look(engine_of(loader).ring).participants["at_since"][3:5] >= asked).all()  # when they ended
        assert [row.worker for row in loader.report().workers] == [0, 1]
        assert Figures(look(engine_of(loader).ring)).n_workers == 2
        for _ in range(40):
            next(batches)
        assert [row.worker for row in loader.report().workers] == [0, 1]


def test_the_end_of_an_epoch_waits_for_workers_that_have_left():
    with Loader(Squares(4000), 2, num_workers=3, workers=Workers(start_method="fork")) as loader:
        batches = iter(loader)
        next(batches)
        pids = worker_pids(loader)
        loader.resize(1)
        until(lambda: len(engine_of(loader).pool.poll.ready()) == 2, "two have ended")
        batches.close()
        assert [state(pids[number]) for number in (1, 2)] == ["", ""] and alive(pids[0])


# ---- workers that have died


def test_one_that_has_died_does_not_hang_and_leaves_its_number_nothing(tmp_path):
    with Gate(tmp_path / "a") as first, Gate(tmp_path / "b") as second:
        data = Rows(80, on={1: first, 9: second})
        with Loader(data, **grouped(**respawning(num_workers=2, start_method="fork"))) as loader:
            batches = iter(loader)
            for gate in (first, second):
                gate.arrived()
            watch, dead = Watch(engine_of(loader).ring.controls), worker_pids(loader)[1]
            assert seen_later(loader).cause == "hung"
            loader.resize(1)
            kill_worker(loader, 1)
            wait_dead(dead)
            for gate in (first, second):
                gate.open(2)
            # Four batches were dispatched; the dead worker keeps one of them.
            until(lambda: watch.participants()[1]["batches"] == 3, "the other worker makes the other three")
            until(lambda: watch.participants()[1]["at_slot"] == NO_SLOT, "the other worker waits for a task")
            assert watch.participants()[2]["at_slot"] != NO_SLOT  # the dead worker's slot
            assert seen_later(loader).cause != "hung"
            for _ in range(9):
                next(batches)
            assert list(worker_pids(loader)) == [0]
            loader.resize(2)  # the dead worker needs no further action
            until(lambda: engine_of(loader).pool.at_target, "the new one has begun")
            assert worker_pids(loader)[1] != dead and seen_later(loader).cause != "hung"
            assert loader.report().workers[1].batches == 0
            assert len(list(batches)) == 1


# ---- a share of the time, right after a change


@pytest.mark.parametrize(
    ("job", "workers"),
    [
        ({"workers": 1, "batches": 70, "step": 0.1, "resized": {60: 8}}, 8),  # new workers
        ({"workers": 8, "step": 1, "resized": {10: 1}}, 1),  # workers that left long ago
    ],
    ids=["new", "gone"],
)
def test_workers_count_as_busy_or_idle_only_while_they_exist(job, workers):
    f = Figures(Job(fetch=4, **job).snapshot())
    # Eight workers over this whole time would be busy for an eighth of it.
    assert f.n_workers == workers and f.busy > 0.9


def test_workers_that_left_do_not_make_those_that_stay_look_busy():
    stays, shrinks = (Job(workers=8, fetch=1, step=4, resized=then) for then in ({}, {98: 1}))
    before, after = Figures(stays.snapshot()), Figures(shrinks.snapshot())
    assert (before.n_workers, after.n_workers) == (8, 1)
    # One worker's time would be an eighth of theirs.
    assert before.busy == pytest.approx(1 / 32, rel=0.1) and after.busy == pytest.approx(before.busy, rel=0.1)
