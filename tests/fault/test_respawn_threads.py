"""Thread workers that end are replaced as processes are; only their rows of a shared batch are made again."""

import collections
import os
import sys

import numpy as np
import pytest

import slipring
from slipring import Loader
from slipring.errors import WorkerDied
from tests.fault.mortal import Init
from tests.support.inside import engine_of
from tests.support.options import grouped
from tests.support.processes import circulating
from tests.support.scenes import Death, Once, Raise, ResumableByIterator, Rows, Stream

pytestmark = [pytest.mark.fault, pytest.mark.filterwarnings("ignore:Exception in thread slipring-worker")]

THREADS = {"batch_size": 8, "num_workers": 2, "seed": 11, "start_method": "thread"}


class Deadly(Exception):
    """An exception whose text cannot be read: str() ends the calling thread."""

    def __str__(self):
        sys.exit(1)


def leave():
    sys.exit(1)


def labels(loader, column):
    return [batch[column].tolist() for batch in loader]


@pytest.mark.parametrize("mode", [{}, {"rng": "worker"}, {"chunk_size": 2}, {"batch_size": 1}], ids=str)
def test_a_thread_that_ends_over_a_batch_is_replaced_and_the_batch_made(tmp_path, mode):
    on = {i: Once(tmp_path / f"died-{i}", Raise(Deadly())) for i in (0, 43, 79)}
    with Loader(Rows(80, on=on), **grouped(on_death="respawn", **{**THREADS, **mode})) as loader:
        got = labels(loader, 1)
        assert [i for batch in got for i in batch] == list(range(80))
        assert loader.stats().respawns == 3
        ring = engine_of(loader).ring
        assert circulating(ring) == (ring.n_slots, ring.n_slots)
        assert labels(loader, 1) == got


@pytest.mark.parametrize("kind", ["stateful", "neither"])
def test_a_threads_stream_continues(tmp_path, kind):
    on = {at: Once(tmp_path / f"died-{at}", Raise(Deadly())) for at in ((0, 17), (1, 0), (1, 36))}
    if kind == "stateful":
        data, column = ResumableByIterator(50, tmp_path / "log", on=on), 2
    else:
        data, column = Stream(50, on=on), 1
    with Loader(data, **grouped(on_death="respawn", **THREADS)) as loader:
        came = [(int(batch[0][0]), batch[column].tolist()) for batch in loader]
        assert loader.stats().respawns == 3
        assert loader.stats().replayed_batches == (0 if kind == "stateful" else 2 + 4)
    for worker in range(2):
        assert [i for number, batch in came if number == worker for i in batch] == list(range(50))
    assert [number for number, _ in came] == [0, 1] * 7


def test_a_thread_that_ends_before_it_serves_is_replaced(tmp_path):
    init = Init(Once(tmp_path / "died", leave))
    options = {**THREADS, "rng": "worker", "on_death": "respawn"}
    with Loader(Rows(40), worker_init_fn=init, **grouped(**options)) as loader:
        assert [i for batch in labels(loader, 1) for i in batch] == list(range(40))
        assert loader.stats().respawns == 1


def test_threads_are_not_replaced_for_ever():
    on = {21: Raise(Deadly())}
    options = {**THREADS, "rng": "worker", "on_death": "respawn", "max_restarts": 2}
    with Loader(Rows(80, on=on), **grouped(**options)) as loader:
        it = iter(loader)
        assert [int(next(it)[1][0]) for _ in range(2)] == [0, 8]
        with pytest.raises(WorkerDied, match=r"3 times over batch 2, indices \[16, 17.*max_restarts=2"):
            next(it)
    options = {**THREADS, "on_death": "respawn", "max_restarts": 2}
    loader = Loader(Rows(80), worker_init_fn=Init(leave), **grouped(**options))
    with loader, pytest.raises(WorkerDied, match="3 times before it could serve"):
        next(iter(loader))


class Noted(Rows):
    """Records each sample that is read."""

    def __init__(self, n, log, on):
        super().__init__(n, on=on)
        self.log = os.fspath(log)

    def __getitem__(self, i):
        with open(self.log, "a") as log:
            log.write(f"{i}\n")
        return super().__getitem__(i)


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_only_the_dead_workers_ranges_are_done_again(tmp_path, method):
    how = Raise(Deadly()) if method == "thread" else Death("SIGKILL")
    data = Noted(64, tmp_path / "log", {13: Once(tmp_path / "died", how)})
    options = {**THREADS, "start_method": method, "batch_size": 64, "chunk_size": 4, "num_workers": 3}
    with Loader(data, **grouped(on_death="respawn", **options)) as loader:
        assert labels(loader, 1) == [list(range(64))]
        assert loader.stats().respawns == 1
    read = collections.Counter(map(int, (tmp_path / "log").read_text().split()))
    assert {i for i, times in read.items() if times == 2} == {12, 13}
    assert sorted(read) == list(range(64)) and max(read.values()) == 2


class Keeping:
    """Keeps an array of its first batch, which is in the slot, and ends its thread later."""

    def __init__(self, died):
        self.died = died
        self.kept = None

    def __len__(self):
        return 40

    def __getitems__(self, indices):
        if 16 in indices:
            self.died()
        made = slipring.empty((len(indices), 1000), np.int64)
        made[:] = np.array(indices)[:, None]
        if self.kept is None:
            self.kept = made
        return made


def test_arrays_that_a_threads_code_keeps_survive_its_end(tmp_path):
    data = Keeping(Once(tmp_path / "died", Raise(Deadly())))
    options = {**THREADS, "num_workers": 1, "slots": 3, "collate_fn": lambda batch: batch}
    with Loader(data, **grouped(on_death="respawn", **options)) as loader:
        for _ in range(3):
            assert [int(i) for batch in loader for i in batch[:, 0]] == list(range(40))
        assert loader.stats().respawns == 1
        assert (data.kept == np.arange(8)[:, None]).all()
        ring = engine_of(loader).ring
        assert circulating(ring) == (ring.n_slots - 1, ring.n_slots)
        data.kept = None
        assert circulating(ring) == (ring.n_slots, ring.n_slots)
