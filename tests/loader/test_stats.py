"""stats(): counts of batches, times and memory."""

import contextlib
import dataclasses
import time
import types

import numpy as np
import pytest

from slipring import Loader, Memory, Stats, Workers
from tests.support.datasets import Echo, Opaque, Squares, Values, as_list
from tests.support.inside import Watch, engine_of, rates
from tests.support.kinds import kinds, loading
from tests.support.processes import until


def test_every_figure_is_documented():
    for field in dataclasses.fields(Stats):
        assert field.name in Stats.__doc__, field.name


def test_before_the_first_iteration_nothing_has_been_done():
    assert Loader(Squares(), num_workers=2).stats() == Stats()


@kinds("inline", "fork", "thread")
def test_batches_and_bytes_add_up_over_epochs(kind):
    persistent = kind.get("start_method") != "fork"
    with loading(Values([np.zeros(1000)] * 10), 2, persistent_workers=persistent, **kind) as loader:
        for epoch in range(1, 4):
            list(loader)
            stats = loader.stats()
            assert stats.batches == 5 * epoch
            assert 5 * epoch * 16_000 <= stats.bytes < 5 * epoch * 17_000
    after = loader.stats()
    assert (after.batches, after.bytes) == (stats.batches, stats.bytes), "figures outlive the segment"


def test_an_error_is_no_batch():
    with Loader(Squares(4), 2, sampler=[0, 1, 99, 2]) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(IndexError):
            next(iterator)
        assert loader.stats().batches == 1


@pytest.mark.parametrize("num_workers", [0, 1])
def test_pickled_leaves_are_counted(num_workers):
    with Loader(Values([Opaque(i) for i in range(6)]), 3, collate_fn=as_list, num_workers=num_workers) as loader:
        list(loader)
        assert (loader.stats().pickled_leaves, loader.stats().pickled_tasks) == (6, 0)
    with Loader(Echo(), 2, sampler=["a", "b", "c"], num_workers=num_workers) as loader:
        list(loader)
        assert (loader.stats().pickled_leaves, loader.stats().pickled_tasks) == (0, 2 if num_workers else 0)


class Slow(Squares):
    def __getitem__(self, i):
        time.sleep(0.01)
        return super().__getitem__(i)


def slow_collate(samples):
    time.sleep(0.02)
    return len(samples)


@pytest.mark.parametrize(("num_workers", "chunk_size"), [(0, None), (1, 2)])
def test_times_are_summed_where_they_were_spent(num_workers, chunk_size):
    with Loader(
        Slow(16),
        4,
        collate_fn=slow_collate,
        num_workers=num_workers,
        prefetch_factor=1,
        workers=Workers(chunk_size=chunk_size),
    ) as loader:
        assert list(loader) == [4] * 4
        stats = loader.stats()
    assert stats.fetch_s >= 16 * 0.01
    assert stats.collate_s >= 4 * 0.02
    if num_workers:
        assert stats.consumer_wait_s > 0  # even if some batches were ready before


def test_a_slow_consumer_makes_workers_wait():
    with Loader(Squares(6), 1, num_workers=1, prefetch_factor=1) as loader:
        batches = iter(loader)
        watch = Watch(engine_of(loader).ring.controls)
        for _ in range(6):
            next(batches)
            until(lambda: watch.participants()[1]["waiting"], "the worker waits for its next task")
            time.sleep(0.01)
        assert loader.stats().slot_wait_s >= 5 * 0.01


def test_memory_is_reported():
    with Loader(Squares(8), 2, num_workers=1, memory=Memory(slots=5, slot_bytes=1 << 20)) as loader:
        assert loader.stats().backing is None
        list(loader)
        stats = loader.stats()
    assert loader.stats() == stats  # after the end, too
    assert (stats.slots, stats.slot_bytes, stats.slot_bytes_limited_by) == (5, 1 << 20, None)
    assert 0 < stats.slot_bytes_committed < 5 * (1 << 20)
    assert stats.backing in ("shm", "memfd") and stats.backing_reason


def test_a_loop_timer_measures_the_waits_and_times_of_steps(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 10.0, 11.0, 20.0, 21.0, 29.0, 50.0, 60.0, 61.0])
    monkeypatch.setattr(rates, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    timer = rates.LoopTimer()
    assert (timer.steps, timer.wait_s, timer.step_s) == (0, 0, 0)
    timer.begin()  # 0
    with timer.step():  # 1 to 3
        pass
    with timer.step():  # 10 to 11
        pass
    with contextlib.suppress(StopIteration), timer.step():  # 20
        raise StopIteration
    timer.begin()  # 21: another pass
    with timer.step():  # 29 to 50
        pass
    assert timer.steps == 3
    assert timer.wait_s == (2 + 1 + 21) / 3 and timer.step_s == (3 + 8 + 29) / 3
