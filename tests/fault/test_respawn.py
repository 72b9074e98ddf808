"""Workers(on_death="respawn"): the same batches as without deaths, of processes and of threads."""

import collections
import gc
import os
import sys

import numpy as np
import pytest

from slipring import Loader, default_collate
from slipring.errors import Closed, WorkerDied
from tests.fault.mortal import Init
from tests.support.inside import engine_of
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.processes import Program, circulating, kill_worker, wait_dead, worker_pids
from tests.support.scenes import AtPickling, Death, Nth, Once, Raise, ResumableByIterator, Rows, Stream, plain
from tests.support.scenes import respawning as options

pytestmark = [pytest.mark.fault, pytest.mark.filterwarnings("ignore:Exception in thread slipring-worker")]

MODES = {
    "dynamic": {},
    "chunks": {"chunk_size": 2},
    "rng per worker": {"rng": "worker"},
    "as completed": {"in_order": False},
    "index by index": {"batch_size": None},
}


class Deadly(Exception):
    """An exception whose text cannot be read: str() ends the calling thread."""

    def __str__(self):
        sys.exit(1)


def deadly():
    raise Deadly


def leave():
    sys.exit(1)


# Start method -> an action that ends the worker.
ENDS = {"fork": Death("SIGKILL"), "thread": deadly}


def undisturbed(data, **changed):
    """Return the batches of the same loader without deaths."""
    with Loader(data, **grouped(**options(**changed))) as loader:
        return [plain(batch) for batch in loader]


def labels(loader, column=1):
    return [batch[column].tolist() for batch in loader]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_replacement_that_cannot_be_started_ends_the_iteration(monkeypatch, tmp_path, num_workers):
    def refuse(self, *args):
        raise BlockingIOError("no more processes")

    data = Rows(200, on={43: Once(tmp_path / "died", Death("SIGKILL"))})
    with Loader(data, **grouped(**options(num_workers=num_workers))) as loader:
        batches = iter(loader)
        with monkeypatch.context() as patch:
            patch.setattr(type(engine_of(loader).pool), "_start_one", refuse)
            with pytest.raises(BlockingIOError, match="no more processes"):
                for _ in batches:
                    pass
            with pytest.raises(Closed, match="no more processes"):
                next(batches)
        assert len(list(loader)) == 25


@pytest.mark.parametrize("mode", MODES)
def test_a_death_at_a_sample_changes_nothing_but_the_worker(tmp_path, mode):
    hows = {0: "SIGKILL", 43: "sys.exit", 101: "SIGKILL", 199: "sys.exit"}
    data = Rows(200, on={i: Once(tmp_path / f"died-{i}", Death(how)) for i, how in hows.items()})
    with Loader(data, **grouped(**options(**MODES[mode]))) as loader:
        got = [plain(batch) for batch in loader]
        assert loader.stats().respawns == 4
        assert circulating(engine_of(loader).ring)[0] == loader.stats().slots
    want = undisturbed(Rows(200), **MODES[mode])
    if mode == "rng per worker":
        # A new worker's generators start again: the indices are the same, the draws are not.
        got, want = [b[1] for b in got], [b[1] for b in want]
    assert (sorted(got) if mode == "as completed" else got) == (sorted(want) if mode == "as completed" else want)


@pytest.mark.parametrize("mode", [{}, {"rng": "worker"}, {"chunk_size": 2}], ids=str)
def test_a_thread_that_ends_over_a_batch_is_replaced_and_the_batch_made(tmp_path, mode):
    on = {i: Once(tmp_path / f"died-{i}", deadly) for i in (0, 43, 79)}
    with Loader(Rows(80, on=on), **grouped(**options(start_method="thread", **mode))) as loader:
        got = labels(loader)
        assert [i for batch in got for i in batch] == list(range(80))
        assert loader.stats().respawns == 3
        ring = engine_of(loader).ring
        assert circulating(ring) == (ring.n_slots, ring.n_slots)
        assert labels(loader) == got


@pytest.mark.parametrize("kind", ["stateful", "neither"])
def test_a_threads_stream_continues(tmp_path, kind):
    on = {at: Once(tmp_path / f"died-{at}", deadly) for at in ((0, 17), (1, 0), (1, 36))}
    if kind == "stateful":
        data, column = ResumableByIterator(50, tmp_path / "log", on=on), 2
    else:
        data, column = Stream(50, on=on), 1
    with Loader(data, **grouped(**options(start_method="thread"))) as loader:
        came = [(int(batch[0][0]), batch[column].tolist()) for batch in loader]
        assert loader.stats().respawns == 3
        assert loader.stats().replayed_batches == (0 if kind == "stateful" else 2 + 4)
    for worker in range(2):
        assert [i for number, batch in came if number == worker for i in batch] == list(range(50))
    assert [number for number, _ in came] == [0, 1] * 7


class WithPickled:
    """Collates, and adds a value after the arrays that kills its process when it is written to the slot."""

    def __init__(self, action):
        self.action = action

    def __call__(self, samples):
        return [*default_collate(samples), AtPickling(self.action)]


@pytest.mark.parametrize(("kind", "n", "chunk_size"), [(Rows, 64, None), (Rows, 64, 2), (Stream, 32, None)])
def test_a_death_while_a_batch_is_written_changes_nothing(tmp_path, kind, n, chunk_size):
    """In chunks: at that time the batch has overwritten the samples of other workers in the slot."""
    dies = WithPickled(Nth(3, tmp_path / "written", Death("SIGKILL")))
    with Loader(kind(n), **grouped(**options(chunk_size=chunk_size, collate_fn=dies))) as loader:
        got = [(plain(batch[:-1]), batch[-1]) for batch in loader]
        assert loader.stats().respawns == 1
    assert got == [(batch, 0) for batch in undisturbed(kind(n), chunk_size=chunk_size)]


@pytest.mark.parametrize(("kind", "where"), [(Rows, 41), (Stream, (1, 41))])
def test_a_new_worker_calls_worker_init_fn_before_it_takes_over(tmp_path, kind, where):
    data = kind(50, on={where: Once(tmp_path / "died", Death("SIGKILL"))})
    begun = tmp_path / "begun"
    with Loader(data, **grouped(**options(worker_init_fn=Note(begun), rng="worker"))) as loader:
        list(loader)
        assert loader.stats().respawns == 1
    assert sorted(begun.read_text()) in (list("001"), list("011"))


class Note:
    """A worker_init_fn that adds the worker's number to a file."""

    def __init__(self, path):
        self.path = path

    def __call__(self, number):
        with open(self.path, "a") as file:
            file.write(str(number))


@pytest.mark.parametrize("method", ENDS)
def test_a_batch_that_kills_every_worker_is_named_in_the_end(method):
    changed = {"max_restarts": 2, "rng": "worker", "prefetch_factor": 3, "start_method": method}
    with Loader(Rows(80, on={21: ENDS[method]}), **grouped(**options(**changed))) as loader:
        it = iter(loader)
        ring, taken = engine_of(loader).ring, [next(it)[1][0], next(it)[1][0]]
        assert taken == [0, 8]
        with pytest.raises(WorkerDied, match=r"3 times over batch 2, indices \[16, 17.*max_restarts=2") as caught:
            next(it)
        assert caught.value.indices == list(range(16, 24))
        assert loader.stats().respawns == 2
        assert circulating(ring) == (ring.n_slots, ring.n_slots)


@pytest.mark.parametrize(("method", "action"), [("fork", Death("os._exit")), ("thread", leave)])
def test_workers_that_never_get_to_work_are_not_replaced_for_ever(method, action):
    changed = {"worker_init_fn": Init(action), "max_restarts": 2, "start_method": method}
    loader = Loader(Rows(80), **grouped(**options(**changed)))
    with loader, pytest.raises(WorkerDied, match="3 times before it could serve: more than max_restarts=2"):
        next(iter(loader))


def test_deaths_are_counted_by_batch_and_epoch_not_for_the_loaders_life(tmp_path):
    data = Rows(16, on={3: OncePerEpoch(tmp_path, Death("SIGKILL"))})
    with Loader(data, **grouped(**options(max_restarts=1))) as loader:
        for epoch in range(4):
            (tmp_path / "now").write_text(str(epoch))
            assert labels(loader) == [list(range(8)), list(range(8, 16))]
        assert loader.stats().respawns == 4


class OncePerEpoch:
    def __init__(self, path, action):
        self.path = path
        self.action = action

    def __call__(self):
        Once(self.path / f"epoch-{(self.path / 'now').read_text()}", self.action)()


def test_idle_workers_may_be_killed_any_number_of_times():
    with Loader(Rows(16), **grouped(**options(max_restarts=1, prefetch_factor=1))) as loader:
        for _ in range(4):
            assert len(list(loader)) == 2
            for number, pid in worker_pids(loader).items():
                kill_worker(loader, number)  # or it died in the epoch before, unnoticed
                wait_dead(pid)
        assert len(list(loader)) == 2
        assert loader.stats().respawns >= 4


class Noted(Rows):
    """Records each sample that is read."""

    def __init__(self, n, log, on):
        super().__init__(n, on=on)
        self.log = os.fspath(log)

    def __getitem__(self, i):
        with open(self.log, "a") as log:
            log.write(f"{i}\n")
        return super().__getitem__(i)


@pytest.mark.parametrize("method", ENDS)
def test_only_the_dead_workers_ranges_are_done_again(tmp_path, method):
    data = Noted(64, tmp_path / "log", {13: Once(tmp_path / "died", ENDS[method])})
    changed = {"start_method": method, "batch_size": 64, "chunk_size": 4, "num_workers": 3}
    with Loader(data, **grouped(**options(**changed))) as loader:
        assert labels(loader) == [list(range(64))]
        assert loader.stats().respawns == 1
    read = collections.Counter(map(int, (tmp_path / "log").read_text().split()))
    assert {i for i, times in read.items() if times == 2} == {12, 13}
    assert sorted(read) == list(range(64)) and max(read.values()) == 2


def dies(n, path, at):
    return Rows(n, on={i: Once(path / f"died-{i}", Death("SIGKILL")) for i in at})


@pytest.mark.parametrize(("mode", "slots"), [("dynamic", 4), ("chunks", 4), ("as completed", None)])
def test_a_loop_that_keeps_every_batch_keeps_the_delivered_values(tmp_path, mode, slots):
    """A new worker overwrites no batch: neither in a leased slot nor in a copy."""
    data = dies(400, tmp_path, (5, 100, 203, 398))
    with Loader(data, **grouped(**options(slots=slots, **MODES[mode]))) as loader:
        kept, then = [], []
        for batch in loader:
            kept.append(batch)
            then.append(plain(batch))
        assert loader.stats().respawns == 4
        assert loader.stats().copied_batches >= (0 if slots is None else 40)
    assert [plain(batch) for batch in kept] == then
    assert sorted(then) == sorted(undisturbed(Rows(400), **MODES[mode]))


@pytest.mark.parametrize(("death", "end"), [("raise", "close"), ("raise", "drop"), ("respawn", "next epoch")])
def test_a_program_that_never_takes_a_batch_can_end_with_dead_workers(death, end):
    loader = Loader(Rows(400), **grouped(**options(on_death=death)))
    it = iter(loader)
    pids = worker_pids(loader)
    for number, pid in pids.items():
        kill_worker(loader, number)
        wait_dead(pid)
    if end == "drop":
        del it, loader
        gc.collect()
    else:
        if end == "next epoch":
            it = iter(loader)  # a second one, concurrently with the first
            assert len(list(it)) == 50
        loader.close()


class Unwilling:
    """A value whose __del__ raises, in every process that has the value."""

    def __init__(self, value):
        self.value = value

    def __del__(self):
        raise LookupError("meant")


class UnwillingRows(Rows):
    def __getitem__(self, i):
        value = Unwilling(i)
        return np.full(4, value.value)


def collate_unwillingly(samples):
    value = Unwilling(samples)
    return default_collate(value.value)


def indices_unwillingly(n):
    for i in range(n):
        value = Unwilling(i)
        yield value.value


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("method", "death"), [("fork", "respawn"), ("thread", "raise")])
def test_exceptions_in_del_lose_nothing(monkeypatch, method, death):
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: None)
    changed = {"collate_fn": collate_unwillingly, "sampler": indices_unwillingly(80), "start_method": method}
    with Loader(UnwillingRows(80), **grouped(**options(**changed, on_death=death))) as loader:
        assert [batch[:, 0].tolist() for batch in loader] == [list(range(i, i + 8)) for i in range(0, 80, 8)]
        assert loader.stats().respawns == 0


@pytest.mark.parametrize("method", ["fork", slow("spawn"), slow("forkserver")])
def test_an_interpreter_ends_without_a_word_though_its_workers_are_dead(method):
    with Program("unseen", method) as program:
        assert "ends" in program.line()
        code, _, err = program.end()
        assert (code, err) == (0, "")


def test_an_exception_kills_no_worker_and_a_death_hides_no_exception(tmp_path):
    data = dies(80, tmp_path, (33,))
    data.on[9] = Raise(LookupError("meant"))
    with Loader(data, **grouped(**options(rng="worker"))) as loader:
        it = iter(loader)
        assert next(it)[1][0] == 0
        with pytest.raises(LookupError, match="meant"):
            next(it)
        assert [batch[1][0] for batch in it] == [16, 24, 32, 40, 48, 56, 64, 72]
        assert loader.stats().respawns == 1
