"""A stream's worker dies: the next one continues after the published batches, by its state or by replay."""

import collections
import logging
import os
import random
import signal

import numpy as np
import pytest

from slipring import Loader, default_collate, rng
from slipring.errors import WorkerDied
from tests.support.inside import engine_of
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.processes import circulating, sleeps_in_futex, until, wait_dead, worker_pids
from tests.support.scenes import Death, Nth, Once, Raise, Resumable, ResumableByIterator, Stream, plain
from tests.support.scenes import respawning as options

pytestmark = pytest.mark.fault

KINDS = {"dataset": Resumable, "iterator": ResumableByIterator}


def undisturbed(data, epochs=1, **changed):
    """Return the batches of the same loader without deaths."""
    with Loader(data, **grouped(**options(**changed, on_death="raise"))) as loader:
        return [[plain(batch) for batch in loader] for _ in range(epochs)]


def reads(path):
    """Return how often each sample was read."""
    return collections.Counter(path.read_text().splitlines())


class DrawsToo:
    """A collate_fn that draws from every generator."""

    def __call__(self, samples):
        return [default_collate(samples), random.random(), np.random.random(), rng().random()]


@pytest.mark.parametrize("method", ["fork", slow("spawn"), slow("forkserver")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stateful_stream_continues_from_its_state(tmp_path, kind, method):
    deaths = {(0, 17): "SIGKILL", (1, 0): "os._exit", (1, 36): "SIGSEGV", (0, 49): "SIGKILL"}
    on = {at: Once(tmp_path / f"died-{at}", Death(how)) for at, how in deaths.items()}
    changed = {"start_method": method, "collate_fn": DrawsToo()}
    with Loader(KINDS[kind](50, tmp_path / "log", on=on), **grouped(**options(**changed))) as loader:
        got = [plain(batch) for batch in loader]
        stats = loader.stats()
        assert (stats.respawns, stats.resumed_streams, stats.replayed_batches) == (4, 3, 0)
    assert [got] == undisturbed(KINDS[kind](50, tmp_path / "want"), **changed)
    # Only the samples of the dead worker's current batch are read again.
    again = [line for line, times in reads(tmp_path / "log").items() if times > 1]
    assert sorted(again) == sorted(["0 0 16", "1 0 32", "1 0 33", "1 0 34", "1 0 35", "0 0 48"])


@pytest.mark.parametrize(("kind", "delivered"), [("dataset", 0), ("iterator", 1)])
def test_published_and_undelivered_batches_come_once(tmp_path, kind, delivered):
    """The mark is in a slot whose batch was not taken."""
    data = KINDS[kind](50, tmp_path / "log")
    with Loader(data, **grouped(**options(num_workers=1, prefetch_factor=4))) as loader:
        it = iter(loader)
        got = [plain(next(it)) for _ in range(delivered)]
        pid = worker_pids(loader)[0]
        until(lambda: len(reads_or_none(tmp_path / "log")) >= 32, "four batches are read")
        until(lambda: sleeps_in_futex(pid), "the worker has nothing to do")
        os.kill(pid, signal.SIGKILL)
        wait_dead(pid)
        got += [plain(batch) for batch in it]
        stats = loader.stats()
        assert (stats.respawns, stats.resumed_streams, stats.replayed_batches) == (1, 1, 0)
    assert [got] == undisturbed(KINDS[kind](50, tmp_path / "want"), num_workers=1)
    assert set(reads(tmp_path / "log").values()) == {1}


def reads_or_none(path):
    return reads(path) if path.exists() else ()


@pytest.mark.parametrize("kind", [*KINDS, "neither"])
def test_a_death_after_the_last_batch_does_not_begin_the_stream_again(tmp_path, kind):
    """At its end, a Stateful dataset's state is the start of the next pass."""
    data = Stream(12) if kind == "neither" else KINDS[kind](12, tmp_path / "log")
    changed = {"num_workers": 1, "prefetch_factor": 2}
    with Loader(data, **grouped(**options(**changed))) as loader:
        it = iter(loader)
        pid = worker_pids(loader)[0]
        got = [plain(next(it))]
        until(lambda: sleeps_in_futex(pid), "the short batch is made")
        os.kill(pid, signal.SIGKILL)
        wait_dead(pid)
        got += [plain(batch) for batch in it]
        assert loader.stats().respawns == 1
        again = [plain(batch) for batch in loader]
    data = Stream(12) if kind == "neither" else KINDS[kind](12, tmp_path / "want")
    assert [got, again] == undisturbed(data, 2, **changed)


def test_a_stateful_dataset_is_in_a_later_pass_what_the_earlier_ones_made_it(tmp_path):
    data = Resumable(20, tmp_path / "log", on={(0, 0): Nth(3, tmp_path / "n", Death("SIGKILL"))})
    with Loader(data, **grouped(**options())) as loader:
        got = [[plain(batch) for batch in loader] for _ in range(4)]
        assert loader.stats().respawns == 1
    assert got == undisturbed(Resumable(20, tmp_path / "want"), 4)


@pytest.mark.parametrize("method", ["fork", slow("spawn")])
def test_a_replay_draws_the_same_numbers_again_and_says_so(tmp_path, caplog, method):
    deaths = {(0, 17): "SIGABRT", (1, 0): "os._exit", (1, 41): "SIGSEGV", (0, 49): "SIGKILL"}
    data = Stream(50, on={at: Once(tmp_path / f"died-{at}", Death(how)) for at, how in deaths.items()})
    changed = {"collate_fn": DrawsToo(), "start_method": method}
    with caplog.at_level(logging.WARNING, "slipring"), Loader(data, **grouped(**options(**changed))) as loader:
        got = [plain(batch) for batch in loader]
        stats = loader.stats()
        assert (stats.respawns, stats.resumed_streams, stats.replayed_batches) == (4, 0, 2 + 5 + 6)
    assert [got] == undisturbed(Stream(50), **changed)
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "was killed by SIGABRT" in said and "worker 1 reads again, and drops, 5 batches" in said


def test_errors_of_a_stream_are_not_raised_again_by_a_replay(tmp_path):
    on = {(0, 9): Raise(LookupError("meant")), (0, 25): Once(tmp_path / "died", Death("SIGKILL"))}
    with Loader(Stepwise(50, on), **grouped(**options(num_workers=1))) as loader:
        it, came = iter(loader), []
        while True:
            try:
                came.append(next(it)[1].tolist())
            except StopIteration:
                break
            except LookupError as error:
                came.append(str(error))
        assert loader.stats().respawns == 1
    whole = [came for came in came if came != "meant"]
    assert came.count("meant") == 1 and came[1] == "meant"
    assert [i for batch in whole for i in batch] == [i for i in range(50) if i not in (8, 9)]


class Steps:
    """An iterator whose exceptions do not end it."""

    def __init__(self, n, on):
        self.n, self.on, self.at = n, on, 0

    def __next__(self):
        if self.at == self.n:
            raise StopIteration
        self.at += 1
        if (0, self.at - 1) in self.on:
            self.on[0, self.at - 1]()
        return 0, self.at - 1

    def __iter__(self):
        return self


class Stepwise:
    def __init__(self, *made):
        self.made = made

    def __iter__(self):
        return Steps(*self.made)


def test_a_stream_that_dies_at_the_same_sample_again_and_again_is_named(tmp_path):
    data = Resumable(50, tmp_path / "log", on={(1, 20): Death("SIGKILL")})
    with Loader(data, **grouped(**options(max_restarts=2))) as loader:
        it = iter(loader)
        assert [int(next(it)[0][0]) for _ in range(5)] == [0, 1, 0, 1, 0]
        ring = engine_of(loader).ring
        with pytest.raises(WorkerDied, match="3 times over batch 5: more than max_restarts=2"):
            next(it)
        assert circulating(ring) == (ring.n_slots, ring.n_slots)
    assert reads(tmp_path / "log")["1 0 19"] == 3
    assert reads(tmp_path / "log")["1 0 15"] == 1
