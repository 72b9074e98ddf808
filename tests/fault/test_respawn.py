"""Workers(on_death="respawn"): the same batches as without deaths."""

import pytest

from slipring import Loader, default_collate
from slipring.errors import Closed, WorkerDied
from tests.support.inside import engine_of
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.processes import circulating, kill_worker, wait_dead, worker_pids
from tests.support.scenes import Death, Once, Rows, Stream, plain
from tests.support.scenes import respawning as options

pytestmark = pytest.mark.fault

MODES = {
    "dynamic": {},
    "chunks": {"chunk_size": 2},
    "chunks, one sample each": {"chunk_size": 1},
    "rng per worker": {"rng": "worker"},
    "as completed": {"in_order": False},
    "index by index": {"batch_size": None},
}


def undisturbed(data, **changed):
    """Return the batches of the same loader without deaths."""
    with Loader(data, **grouped(**options(**changed))) as loader:
        return [plain(batch) for batch in loader]


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
@pytest.mark.parametrize("how", ["SIGKILL", "sys.exit"])
def test_a_death_at_a_sample_changes_nothing_but_the_worker(tmp_path, mode, how):
    data = Rows(200, on={i: Once(tmp_path / f"died-{i}", Death(how)) for i in (0, 43, 101, 199)})
    with Loader(data, **grouped(**options(**MODES[mode]))) as loader:
        got = [plain(batch) for batch in loader]
        assert loader.stats().respawns == 4
        assert circulating(engine_of(loader).ring)[0] == loader.stats().slots
    want = undisturbed(Rows(200), **MODES[mode])
    if mode == "rng per worker":
        # A new worker's generators start again: the indices are the same, the draws are not.
        got, want = [b[1] for b in got], [b[1] for b in want]
    assert (sorted(got) if mode == "as completed" else got) == (sorted(want) if mode == "as completed" else want)


class DiesAsItIsPickled:
    def __init__(self, action):
        self.action = action

    def __reduce__(self):
        self.action()
        return str, ("pickled",)


class WithPickled:
    """Collates, and adds a value after the arrays that kills its process when it is written to the slot."""

    def __init__(self, action):
        self.action = action

    def __call__(self, samples):
        return [*default_collate(samples), DiesAsItIsPickled(self.action)]


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_a_death_while_a_batch_is_written_changes_nothing(tmp_path, chunk_size):
    """In chunks: at that time the batch has overwritten the samples of other workers in the slot."""
    dies = WithPickled(Once(tmp_path / "died", Death("SIGKILL")))
    with Loader(Rows(64), **grouped(**options(chunk_size=chunk_size, collate_fn=dies))) as loader:
        got = [(plain(batch[:-1]), batch[-1]) for batch in loader]
        assert loader.stats().respawns == 1
    assert got == [(batch, "pickled") for batch in undisturbed(Rows(64), chunk_size=chunk_size)]


@pytest.mark.parametrize("method", ["fork", "spawn", slow("forkserver")])
@pytest.mark.parametrize("drop_last", [False, slow(True)])
def test_a_stream_continues_after_the_published_batches(tmp_path, method, drop_last):
    deaths = {(0, 17): "SIGKILL", (1, 0): "os._exit", (1, 36): "SIGSEGV", (0, 49): "SIGKILL"}
    data = Stream(50, on={at: Once(tmp_path / f"died-{at}", Death(how)) for at, how in deaths.items()})
    with Loader(data, **grouped(**options(start_method=method, drop_last=drop_last))) as loader:
        got = [plain(batch) for batch in loader]
        assert loader.stats().respawns == 4
    assert got == undisturbed(Stream(50), drop_last=drop_last)


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


def test_a_batch_that_kills_every_worker_is_named_in_the_end(tmp_path):
    data = Rows(80, on={21: Death("SIGSEGV")})
    with Loader(data, **grouped(**options(max_restarts=2, rng="worker", prefetch_factor=3))) as loader:
        it = iter(loader)
        ring, taken = engine_of(loader).ring, [next(it)[1][0], next(it)[1][0]]
        assert taken == [0, 8]
        with pytest.raises(WorkerDied, match=r"3 times over batch 2, indices \[16, 17.*max_restarts=2") as caught:
            next(it)
        assert caught.value.indices == list(range(16, 24))
        assert loader.stats().respawns == 2
        assert circulating(ring) == (ring.n_slots, ring.n_slots)


def test_a_stream_that_kills_every_worker_ends_in_an_error(tmp_path):
    with Loader(Stream(50, on={(1, 20): Death("SIGKILL")}), **grouped(**options(max_restarts=1))) as loader:
        it = iter(loader)
        assert [int(next(it)[0][0]) for _ in range(5)] == [0, 1, 0, 1, 0]
        with pytest.raises(WorkerDied, match="2 times over batch 5: more than max_restarts=1"):
            next(it)


def test_workers_that_never_get_to_work_are_not_replaced_for_ever():
    loader = Loader(Rows(80), **grouped(**options(worker_init_fn=DieAlways(), max_restarts=2)))
    with loader, pytest.raises(WorkerDied, match="3 times before it could serve: more than max_restarts=2"):
        next(iter(loader))


class DieAlways:
    def __call__(self, number):
        Death("os._exit")()


def test_deaths_are_counted_by_batch_and_epoch_not_for_the_loaders_life(tmp_path):
    data = Rows(16, on={3: Death("SIGKILL")})
    data.on[3] = OncePerEpoch(tmp_path, Death("SIGKILL"))
    with Loader(data, **grouped(**options(max_restarts=1))) as loader:
        for epoch in range(4):
            (tmp_path / "now").write_text(str(epoch))
            assert [b[1].tolist() for b in loader] == [list(range(8)), list(range(8, 16))]
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
