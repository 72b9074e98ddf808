"""Consumers that keep all batches, or take none, or fork, while their workers die; and code that raises."""

import gc
import os
import signal
import sys

import numpy as np
import pytest

from slipring import Loader, default_collate
from tests.support.inside import engine_of
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.processes import Program, alive, circulating, wait_dead, worker_pids
from tests.support.scenes import Death, Once, Rows, plain
from tests.support.scenes import respawning as options

pytestmark = pytest.mark.fault

MODES = {"whole": {}, "chunks": {"chunk_size": 2}, "as completed": {"in_order": False}}


def undisturbed(data, **changed):
    with Loader(data, **grouped(**options(**changed))) as loader:
        return [plain(batch) for batch in loader]


def dies(n, path, at):
    return Rows(n, on={i: Once(path / f"died-{i}", Death("SIGKILL")) for i in at})


def kill_all(loader):
    """Kill every worker; the consumer does not know."""
    pids = list(worker_pids(loader).values())
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        wait_dead(pid)
    return pids


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("slots", [None, 4])
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


@pytest.mark.parametrize("death", ["raise", "respawn"])
@pytest.mark.parametrize("end", ["close", "drop", "next epoch"])
def test_a_program_that_never_takes_a_batch_can_end_with_dead_workers(death, end):
    loader = Loader(Rows(400), **grouped(**options(on_death=death)))
    it = iter(loader)
    pids = kill_all(loader)
    if end == "drop":
        del it, loader
        gc.collect()
    elif end == "next epoch" and death == "respawn":
        it = iter(loader)  # a second one, concurrently with the first
        assert len(list(it)) == 50
        loader.close()
    else:
        loader.close()
    assert not any(alive(pid) for pid in pids)


def test_a_fork_of_the_users_with_leases_kept_is_not_disturbed_by_deaths(tmp_path):
    """The child reads its parent's batches and ends; then workers die, and the batches stay unchanged."""
    data = dies(160, tmp_path, (100,))
    with Loader(data, **grouped(**options())) as loader:
        it = iter(loader)
        held = [next(it) for _ in range(3)]
        want = [plain(batch) for batch in held]
        child = os.fork()
        if child == 0:
            same = [plain(batch) for batch in held] == want
            del held
            gc.collect()
            os._exit(0 if same else 1)
        pids = kill_all(loader)
        rest = [plain(batch) for batch in it]
        assert os.waitpid(child, 0)[1] == 0
        assert [plain(batch) for batch in held] == want
        assert want + rest == undisturbed(Rows(160))
        assert loader.stats().respawns >= len(pids)
        ring = engine_of(loader).ring
        del held
        assert circulating(ring) == (ring.n_slots, ring.n_slots)


@pytest.mark.parametrize("method", ["fork", "spawn", slow("forkserver")])
def test_an_interpreter_ends_without_a_word_though_its_workers_are_dead(method):
    with Program("unseen", method) as program:
        assert "ends" in program.line()
        code, _, err = program.end()
        assert (code, err) == (0, "")


# ---- code that raises where its result does not matter


class Unwilling:
    """A value whose __del__ raises, in every process that has the value."""

    def __init__(self, i):
        self.i = i

    def __del__(self):
        raise LookupError("meant")


class UnwillingRows(Rows):
    def __getitem__(self, i):
        value = Unwilling(i)
        return np.full(4, value.i)


class UnwillingCollate:
    def __call__(self, samples):
        value = Unwilling(len(samples))
        return default_collate(samples[: value.i])


class UnwillingSampler:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        for i in range(self.n):
            value = Unwilling(i)
            yield value.i


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("death", ["raise", "respawn"])
@pytest.mark.parametrize("method", ["fork", "thread"])
def test_exceptions_in_del_lose_nothing(monkeypatch, method, death):
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: None)
    data = UnwillingRows(80)
    changed = {"collate_fn": UnwillingCollate(), "sampler": UnwillingSampler(80), "start_method": method}
    with Loader(data, **grouped(**options(**changed, on_death=death))) as loader:
        assert [batch[:, 0].tolist() for batch in loader] == [list(range(i, i + 8)) for i in range(0, 80, 8)]
        assert loader.stats().respawns == 0


class Raises:
    """Raises at the given call, wherever the loader calls it."""

    def __init__(self, where):
        self.where = where

    def __call__(self, *args):
        raise LookupError(f"meant in {self.where}")


@pytest.mark.parametrize("where", ["dataset", "collate_fn", "sampler", "worker_init_fn"])
def test_an_exception_kills_no_worker_and_a_death_hides_no_exception(tmp_path, where):
    """Both in one epoch: the worker is replaced, and the exception comes in its turn."""
    data = dies(80, tmp_path, (33,))
    changed = {}
    if where == "dataset":
        data.on[9] = Raises(where)
    elif where == "sampler":
        changed["sampler"] = SamplerThatRaises(48)
    else:
        changed[where] = RaisesOnce(tmp_path / "raised", where)
    with Loader(data, **grouped(**options(**changed, rng="worker"))) as loader:
        it, came = iter(loader), []
        while True:
            try:
                came.append(next(it)[1][0].item())
            except LookupError as error:
                came.append(str(error))
            except StopIteration:
                break
    whole = [0, 8, 16, 24, 32, 40, 48, 56, 64, 72]
    said = f"meant in {where}"
    if where == "sampler":
        assert came == [*whole[:6], said]
    elif where == "dataset":
        assert came == [0, said, *whole[2:]]
    elif where == "collate_fn":
        assert came.count(said) == 1 and len(came) == 10
    else:  # the worker that could not start reports this for each of its batches, and does not die of sample 33
        mine = came.index(said) % 2
        assert [c for i, c in enumerate(came) if i % 2 == mine] == [said] * 5
        assert [c for i, c in enumerate(came) if i % 2 != mine] == whole[1 - mine :: 2]


class SamplerThatRaises:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        yield from range(self.n)
        raise LookupError("meant in sampler")


class RaisesOnce:
    def __init__(self, path, where):
        self.once = Once(path, Raises(where))

    def __call__(self, what):
        self.once()
        return default_collate(what) if isinstance(what, list) else None
