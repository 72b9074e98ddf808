"""A progress bar that shows the progress of a pass, and its share of waiting."""

import io
import itertools
import time
import weakref

import pytest

import slipring
from slipring import Memory
from tests.support.datasets import Squares, flat, numbers
from tests.support.inside import progress_module


@pytest.fixture(scope="module", autouse=True)
def tqdms_own():
    """Create tqdm's process-wide objects before the first test, without its monitor's thread.

    tqdm's lock is a semaphore for all processes; with spawn it keeps its name until the process ends.
    """
    try:
        from tqdm.std import TqdmDefaultWriteLock, tqdm
    except ImportError:
        yield
        return
    TqdmDefaultWriteLock.create_mp_lock()
    before, tqdm.monitor_interval = tqdm.monitor_interval, 0
    yield
    tqdm.monitor_interval = before


@pytest.fixture(autouse=True)
def at_each_step(monkeypatch):
    """Compute the figures at each step, not twice a second."""
    monkeypatch.setattr(progress_module(), "LOOK_S", 0.0)


def test_the_batches_are_the_loaders_and_the_figures_are_shown():
    pytest.importorskip("tqdm")
    file = io.StringIO()
    with slipring.Loader(Squares(20), 4, num_workers=1) as loader:
        shown = slipring.progress(loader, description="train", file=file)
        for _ in range(2):
            assert flat(numbers(shown)) == list(range(20))
        assert len(shown) == 5
    text = file.getvalue()
    assert "train" in text and "5/5" in text and "% waiting" in text and "MB/s" in text
    assert 0 < shown.wait_share <= 1


def test_a_stream_without_a_length_is_shown_too():
    pytest.importorskip("tqdm")
    file = io.StringIO()
    assert list(slipring.progress(iter(range(3)), file=file)) == [0, 1, 2]
    assert len(slipring.progress(iter(range(3)), total=3, file=file)) == 3
    assert "3" in file.getvalue()


def test_a_bar_keeps_no_batch():
    pytest.importorskip("tqdm")
    with slipring.Loader(Squares(40), 4, num_workers=1, memory=Memory(copy="never")) as loader:
        for rows, which in slipring.progress(loader, file=io.StringIO()):
            gone = weakref.ref(rows)
            del rows, which
            assert gone() is None


def test_the_share_is_of_the_time_that_was_waited():
    pytest.importorskip("tqdm")
    paused = []

    def pause():
        begun = time.perf_counter()
        time.sleep(0.01)
        paused.append(time.perf_counter() - begun)

    def slow():
        for number in range(3):
            pause()
            yield number

    begun = time.perf_counter()
    shown = slipring.progress(slow(), total=3, file=io.StringIO())
    assert list(shown) == [0, 1, 2]
    assert shown.wait_share >= sum(paused) / (time.perf_counter() - begun)
    paused.clear()
    begun = time.perf_counter()
    shown = slipring.progress(range(3), file=io.StringIO())
    for _ in shown:
        pause()
    assert shown.wait_share <= 1 - sum(paused) / (time.perf_counter() - begun)


def test_a_loop_that_breaks_off_ends_the_bar_and_errors_arrive():
    pytest.importorskip("tqdm")

    def failing():
        yield 1
        raise ZeroDivisionError

    file = io.StringIO()
    with pytest.raises(ZeroDivisionError):
        list(slipring.progress(failing(), file=file))
    for batch in slipring.progress(itertools.count(), file=file):
        if batch == 3:
            break
