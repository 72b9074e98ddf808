"""Workers that are started, but do not begin to serve."""

import logging
import os
import re
import subprocess
import sys
import threading

import pytest

from slipring import Loader, WorkerDied, Workers
from tests.support.datasets import Values, wait_for_file
from tests.support.inside import deaths, engine_of
from tests.support.options import grouped
from tests.support.parts import slow
from tests.support.processes import LONG_S, until

pytestmark = pytest.mark.fault


@pytest.fixture
def told(caplog, monkeypatch):
    """Return the texts of warnings after the first one has come."""
    monkeypatch.setattr(deaths, "PATIENCE_S", 0.3)
    caplog.set_level(logging.WARNING, logger="slipring")
    return lambda: until(lambda: [record.getMessage() for record in caplog.records], "a warning")


@pytest.fixture
def a_lock_at_fork():
    """Hold a lock in a thread during forks; each child takes the lock, as in some libraries."""
    held, lock, may_end = threading.Event(), threading.Lock(), threading.Event()
    wanted = [True]

    def hold():
        with lock:
            held.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    os.register_at_fork(after_in_child=lambda: wanted and lock.acquire())
    yield
    may_end.set()
    thread.join()
    wanted.clear()


def next_in_a_thread(loader):
    """Wait for the first batch in another thread."""
    came = []
    thread = threading.Thread(target=lambda: came.append(list(loader)), daemon=True)
    thread.start()
    return thread, came


def test_a_worker_that_waits_for_a_lock_of_the_time_of_its_fork_is_reported(a_lock_at_fork, told):
    options = {"num_workers": 1, "start_method": "fork", "timeout": 3}
    with Loader(Values(list(range(4))), 2, **grouped(**options)) as loader, pytest.raises(TimeoutError):
        next(iter(loader))
    (text,) = told()
    assert re.search(r"worker 0 \(pid \d+\) has not begun \d s after its start", text)
    for part in ("threads held at the fork", "start_method='forkserver'", "py-spy dump --pid"):
        assert part in text, (part, text)


class SlowToUnpickle(Values):
    def __init__(self, values, path):
        super().__init__(values)
        self.path = path

    def __setstate__(self, state):
        self.__dict__.update(state)
        wait_for_file(self.path)


def test_a_spawned_worker_that_unpickles_long_is_reported_and_serves(told, tmp_path):
    path = str(tmp_path / "go on")
    with Loader(SlowToUnpickle(range(4), path), 2, num_workers=1, workers=Workers(start_method="spawn")) as loader:
        thread, came = next_in_a_thread(loader)
        texts = told()
        open(path, "w").close()
        thread.join()
    assert len(came[0]) == 2
    assert len(texts) == 1 and "it imports modules, or unpickles the dataset" in texts[0]


# In fixed turns: otherwise the other worker makes all batches, and the consumer does not wait for this one.
def test_a_worker_that_stays_in_its_worker_init_fn_is_reported_once(told, tmp_path):
    path = str(tmp_path / "go on")
    options = {
        "num_workers": 2,
        "start_method": "fork",
        "worker_init_fn": lambda number: number == 1 and wait_for_file(path),
        "rng": "worker",
    }
    with Loader(Values(list(range(8))), 2, **grouped(**options)) as loader:
        thread, came = next_in_a_thread(loader)
        told()
        open(path, "w").close()
        thread.join()
        assert len(list(loader)) == 4
        texts = told()
    assert len(came[0]) == 4
    assert len(texts) == 1 and "worker 1 " in texts[0] and "it is in its worker_init_fn" in texts[0]


def test_workers_that_begin_are_not_reported(caplog, monkeypatch):
    monkeypatch.setattr(deaths, "PATIENCE_S", 0.0)
    caplog.set_level(logging.WARNING, logger="slipring")
    with Loader(Values(list(range(8))), 2, num_workers=2, workers=Workers(start_method="fork")) as loader:
        iterator = iter(loader)
        for participant in (1, 2):
            assert engine_of(loader).ring.wait_serving(participant, LONG_S)
        engine_of(loader).pool.starts.look()
        assert len(list(iterator)) == 4
        assert not engine_of(loader).pool.starts.waiting
    assert not caplog.records


SCRIPT = """
from slipring import Loader, Workers

print([batch.tolist() for batch in Loader(range(4), 2, num_workers=1, workers=Workers(start_method={method!r}))])
"""


@pytest.mark.parametrize("method", ["spawn", slow("forkserver")])
def test_a_script_without_a_guard_is_reported(tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(method=method))
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True)
    last = ran.stderr.strip().splitlines()[-1]
    assert ran.returncode == 1 and "WorkerDied" in last and "if __name__ == '__main__':" in last


class Panics:
    """Act as Rust code does."""

    def __len__(self):
        return 2

    def __getitem__(self, i):
        raise BaseException("a panic")


def test_a_base_exception_ends_its_worker_and_is_reported(capfd):
    loader = Loader(Panics(), num_workers=1, workers=Workers(start_method="fork"))
    with loader, pytest.raises(WorkerDied, match=r"indices \[0.*traceback is on stderr"):
        next(iter(loader))
    assert "BaseException: a panic" in capfd.readouterr().err
