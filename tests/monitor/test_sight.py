"""The figures of real loaders arrive in the verdict's input.

The assertions follow from the work itself: a read that sleeps 4 ms takes 4 ms or more on any machine.
"""

import itertools
import os
import time

import numpy as np
import pytest

import slipring
from tests.monitor.simulated import Job
from tests.support.inside import Figures, Watch, engine_of, engines_of, look, now, observing, states
from tests.support.options import grouped

reporting, batches = observing("report"), observing("snapshot").batches

MS = 1_000_000  # ns
MIB = 1 << 20


class Data:
    """Reading a sample calls a function of its index."""

    def __init__(self, n, read, shape=100):
        self.n, self.read, self.shape = n, read, shape

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        self.read(i)
        return np.zeros(self.shape, np.float32)


def loader(data, **options):
    """Return a loader with forked workers, because its datasets use local functions of tests."""
    options = {"batch_size": 4, "num_workers": 2, "start_method": "fork", "persistent_workers": True, **options}
    return slipring.Loader(data, **grouped(**options))


@pytest.fixture
def judged(monkeypatch):
    """A function that makes a loader's report and returns the `Snapshot` and the `Known` of its verdict."""
    seen = []
    real = reporting.verdict
    monkeypatch.setattr(reporting, "verdict", lambda *given: (seen.append(given), real(*given))[1])

    def ask(loader):
        loader.report()
        return seen.pop()

    return ask


def test_the_times_of_batches_arrive_with_their_indices_and_workers():
    def collate(samples):
        time.sleep(0.002)
        return np.stack(samples)

    def read(i):
        time.sleep(0.012 if i == 22 else 0.002)

    begun = now()
    with loader(Data(40, read), collate_fn=collate) as mine:
        for _ in mine:
            time.sleep(0.001)
        snapshot = look(engine_of(mine).ring)
    ended = now()
    table = snapshot.taken
    assert table["seq"].tolist() == list(range(10)) and (table["rows"] == 4).all()
    assert table["first_index"].tolist() == list(range(0, 40, 4)) and (table["bytes"] >= 1600).all()
    assert (table["fetch_ns"] >= 4 * 2 * MS).all() and table["fetch_ns"][5] >= (3 * 2 + 12) * MS
    assert (table["collate_ns"] >= 2 * MS).all()
    assert (table["slowest_ns"] >= 2 * MS).all() and (table["slowest_ns"] <= table["fetch_ns"]).all()
    assert table["slowest_ns"][5] >= 12 * MS
    assert (table["slowest_index"] // 4 == np.arange(10)).all()
    stamps = ("dispatched_at", "claimed_at", "fetched_at", "published_at", "taken_at")
    for earlier, later in itertools.pairwise(stamps):
        assert (table[earlier] <= table[later]).all()
    assert begun <= table["dispatched_at"].min() and table["taken_at"].max() <= ended
    assert (table["published_at"] - table["claimed_at"] >= table["fetch_ns"] + table["collate_ns"]).all()
    # The loop's time is its waits and its steps: at most the elapsed time, and at least its sleeps.
    assert table["step_ns"][0] == 0 and (table["step_ns"][1:] >= MS).all()
    assert table["waited_ns"].sum() + table["step_ns"].sum() <= ended - begun
    assert table["waited_ns"].sum() > 0
    for number in (1, 2):
        participant, its = snapshot.participants[number], table[table["participant"] == number]
        assert participant["batches"] == len(its) and participant["bytes"] == its["bytes"].sum()
        for name in ("fetch_ns", "collate_ns", "idle_ns"):
            assert participant[name] == its[name].sum()
    assert {"batches": 10, "rows": 40, "errors": 0}.items() <= snapshot.sums.items()
    stages = snapshot.stages
    assert stages["fetch"].count == 10 and stages["fetch"].total_s == table["fetch_ns"].sum() / 1e9
    assert stages["step"].count == 9 and stages["step"].total_s >= 0.009
    assert snapshot.slowest_samples["slowest_ns"][0] == table["slowest_ns"].max()
    assert not (snapshot.threads or snapshot.reported[0]) and 1 <= snapshot.reported.sum() <= 2


def test_each_batch_is_in_the_table_and_in_the_sums_once():
    with loader(Data(600, lambda i: None), num_workers=1) as mine:
        for number, _ in enumerate(mine):
            if number % 20 == 0:
                table = batches(Watch(engine_of(mine).ring.controls))
                keys = list(zip(table["run"].tolist(), table["seq"].tolist()))
                assert len(keys) == len(set(keys))
        real = look(engine_of(mine).ring)
    for snapshot in (real, Job(batches=150).snapshot()):
        table = snapshot.taken
        assert sorted(table["seq"].tolist()) == list(range(150))
        assert (table["number"] == 0).any() and (table["number"] > 0).any()  # in slots, and recorded
        assert 0 < snapshot.sums["folded"] < 150 and snapshot.sums["batches"] == 150
        assert (snapshot.sums["rows"], snapshot.sums["bytes"]) == (table["rows"].sum(), table["bytes"].sum())
        stages = snapshot.stages
        assert (stages["fetch"].count, stages["step"].count) == (150, 149)
        assert stages["fetch"].total_s == table["fetch_ns"].sum() / 1e9
        assert stages["waited"].max_s == table["waited_ns"].max() / 1e9


def compute(i):
    """Use 3 ms of a processor on any machine."""
    end = time.thread_time_ns() + 3 * MS
    while time.thread_time_ns() < end:
        pass


def rest(i):
    time.sleep(0.003)


def counted(snapshot, number=1):
    """Return how many batches a worker's last recorded processor time covers."""
    its = snapshot.table[snapshot.table["participant"] == number]
    made = np.cumsum(its["fetch_ns"] + its["collate_ns"])
    return int(np.searchsorted(made, snapshot.participants[number]["reported_ns"])) + 1


@pytest.mark.parametrize(("method", "read"), [("fork", compute), ("thread", compute), ("fork", rest)])
def test_the_time_of_a_worker_on_a_processor_is_known(method, read):
    begun = now()
    with loader(Data(40, read), num_workers=1, start_method=method) as mine:
        assert sum(1 for _ in mine) == 10
        snapshot = look(engine_of(mine).ring)
    participant, spent = snapshot.participants[1], counted(snapshot) * 4 * 3 * MS
    assert participant["reported_ns"] > 0 and counted(snapshot) > 1
    if read is compute:
        assert participant["cpu_ns"] >= spent
    else:
        assert 0 < participant["cpu_ns"] <= snapshot.at_ns - begun - spent
    assert snapshot.threads == (method == "thread")


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this kernel counts no delays")
def test_workers_that_share_a_processor_wait_for_it():
    def begin(number):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    # Each worker has its own batches: both are ready to run, and the processor runs one of them at a time.
    with loader(Data(40, compute), worker_init_fn=begin, rng="worker") as mine:
        assert sum(1 for _ in mine) == 10
        snapshot = look(engine_of(mine).ring)
    assert snapshot.participants["queued_ns"].sum() > 0


def test_slots_that_the_program_keeps_are_leased_and_batches_beyond_them_are_copied(judged):
    with loader(Data(120, lambda i: None), slots=6) as mine:
        kept = list(mine)
        snapshot, known = judged(mine)
        leased = sum(state in ("leased", "parked") for state in states(snapshot.slots))
        assert 0 < leased < 6 and snapshot.segment_info["n_slots"] == 6
        assert known.copied_share * 30 == pytest.approx(30 - leased)
        del kept


def test_a_cache_reports_hits_misses_and_that_it_is_full(judged):
    data = slipring.cached(Data(40, lambda i: None, 600), "30KiB")  # of 96 KB
    with loader(data) as mine:
        for _ in range(2):
            assert sum(1 for _ in mine) == 10
        snapshot, known = judged(mine)
    first, later = (snapshot.table[snapshot.table["epoch"] == epoch] for epoch in (0, 1))
    assert first["misses"].sum() == 40 and first["hits"].sum() == 0
    assert later["misses"].sum() + later["hits"].sum() == 40
    assert 0 < later["hits"].sum() < 40 and later["misses"].sum() > 0
    assert (snapshot.sums["hits"], snapshot.sums["misses"]) == (later["hits"].sum(), 40 + later["misses"].sum())
    assert "its budget of 30,720 bytes is used up" in known.cache_full and known.cache_bytes >= 40 * 2400


@pytest.mark.usefixtures("forked")
def test_copies_to_the_device_and_the_loop_after_them_are_seen(make):
    from slipring.torch import Device

    def onto(batch):
        time.sleep(0.004)
        return batch

    begun = now()
    mine = make(Data(80, lambda i: None), 4, num_workers=2, device=Device("cpu", preload=1, transform=onto))
    for _ in mine:
        time.sleep(0.001)
    snapshot = look(engines_of(mine).engine.ring)
    ended, info = now(), snapshot.segment_info
    assert len(snapshot.taken) == 20 and (snapshot.taken["copy_ns"] >= 4 * MS).all()
    assert info["loop_steps"] == 20 and Figures(snapshot).has_loop
    assert info["loop_ns"] - info["loop_wait_ns"] >= 19 * MS
    assert 19 * 4 * MS <= info["loop_ns"] <= ended - begun


TEXTS = []


def test_copied_and_private_memory_of_workers_is_known(judged):
    TEXTS.extend(f"some text {i}" for i in range(300_000))  # 59 bytes and more each
    own = []

    def begin(number):
        own.append(np.ones(4 * MIB))

    def read(i):
        sum(map(len, TEXTS[i * 7500 : (i + 1) * 7500]))

    try:
        with loader(Data(40, read), num_workers=1, worker_init_fn=begin) as mine:
            assert sum(1 for _ in mine) == 10
            _, known = judged(mine)
    finally:
        TEXTS.clear()
    (copied,), (private,) = known.copied_bytes, known.private_bytes
    assert known.forked and known.free_bytes > 0 and known.parent_bytes > 0
    assert copied >= 8 * MIB  # most of the texts; it is an estimate
    assert private >= 32 * MIB and copied < 1.1 * private  # the array is the worker's own


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_the_loaders_arguments_are_known(judged, method):
    forked = method == "fork"
    options = {"collate_fn": len, "in_order": False} if forked else {}
    with loader(Data(40, lambda i: None), start_method=method, **options) as mine:
        assert sum(1 for _ in mine) == 10
        _, known = judged(mine)
    assert (known.forked, known.own_collate, known.in_order) == (forked, forked, not forked)
    assert known.persistent is True and (known.parent_bytes is not None) == forked
