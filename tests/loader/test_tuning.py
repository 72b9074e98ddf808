"""num_workers="auto": measurements, the numbers of workers that are tried, and why the search stops.

Real loaders test that the parts work together: the number of workers, the batches. Tests that depend on time run
on the simulated clock of `Tuned`.
"""

import dataclasses
import itertools
import logging
import math

import pytest

from slipring import Loader, Workers
from tests.loader.tuned import ENDLESS, Tuned
from tests.support.datasets import Slow, Squares
from tests.support.inside import BATCHES, NEVER, Options, Tuning, engine_of, process, tuning
from tests.support.processes import until


def settle(loader):
    """Iterate until the search has ended."""
    for _ in loader:
        if loader.tuning.settled:
            break


def test_a_number_within_its_bounds_is_found_and_logged(caplog):
    caplog.set_level(logging.INFO, "slipring")
    assert Loader(Squares(4)).tuning is None
    with Loader(Slow(ENDLESS, 0.001), 2, workers=Workers(start_method="fork"), num_workers=(None, 12)) as loader:
        assert loader.tuning == Tuning(loader.options.num_workers)
        settle(loader)
        found = loader.tuning
    assert found.settled and 1 <= found.workers <= 12 and found.reason != Tuning.reason
    assert all(1 <= workers <= 12 and rate > 0 and 0 <= share <= 1 for workers, rate, share in found.history)
    assert found.workers in [workers for workers, _, _ in found.history]
    assert any(found.reason in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("options", "workers", "reason"),
    [
        ({"most": 12}, range(12, 13), "its upper bound of 12 allows no more"),
        ({"on_cpu": 1.0, "cpus": 4}, range(4, 5), "each keeps 100% of a processor busy, and 4 are there"),
        ({"each": 0.5, "step": 4.0, "on_cpu": 1.0}, range(1, 2), "waits for 0% of its time"),
        ({"each": 8.0, "step": 1.0, "on_cpu": 1.0, "cpus": 64}, range(8, 11), ""),  # as many as are needed
        ({"each": 16.0, "step": 1.0}, range(15, 20), ""),  # processors do not matter here
        ({"each": 4.0, "step": 2.0, "on_cpu": 1.0, "cpus": 64, "workers": 16}, range(2, 5), ""),  # too many go
        ({"each": 8.0, "on_cpu": 1.0, "cpus": 1, "workers": 1}, range(1, 2), ""),
    ],
)
def test_tuning_ends_with_as_many_workers_as_help_and_gives_the_reason(monkeypatch, options, workers, reason):
    job = Tuned(monkeypatch, **{"most": 64, **options})
    job.settle()
    assert job.tuning.workers in workers, (job.tuning, job.tried)
    assert reason in job.tuning.reason


@pytest.mark.parametrize(
    ("options", "tried"),
    [({"on_cpu": 0.5, "cpus": 64, "most": 16}, [2, 4, 8]), ({"each": 20.0, "workers": 4, "most": 64}, [4, 64])],
    ids=["workers that compute are doubled", "workers that wait become as many as are allowed"],
)
def test_the_next_number_depends_on_the_work(monkeypatch, options, tried):
    job = Tuned(monkeypatch, **options)
    job.settle()
    assert job.tried[:3] == tried


@pytest.mark.parametrize(
    ("n", "serves", "begin", "most"),
    [(10, 1, 4, 64), (60, 1, 2, 16), (ENDLESS, 1, 3, 12), (ENDLESS, 3, 2, 32), (ENDLESS, 8, 2, 32)],
)
def test_no_more_workers_stay_than_a_shared_resource_serves(monkeypatch, n, serves, begin, most):
    job = Tuned(monkeypatch, each=20.0, serves=serves, workers=begin, most=most)
    assert job.tuner.saturated is None
    job.settle(n)
    assert serves <= job.tuning.workers <= math.ceil(1.1 * serves)
    assert f"{most} workers were no faster than {job.tuning.workers} " in job.tuning.reason
    assert max(job.tried) == most and job.tuner.spent <= job.tuner.budget
    rate = pytest.approx(50 * serves, rel=0.02)
    assert n < ENDLESS or job.tuner.saturated == (job.tuning.workers, rate, most, rate)


@pytest.mark.parametrize(
    ("each", "on_cpu", "step"), [(0.3, 0.02, 0.5), (8.0, 0.5, 2.0), (50.0, 1.0, 30.0), (8.0, 1.0, 0.0)]
)
def test_it_settles_within_its_budget_of_batches(monkeypatch, each, on_cpu, step):
    job = Tuned(monkeypatch, each, step, on_cpu, most=16, begins=40.0)
    job.settle()
    assert job.tuner.spent <= job.tuner.budget + 2 * 16  # batches in flight come, too
    assert job.tuning.reason.startswith(f"{job.tuning.workers} worker")


@pytest.mark.parametrize("n", [60, ENDLESS])
def test_a_lock_is_not_tried_again_and_again(monkeypatch, n):
    """The consumer's own time is short then and means nothing: it may change by a factor of 2."""
    job = Tuned(monkeypatch, each=20.0, serves=1, most=16)
    job.settle(n)
    tried = list(job.tried)
    epochs = itertools.chain.from_iterable(iter(lambda: job.epoch(n), None))
    for number, _ in zip(range(3000), epochs):
        job.step = 0.5 if number // 500 % 2 else 0.0
    assert job.tried == tried
    job.serves = 16  # without the lock; a worker takes as long as before
    for _ in zip(range(3000), epochs):
        pass
    assert job.tried == tried  # one worker cannot show the difference


def test_workers_that_a_lock_no_longer_delays_are_tried_again(monkeypatch):
    job = Tuned(monkeypatch, each=20.0, serves=1, workers=3, least=3, most=16)
    job.settle()
    assert job.tuning.workers == 3
    job.serves = 1 << 20
    for _ in job.epoch(3000):
        if job.tuning.workers > 3 and job.tuning.settled:
            break
    assert job.tuning.workers == 16


def test_batches_that_come_while_workers_begin_do_not_count(monkeypatch):
    quick, late = Tuned(monkeypatch, most=12), Tuned(monkeypatch, most=12, begins=500.0)
    (soon,), (later,) = quick.settle(), late.settle()
    assert later > soon + 60 and late.tuner.spent <= quick.tuner.spent <= BATCHES


def test_the_rate_and_the_share_of_waiting_are_measured(monkeypatch):
    # A batch comes every 10 ms; the loop takes 2.5 ms.
    job = Tuned(monkeypatch, each=20.0, step=2.45, workers=2, most=2)
    job.settle()
    ((workers, rate, share),) = job.tuning.history
    assert (workers, rate, share) == (2, pytest.approx(100, rel=0.05), pytest.approx(0.75, rel=0.05))


def test_the_next_epoch_starts_with_the_number_that_was_found(monkeypatch):
    monkeypatch.setattr(tuning, "AGAIN_NS", NEVER >> 1)  # the number stays, however long the epochs take here
    with Loader(Squares(1200), 2, workers=Workers(start_method="thread"), num_workers=(None, 7)) as loader:
        while not loader.tuning.settled:
            settle(loader)
        found = loader.tuning.workers
        batches = iter(loader)
        pool = engine_of(loader).pool
        assert pool.target == loader.options.num_workers == found
        until(lambda: loader.stats() and len(pool.workers) == found, "those that were too many have left")
        assert sum(1 for _ in batches) == 600 and loader.tuning.settled and loader.tuning.workers == found


def test_streams_get_more_with_the_next_epoch(monkeypatch):
    job = Tuned(monkeypatch, stream=True)
    for _ in job.epoch(60):
        assert job.pool.target == 2
    job.settle(60)
    assert job.tuning.workers == 6 and job.tried == [2, 6]


@pytest.mark.parametrize(("free", "tried"), [(30, [2]), (50, [2, 3]), (1000, [2, 12])])
def test_memory_that_is_not_there_begins_no_worker(monkeypatch, free, tried):
    job = Tuned(monkeypatch, most=12)

    def left(root):
        return (free + 60 - 30 * job.pool.target) << 20, 1 << 30, "this test", "/a/file"

    monkeypatch.setattr(tuning, "memory_available", left)
    monkeypatch.setattr(tuning, "private_bytes", lambda pid: 30 << 20)
    job.settle()
    assert job.tried == tried
    if tried[-1] < 12:
        assert "another one would take about 31.5 MB" in job.tuning.reason and "/a/file" in job.tuning.reason


def test_bounds_have_defaults_and_are_kept():
    options = Options(num_workers="auto")
    least, most = options.bounds
    assert 1 == least <= options.num_workers <= most >= 16
    assert Options(num_workers=(9, None)).num_workers == 9
    assert Options(num_workers=(None, 1)).num_workers == 1
    assert dataclasses.replace(options, num_workers=7).num_workers == 7
    assert options.n_slots == 2 * most + 16


def test_ranks_share_the_processors(monkeypatch):
    for name in process.LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(process, "_groups", lambda controller, pid: iter(()))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    assert process.cpus() == 8 and process.ranks() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert process.cpus() == 2 and process.ranks() == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100")
    assert process.cpus() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    assert process.cpus() == 8


V2 = ("0::/a/b\n", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
V1 = (
    "4:cpu,cpuacct:/a/b\n5:cpuset:/a\n",
    "31 1 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 1 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n",
)
BOUND = ("0::/host/box\n", "30 1 0:26 /host/box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")


@pytest.mark.parametrize(
    ("proc", "files", "ranks", "count"),
    [
        (V2, {}, 1, 8),
        (V2, {"cgroup/a/b/cpu.max": "max 100000", "cgroup/a/cpu.max": "200000 100000"}, 1, 2),
        (V2, {"cgroup/cpuset.cpus.effective": "0-31"}, 4, 8),  # bound to 8 of 32, for this group alone
        (V2, {"cgroup/a/b/cpu.max": "600000 100000", "cgroup/cpuset.cpus.effective": "0-31"}, 4, 2),
        (V2, {"cgroup/a/b/cpu.max": "not a limit"}, 1, 8),
        (V1, {"cgroup/cpu/a/b/cpu.cfs_quota_us": "-1", "cgroup/cpu/a/b/cpu.cfs_period_us": "100000"}, 1, 8),
        (V1, {"cgroup/cpu/a/cpu.cfs_quota_us": "150000", "cgroup/cpu/a/cpu.cfs_period_us": "50000"}, 1, 3),
        (V1, {"cgroup/cpuset/a/cpuset.cpus": "0-15"}, 2, 8),
        (BOUND, {"cgroup/cpu.max": "100000 100000"}, 1, 1),
    ],
)
def test_quotas_of_cgroups_count(monkeypatch, tmp_path, proc, files, ranks, count):
    monkeypatch.setattr(process, "ROOT", str(tmp_path))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    texts = {"proc/self/cgroup": proc[0], "proc/self/mountinfo": proc[1]}
    texts |= {f"sys/fs/{name}": text for name, text in files.items()}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert process.cpus() == count
