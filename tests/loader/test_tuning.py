"""num_workers="auto": measurements, the numbers of workers that are tried, and why the search stops.

Real loaders test that the parts work together: the number of workers, the batches. Tests that depend on time run
on the simulated clock of `Tuned`.
"""

import dataclasses
import itertools
import logging
import math
import multiprocessing
import re
import time
import weakref

import pytest

from slipring import Loader, Workers
from tests.loader.tuned import ENDLESS, Tuned
from tests.support.datasets import Slow, Squares, numbers
from tests.support.inside import BATCHES, NEVER, Options, Tuner, Tuning, engine_of, process, tuner_of, tuning
from tests.support.leaks import Snapshot, read
from tests.support.processes import until


class Locked(Slow):
    """One worker at a time can read a sample."""

    def __init__(self):
        super().__init__(ENDLESS, 0)
        self.lock = multiprocessing.get_context("fork").Lock()

    def __getitem__(self, i):
        with self.lock:
            time.sleep(0.03)
        return i


def settle(loader):
    """Iterate until the search has ended."""
    for _ in loader:
        if loader.tuning.settled:
            break


# ---- with workers


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_a_number_within_its_bounds_is_found_and_logged(method, caplog):
    caplog.set_level(logging.INFO, "slipring")
    with Loader(Slow(ENDLESS, 0.001), 2, workers=Workers(start_method=method), num_workers=(None, 12)) as loader:
        assert loader.tuning == Tuning(loader.options.num_workers)
        settle(loader)
        found = loader.tuning
    assert found.settled and 1 <= found.workers <= 12 and found.reason != Tuning.reason
    assert all(1 <= workers <= 12 and rate > 0 and 0 <= share <= 1 for workers, rate, share in found.history)
    assert found.workers in [workers for workers, _, _ in found.history]
    assert any(found.reason in record.getMessage() for record in caplog.records)


def test_workers_that_wait_for_one_lock_are_given_back_unless_they_were_measured_as_faster():
    """On a busy machine the windows of this test are not those of a lock: the decision must agree with them."""
    with Loader(Locked(), 1, workers=Workers(start_method="fork"), num_workers=(None, 12)) as loader:
        settle(loader)
        found, pool, saturated = loader.tuning, engine_of(loader).pool, tuner_of(loader).saturated
        assert pool.target == found.workers
    most = max(workers for workers, _, _ in found.history)
    assert most > 2, found
    if found.workers < most:
        assert re.search(f"workers were (no|hardly) faster than {found.workers} ", found.reason), found
        assert saturated is not None
    else:
        fewer, rates = ([rate for n, rate, _ in found.history if (n < most) == less] for less in (True, False))
        assert max(rates) > min(fewer), found


def test_workers_that_wait_for_something_else_become_as_many_as_are_allowed(monkeypatch):
    job = Tuned(monkeypatch, most=12)
    job.settle()
    assert job.tuning.workers == 12 and "its upper bound of 12 allows no more" in job.tuning.reason
    assert [workers for workers, _, _ in job.tuning.history] == job.tried == [2, 12]


def test_workers_that_compute_become_as_many_as_there_are_processors(monkeypatch):
    job = Tuned(monkeypatch, on_cpu=1.0, cpus=4, most=12)
    job.settle()
    assert job.tuning.workers == 4 and "each keeps 100% of a processor busy, and 4 are there" in job.tuning.reason


def test_workers_that_compute_become_twice_as_many_at_most(monkeypatch):
    job = Tuned(monkeypatch, on_cpu=0.5, cpus=64, most=16)
    job.settle()
    assert job.tried[:3] == [2, 4, 8]


@pytest.mark.parametrize("step", [0.0, 0.5, 2.0, 30.0])
@pytest.mark.parametrize("on_cpu", [0.02, 0.5, 1.0])
@pytest.mark.parametrize("each", [0.3, 8.0, 50.0])
def test_it_settles_within_its_budget_of_batches(monkeypatch, each, on_cpu, step):
    job = Tuned(monkeypatch, each, step, on_cpu, most=16, begins=40.0)
    job.settle()
    assert job.tuner.spent <= job.tuner.budget + 2 * 16  # batches in flight come, too
    assert job.tuning.reason.startswith(f"{job.tuning.workers} worker")


@pytest.mark.parametrize("most", [16, 64])
def test_as_many_as_are_allowed_can_be_tried_and_measured_twice(monkeypatch, most):
    job = Tuned(monkeypatch, each=20.0, cpus=16, workers=4, most=most)
    job.settle()
    assert job.tuning.workers == most and job.tried == [4, most]


@pytest.mark.parametrize(("begin", "most"), [(2, 16), (4, 64), (3, 12)])
@pytest.mark.parametrize("n", [10, 60, ENDLESS])
def test_workers_that_a_lock_serialises_go_again(monkeypatch, begin, most, n):
    job = Tuned(monkeypatch, each=20.0, serves=1, workers=begin, most=most)
    job.settle(n)
    assert job.tuning.workers in (1, 2)
    assert f"{most} workers were no faster than {job.tuning.workers} " in job.tuning.reason
    assert max(job.tried) == most and job.tuner.spent <= job.tuner.budget


@pytest.mark.parametrize("serves", [2, 3, 5, 8])
def test_no_more_workers_stay_than_the_shared_resource_serves(monkeypatch, serves):
    job = Tuned(monkeypatch, each=20.0, serves=serves, workers=2, most=32)
    job.settle()
    assert serves <= job.tuning.workers <= math.ceil(1.1 * serves)
    assert "32 workers were no faster than" in job.tuning.reason


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


def test_a_consumer_that_never_waits_needs_one_worker(monkeypatch):
    job = Tuned(monkeypatch, each=0.5, step=4.0, on_cpu=1.0, most=8)
    job.settle()
    assert job.tuning.workers == 1 and "waits for 0% of its time" in job.tuning.reason


def test_the_rate_and_the_share_of_waiting_are_measured(monkeypatch):
    # A batch comes every 10 ms; the loop takes 2.5 ms.
    job = Tuned(monkeypatch, each=20.0, step=2.45, workers=2, most=2)
    job.settle()
    ((workers, rate, share),) = job.tuning.history
    assert (workers, rate, share) == (2, pytest.approx(100, rel=0.05), pytest.approx(0.75, rel=0.05))


def test_the_batches_are_those_of_a_fixed_number():
    with Loader(Squares(3000), 3, shuffle=True, seed=4, num_workers=2) as loader:
        want = numbers(loader)
    with Loader(Squares(3000), 3, shuffle=True, seed=4, num_workers=(None, 6)) as loader:
        assert numbers(loader) == want


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


@pytest.mark.parametrize("num_workers", ["auto", 2])
def test_a_closed_loader_keeps_neither_descriptors_nor_memory(num_workers):
    def shared_mappings():
        return {line for line in read("/proc/self/maps").splitlines() if b" rw-s " in line}

    before, mapped = Snapshot.take(), shared_mappings()
    loader = Loader(Squares(100), 4, num_workers=num_workers, workers=Workers(start_method="fork"))
    assert sum(1 for _ in loader) == 25
    assert shared_mappings() - mapped
    loader.close()
    assert before.leaks(wait_s=10) == []
    assert shared_mappings() - mapped == set()


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


def test_a_loader_that_was_given_a_number_has_no_tuning():
    assert Loader(Squares(4)).tuning is None


def test_bounds_have_defaults_and_are_kept():
    options = Options(num_workers="auto")
    least, most = options.bounds
    assert 1 == least <= options.num_workers <= most >= 16
    assert Options(num_workers=(9, None)).num_workers == 9
    assert Options(num_workers=(None, 1)).num_workers == 1
    assert dataclasses.replace(options, num_workers=7).num_workers == 7
    assert options.n_slots == 2 * most + 16


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ({"each": 8.0, "step": 1.0, "on_cpu": 1.0, "cpus": 64}, range(8, 11)),  # as many as are needed
        ({"each": 16.0, "step": 1.0}, range(15, 20)),  # processors do not matter here
        ({"each": 4.0, "step": 2.0, "on_cpu": 1.0, "cpus": 64, "workers": 16}, range(2, 5)),  # too many are sent away
        ({"each": 8.0, "on_cpu": 1.0, "cpus": 1, "workers": 1}, range(1, 2)),
    ],
)
def test_tuning_ends_with_as_many_workers_as_help(monkeypatch, options, workers):
    job = Tuned(monkeypatch, **{"most": 64, **options})
    job.settle()
    assert job.tuning.workers in workers, (job.tuning, job.tried)


# Windows of loaders on a busy machine: number of workers -> (ms between batches, ms of a worker per batch) of each
# window. One lock protects all reads.
RECORDED = {
    "quiet": {2: [(21.3, 42.2)], 16: [(22.4, 301.0), (21.7, 306.0)], 1: [(21.7, 21.4)]},
    "a burst": {2: [(21.3, 42.1)], 16: [(22.4, 301.0), (17.1, 304.0)], 3: [(21.2, 62.1)], 1: [(21.9, 21.6)]},
    "a slow start": {2: [(24.9, 47.4), (21.4, 42.4)], 16: [(21.3, 312.0)], 3: [(21.8, 63.5)], 1: [(22.2, 21.8)]},
    "fewer are slow by chance": {
        **{2: [(24.6, 46.9)], 16: [(21.7, 305.0), (21.4, 314.0)], 3: [(24.0, 70.3), (21.4, 63.2)]}
    },
}


class Pool:
    """Workers with recorded windows: those of each number in turn, then the last one again."""

    at_target, ring, target = True, None, 2

    def __init__(self, windows):
        self.windows, self.tried = {workers: list(found) for workers, found in windows.items()}, []

    def pids(self):
        return []

    def window(self):
        self.tried.append(self.target)
        windows = self.windows[self.target]
        step, busy = windows.pop(0) if len(windows) > 1 else windows[0]
        step, busy = step / 1e3, busy / 1e3
        return tuning.TuningWindow(self.target, 16 if self.target < 16 else 48, step, step - 1e-4, busy, 5e-4)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_rates_under_a_lock_leave_few_workers(name, monkeypatch):
    monkeypatch.setattr(process, "cpus", lambda: 2)
    pool, tuner = Pool(RECORDED[name]), Tuner(2, 1, 16)
    tuner._pool = weakref.ref(pool)
    tuner._fits = lambda more: (more, "")
    while not tuner.settled:
        window = pool.window()
        tuner.spent += 8 + window.batches
        tuner._go_on(window)
        pool.target = tuner.workers
        assert 1 <= tuner.workers <= 16 and tuner.spent <= tuner.budget
    assert tuner.workers <= 3, pool.tried
    assert re.search(f"16 workers were (no|hardly) faster than {tuner.workers} ", tuner.tuning.reason)


def test_the_report_knows_which_workers_brought_nothing(monkeypatch):
    locked, free = Tuned(monkeypatch, each=20.0, serves=1, most=16), Tuned(monkeypatch, most=12)
    assert locked.tuner.saturated is None
    locked.settle()
    free.settle()
    assert locked.tuner.saturated == (
        locked.tuning.workers,
        pytest.approx(50, rel=0.01),
        16,
        pytest.approx(50, rel=0.01),
    )
    assert free.tuner.saturated is None


# ---- the machine's processors


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
        (V2, {"cgroup/a/b/cpu.max": "max 100000"}, 1, 8),
        (V2, {"cgroup/a/b/cpu.max": "250000 100000"}, 1, 3),
        (V2, {"cgroup/a/b/cpu.max": "max 100000", "cgroup/a/cpu.max": "200000 100000"}, 1, 2),
        (V2, {"cgroup/cpuset.cpus.effective": "0-31"}, 4, 8),  # bound to 8 of 32, for this group alone
        (V2, {"cgroup/cpuset.cpus.effective": "0-3,8-11"}, 4, 2),
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
