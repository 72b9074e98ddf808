"""slipring.adapters.di_engine: the faults of DI-engine's loader that it does not have."""

import functools
import threading
import time

import pytest

pytest.importorskip("torch")

from slipring import WorkerDied
from slipring.adapters.di_engine import AsyncDataLoader
from tests.adapters.jobs import Source, failing, killed, number, rows, take

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def test_row_i_is_always_sample_i():
    loader = AsyncDataLoader(Source(), 8, "cpu", 2, num_workers=4)
    assert take(loader, 60) == rows(60, 8)
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 3])
def test_an_exception_in_a_worker_is_raised_and_the_iteration_continues(num_workers):
    calls = iter(range(100))

    def source(batch_size):
        n = next(calls)
        make = failing if n == 1 else number
        return [functools.partial(make, n * batch_size + k) for k in range(batch_size)]

    loader = AsyncDataLoader(source, 4, "cpu", num_workers=num_workers)
    assert take(loader, 1) == [[0, 1, 2, 3]]
    with pytest.raises(LookupError, match="no sample 4"):
        next(loader)
    assert take(loader, 1) == [[8, 9, 10, 11]]
    loader.close()


def test_an_exception_of_the_source_is_raised_in_its_turn():
    source = Source()

    def failing_third(batch_size):
        if source.calls == 2:
            source.calls += 1
            raise OSError("the buffer is gone")
        return source(batch_size)

    loader = AsyncDataLoader(failing_third, 4, "cpu", num_workers=2)
    assert take(loader, 2) == rows(2, 4)
    with pytest.raises(OSError, match="the buffer is gone"):
        next(loader)
    assert take(loader, 1) == [[12, 13, 14, 15]]
    loader.close()


def test_an_exception_of_collate_fn_is_raised_wherever_it_runs():
    for ready in (False, True):
        loader = AsyncDataLoader(Source(ready=ready), 4, "cpu", collate_fn=lambda samples: 1 / 0, num_workers=2)
        with pytest.raises(ZeroDivisionError):
            next(loader)
        loader.close()


def test_a_killed_worker_is_named():
    loader = AsyncDataLoader(Source(killed), 4, "cpu", num_workers=2)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        next(loader)
    with pytest.raises(Exception, match="ended with an error"):
        next(loader)
    loader.close()


@pytest.mark.parametrize("data", [[], None, [{"x": 1}, len]])
def test_a_source_that_returns_something_else_is_a_type_error(data):
    loader = AsyncDataLoader(lambda batch_size: data, 4, "cpu")
    with pytest.raises(TypeError, match="data_source must return"):
        next(loader)
    loader.close()


def test_work_that_cannot_be_pickled_is_named_with_the_remedy():
    loader = AsyncDataLoader(lambda batch_size: [lambda: 1] * batch_size, 4, "cpu", num_workers=2)
    with pytest.raises(Exception, match=r"<lambda>.* cannot be pickled.*functools\.partial"):
        next(loader)
    with pytest.raises(StopIteration):
        next(loader)
    loader.close()


def test_a_source_that_ends_ends_the_iteration():
    source = Source()

    def finite(batch_size):
        if source.calls == 3:
            raise StopIteration
        return source(batch_size)

    loader = AsyncDataLoader(finite, 4, "cpu", num_workers=2)
    assert [batch["i"].tolist() for batch in loader] == rows(3, 4)
    loader.close()


def test_a_source_that_waits_for_the_consumer_does_not_stop_it():
    source, consumed = Source(), threading.Semaphore(1)

    def on_policy(batch_size):
        consumed.acquire()
        return source(batch_size)

    loader = AsyncDataLoader(on_policy, 4, "cpu", num_workers=2)
    for k in range(10):
        assert take(loader, 1) == [list(range(4 * k, 4 * k + 4))]
        consumed.release()
    consumed.release()
    loader.close()


def test_no_process_polls_while_the_source_waits():
    gate, asked = threading.Event(), threading.Event()

    def late(batch_size):
        asked.set()
        gate.wait()
        return Source()(batch_size)

    loader = AsyncDataLoader(late, 4, "cpu", num_workers=2)
    asked.wait()
    switches, begun = voluntary_switches(), time.monotonic()
    threading.Event().wait(0.5)
    least = time.monotonic() - begun  # on a loaded machine it may be more
    assert voluntary_switches() - switches < 200 * least, "polling each millisecond would show"
    gate.set()
    assert take(loader, 1) == [[0, 1, 2, 3]]
    loader.close()


def voluntary_switches():
    """Return the waits of all threads of this process."""
    import pathlib

    return sum(
        int(line.split()[1])
        for task in pathlib.Path("/proc/self/task").iterdir()
        for line in (task / "status").read_text().splitlines()
        if line.startswith("voluntary_ctxt")
    )
